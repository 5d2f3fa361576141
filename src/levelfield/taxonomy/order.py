"""The inclusions between the optimizers of a study, which follow from the inclusions between their rules.

An optimizer is a rule plus which of its hyperparameters are free. B includes A if B's rule includes A's by a witness
whose values B can take: any value for a free hyperparameter, exactly its value for a fixed one. A limit must be free.
How much of A's space B's ranges cover is another question (``coverage``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from levelfield.formatting import format_number, join_words
from levelfield.options import OPTIONS
from levelfield.schedules import WARMUP, special_case
from levelfield.space import Axis, Hyperparameters, Log, Space, Uniform, Value
from levelfield.study import Study
from levelfield.study_optimizer import Optimizer
from levelfield.taxonomy.inclusions import Inclusion, inclusions_between

_POINTS = 64
_ROUNDING = 1e-9  # of a unit coordinate


@dataclass(frozen=True)
class Edge:
    """special ⊆ general, for two optimizers of a study."""

    special: str
    general: str
    ways: tuple[Inclusion, ...]  # the inclusions of the rules by which the general one can follow the special one

    @property
    def has_limit(self) -> bool:
        return any(way.limit for way in self.ways)


@dataclass(frozen=True)
class Missing:
    """An inclusion of the rules that the optimizers do not have, because of what is fixed in the general one."""

    special: str
    general: str
    reason: str


def inclusions(study: Study) -> list[Edge]:
    """Return the inclusions between the optimizers of a study: a partial order, with all pairs that follow."""
    return _order(study)[0]


def missing(study: Study) -> list[Missing]:
    """Return the inclusions of rules that do not carry over to the optimizers, each with the reason."""
    return _order(study)[1]


def _order(study: Study) -> tuple[list[Edge], list[Missing]]:
    ways, reasons = {}, {}
    for pair in itertools.permutations(study.optimizers, 2):
        obstacles = {way: _obstacles(study, *pair, way) for way in _rule_inclusions(study, *pair)}
        ways[pair] = tuple(way for way in obstacles if not obstacles[way])
        if outside := _outside(study, *pair):
            reasons[pair] = outside
        elif obstacles and not ways[pair] and not _narrower(study, *pair):
            reasons[pair] = join_words(min(obstacles.values(), key=len))
    held = {pair for pair in ways if ways[pair] and pair not in reasons}
    for middle, special, general in itertools.product(study.optimizers, repeat=3):
        if special != general and {(special, middle), (middle, general)} <= held and ways[special, general]:
            held.add((special, general))
    return (
        [Edge(*pair, ways[pair]) for pair in ways if pair in held],
        [Missing(*pair, reason) for pair, reason in reasons.items() if pair not in held],
    )


def _narrower(study: Study, special: str, general: str) -> bool:
    """Return whether the second is the first one's rule with less of it free, so that no inclusion is expected."""
    first, second = study.optimizer(special), study.optimizer(general)
    return first.rule is second.rule and len(second.space.free) < len(first.space.free)


def reduction(edges: Sequence[Edge]) -> list[Edge]:
    """Return the edges that do not follow from two others."""
    pairs = {(edge.special, edge.general) for edge in edges}

    def follows(edge: Edge) -> bool:
        for middle in {general for _, general in pairs} - {edge.special, edge.general}:
            equal = (middle, edge.special) in pairs or (edge.general, middle) in pairs
            if {(edge.special, middle), (middle, edge.general)} <= pairs and not equal:
                return True
        return False

    return [edge for edge in edges if not follows(edge)]


def _rule_inclusions(study: Study, special: str, general: str) -> list[Inclusion]:
    return inclusions_between(study.optimizer(special).rule.name, study.optimizer(general).rule.name)


def sample(space: Space, n: int) -> list[Hyperparameters]:
    """Return n quasi-random points of a space; a single one if nothing is free."""
    if not space.free:
        return [space.hyperparameters([])]
    from scipy.stats import qmc  # takes a second to import

    return [space.hyperparameters(unit) for unit in qmc.Sobol(len(space.free), rng=0).random(n)]


def column(values: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Return numbers as an array; switches and strings, which are the same for all points, as they are."""
    return values[0] if isinstance(values[0], bool | str) else np.array(values, float).reshape(shape)


def translated(
    study: Study,
    special: str,
    general: str,
    way: Inclusion,
    points: Sequence[Hyperparameters],
    open: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the general optimizer's hyperparameters that follow the special one's points, as arrays over the points.

    Arrays in ``open`` add an axis on the right. A value that varies with the step is taken in the middle of training,
    where corrections for the start have died away; the schedule carries over unchanged.
    """
    special_optimizer, general_optimizer = study.optimizer(special), study.optimizer(general)
    hyperparameters = special_optimizer.rule.hyperparameters
    shape = (-1, *[1] * max((np.ndim(value) for value in open.values()), default=0))
    columns = {name: column([point[name] for point in points], shape) for name in points[0]}
    values = {name: about.default for name, about in hyperparameters.items() if about.default is not None}
    values |= {name: value for name, value in columns.items() if name in hyperparameters}
    others = {name: value for name, value in columns.items() if name not in hyperparameters}
    others = _settings(study, special_optimizer, general_optimizer) | others
    with np.errstate(all="ignore"):
        image = way.image(values, open)
        settled = {name: value(study.steps // 2) if callable(value) else value for name, value in image.items()}
        if "weight_decay" in others and "learning_rate" in values:
            # The option multiplies it by the learning rate, which the witness may change.
            others["weight_decay"] = others["weight_decay"] * values["learning_rate"] / settled["learning_rate"]
    return others | settled


def _settings(study: Study, special: Optimizer, general: Optimizer) -> dict[str, Any]:
    """Return the values of the general optimizer's schedule and options where the special one does not set them."""
    known = study.domains(general.name)
    off = {name: about.default for name, about in OPTIONS.items() if known.get(name) is about}
    unset = {name: about.default for name, about in special.scheduled.items() if name in general.scheduled}
    values = off | unset | (special_case(special.schedule, general.schedule) or {})
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Places:
    """Where translated points lie on an axis of the general optimizer's space."""

    axis: Axis
    coordinates: np.ndarray  # None if the witness does not say
    beyond: np.ndarray  # how far they lie outside the axis, in lengths of its range; infinite if no range would help


def places_on(axis: Axis, values: Mapping[str, Any], shape: tuple[int, ...]) -> Places:
    """Return where the translated points lie on an axis. ``values`` broadcast to ``shape``."""
    names = [name for name in (axis.name, axis.divisor) if name]
    if not all(name in values for name in names):
        return Places(axis, np.full(shape, None), np.full(shape, np.inf))
    if isinstance(axis.dimension, Log | Uniform):
        coordinates = _coordinates(axis, values)
        beyond = _overshoots(axis.dimension, coordinates)
    else:
        columns = np.broadcast_arrays(*(np.asarray(values[name], object) for name in names))
        rows = zip(*(column.ravel() for column in columns), strict=True)
        listed = [axis.coordinate(dict(zip(names, row, strict=True))) for row in rows]
        coordinates = np.empty(len(listed), object)
        coordinates[:] = listed
        coordinates = coordinates.reshape(columns[0].shape)
        beyond = np.array([_overshoot(axis, coordinate) for coordinate in listed]).reshape(columns[0].shape)
    # Many values do not depend on all axes of the shape, and broadcasting afterwards is cheaper.
    return Places(axis, np.broadcast_to(coordinates, shape), np.broadcast_to(beyond, shape))


def _coordinates(axis: Axis, values: Mapping[str, Any]) -> np.ndarray:
    """Return ``axis.coordinate`` of many values at once, for a range."""
    value = np.asarray(values[axis.name], float)
    with np.errstate(all="ignore"):
        if axis.one_minus:
            return 1.0 - value
        if axis.divisor:
            divisor = np.asarray(values[axis.divisor], float)
            return np.asarray(value / (np.sqrt(divisor) if axis.root else divisor))
    return value


def _overshoots(dimension: Log | Uniform, coordinates: np.ndarray) -> np.ndarray:
    """Return how far outside a range many coordinates lie, as ``_overshoot`` does for one."""
    with np.errstate(all="ignore"):
        if isinstance(dimension, Log):
            low, length = math.log(dimension.low), math.log(dimension.high) - math.log(dimension.low)
            units = (np.log(np.maximum(coordinates, 0.0)) - low) / length
        else:
            units = (coordinates - dimension.low) / (dimension.high - dimension.low)
        beyond = np.where(np.isnan(units), np.inf, np.maximum(-units, units - 1))
    return np.asarray(np.where(beyond > _ROUNDING, beyond, 0.0))


def relevant_axes(optimizer: Optimizer, values: Mapping[str, Any]) -> list[Axis]:
    """Return the axes that must hold the values: all but the length of a decay if nothing decays."""
    return [axis for axis in optimizer.space if axis.name in values or axis.name not in optimizer.scheduled]


def _overshoot(axis: Axis, coordinate: Value) -> float:
    """Return how far outside an axis a coordinate lies, in lengths of its range; infinite if no range could hold it."""
    end = axis.dimension.ends[0]
    if not axis.dimension.free:
        if isinstance(end, bool | str):
            return 0.0 if coordinate == end else math.inf
        return 0.0 if math.isclose(float(coordinate), float(end), rel_tol=1e-9) else math.inf
    unit = axis.dimension.unit(coordinate)
    beyond = math.inf if math.isnan(unit) else max(-unit, unit - 1)
    return beyond if beyond > _ROUNDING else 0.0


def _obstacles(study: Study, special: str, general: str, way: Inclusion) -> list[str]:
    """Return what keeps the general optimizer from following the special one by this inclusion of their rules."""
    special_optimizer, general_optimizer = study.optimizer(special), study.optimizer(general)
    if refusal := _refusal(special_optimizer, general_optimizer, way):
        return refusal
    points = sample(special_optimizer.space, _POINTS)
    values = translated(study, special, general, way, points, way.open)
    limit = way.carried(way.limit) if way.limit else None
    open_names = {way.carried(name) for name in way.open} - {limit}
    open_names |= general_optimizer.scheduled.keys() - values.keys()  # without a decay, its length does not matter
    obstacles = []
    for axis in general_optimizer.space:
        if axis.dimension.free or axis.name in open_names:
            continue
        if axis.name == limit or places_on(axis, values, (len(points),)).beyond.any():
            obstacles.append(f"{axis.key} is fixed at {format_number(axis.dimension.ends[0])}")
    return obstacles + _left_out(study, general_optimizer, values, open_names)


def _refusal(special: Optimizer, general: Optimizer, way: Inclusion) -> list[str]:
    """Return what rules the inclusion out whatever the general optimizer's space: schedules and switches."""
    if special_case(special.schedule, general.schedule) is None:
        return [f"its schedule is {general.schedule}, {special.name}'s is {special.schedule}"]
    if not way.lifts and not _is_constant(special):
        return [f"{way.general} can imitate {way.special} only at a constant learning rate"]
    for axis in special.space:
        value = axis.dimension.ends[0]
        if axis.name in way.where and value != way.where[axis.name]:
            return [f"{special.name}'s {axis.name} is {value}"]
    options = OPTIONS.keys() - special.rule.hyperparameters.keys()
    for axis in special.space:
        if axis.name not in options & general.rule.hyperparameters.keys():
            continue
        if set(axis.extremes) != {OPTIONS[axis.name].default}:
            return [f"{special.name}'s {axis.name} is the option, {general.name}'s is that of {general.rule.name}"]
    if way.witnesses:
        lost = set(special.space.names) & special.rule.hyperparameters.keys() - way.takes - way.where.keys()
        return [f"{name} has no counterpart in {way.general}" for name in sorted(lost)]
    return []


def _is_constant(optimizer: Optimizer) -> bool:
    """Return whether an optimizer's learning rate is the same in all steps."""
    warmups = [axis.extremes for axis in optimizer.space if axis.name == WARMUP and WARMUP in optimizer.scheduled]
    return optimizer.schedule == "constant" and all(set(extremes) == {0} for extremes in warmups)


def _left_out(study: Study, optimizer: Optimizer, values: Mapping[str, Any], open_names: set[str]) -> list[str]:
    """Return the hyperparameters that are not in the space and whose defaults are not the values that it needs."""
    known, obstacles = study.domains(optimizer.name), []
    for name in sorted(values.keys() - set(optimizer.space.names) - open_names):
        default = known[name].default if name in known else None
        off = default is None and np.all(np.asarray(values[name]) == 0)  # optax's None for momentum means no momentum
        if not off and not np.all(np.asarray(values[name]) == default):
            obstacles.append(f"{name} is not in its space" if default is None else f"{name} stays at {default}")
    return obstacles


def _outside(study: Study, special: str, general: str) -> str | None:
    """Return, for two optimizers of one rule, which fixed values of the special one the general one's ranges miss.

    If both have the same hyperparameters free, the general one's space must hold all of the other's.
    """
    special_optimizer, general_optimizer = study.optimizer(special), study.optimizer(general)
    if special_optimizer.rule is not general_optimizer.rule:
        return None
    free = [{axis.name for axis in optimizer.space.free} for optimizer in (special_optimizer, general_optimizer)]
    points = sample(special_optimizer.space, _POINTS)
    (identity,) = _rule_inclusions(study, special, general)
    values = translated(study, special, general, identity, points, {})
    outside = []
    for axis in relevant_axes(general_optimizer, values):
        if not axis.dimension.free:
            continue
        places = places_on(axis, values, (len(points),))
        first, *others = set(places.coordinates.tolist())
        if first is None and not others:
            return f"{special} does not set {axis.key}, for which {general} needs a value"
        if (free[0] == free[1] or not others) and places.beyond.any():
            single = not others and first is not None
            outside.append(f"{axis.key} = {format_number(first)}" if single else axis.key)
    if not outside:
        return None
    return f"{special}'s {join_words(outside)} {'is' if len(outside) == 1 else 'are'} outside {general}'s range"
