"""Starting points: for each rule and kind of workload a search space, and where its ranges come from."""

from __future__ import annotations

import functools
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from levelfield.errors import UnknownName, UsageError
from levelfield.formatting import format_range
from levelfield.hyperparameters import CLOSEST_TO_1, Hyperparameter
from levelfield.rules import Rule, get_rule
from levelfield.space import Space
from levelfield.study import Study, built_in_studies, load_study
from levelfield.study_file import optimizer_toml, table_toml
from levelfield.workload import WorkloadKind, check_kind
from levelfield.workloads import get_workload

_FACTOR = 10.0  # of derived ranges: a decade either side
_ANY_RATE = (1e-5, 1e1)  # where nothing is known
_WIDTH = 118  # of a comment
# A study that is made from suggestions has these of the built-in study of its workload, or else those below.
_KEPT = ("workload", "steps", "eval_interval", "trials", "target")
_EVALUATIONS, _TRIALS = 20, 10
_SCHEDULE = {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": {"choice": [1e-3, 1e-2, 1e-1]}}


@dataclass(frozen=True)
class Suggestion:
    """A search space to start from, and where its ranges come from."""

    rule: str
    kind: WorkloadKind  # of the workloads that it is for; "" for any
    table: Mapping[str, Any]  # of the study file: hyperparameters and, if the rule needs its own, the schedule
    source: str

    @property
    def space(self) -> Space:
        return Space.parse({key: value for key, value in self.table.items() if key != "schedule"})

    def __str__(self) -> str:
        """Return the space on one line.

        >>> print(suggestion("optax.adam"))
        learning_rate log [1e-04, 0.01], one_minus_b1 log [0.004, 0.1]
        """
        schedule = self.table.get("schedule")
        axes = [f"{axis.key} {format_range(axis.dimension)}" for axis in self.space]
        return ", ".join([*axes, *([f"{schedule['kind']} schedule"] if schedule else [])])

    def toml(self, name: str | None = None) -> str:
        """Return the optimizer's table as a study file has it, with the source as a comment."""
        lines = textwrap.wrap(f"Source: {self.source}.", _WIDTH, break_long_words=False)
        rule = {} if name in (None, self.rule) else {"rule": self.rule}
        return "".join(f"# {line}\n" for line in lines) + optimizer_toml(name or self.rule, rule | dict(self.table))

    def as_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "kind": self.kind, "space": dict(self.table), "source": self.source}


def suggestion(rule: str, kind: WorkloadKind = "") -> Suggestion:
    """Return the search space to start from for a rule on a kind of workload.

    If nothing is known of the rule on this kind, it is what is known of the rule on any; if nothing is known of the
    rule, its ranges are derived from its defaults and usual values.
    """
    check_kind(kind)
    about, known = get_rule(rule), known_suggestion(rule, kind)
    if known is None:
        return Suggestion(rule, "", _derived(about), "derived: " + _DERIVATION)
    missing = {name for name, domain in about.hyperparameters.items() if domain.required}
    return replace(known, table={**known.table, **_derived(about, missing.difference(known.space.names))})


def known_suggestion(rule: str, kind: WorkloadKind = "") -> Suggestion | None:
    """Return the suggestion for a rule whose ranges are not derived from its defaults, if there is one."""
    return _known().get((rule, kind)) or _known().get((rule, ""))


@functools.cache
def _known() -> dict[tuple[str, str], Suggestion]:
    """Return the suggestions of the file by rule and kind of workload."""
    text = (resources.files("levelfield") / "suggestions.toml").read_text("utf-8")
    return {
        (rule, entry.get("kind", "")): Suggestion(rule, entry.get("kind", ""), entry["space"], entry["source"])
        for entry in tomllib.loads(text)["suggestion"]
        for rule in entry["rules"]
    }


# Rules of which nothing is known but their hyperparameters

_DERIVATION = (
    "a decade either side of the default learning rate, or all its usual values, and a decade either side of default "
    "momentum; the rest is at its defaults"
)


def _derived(rule: Rule, names: set[str] | None = None) -> dict[str, Any]:
    """Return ranges for a rule's hyperparameters, or for some of them, from their defaults and usual values."""
    table: dict[str, Any] = {}
    for name, domain in rule.hyperparameters.items():
        if names is not None and name not in names:
            continue
        default = domain.default if domain.usual is None else domain.usual
        if name == "learning_rate":
            table[name] = {"log": list(_rates(domain, default))}
        elif domain.group == "momentum" and domain.traced and isinstance(default, float) and 0 < default < 1:
            table[f"one_minus_{name}"] = {"log": list(_one_minus(domain, default))}
        elif domain.required:
            table[name] = _value(rule, name, domain, default)
    return table


def _rates(domain: Hyperparameter, default: Any) -> tuple[float, float]:
    if default:
        return _rounded(default / _FACTOR), _rounded(min(default * _FACTOR, domain.high))
    return domain.usual_range or _ANY_RATE


def _one_minus(domain: Hyperparameter, default: float) -> tuple[float, float]:
    """Return a range of 1 − the hyperparameter, within its usual values."""
    low, high = domain.usual_range or (0.0, 1.0)
    ends = max((1 - default) / _FACTOR, 1 - high, CLOSEST_TO_1), min((1 - default) * _FACTOR, 1 - low)
    return _rounded(ends[0]), _rounded(ends[1])


def _value(rule: Rule, name: str, domain: Hyperparameter, default: Any) -> Any:
    """Return a value, or a range, for a hyperparameter that cannot be left out."""
    if default is not None:
        return default
    if domain.numeric and domain.traced and domain.usual_range:
        low, high = domain.usual_range
        return {"log" if low > 0 else "uniform": [low, high]}
    raise UsageError(
        f"no space can be suggested for {rule.name}: it needs {name}, of which neither a default nor usual values are "
        f"known; declare them with Hyperparameter(default=…, usual_range=(…, …))"
    )


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


# Studies


def suggested_study(rules: Sequence[str], workload: str) -> str:
    """Return a study of these rules as a TOML file, each with its suggested space.

    Steps, K, target and schedule are those of the built-in study of the workload, if there is one.
    """
    about, like = get_workload(workload), _study_on(workload)
    if like:
        spec = like.spec()
        content: dict[str, Any] = {key: spec[key] for key in _KEPT if key in spec}
        schedule = next(iter(spec["optimizers"].values()))["schedule"]
        note = f"# Steps, trials, target, and schedule: those of the built-in study {like.name}."
    else:
        content = {"workload": workload, "steps": _EVALUATIONS * (about.eval_interval or 1), "trials": _TRIALS}
        schedule, note = _SCHEDULE, "# Choose the number of steps and of trials; add a target if there is one."
    return "\n".join(
        [f"{note}\n{table_toml(content)}", f"[schedule]\n{table_toml(schedule)}", suggested_tables(rules, about.kind)]
    )


def suggested_tables(rules: Sequence[str], kind: WorkloadKind = "") -> str:
    """Return these rules' suggested spaces as tables to paste into a study file."""
    suggested = [suggestion(rule, kind) for rule in dict.fromkeys(rules)]
    return "\n".join(each.toml(name) for name, each in zip(_names(suggested), suggested, strict=True))


def _study_on(workload: str) -> Study | None:
    """Return a built-in study on a workload: the first by name, which has the shortest one."""
    studies = (load_study(name) for name in sorted(built_in_studies(), key=len))
    return next((study for study in studies if study.workload == workload), None)


def _names(suggested: Sequence[Suggestion]) -> list[str]:
    """Return names for optimizers: their rules', without the module where no other rule has that name."""
    short = [each.rule.rpartition(".")[2].rpartition(":")[2] for each in suggested]
    return [
        name if short.count(name) == 1 and not _is_rule(name) else each.rule
        for name, each in zip(short, suggested, strict=True)
    ]


def _is_rule(name: str) -> bool:
    try:
        return bool(get_rule(name))
    except UnknownName:
        return False
