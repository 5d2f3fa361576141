"""Common sense about search spaces, before any trial: which ranges and schedules are not what people use."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from levelfield.formatting import format_number
from levelfield.hyperparameters import CLOSEST_TO_1, Hyperparameter
from levelfield.space import Axis, Choice, Dimension, Fixed, Integer, Space
from levelfield.study import Study, built_in_studies, load_study, workload_of
from levelfield.study_optimizer import Optimizer
from levelfield.suggestions import known_suggestion
from levelfield.workload import WorkloadKind

Interval = tuple[float, float]

FAR = 1.0  # decades between a range and what is suggested
SMALL_EPSILON = 1e-4  # with a larger ε, the learning rate grows with it and has no usual values


@dataclass(frozen=True)
class Departure:
    """A range, a fixed value, or a schedule that is not what people use."""

    optimizer: str
    axis: str  # its key, or "schedule"
    why: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.optimizer}: {self.axis} {self.why}."


def departures(study: Study) -> list[Departure]:
    """Return the axes of a study's spaces that leave out every usual value, or that are far from what is suggested.

    A range is compared with the suggested one for the same rule and kind of workload, and with those of the built-in
    studies. It is far from them if at least a decade lies between. An optimizer that is meant for another schedule
    departs, too. Spaces of built-in studies are never departures.

    >>> adam = {"learning_rate": 1e-3, "one_minus_beta1": {"log": [1e-4, 1e-3]}, "beta2": 0.999, "epsilon": 1e-8}
    >>> print(*departures(Study(workload="fashion_mini", steps=800, trials=5, optimizers={"adam": adam})))
    adam: one_minus_beta1 in 1e-04 … 0.001 leaves out every usual value of beta1 (0 … 0.995).
    """
    found = []
    for name in study.optimizers:
        optimizer = study.optimizer(name)
        if _space_key(study, optimizer) in _built_in().spaces:
            continue
        if why := _other_schedule(study, optimizer):
            found.append(Departure(name, "schedule", why))
        for axis in optimizer.space:
            if why := _leaves_out(study, name, axis) or _is_far(study, optimizer, axis):
                found.append(Departure(name, axis.key, f"{_shown(axis.dimension)} {why}"))
    return found


def usual_interval(study: Study, optimizer: str, axis: Axis) -> Interval | None:
    """Return the usual values of an axis in its own coordinate, or None if nothing is known.

    For a ratio, these are the coordinates from which some value of the divisor's range leads to a usual value. A
    learning rate has no usual values if ε stays large. The lower end can be 0.
    """
    space, domain = study.optimizer(optimizer).space, study.domain(optimizer, axis.name)
    if domain.usual_range is None or not domain.numeric:
        return None
    if domain.group == "learning rate" and not _epsilon_is_small(study, optimizer):
        return None
    low, high = domain.usual_range
    if axis.one_minus:
        return max(1 - high, CLOSEST_TO_1), 1 - low
    if axis.divisor:
        ratios = [value / divisor for value in (low, high) for divisor in _divisors(space, axis)]
        return min(ratios), max(ratios)
    return low, high


def _epsilon_is_small(study: Study, optimizer: str) -> bool:
    """Return whether every ε of an optimizer's space reaches small values, or the rule's own."""
    space = study.optimizer(optimizer).space
    for axis in space:
        domain = study.domain(optimizer, axis.name)
        if domain.group == "epsilon" and domain.numeric:
            own = domain.default if domain.usual is None else domain.usual
            if _reach(space, axis)[0] > max(SMALL_EPSILON, own or 0.0):
                return False
    return True


# What a range can reach


def _divisors(space: Space, axis: Axis) -> Interval:
    """Return the smallest and the largest value that a ratio divides by."""
    (divisor,) = (other for other in space if other.name == axis.divisor)
    low, high = _reach(space, divisor)
    return (math.sqrt(low), math.sqrt(high)) if axis.root else (low, high)


def _reach(space: Space, axis: Axis) -> Interval:
    """Return the lowest and the highest value of the hyperparameter."""
    if axis.divisor:
        values = [float(end) * divisor for end in axis.dimension.ends for divisor in _divisors(space, axis)]
    else:
        values = [float(value) for value in axis.extremes]
    return min(values), max(values)


# Usual values


def _leaves_out(study: Study, optimizer: str, axis: Axis) -> str:
    """Say that an axis holds no usual value; "" if it does, or if nothing is known."""
    interval = usual_interval(study, optimizer, axis)
    if interval is None or _holds(axis.dimension, interval):
        return ""
    usual = study.domain(optimizer, axis.name).usual_range
    assert usual
    touching = [end for end in axis.dimension.ends if _is_within(float(end), interval)]
    exception = f" except at {format_number(touching[0])}" if touching else ""
    return f"leaves out every usual value of {axis.name} ({_ends(usual)}){exception}"


def _holds(dimension: Dimension, interval: Interval) -> bool:
    """Return whether a dimension shares values with an interval; a range has to share more than an end."""
    if isinstance(dimension, Fixed | Choice):
        return any(_is_within(float(value), interval) for value in dimension.ends)
    low, high = (float(end) for end in dimension.ends)
    low, high = max(low, interval[0]), min(high, interval[1])
    if isinstance(dimension, Integer):
        return math.ceil(low) <= math.floor(high)
    return low < high and not math.isclose(low, high)


def _is_within(value: float, interval: Interval) -> bool:
    """Return whether a value is in an interval, up to rounding errors."""
    return interval[0] <= value <= interval[1] or any(math.isclose(value, end) for end in interval)


# The built-in studies


class _Searched(NamedTuple):
    """The values of a hyperparameter that a built-in study searches."""

    kind: str  # of its workload
    low: float
    high: float


class _BuiltIn(NamedTuple):
    spaces: frozenset[Any]
    searched: dict[Any, list[_Searched]]


@functools.cache
def _built_in() -> _BuiltIn:
    """Return all spaces of the built-in studies, and what they search by rule and hyperparameter."""
    spaces: set[Any] = set()
    searched: dict[Any, list[_Searched]] = {}
    for study in map(load_study, built_in_studies()):
        for optimizer in map(study.optimizer, study.optimizers):
            spaces.add(_space_key(study, optimizer))
            for axis in optimizer.space:
                reach = _Searched(workload_of(study).kind, *_reach(optimizer.space, axis))
                searched.setdefault(_axis_key(optimizer, axis), []).append(reach)
    return _BuiltIn(frozenset(spaces), searched)


def _space_key(study: Study, optimizer: Optimizer) -> Any:
    return study.workload, optimizer.rule.name, optimizer.schedule, optimizer.space


def _axis_key(optimizer: Optimizer, axis: Axis) -> Any:
    """Return the rule and the hyperparameter; a schedule's mean different things in different kinds of schedules."""
    return optimizer.rule.name, axis.name, optimizer.schedule if axis.name in optimizer.scheduled else ""


def _is_far(study: Study, optimizer: Optimizer, axis: Axis) -> str:
    """Say that an axis is far from what is suggested; "" if it is not, or if nothing is."""
    kind = workload_of(study).kind
    ranges = _suggested(optimizer, axis, kind)
    if not ranges:
        return ""
    domain, reach = study.domain(optimizer.name, axis.name), _reach(optimizer.space, axis)
    nearest = min(ranges, key=lambda other: _decades(domain, reach, other))
    if _decades(domain, reach, nearest) < FAR - 1e-9:
        return ""
    where = f"{optimizer.rule.name} on {kind}" if kind else optimizer.rule.name
    return f"is a decade or more from what is suggested for {where} (nearest: {axis.name} {_ends(nearest)})"


def _suggested(optimizer: Optimizer, axis: Axis, kind: WorkloadKind) -> list[Interval]:
    """Return the values of a hyperparameter that the suggestion and the built-in studies search."""
    searched = _built_in().searched.get(_axis_key(optimizer, axis), [])
    ranges = [(other.low, other.high) for other in searched if not kind or other.kind == kind]
    if known := known_suggestion(optimizer.rule.name, kind):
        ranges += [_reach(known.space, other) for other in known.space if other.name == axis.name]
    return ranges


def _other_schedule(study: Study, optimizer: Optimizer) -> str:
    """Say that the rule is meant for another kind of schedule; "" if it is not."""
    known = known_suggestion(optimizer.rule.name, workload_of(study).kind)
    meant = known.table.get("schedule", {}).get("kind", optimizer.schedule) if known else optimizer.schedule
    if meant == optimizer.schedule:
        return ""
    return f"is {optimizer.schedule}, but {optimizer.rule.name} is meant for a {meant} one"


def _decades(domain: Hyperparameter, first: Interval, second: Interval) -> float:
    """Return how far apart two intervals are; 0 if they overlap, or if one of them is 0."""
    if domain.group == "momentum":  # what counts is how close to 1 they are
        first, second = ((1 - high, 1 - low) for low, high in (first, second))
    (_, below), (above, _) = sorted((first, second))
    return math.log10(above / below) if 0 < below < above else 0.0


# Text


def _shown(dimension: Dimension) -> str:
    if isinstance(dimension, Fixed):
        return f"= {format_number(dimension.at)}"
    if isinstance(dimension, Choice):
        return f"in {{{', '.join(map(format_number, dimension.values))}}}"
    return f"in {_ends(dimension.ends)}"


def _ends(interval: Sequence[Any]) -> str:
    """
    >>> _ends((1e-4, 0.001)), _ends((0.9, 0.9))
    ('1e-04 … 0.001', '0.9')
    """
    return " … ".join(dict.fromkeys(map(format_number, interval)))
