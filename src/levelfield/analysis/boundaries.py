"""Where the good trials lie in each range of a search space, and which range they call for.

The paper's authors looked at plots and widened a range if its best trials were at a border. Here this is a rule, so
it can be tested and repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from levelfield.analysis.best_of import weights
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.results import Results
from levelfield.formatting import format_number, format_range
from levelfield.hyperparameters import CLOSEST_TO_1, Hyperparameter
from levelfield.rounding import half_decade
from levelfield.space import Axis, Choice, Dimension, Integer, Log, Value, dimension

# scipy.stats takes a second to import. The functions that need it import it themselves, because `status` and `plan`
# import this module without calling them.

BORDER = 0.1  # share of a range: closer to an end is at the border
LIKELY = 0.5  # P(the best of K is at a border) from which on the range is widened
NARROW = 0.25  # share of a range: if the good trials span less, it is too wide
FEWEST = 5  # trials needed to judge a range
_GOOD = 0.2  # share of the pool: its best trials are the good ones, at least FEWEST
_MATTERS = 0.1  # p-value below which a hyperparameter has a visible effect
_CLEAR = 0.005  # p-value below which the better half of the trials clearly improves along an axis
_LEARNED = 0.05  # relative decrease of the training loss that shows that something was learned
_LEANING = 0.2  # share of a range: good trials closer to a border on average lean toward it
_DECADES = (1.0, 2.0)  # a log range is widened by its own width, but by at least and at most this much
_TINY = 1e-30  # stands for "above 0"


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
    """What the trials say about one axis of an optimizer's space."""

    optimizer: str
    axis: Axis
    place: Place
    lower: float = math.nan  # P(the best of K lies within a tenth of the lower border)
    upper: float = math.nan
    good: tuple[Value, ...] = ()  # lowest and highest value of the good trials; for choices, the likeliest value
    proposal: Dimension | None = None  # a better range; None if this one can stay
    by_loss: bool = False  # nothing was learned, so trials are ranked by how much their training loss fell

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
        """What the proposal does to the range: widen it if it keeps all of it, move it otherwise."""
        old, new = self.axis.dimension.ends, self.proposal.ends if self.proposal else ()
        if isinstance(self.proposal, Choice):
            return "Widen" if set(old) <= set(new) else "Move"
        return "Widen" if float(new[0]) <= float(old[0]) and float(old[-1]) <= float(new[-1]) else "Move"

    def __str__(self) -> str:
        return f"{self.optimizer}: {self.axis.key}: {self._verdict}"

    def __repr__(self) -> str:
        return f"<{self}>"

    @property
    def _verdict(self) -> str:
        shown = format_range(self.axis.dimension)
        match self.place:
            case Place.FIXED:
                return f"fixed at {shown}."
            case Place.UNKNOWN:
                return "unknown; there are too few trials."
            case Place.FLAT:
                return "flat; the trials show no effect."
            case Place.INSIDE:
                if isinstance(self.axis.dimension, Choice):
                    return f"{format_number(self.good[0])} is the best of {shown}."
                return f"the good trials lie inside {shown}."
            case Place.WIDE:
                low, high = self.good
                verdict = f"range too wide; the good trials lie in {format_number(low)} … {format_number(high)}."
                return f"{verdict} Narrow it to {format_range(self.proposal)}." if self.proposal else verdict
        chance = self.lower if self.place is Place.LOWER else self.upper
        evidence = f"the best of K is there in {chance:.0%} of repetitions"
        if self.by_loss:
            evidence += ", judged by the training loss"
        if chance < LIKELY:
            evidence += ", and the good trials lean toward it"
        verdict = f"good trials {self.place} of {shown} ({evidence})."
        if not self.proposal:
            return f"{verdict} It cannot be widened: the hyperparameter allows no values beyond it."
        return f"{verdict} {self._change} it to {format_range(self.proposal)}."


def boundaries(results: Results, k: int | None = None) -> list[Boundary]:
    """Judge every axis of every optimizer of a study by its trials."""
    study, verdicts = results.study, []
    for name, outcome in results.outcomes.items():
        axes = tuple(study.optimizer(name).space)
        verdicts += judge_axes(outcome, axes, [study.domain(name, axis.name) for axis in axes], results.k(k))
    return verdicts


def judge_axes(
    outcome: Outcome,
    axes: Sequence[Axis],
    domains: Sequence[Hyperparameter],
    k: int,
    tried: Any = None,
    beyond: Any = (),
) -> list[Boundary]:
    """Judge the axes of a space by the trials of a pool."""
    by_loss = _learned_nothing(outcome, [axis for axis in axes if axis.dimension.free])
    ranked = _progress(outcome) if by_loss else outcome.ranked()
    known = np.isfinite(ranked)
    trials = [trial for trial, finite in zip(outcome.pool, known, strict=True) if finite]
    values = ranked[known]
    chances, order = weights(values, k), np.argsort(values, kind="stable")
    good = order[: max(FEWEST, round(_GOOD * len(order)))]
    coordinates = {axis.key: [axis.coordinate(trial.point.hyperparameters) for trial in trials] for axis in axes}
    units = {
        axis.key: np.array([axis.dimension.unit(coordinate) for coordinate in coordinates[axis.key]])
        for axis in axes
        if axis.dimension.free
    }
    # The worse trials may point away from the optimum, so only the better half is fitted; but a fit needs enough.
    fitted = len(order) if by_loss else max(len(order) // 2, 3 * (len(units) + 1))
    slopes = _slopes(units, values, order[:fitted])
    divisors = {axis.divisor for axis in axes}
    verdicts = []
    for axis, domain in zip(axes, domains, strict=True):
        if axis.name in divisors:  # a ratio needs it to be above 0
            domain = replace(domain, low=max(domain.low, 0.0), open=True)
        if not axis.dimension.free:
            verdicts.append(Boundary(outcome.name, axis, Place.FIXED))
        elif len(trials) < FEWEST:
            verdicts.append(Boundary(outcome.name, axis, Place.UNKNOWN))
        elif isinstance(axis.dimension, Choice) or 0.5 / axis.dimension.size >= BORDER:  # few integers
            verdicts.append(_judge_choice(outcome.name, axis, coordinates[axis.key], chances, good, domain))
        else:
            unit = units[axis.key]
            lower, upper = float(chances[unit < BORDER].sum()), float(chances[unit > 1 - BORDER].sum())
            place = _place(unit, values, good, lower, upper, slopes.get(axis.key, 0))
            ends = tuple(axis.dimension.value(min(max(float(end(unit[good])), 0.0), 1.0)) for end in (np.min, np.max))
            proposal = _proposal(axis, domain, place, ends)
            verdicts.append(Boundary(outcome.name, axis, place, lower, upper, ends, proposal))
    return [replace(verdict, by_loss=by_loss) for verdict in verdicts]


def _place(unit: np.ndarray, values: np.ndarray, good: np.ndarray, lower: float, upper: float, slope: int) -> Place:
    """Return where the good trials lie in a range.

    ``slope`` is 1 if lower is clearly better among the better half of the trials, −1 if higher is, 0 otherwise.
    """
    for place, chance, distance, improves in (
        (Place.LOWER, lower, unit[good], slope > 0),
        (Place.UPPER, upper, 1 - unit[good], slope < 0),
    ):
        median, mean = np.median(distance), distance.mean()
        leaning = mean < _LEANING or (improves and median < 0.5)
        if (chance >= LIKELY and median < NARROW) or (chance > BORDER and leaning):
            return place
    if np.ptp(unit[good]) < NARROW:
        return Place.WIDE
    return Place.INSIDE if _effect(unit, values) < _MATTERS else Place.FLAT


def _slopes(units: dict[str, np.ndarray], values: np.ndarray, better: np.ndarray) -> dict[str, int]:
    """Return the axes along which the better half of the trials still improves, from one linear fit over all axes.

    Hyperparameters compensate for each other (a low rate for a high momentum), so a border can hold the search back
    although the best trials do not lie at it. All axes together show it.
    """
    from scipy import stats

    matrix = np.stack([np.ones(len(better)), *(unit[better] for unit in units.values())], axis=1)
    freedom = len(better) - matrix.shape[1]
    if freedom < 3 or not np.isfinite(matrix).all():
        return {}
    ranks = stats.rankdata(values[better])
    slopes = np.linalg.lstsq(matrix, ranks)[0]
    variance = np.square(ranks - matrix @ slopes).sum() / freedom
    errors = np.sqrt(np.maximum(np.diag(np.linalg.pinv(matrix.T @ matrix)) * variance, 1e-30))
    p_values = 2 * stats.t.sf(np.abs(slopes / errors), freedom)[1:]
    return {key: int(np.sign(slope)) for key, slope, p in zip(units, slopes[1:], p_values, strict=True) if p < _CLEAR}


def _learned_nothing(outcome: Outcome, axes: Sequence[Axis]) -> bool:
    """Return whether even the best trial's training loss hardly falls, so that the selection metric is noise.

    This excludes a loss that fell before the first evaluation: then trials with different hyperparameters end at
    different losses, and those that still fall the most are not those that end lowest.
    """
    from scipy import stats

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
    units = (np.array([axis.dimension.unit(axis.coordinate(point)) for point in points]) for axis in axes)
    if all(_effect(unit[known], last[known]) >= _CLEAR for unit in units if np.isfinite(unit).all()):
        return True
    correlation = stats.spearmanr(_progress(outcome)[known], last[known])
    return bool(correlation.statistic > 0 and correlation.pvalue < _CLEAR)


def _progress(outcome: Outcome) -> np.ndarray:
    """Return the relative change of each trial's training loss from first to last evaluation; lower is better."""
    changes = []
    for trial in outcome.pool:
        first, last = (float(outcome.curve(trial).values["train_loss"][end]) for end in (0, -1))
        changes.append((last - first) / (abs(first) or 1.0))  # relative, because seeds may start at different losses
    return np.array(changes)


def _effect(unit: np.ndarray, values: np.ndarray) -> float:
    """Return the p-value of an F-test of a parabola through the ranks of the values against a constant."""
    from scipy import stats

    n = len(unit)
    if n < 4:
        return 1.0
    ranks = stats.rankdata(values)
    design = np.stack([np.ones(n), unit, unit**2], axis=1)
    residuals = ranks - design @ np.linalg.lstsq(design, ranks)[0]
    total, rest = float(np.square(ranks - ranks.mean()).sum()), float(np.square(residuals).sum())
    if not total:
        return 1.0
    return float(stats.f.sf((total - rest) / 2 / max(rest / (n - 3), 1e-12), 2, n - 3))


def _judge_choice(
    name: str, axis: Axis, coordinates: Sequence[Value], chances: np.ndarray, good: np.ndarray, domain: Hyperparameter
) -> Boundary:
    """Judge an axis with few values by the value that wins, and by whether it is the first or the last."""
    from scipy import stats

    values: Sequence[Value] = axis.dimension.ends
    if isinstance(axis.dimension, Integer):
        values = range(axis.dimension.low, axis.dimension.high + 1)
    share = {value: sum(p for p, at in zip(chances, coordinates, strict=True) if at == value) for value in values}
    winner = max(values, key=lambda value: share[value])
    # P(at least as many of the good trials have the winning value by chance)
    overall, among_good = sum(at == winner for at in coordinates), sum(coordinates[i] == winner for i in good)
    p = stats.hypergeom.sf(among_good - 1, len(coordinates), overall, len(good))
    if not (share[winner] >= LIKELY and p < _MATTERS / len(values)):
        return Boundary(name, axis, Place.FLAT, good=(winner,))
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    place = Place.INSIDE
    if len(numbers) == len(values) > 1 and winner in (min(numbers), max(numbers)):
        place = Place.LOWER if winner == min(numbers) else Place.UPPER
    lower, upper = (float(share[end(numbers)]) if numbers else math.nan for end in (min, max))
    return Boundary(name, axis, place, lower, upper, (winner,), _proposal(axis, domain, place, (winner, winner)))


def _proposal(axis: Axis, domain: Hyperparameter, place: Place, good: Sequence[Value]) -> Dimension | None:
    """Return the range that the good trials call for, within the hyperparameter's domain; None if this one can stay."""
    if place not in (Place.LOWER, Place.UPPER, Place.WIDE):
        return None
    old = axis.dimension
    if isinstance(old, Choice):
        return _longer_choice(axis, domain, place)
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
    rounded_low, rounded_high = rounded_ends(old, new_low, new_high, log)
    # An end that stays is not rounded: inward, that could cut off good trials; outward, it would widen the range.
    rounded_low = float(old.ends[0]) if new_low == first else rounded_low
    rounded_high = float(old.ends[-1]) if new_high == last else rounded_high
    lowest, highest = limits(axis, domain)
    lowest = lowest if place is Place.LOWER else max(lowest, float(old.ends[0]))
    highest = highest if place is Place.UPPER else min(highest, float(old.ends[-1]))
    ends = max(rounded_low, lowest), min(rounded_high, highest)
    if isinstance(old, Integer):
        ends = math.ceil(ends[0]), math.floor(ends[1])
    if not ends[0] < ends[1] < math.inf:
        return None
    new = dimension({next(iter(old.spec())): list(ends)})
    moved = {Place.LOWER: ends[0] < float(old.ends[0]), Place.UPPER: ends[1] > float(old.ends[-1])}.get(place, True)
    return new if moved and new != old else None


def rounded_ends(old: Dimension, low: float, high: float, log: bool) -> tuple[float, float]:
    """Round outward: to half-decades, to integers, or to two digits of the old range's width."""
    if log:
        # A little beyond a round number counts as that number.
        return half_decade(low + 0.05, up=False), half_decade(high - 0.05, up=True)
    if isinstance(old, Integer):
        return math.floor(low), math.ceil(high)
    first, last = (float(end) for end in old.ends)
    unit = 10.0 ** math.floor(math.log10((last - first) / 10))
    return round(math.floor(low / unit + 1e-9) * unit, 12), round(math.ceil(high / unit - 1e-9) * unit, 12)


def limits(axis: Axis, domain: Hyperparameter) -> tuple[float, float]:
    """Return the values between which the axis's coordinate must stay."""
    if axis.one_minus:
        return max(CLOSEST_TO_1, 1 - domain.high), min(1.0, 1 - domain.low)
    if axis.divisor:
        return _TINY, math.inf
    positive = isinstance(axis.dimension, Log) or (domain.open and domain.low >= 0)
    return max(domain.low, _TINY) if positive else domain.low, domain.high


def _longer_choice(axis: Axis, domain: Hyperparameter, place: Place) -> Dimension | None:
    """Return the choice with one more value beyond the winning end, as far from it as its neighbor."""
    values = sorted(float(value) for value in axis.dimension.ends)
    if place is Place.WIDE or len(values) < 2:
        return None
    end, neighbor = (values[0], values[1]) if place is Place.LOWER else (values[-1], values[-2])
    beyond = end * end / neighbor if min(values) > 0 else 2 * end - neighbor
    beyond = float(f"{beyond:.3g}")
    lowest, highest = limits(axis, domain)
    if not lowest <= beyond <= highest:
        return None
    old = axis.dimension.ends
    longer = [beyond, *old] if old[0] == end else [*old, beyond]
    return dimension({"choice": longer})
