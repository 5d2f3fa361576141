"""Tuning protocols derived from a full study: the learning rate alone, then more and more of the rest.

Each rung holds every rule of the study, with the hyperparameters of that rung free and the others at their usual
values. The paper's Figures 3 and 4 are such ladders: the ranking depends on the rung.
"""

from __future__ import annotations

from typing import Any

from levelfield.errors import SpaceError, StudyError, UsageError
from levelfield.hyperparameters import GROUPS, Hyperparameter
from levelfield.schedules import SCHEDULES
from levelfield.space import Axis
from levelfield.study import Optimizer, Study

RUNGS = ("learning rate", "+ schedule", "+ momentum", "+ epsilon", "everything")  # each frees a group of GROUPS


def ladder(study: Study) -> Study:
    """One study of all rungs; rungs that give no rule anything new are left out.

    An optimizer that a rung gives nothing new has the trials of the rung below, which the store shares.
    """
    for name in study.optimizers:
        if not study.optimizer(name).space.free:
            raise UsageError(f"{name} has nothing free: a ladder takes away what a study tunes")
    tables: dict[str, Any] = {}
    last: dict[str, Any] = {}
    for rung in range(len(RUNGS)):
        tuned = {name: _at(study, study.optimizer(name), rung) for name in study.optimizers}
        if tuned == last:
            continue
        last = tuned
        for name, table in tuned.items():
            tables[f"{name} ({RUNGS[rung]})"] = table | {"protocol": RUNGS[rung]}
    try:
        return study.replace(name=f"{study.name}_ladder", optimizers=tables)
    except (StudyError, SpaceError):
        if study.search != "grid":
            raise
        raise UsageError("a ladder takes a quasi-random search: the rungs of this grid have too few points") from None


def _at(study: Study, optimizer: Optimizer, rung: int) -> dict[str, Any]:
    """An optimizer's table at a rung."""
    scheduled = rung >= GROUPS.index("schedule")
    table: dict[str, Any] = {"rule": optimizer.rule.name}
    schedule: dict[str, Any] = {"kind": optimizer.schedule if scheduled else "constant"}
    domains = {axis.name: study.domain(optimizer.name, axis.name) for axis in optimizer.space}
    fixed = {axis.name for axis in optimizer.space if not _free(axis, domains[axis.name], rung)}
    for axis in optimizer.space:
        if axis.name in SCHEDULES[optimizer.schedule]:
            if scheduled:
                schedule[axis.key] = axis.dimension.spec()
        elif axis.name not in fixed:
            # A ratio to ε says nothing once ε is small: the rate itself takes its place.
            whole = axis.divisor in fixed
            table[axis.name if whole else axis.key] = (
                _usual_range(axis, domains[axis.name]) if whole else axis.dimension.spec()
            )
        else:
            value = _usual(axis, domains[axis.name])
            if value is not None:
                table[axis.name] = value
    return table | {"schedule": schedule}


def _free(axis: Axis, hyperparameter: Hyperparameter, rung: int) -> bool:
    """Whether a rung tunes an axis that the study does; what the study has fixed stays as it is."""
    return not axis.dimension.free or GROUPS.index(hyperparameter.group) <= rung


def _usual(axis: Axis, hyperparameter: Hyperparameter) -> Any:
    """A hyperparameter that is not tuned: its usual value, or None to leave it off."""
    if hyperparameter.usual is not None:
        return hyperparameter.usual
    if not hyperparameter.required:
        return hyperparameter.default
    raise UsageError(f"No usual value is known for {axis.name}; set usual= or fix it in the study")


def _usual_range(axis: Axis, hyperparameter: Hyperparameter) -> dict[str, Any]:
    if hyperparameter.usual_range is None:
        raise UsageError(f"No usual range is known for {axis.name}; set usual_range= or search {axis.name} itself")
    return {"log": list(hyperparameter.usual_range)}
