"""Which optimizers of a study include which: the rules' inclusions, as far as the free sets let them through.

An optimizer is a rule plus which of its hyperparameters are free. B includes A if B's rule includes A's by a
witness whose values B can take: any for what is free in B, the very value for what is fixed; and the limit must be
free. The ranges decide how much of A's space is covered, which is another question (``coverage``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import qmc

from levelfield.formatting import format_number, join_words
from levelfield.schedules import SCHEDULES
from levelfield.space import Axis, Hyperparameters, Space, Value
from levelfield.study import Optimizer, Study
from levelfield.taxonomy.inclusions import Inclusion, inclusions_between, taken
from levelfield.workloads import get_workload

_POINTS = 64
_ROUNDING = 1e-9  # of a unit coordinate


@dataclass(frozen=True)
class Edge:
    """special ⊆ general, for two optimizers of a study."""

    special: str
    general: str
    ways: tuple[Inclusion, ...]  # of the rules, by which the general one can follow the special one


@dataclass(frozen=True)
class Missing:
    """The general optimizer's rule includes the special one's, but what is fixed in it keeps it from following."""

    special: str
    general: str
    reason: str


def inclusions(study: Study) -> list[Edge]:
    """The inclusions between the optimizers of a study: a partial order, all of it."""
    return _order(study)[0]


def missing(study: Study) -> list[Missing]:
    """The inclusions of rules that do not carry over to the optimizers, each with the reason."""
    return _order(study)[1]


def _order(study: Study) -> tuple[list[Edge], list[Missing]]:
    ways, reasons = {}, {}
    for pair in itertools.permutations(study.optimizers, 2):
        tried = {way: _obstacles(study, *pair, way) for way in _all_ways(study, *pair)}
        ways[pair] = tuple(way for way, obstacles in tried.items() if not obstacles)
        if outside := _outside(study, *pair):
            reasons[pair] = outside
        elif tried and not ways[pair] and not _narrower(study, *pair):
            reasons[pair] = join_words(min(tried.values(), key=len))
    held = {pair for pair in ways if ways[pair] and pair not in reasons}
    for middle, special, general in itertools.product(study.optimizers, repeat=3):
        if special != general and {(special, middle), (middle, general)} <= held and ways[special, general]:
            held.add((special, general))
    return (
        [Edge(*pair, ways[pair]) for pair in ways if pair in held],
        [Missing(*pair, reason) for pair, reason in reasons.items() if pair not in held],
    )


def _narrower(study: Study, special: str, general: str) -> bool:
    """Whether the second is the first one's rule with less of it free: nobody expects it to include the first."""
    ours, theirs = study.optimizer(special), study.optimizer(general)
    return ours.rule is theirs.rule and len(theirs.space.free) < len(ours.space.free)


def reduction(found: Sequence[Edge]) -> list[Edge]:
    """The edges that do not follow from two others."""
    pairs = {(edge.special, edge.general) for edge in found}

    def follows(edge: Edge) -> bool:
        for middle in {general for _, general in pairs} - {edge.special, edge.general}:
            equal = (middle, edge.special) in pairs or (edge.general, middle) in pairs
            if {(edge.special, middle), (middle, edge.general)} <= pairs and not equal:
                return True
        return False

    return [edge for edge in found if not follows(edge)]


def _all_ways(study: Study, special: str, general: str) -> list[Inclusion]:
    return inclusions_between(study.optimizer(special).rule.name, study.optimizer(general).rule.name)


def sample(space: Space, n: int) -> list[Hyperparameters]:
    """Quasi-random points of a space; one where nothing is free."""
    if not space.free:
        return [space.hyperparameters([])]
    return [space.hyperparameters(unit) for unit in qmc.Sobol(len(space.free), rng=0).random(n)]


def translated(
    study: Study,
    special: str,
    general: str,
    way: Inclusion,
    points: Sequence[Hyperparameters],
    open: Mapping[str, Any],
) -> dict[str, Any]:
    """What the general optimizer's hyperparameters must be to follow the special one's points: arrays over them.

    Arrays in ``open`` add an axis on the right. What varies with the step is taken in the middle of training, where
    corrections for its start have died away; the schedule itself goes over as it is.
    """
    ours, theirs = study.optimizer(special), study.optimizer(general)
    shape = (-1, *[1] * max((np.ndim(value) for value in open.values()), default=0))
    given = {name: _column([point[name] for point in points], shape) for name in points[0]}
    others = {name: given.pop(name) for name in list(given) if name not in ours.rule.hyperparameters}
    if ours.schedule != theirs.schedule:  # a constant rate is any other one that does not decay
        others |= {name: 1.0 for name in SCHEDULES[theirs.schedule] if name == "decay_factor"}
    defaults = {name: about.default for name, about in ours.rule.hyperparameters.items() if about.default is not None}
    with np.errstate(all="ignore"):
        image = way.image(defaults | given, open)
        settled = {name: value(study.steps // 2) if callable(value) else value for name, value in image.items()}
    return others | settled


def _column(values: list[Any], shape: tuple[int, ...]) -> Any:
    return values[0] if isinstance(values[0], bool | str) else np.array(values, float).reshape(shape)


def needed(values: Mapping[str, Any], one: Axis, shape: tuple[int, ...]) -> list[Value | None]:
    """Where on an axis the translated points lie, one after the other; None where the witness does not say."""
    names = [name for name in (one.name, one.divisor) if name]
    if any(name not in values for name in names):
        return [None] * math.prod(shape)
    columns = [np.broadcast_to(np.asarray(values[name], object), shape).ravel() for name in names]
    return [one.coordinate(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def bearing(theirs: Optimizer, values: Mapping[str, Any]) -> list[Axis]:
    """The axes that must hold the values: all, but the length of a decay where there is none."""
    return [one for one in theirs.space if one.name in values or one.name not in SCHEDULES[theirs.schedule]]


def overshoot(one: Axis, at: Value | None) -> float:
    """How far a place lies outside an axis, in lengths of its range; infinite where no such range would hold it."""
    if at is None:
        return math.inf
    end = one.dimension.ends[0]
    if not one.dimension.free:
        same = at == end if isinstance(end, bool | str) else math.isclose(float(at), float(end), rel_tol=1e-9)
        return 0.0 if same else math.inf
    unit = one.dimension.unit(at)
    beyond = math.inf if math.isnan(unit) else max(-unit, unit - 1)
    return beyond if beyond > _ROUNDING else 0.0


def carried(way: Inclusion, name: str) -> str:
    """What a value that the witness leaves open is called by the general rule."""
    probe = 0.7654321
    middle = way.space.hyperparameters([0.5] * len(way.space.free)) | dict(way.where)
    return next((there for there, value in way.image(middle, {name: probe}).items() if value == probe), name)


def _obstacles(study: Study, special: str, general: str, way: Inclusion) -> list[str]:
    """What keeps the general optimizer from following the special one by this way."""
    ours, theirs = study.optimizer(special), study.optimizer(general)
    if ours.schedule not in (theirs.schedule, "constant"):
        return [f"its schedule is {theirs.schedule}, {special}'s is {ours.schedule}"]
    if ours.schedule != "constant" and not way.lifts:
        return [f"{way.general} follows {way.special} at a constant learning rate only"]
    for name, value in way.where.items():
        own = [one.dimension.ends[0] for one in ours.space if one.name == name and one.dimension.ends[0] != value]
        if own:
            return [f"{special}'s {name} is {own[0]}"]
    if way.witnesses:
        lost = set(ours.space.names) & ours.rule.hyperparameters.keys() - taken(way) - way.where.keys()
        if lost:
            return [f"{name} has no counterpart in {way.general}" for name in sorted(lost)]
    points = sample(ours.space, _POINTS)
    values = translated(study, special, general, way, points, way.open)
    limit = carried(way, way.limit) if way.limit else None
    opened = {carried(way, name) for name in way.open} - {limit}
    if ours.schedule != theirs.schedule:
        opened |= SCHEDULES[theirs.schedule].keys() - {"decay_factor"}  # without a decay, its length does not matter
    found = []
    for one in theirs.space:
        if one.dimension.free or one.name in opened:
            continue
        if one.name == limit or any(overshoot(one, at) for at in needed(values, one, (len(points),))):
            found.append(f"{one.key} is fixed at {format_number(one.dimension.ends[0])}")
    return found + _left_out(study, theirs, values, opened)


def _left_out(study: Study, theirs: Optimizer, values: Mapping[str, Any], opened: set[str]) -> list[str]:
    """What the general optimizer's space does not name stays at its default: that must be the value it needs."""
    known = {**get_workload(study.workload).hyperparameters, **theirs.rule.hyperparameters}
    found = []
    for name in sorted(values.keys() - set(theirs.space.names) - opened):
        default = known[name].default if name in known else None
        off = default is None and np.all(np.asarray(values[name]) == 0)  # optax's way to say: no momentum
        if not off and not np.all(np.asarray(values[name]) == default):
            found.append(f"{name} is not in its space" if default is None else f"{name} stays at {default}")
    return found


def _outside(study: Study, special: str, general: str) -> str | None:
    """For two optimizers of one rule: what is fixed in the special one and out of the general one's range.

    Where both have the same free, the general one's space must hold all of the other's.
    """
    ours, theirs = study.optimizer(special), study.optimizer(general)
    if ours.rule is not theirs.rule:
        return None
    same = {one.name for one in ours.space.free} == {one.name for one in theirs.space.free}
    points = sample(ours.space, _POINTS)
    (identity,) = _all_ways(study, special, general)
    values = translated(study, special, general, identity, points, {})
    out = []
    for one in bearing(theirs, values):
        if not one.dimension.free:
            continue
        places = needed(values, one, (len(points),))
        single = len(set(places)) == 1
        if (same or single) and any(overshoot(one, at) for at in places):
            out.append(f"{one.key} = {format_number(places[0])}" if single and places[0] is not None else one.key)
    return f"{special}'s {join_words(out)} leave{'s' if len(out) == 1 else ''} {general}'s range" if out else None
