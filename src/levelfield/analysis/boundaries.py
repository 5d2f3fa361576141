"""Where the good trials lie in each range of a search space, and which range they call for.

The paper's authors looked at such plots by eye, and widened what had its best trials at a border. Here it is a
rule, so that it can be checked and repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from scipy import stats

from levelfield.analysis.best_of import weights
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.results import Results
from levelfield.formatting import format_number, format_range
from levelfield.hyperparameters import CLOSEST_TO_1, Hyperparameter
from levelfield.rounding import half_decade
from levelfield.space import Axis, Choice, Dimension, Integer, Log, Value, dimension

BORDER = 0.1  # of a range: closer to its end is at the border
LIKELY = 0.5  # probability of the best of K at a border from which on the range is to be widened
NARROW = 0.25  # of a range: good trials that span less call for a narrower one
FEWEST = 5  # trials to judge by
_GOOD = 0.2  # of a pool, the best: the good trials; at least FEWEST
_MATTERS = 0.1  # p-value below which a hyperparameter is seen to matter
_CLEAR = 0.005  # p-value below which the better half of the trials clearly gets better along an axis
_LEARNED = 0.05  # of the training loss: a fall between first and last evaluation that shows that something is learned
_LEANING = 0.2  # of a range: good trials closer to a border than this on average lean to it
_DECADES = (1.0, 2.0)  # how far a log range is widened: by its own width, within these


class Place(StrEnum):
    """Where the good trials lie."""

    INSIDE = "inside"
    LOWER = "at the lower border"
    UPPER = "at the upper border"
    WIDE = "too wide"
    FLAT = "flat"
    FIXED = "fixed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Boundary:
    """What the trials say of one axis of an optimizer's space."""

    optimizer: str
    axis: Axis
    place: Place
    lower: float = math.nan  # P(the best of K lies within a tenth of the lower border)
    upper: float = math.nan
    good: tuple[Value, ...] = ()  # the good trials' lowest and highest value; of choices, the likeliest
    proposal: Dimension | None = None  # a better range, if this one is none
    by_loss: bool = False  # nothing was learned: the fall of the training loss stands for the selection metric

    @property
    def settled(self) -> bool:
        """Whether the range can stay."""
        return self.proposal is None

    def as_dict(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer,
            "axis": self.axis.key,
            "range": self.axis.dimension.spec(),
            "verdict": self.place.value,
            "by_loss": self.by_loss,
            "lower": self.lower,
            "upper": self.upper,
            "good": list(self.good),
            "proposal": self.proposal.spec() if self.proposal else None,
        }

    @property
    def _change(self) -> str:
        """Whether the proposal has all of the range, or leaves some of it behind."""
        old, new = self.axis.dimension.ends, self.proposal.ends if self.proposal else ()
        if isinstance(self.proposal, Choice):
            return "widen" if set(old) <= set(new) else "move"
        return "widen" if float(new[0]) <= float(old[0]) and float(old[-1]) <= float(new[-1]) else "move"

    def __str__(self) -> str:
        said = f"{self.optimizer}: {self.axis.key} {self.place}"
        if self.place in (Place.LOWER, Place.UPPER):
            chance = self.lower if self.place is Place.LOWER else self.upper
            leaning = "" if chance >= LIKELY else ", and good trials lean to it"
            by = ", by the fall of the training loss" if self.by_loss else ""
            said += f" of {format_range(self.axis.dimension)} ({chance:.0%} of the best of K{by}{leaning})"
            if not self.proposal:
                return f"{said}, its legal limit"
            return f"{said}: {self._change} to {format_range(self.proposal)}"
        if self.proposal:
            low, high = self.good
            said += f" (the good trials lie in {format_number(low)} … {format_number(high)})"
            return f"{said}: narrow to {format_range(self.proposal)}"
        return said


def boundaries(results: Results, k: int | None = None) -> list[Boundary]:
    """Judge every axis of every optimizer of a study by its trials."""
    study, verdicts = results.study, []
    for name, outcome in results.outcomes.items():
        axes = tuple(study.optimizer(name).space)
        verdicts += judge_axes(outcome, axes, [study.domain(name, axis.name) for axis in axes], results.k(k))
    return verdicts


def judge_axes(outcome: Outcome, axes: Sequence[Axis], domains: Sequence[Hyperparameter], k: int) -> list[Boundary]:
    """Judge the axes of a space by the trials of a pool."""
    nothing = _learned_nothing(outcome, [one for one in axes if one.dimension.free])
    ranked = _progress(outcome) if nothing else outcome.ranked()
    known = np.isfinite(ranked)
    trials = [trial for trial, finite in zip(outcome.pool, known, strict=True) if finite]
    values = ranked[known]
    chances, order = weights(values, k), np.argsort(values, kind="stable")
    good = order[: max(FEWEST, round(_GOOD * len(order)))]
    coordinates = {one.key: [one.coordinate(trial.point.hyperparameters) for trial in trials] for one in axes}
    units = {
        one.key: np.array([one.dimension.unit(at) for at in coordinates[one.key]]) for one in axes if one.dimension.free
    }
    # Close to good trials, the worse ones may point back; but a fit needs some.
    enough = len(order) if nothing else max(len(order) // 2, 3 * (len(units) + 1))
    slopes = _slopes(units, values, order[:enough])
    divisors = {one.divisor for one in axes}
    found = []
    for one, about in zip(axes, domains, strict=True):
        if one.name in divisors:  # a ratio needs it above 0
            about = replace(about, low=max(about.low, 0.0), open=True)
        if not one.dimension.free:
            found.append(Boundary(outcome.name, one, Place.FIXED))
        elif len(trials) < FEWEST:
            found.append(Boundary(outcome.name, one, Place.UNKNOWN))
        elif isinstance(one.dimension, Choice) or 0.5 / one.dimension.size >= BORDER:  # few integers
            found.append(_of_choice(outcome.name, one, coordinates[one.key], chances, good, about))
        else:
            unit = units[one.key]
            lower, upper = float(chances[unit < BORDER].sum()), float(chances[unit > 1 - BORDER].sum())
            place = _place(unit, values, good, lower, upper, slopes.get(one.key, 0))
            ends = tuple(one.dimension.value(min(max(float(end(unit[good])), 0.0), 1.0)) for end in (np.min, np.max))
            proposal = _proposal(one, about, place, ends)
            found.append(Boundary(outcome.name, one, place, lower, upper, ends, proposal))
    return [replace(each, by_loss=nothing) for each in found]


def _place(unit: np.ndarray, values: np.ndarray, good: np.ndarray, lower: float, upper: float, slope: int) -> Place:
    """``slope``: 1 if among the better half of the trials lower is clearly better, −1 if higher is."""
    for place, chance, beyond, towards in (
        (Place.LOWER, lower, unit[good], slope > 0),
        (Place.UPPER, upper, 1 - unit[good], slope < 0),
    ):
        middle, mean = np.median(beyond), beyond.mean()
        leaning = mean < _LEANING or (towards and middle < 0.5)
        if (chance >= LIKELY and middle < NARROW) or (chance > BORDER and leaning):
            return place
    if np.ptp(unit[good]) < NARROW:
        return Place.WIDE
    return Place.INSIDE if _effect(unit, values) < _MATTERS else Place.FLAT


def _slopes(units: dict[str, np.ndarray], values: np.ndarray, better: np.ndarray) -> dict[str, int]:
    """Along which axes the better half of the trials still gets better: a linear fit to all of them together.

    Hyperparameters make up for each other (a low rate for a high momentum), so that the best trials need not lie at
    a border for it to hold them back; together, the axes tell.
    """
    matrix = np.stack([np.ones(len(better)), *(unit[better] for unit in units.values())], axis=1)
    freedom = len(better) - matrix.shape[1]
    if freedom < 3 or not np.isfinite(matrix).all():
        return {}
    ranks = stats.rankdata(values[better])
    slopes = np.linalg.lstsq(matrix, ranks)[0]
    variance = np.square(ranks - matrix @ slopes).sum() / freedom
    errors = np.sqrt(np.maximum(np.diag(np.linalg.pinv(matrix.T @ matrix)) * variance, 1e-30))
    p = 2 * stats.t.sf(np.abs(slopes / errors), freedom)[1:]
    return {key: int(np.sign(slope)) for key, slope, each in zip(units, slopes[1:], p, strict=True) if each < _CLEAR}


def _learned_nothing(outcome: Outcome, axes: Sequence[Axis]) -> bool:
    """Whether even the best trial's training loss hardly falls: then the selection metric is noise.

    Unless it had fallen before the first evaluation: then other hyperparameters end at other losses, and it is not
    those which still fall most that end lowest.
    """
    best = outcome.best_trial
    losses = outcome.curve(best).values.get("train_loss") if best else None
    if losses is None or len(losses) < 2 or not np.isfinite(losses).all():
        return False
    if float(losses[0] - losses[-1]) >= _LEARNED * abs(float(losses[0])):
        return False
    last = np.array([float(outcome.curve(trial).values["train_loss"][-1]) for trial in outcome.pool])
    known = np.isfinite(last)
    if np.ptp(last[known]) < _LEARNED * abs(np.median(last[known])):
        return True
    points = [trial.point.hyperparameters for trial in outcome.pool]
    units = (np.array([one.dimension.unit(one.coordinate(point)) for point in points]) for one in axes)
    if all(_effect(unit[known], last[known]) >= _CLEAR for unit in units if np.isfinite(unit).all()):
        return True
    ahead = stats.spearmanr(_progress(outcome)[known], last[known])
    return bool(ahead.statistic > 0 and ahead.pvalue < _CLEAR)


def _progress(outcome: Outcome) -> np.ndarray:
    """By which share each trial's training loss changes from its first to its last evaluation; lower is better."""
    found = []
    for trial in outcome.pool:
        first, last = (float(outcome.curve(trial).values["train_loss"][end]) for end in (0, -1))
        found.append((last - first) / (abs(first) or 1.0))  # seeds may start from unlike losses
    return np.array(found)


def _effect(unit: np.ndarray, values: np.ndarray) -> float:
    """The p-value of a parabola through the values' ranks against a constant: an F-test."""
    n = len(unit)
    if n < 4:
        return 1.0
    ranks = stats.rankdata(values)
    design = np.stack([np.ones(n), unit, unit**2], axis=1)
    left = ranks - design @ np.linalg.lstsq(design, ranks)[0]
    whole, rest = float(np.square(ranks - ranks.mean()).sum()), float(np.square(left).sum())
    if not whole:
        return 1.0
    return float(stats.f.sf((whole - rest) / 2 / max(rest / (n - 3), 1e-12), 2, n - 3))


def _of_choice(
    name: str, axis: Axis, coordinates: Sequence[Value], chances: np.ndarray, good: np.ndarray, about: Hyperparameter
) -> Boundary:
    """A choice's first or last value may win; nothing lies between them."""
    values: Sequence[Value] = axis.dimension.ends
    if isinstance(axis.dimension, Integer):
        values = range(axis.dimension.low, axis.dimension.high + 1)
    share = {value: sum(p for p, at in zip(chances, coordinates, strict=True) if at == value) for value in values}
    winner = max(values, key=lambda value: share[value])
    # How likely so many of the good trials would have it by chance.
    had, among = sum(at == winner for at in coordinates), sum(coordinates[i] == winner for i in good)
    p = stats.hypergeom.sf(among - 1, len(coordinates), had, len(good))
    won = share[winner] >= LIKELY and p < _MATTERS / len(values)
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if not won:
        return Boundary(name, axis, Place.FLAT, good=(winner,))
    place = Place.INSIDE
    if len(numbers) == len(values) > 1 and winner in (min(numbers), max(numbers)):
        place = Place.LOWER if winner == min(numbers) else Place.UPPER
    lower, upper = (float(share[end(numbers)]) if numbers else math.nan for end in (min, max))
    return Boundary(name, axis, place, lower, upper, (winner,), _proposal(axis, about, place, (winner, winner)))


def _proposal(axis: Axis, about: Hyperparameter, place: Place, good: Sequence[Value]) -> Dimension | None:
    """A range that the good trials call for, within what the hyperparameter may be; None if this one can stay."""
    if place not in (Place.LOWER, Place.UPPER, Place.WIDE):
        return None
    old = axis.dimension
    if isinstance(old, Choice):
        return _longer(axis, about, place)
    first, last = (float(end) for end in old.ends)
    low, high = (float(end) for end in good)
    log = isinstance(old, Log)
    if log:
        first, last, low, high = (math.log10(value) for value in (first, last, low, high))
    width = last - first
    step = min(max(width, _DECADES[0]), _DECADES[1]) if log else width / 2
    margin = max(0.5, (high - low) / 2) if log else max(0.1 * width, (high - low) / 2)
    new_low = first - step if place is Place.LOWER else max(first, low - margin)
    new_high = last + step if place is Place.UPPER else min(last, high + margin)
    found = _rounded(old, new_low, new_high, log)
    lowest, highest = _limits(axis, about)
    # An end that stays is not rounded: inwards, that could cut off good trials; outwards, it would be widened.
    found = (
        float(old.ends[0]) if new_low == first else found[0],
        float(old.ends[-1]) if new_high == last else found[1],
    )
    lowest = lowest if place is Place.LOWER else max(lowest, float(old.ends[0]))
    highest = highest if place is Place.UPPER else min(highest, float(old.ends[-1]))
    ends = max(found[0], lowest), min(found[1], highest)
    if isinstance(old, Integer):
        ends = math.ceil(ends[0]), math.floor(ends[1])
    if not ends[0] < ends[1] < math.inf:
        return None
    new = dimension({next(iter(old.spec())): list(ends)})
    moved = {Place.LOWER: ends[0] < float(old.ends[0]), Place.UPPER: ends[1] > float(old.ends[-1])}.get(place, True)
    return new if moved and new != old else None


def _rounded(old: Dimension, low: float, high: float, log: bool) -> tuple[float, float]:
    """Outwards to half-decades, to whole numbers, or to two digits of the old range's width."""
    if log:
        # A little beyond a round number is that number.
        return half_decade(low + 0.05, up=False), half_decade(high - 0.05, up=True)
    if isinstance(old, Integer):
        return math.floor(low), math.ceil(high)
    first, last = (float(end) for end in old.ends)
    unit = 10.0 ** math.floor(math.log10((last - first) / 10))
    return round(math.floor(low / unit + 1e-9) * unit, 12), round(math.ceil(high / unit - 1e-9) * unit, 12)


def _limits(axis: Axis, about: Hyperparameter) -> tuple[float, float]:
    """Between which values the axis's coordinate must stay."""
    tiny = 1e-30
    if axis.one_minus:
        return max(CLOSEST_TO_1, 1 - about.high), min(1.0, 1 - about.low)
    if axis.divisor:
        return tiny, math.inf
    positive = isinstance(axis.dimension, Log) or (about.open and about.low >= 0)
    return max(about.low, tiny) if positive else about.low, about.high


def _longer(axis: Axis, about: Hyperparameter, place: Place) -> Dimension | None:
    """A choice with one value more beyond the end that wins, as far from it as its neighbour."""
    values = sorted(float(value) for value in axis.dimension.ends)
    if place is Place.WIDE or len(values) < 2:
        return None
    end, neighbour = (values[0], values[1]) if place is Place.LOWER else (values[-1], values[-2])
    beyond = end * end / neighbour if min(values) > 0 else 2 * end - neighbour
    beyond = float(f"{beyond:.3g}")
    lowest, highest = _limits(axis, about)
    if not lowest <= beyond <= highest:
        return None
    old = axis.dimension.ends
    longer = [beyond, *old] if old[0] == end else [*old, beyond]
    return dimension({"choice": longer})
