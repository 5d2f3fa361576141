"""An optimizer of a study: its table in a study file, and the rule, schedule and search space that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from levelfield.errors import SpaceError, StudyError, UnknownName, suggestion
from levelfield.hyperparameters import Hyperparameter, check_domain
from levelfield.options import OPTIONS, check_no_option
from levelfield.rules import Rule, declared_rule, get_rule
from levelfield.schedules import SCHEDULES
from levelfield.space import Space
from levelfield.workload import BaseWorkload, Workload


@dataclass(frozen=True)
class Optimizer:
    """A rule, which of its hyperparameters are free, and their ranges."""

    name: str
    rule: Rule
    schedule: str
    space: Space
    protocol: str = ""
    corrected: Mapping[str, str] = field(default_factory=dict)  # axis → what the source printed wrongly

    @property
    def scheduled(self) -> Mapping[str, Hyperparameter]:
        """The hyperparameters of its schedule, except those that the rule has itself."""
        own = self.rule.hyperparameters
        return {name: about for name, about in SCHEDULES[self.schedule].items() if name not in own}

    def spec(self) -> dict[str, Any]:
        """Return the optimizer's table as a study file writes it."""
        return optimizer_table(self, self.space.spec())


def optimizer_table(
    optimizer: Optimizer, values: Mapping[str, Any], schedule: str | None = None, protocol: str | None = None
) -> dict[str, Any]:
    """Return a study file's table for an optimizer's rule with other values or ranges.

    The schedule's values go into a table of their own. ``schedule`` and ``protocol`` default to the optimizer's.
    """
    chosen = optimizer if schedule is None else replace(optimizer, schedule=schedule)
    protocol = optimizer.protocol if protocol is None else protocol
    own = optimizer.space.spec()
    corrected = {key: note for key, note in optimizer.corrected.items() if values.get(key) == own.get(key)}
    table: dict[str, Any] = {"rule": optimizer.rule.name}
    table |= {"protocol": protocol} if protocol else {}
    table |= {"corrected": corrected} if corrected else {}
    scheduled = {key: value for key, value in values.items() if key in chosen.scheduled}
    table |= {key: value for key, value in values.items() if key not in optimizer.scheduled}
    return table | {"schedule": {"kind": chosen.schedule} | scheduled}


def parse_optimizer(name: str, table: Any, study_schedule: Mapping[str, Any], workload: BaseWorkload) -> Optimizer:
    """Return the optimizer that a study file's table describes; one that is parsed already stays as it is."""
    if isinstance(table, Optimizer):
        return table
    if not isinstance(table, Mapping):
        raise StudyError(f"{table!r}: expected a table of hyperparameters")
    table = dict(table)
    rule_name = _text(table, "rule", name)
    protocol = _text(table, "protocol", "")
    corrected = table.pop("corrected", {})
    kind, schedule = _schedule(table.pop("schedule", {}), study_schedule)
    rule = _rule(rule_name, table, workload)
    needs_rate = kind != "constant" or schedule or isinstance(workload, Workload)
    if needs_rate and "learning_rate" not in rule.hyperparameters:
        raise StudyError(f"rule {rule.name} has no learning_rate; a study needs one to schedule")
    for both in sorted(rule.hyperparameters.keys() & schedule.keys()):
        raise StudyError(f"schedule.{both}: {rule.name} has a {both} of its own; give it in the optimizer's table")
    for key in table.keys() & schedule.keys():
        raise StudyError(f"{key} is given both in the optimizer's table and in its schedule; keep the schedule's")
    for both in sorted(rule.hyperparameters.keys() & workload.hyperparameters.keys()):
        raise StudyError(f"{both} is a hyperparameter of both {rule.name} and {workload.name}; rename the workload's")
    space = Space.parse(table | schedule)
    domains = known_domains(rule, kind, workload)
    for axis in space:
        if axis.name not in domains:
            check_no_option(axis.name, rule.name)
            raise UnknownName.of(f"hyperparameter of {rule.name} on {workload.name}", axis.name, domains)
        check_domain(axis, domains[axis.name])
    for needed, domain in domains.items():
        if domain.required and needed not in space.names:
            raise SpaceError(f"{needed} is missing: {rule.name} needs it; give it a range or a value")
    if not isinstance(corrected, Mapping):
        raise StudyError(f"corrected = {corrected!r}: expected a table from hyperparameters to notes")
    for key in corrected:
        if key not in (keys := [axis.key for axis in space]):
            raise UnknownName.of("axis of this space", key, keys)
    return Optimizer(name, rule, kind, space, protocol, {key: str(note) for key, note in corrected.items()})


def _rule(name: str, table: Mapping[str, Any], workload: BaseWorkload) -> Rule:
    """Return a rule. Only JAX needs to know it: for other training code it may be just a name."""
    try:
        return get_rule(name)
    except UnknownName:
        if isinstance(workload, Workload):
            raise
        names = [axis.name for axis in Space.parse(table) if axis.name not in workload.hyperparameters]
        return declared_rule(name, names)


def _schedule(own: Any, shared: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return an optimizer's kind of schedule and its values.

    The optimizer's own table refines the study's, or replaces it if the two are of different kinds.
    """
    if not isinstance(own, Mapping):
        raise StudyError(f'schedule = {own!r}: expected a table such as {{ kind = "linear", … }}')
    shared_kind = shared.get("kind", "constant")
    kind = own.get("kind", shared_kind)
    values = {**(shared if kind == shared_kind else {}), **own}
    values.pop("kind", None)
    if not isinstance(kind, str) or kind not in SCHEDULES:
        raise UnknownName.of("schedule", str(kind), SCHEDULES)
    for key in values:
        if key not in SCHEDULES[kind]:
            if "kind" not in {**shared, **own}:
                raise StudyError(f"schedule.kind is missing; expected one of: {', '.join(sorted(SCHEDULES))}")
            raise StudyError(f"schedule.{key}: unknown value of a {kind} schedule{suggestion(key, SCHEDULES[kind])}")
    for key, about in SCHEDULES[kind].items():
        if about.required and key not in values:
            raise StudyError(f"schedule.{key} is missing: a {kind} schedule needs it")
    return kind, values


def known_domains(rule: Rule, schedule: str, workload: BaseWorkload) -> dict[str, Hyperparameter]:
    """Return the hyperparameters that an optimizer could have: its rule's, schedule's, workload's and options."""
    options = OPTIONS if isinstance(workload, Workload) else {}
    return {**options, **workload.hyperparameters, **SCHEDULES[schedule], **rule.hyperparameters}


def _text(table: dict[str, Any], key: str, default: str) -> str:
    value = table.pop(key, default)
    if not isinstance(value, str):
        raise StudyError(f"{key} = {value!r}: expected a string")
    return value
