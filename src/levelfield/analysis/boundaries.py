"""Where the good trials lie in each range of a search space, and which range they call for.

The paper's authors looked at plots and widened a range if its best trials were at a border. Here this is a rule, so
it can be tested and repeated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from levelfield.analysis.best_of import weights
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.range_tests import (
    SMALL,
    Z_2_5,
    Z_5,
    Z_25,
    Fit,
    Pool,
    adjusted,
    before,
    doubts,
    edges,
    groups,
    higher,
    is_visible,
    nearer,
    parabola,
    slopes,
)
from levelfield.analysis.ranges import Place, as_numbers, closed_ends, proposed_range
from levelfield.analysis.results import Results
from levelfield.formatting import format_number, format_range, join_words
from levelfield.hyperparameters import Hyperparameter
from levelfield.space import Axis, Choice, Dimension, Integer, Value
from levelfield.trial import Trial

# scipy.stats takes a second to import. The functions that need it import it themselves, because `status` and `plan`
# import this module without calling them.

BORDER = 0.1  # share of a range: closer to an end is at the border
LIKELY = 0.5  # a value of a choice wins if P(the best of K has it) is at least this
NARROW = 0.25  # share of a range: five good trials span less by chance in 1.6% of cases, so it is too wide
FEWEST = 5  # trials needed to judge a range
_NEAREST = 0.25  # share of a range: good trials at a border are closer to it
_GOOD = 0.2  # share of the pool: its best trials are the good ones, at least FEWEST
_CLEAR = 0.005  # p-value below which an axis clearly has an effect on the training loss
_LEARNED = 0.05  # relative decrease of the training loss that shows that something was learned
_RARE = 0.005  # a chance that would be shown as 0%
_ROUNDING = 1e-9


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
    beyond: tuple[int, int] = (0, 0)  # number of trials below and above the range
    by_beyond: bool = False  # these trials gave the verdict
    needed: int | None = None  # how many more trials would give a verdict if it is unknown; None if no number would
    independent: bool = True  # False: a tuner or a person chose where the trials lie, so that says nothing

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
            "beyond": list(self.beyond),
            "by_beyond": self.by_beyond,
            "needed": self.needed,
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
                return f"{self.unknown}."
            case Place.FLAT:
                return f"flat within {shown}; it explains less than {SMALL:.0%} of the differences between trials."
            case Place.INSIDE:
                if self.by_beyond:
                    return f"inside {shown}; {self._beyond_are('worse')}."
                if isinstance(self.axis.dimension, Choice):
                    return f"{format_number(self.good[0])} is the best of {shown}."
                return f"the good trials lie inside {shown}."
            case Place.WIDE:
                low, high = self.good
                verdict = f"range too wide; the good trials lie in {format_number(low)} … {format_number(high)}."
                return f"{verdict} Narrow it to {format_range(self.proposal)}." if self.proposal else verdict
        chance = self.lower if self.place is Place.LOWER else self.upper
        evidence = f"the best of K is there in {chance:.0%} of repetitions"
        if chance < _RARE:
            evidence = "trials nearer to it are better"
        if self.by_beyond:
            evidence = self._beyond_are("better")
        elif self.by_loss:
            evidence += ", judged by the training loss"
        verdict = f"good trials {self.place} of {shown} ({evidence})."
        if not self.proposal:
            return f"{verdict} It cannot be widened: the hyperparameter allows no values beyond it."
        return f"{verdict} {self._change} it to {format_range(self.proposal)}."

    @property
    def unknown(self) -> str:
        """What would settle an unknown verdict."""
        if not self.independent:
            return "unknown: the trials are not known to be independent"
        if not self.good:
            return "unknown: too few trials"
        has_borders = bool(as_numbers(self.axis.dimension.ends))
        if self.needed is None:
            return f"unknown: {'trials beyond its borders' if has_borders else 'more trials'} would tell"
        more = f"{self.needed:,} more {'trial' if self.needed == 1 else 'trials'}"
        return f"unknown: about {more}{', or trials beyond its borders,' if has_borders else ''} would tell"

    def _beyond_are(self, quality: str) -> str:
        """Return a clause about the trials beyond the borders, such as "the 20 trials below are worse"."""
        sides = {"below": self.beyond[0], "above": self.beyond[1]}
        if self.place in (Place.LOWER, Place.UPPER):
            del sides["above" if self.place is Place.LOWER else "below"]
        counted = [(number, side) for side, number in sides.items() if number]
        first, *rest = (f"{number} {'trials ' * (i == 0)}{side}" for i, (number, side) in enumerate(counted))
        return f"the {join_words([first, *rest])} are {quality}"


def boundaries(
    results: Results, k: int | None = None, beyond: Mapping[str, Sequence[Trial]] | None = None
) -> list[Boundary]:
    """Judge every axis of every optimizer of a study by its trials.

    ``beyond`` are trials of optimizers from wider spaces that contain the study's.
    """
    if beyond is not None:
        return _judge(results, results.k(k), beyond)
    return list(_judged(results, results.k(k)))


@functools.lru_cache(maxsize=4)  # the audit, the sentences, and the page all need the verdicts
def _judged(results: Results, k: int) -> tuple[Boundary, ...]:
    return tuple(_judge(results, k, {}))


def _judge(results: Results, k: int, beyond: Mapping[str, Sequence[Trial]]) -> list[Boundary]:
    study, verdicts = results.study, []
    for name, outcome in results.outcomes.items():
        axes = tuple(study.optimizer(name).space)
        domains = [study.domain(name, axis.name) for axis in axes]
        verdicts += judge_axes(outcome, axes, domains, k, results.trials[name], beyond.get(name, ()))
    return verdicts


def judge_axes(
    outcome: Outcome,
    axes: Sequence[Axis],
    domains: Sequence[Hyperparameter],
    k: int,
    tried: Sequence[Trial] | None = None,
    beyond: Sequence[Trial] = (),
) -> list[Boundary]:
    """Judge the axes of a space by the trials of a pool.

    ``tried`` is the pool with the infeasible trials in between, which count as the worst; by default, only the pool.
    ``beyond`` are trials from a wider space that contains this one.
    """
    by_loss = _learned_nothing(outcome, [axis for axis in axes if axis.dimension.free])
    trials = outcome.pool if tried is None else tried
    values = _progresses(outcome, trials) if by_loss else outcome.ranked_trials(trials)
    pool, known = _pool(axes, trials, values, by_loss), int(np.isfinite(values).sum())
    wider = _pool(axes, beyond, outcome.ranked_trials(beyond))
    improving = slopes(pool) if known >= FEWEST else {}
    chances = weights(np.where(np.isfinite(values), values, np.nan), k)
    divisors = {axis.divisor for axis in axes}
    verdicts = []
    for axis, domain in zip(axes, domains, strict=True):
        if axis.name in divisors:  # a ratio needs it to be above 0
            domain = replace(domain, low=max(domain.low, 0.0), open=True)
        if not axis.dimension.free:
            verdict = Boundary(outcome.name, axis, Place.FIXED)
        elif not outcome.independent:
            verdict = Boundary(outcome.name, axis, Place.UNKNOWN, independent=False)
        elif known < FEWEST:
            verdict = Boundary(outcome.name, axis, Place.UNKNOWN, needed=FEWEST - known)
        elif isinstance(axis.dimension, Choice) or 0.5 / axis.dimension.size >= BORDER:  # few integers
            verdict = _judge_choice(outcome.name, axis, domain, trials, pool, chances, _beyond(axis, beyond, wider))
        else:
            slope, outside = improving.get(axis.key, 0), _beyond(axis, beyond, wider)
            verdict = _judge_range(outcome.name, axis, domain, pool, chances, slope, outside)
        verdicts.append(replace(verdict, by_loss=by_loss))
    return verdicts


def _progresses(outcome: Outcome, trials: Sequence[Trial]) -> np.ndarray:
    return np.array([_progress(outcome, trial) for trial in trials], float)


def _progress(outcome: Outcome, trial: Trial) -> float:
    """Return the relative change of a trial's training loss from first to last evaluation; infinity if infeasible."""
    if not trial.feasible:
        return math.inf
    first, last = (float(outcome.curve(trial).values["train_loss"][end]) for end in (0, -1))
    change = (last - first) / (abs(first) or 1.0)  # relative, because seeds may start at different losses
    return change if math.isfinite(change) else math.inf


def _pool(axes: Sequence[Axis], trials: Sequence[Trial], values: np.ndarray, by_loss: bool = False) -> Pool:
    points = [trial.point.hyperparameters for trial in trials]
    coordinates = {axis: axis.coordinates(points) for axis in axes}
    units = {
        axis.key: np.array([axis.dimension.unit(at) for at in coordinates[axis]], float)
        for axis in axes
        if axis.dimension.free
    }
    order = np.argsort(values, kind="stable")[: int(np.isfinite(values).sum())]
    # The worse trials may point away from the optimum, so only the better half is fitted; but a fit needs enough.
    fitted = len(order) if by_loss else max(len(order) // 2, 3 * (len(units) + 1))
    return Pool(units, values, order[: max(FEWEST, round(_GOOD * len(order)))], order[:fitted])


def _judge_range(
    name: str, axis: Axis, domain: Hyperparameter, pool: Pool, chances: np.ndarray, slope: int, outside: _Beyond
) -> Boundary:
    """Judge an axis with many values."""
    unit = np.clip(np.nan_to_num(pool.units[axis.key], nan=0.5), 0.0, 1.0)
    lower, upper = float(chances[unit < BORDER].sum()), float(chances[unit > 1 - BORDER].sum())
    ends = tuple(axis.dimension.value(float(end(unit[pool.good]))) for end in (np.min, np.max))
    ended = closed_ends(axis, domain)
    fit, center = parabola(unit, pool.values), float(np.median(unit[pool.good]))
    sides = edges(unit, center, adjusted(pool, axis.key))
    place = outside.place(ended)
    by_beyond = place is not None
    if place is None:
        place = _border(pool, axis.key, unit, slope, outside)
    if place is None:
        place = _within(pool, axis.key, unit, sides, ended, outside) or (
            Place.FLAT if fit.is_small and not is_visible(pool, axis.key, unit) else None
        )
    if place is None and all(ended):
        place = Place.INSIDE
    if place is None:
        needed = _needed(pool, unit, sides, ended, fit)
        return Boundary(name, axis, Place.UNKNOWN, lower, upper, ends, beyond=outside.counts, needed=needed)
    proposal = proposed_range(axis, domain, place, ends)
    return Boundary(name, axis, place, lower, upper, ends, proposal, beyond=outside.counts, by_beyond=by_beyond)


def _border(pool: Pool, key: str, unit: np.ndarray, slope: int, outside: _Beyond) -> Place | None:
    """Return the border at which the good trials lie.

    ``slope`` is 1 if lower is clearly better among the better half of the trials, −1 if higher is, 0 otherwise.
    """
    values = adjusted(pool, key)
    for place, distance, improves, is_worse in (
        (Place.LOWER, unit, slope > 0, outside.below.is_worse),
        (Place.UPPER, 1 - unit, slope < 0, outside.above.is_worse),
    ):
        median = float(np.median(distance[pool.good]))
        is_near = median < _NEAREST and nearer(pool, distance) > Z_2_5 and not pool.interacting(key)
        holds_back = improves and median < 0.5 and before(distance, median, values) <= 0
        if (is_near or holds_back) and not is_worse and not doubts(distance, median, values):
            return place
    return None


def _within(
    pool: Pool, key: str, unit: np.ndarray, sides: Sequence[float], ended: Sequence[bool], outside: _Beyond
) -> Place | None:
    """Return whether the good trials lie inside the range, or in a small part of it.

    If the effect of the axis depends on another one, both halves of the other's range must agree: the best values of
    an axis that compensates for another may lie anywhere.
    """
    if outside.looks_better:
        return None
    if np.ptp(unit[pool.good]) < NARROW and all(
        end or median > _NEAREST or before(distance, median, pool.values) > Z_5
        for end, distance in zip(ended, (unit, 1 - unit), strict=True)
        for median in [float(np.median(distance[pool.good]))]
    ):
        return Place.WIDE
    if _weakest(sides, ended) < _wanted(ended):
        return None
    for other in pool.interacting(key):
        at = pool.units[other]
        for half in (at < np.median(at), at >= np.median(at)):
            if _weakest(_edges_of(unit[half], pool.values[half]), ended) < Z_25:
                return None
    return Place.INSIDE


def _edges_of(unit: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    good = np.argsort(values, kind="stable")[: max(FEWEST, round(_GOOD * len(values)))]
    return edges(unit, float(np.median(unit[good])), values)


def _weakest(sides: Sequence[float], ended: Sequence[bool]) -> float:
    """Return the weaker evidence of the two sides, ignoring a side beyond which there are no values."""
    return min((side for side, end in zip(sides, ended, strict=True) if not end), default=-math.inf)


def _wanted(ended: Sequence[bool]) -> float:
    """Return the evidence that each side needs: a single side must be as unlikely by chance as both together."""
    return Z_2_5 if any(ended) else Z_5


def _needed(pool: Pool, unit: np.ndarray, sides: Sequence[float], ended: Sequence[bool], fit: Fit) -> int | None:
    """Return how many more trials would give a verdict if the observed effects stay the same; None if none would.

    A z-score grows with the square root of the number of trials. Whichever claim would be reached first counts.
    """
    n = len(pool.values)
    claims = [(_weakest(sides, ended), _wanted(ended))]
    for distance in (unit, 1 - unit):
        median = float(np.median(distance[pool.good]))
        if median < _NEAREST and not doubts(distance, median, pool.values):
            claims.append((nearer(pool, distance), Z_2_5))
    sizes = [n * (wanted / z) ** 2 for z, wanted in claims if z > 0]
    fewest = min([*(size for size in sizes if size > n), fit.needed])
    return max(1, math.ceil(fewest - n)) if fewest < math.inf else None


class _Side(NamedTuple):
    """The trials beyond one border, compared with those of the same search within the range."""

    number: int
    better: float  # z-scores
    worse: float
    is_better: bool
    is_worse: bool


class _Beyond(NamedTuple):
    """The trials beyond both borders."""

    below: _Side
    above: _Side

    @property
    def counts(self) -> tuple[int, int]:
        return self.below.number, self.above.number

    @property
    def looks_better(self) -> bool:
        return any(side.number and side.better > 0 for side in self)

    def place(self, ended: Sequence[bool]) -> Place | None:
        """Return the verdict of these trials; None if they settle nothing."""
        if self.below.is_better or self.above.is_better:
            lower = self.below.is_better and (not self.above.is_better or self.below.better >= self.above.better)
            return Place.LOWER if lower else Place.UPPER
        needed = [side for side, end in zip(self, ended, strict=True) if not end]
        return Place.INSIDE if needed and all(side.is_worse for side in needed) else None


def _beyond(axis: Axis, trials: Sequence[Trial], wider: Pool) -> _Beyond:
    """Compare trials beyond the borders of an axis with those within, after the effect of the other axes."""
    where = np.array([_side(axis, axis.coordinate(trial.point.hyperparameters)) for trial in trials], int)
    values = adjusted(wider, axis.key)
    below, above = (_compared(values[where == side], values[where == 0]) for side in (-1, 1))
    return _Beyond(below, above)


def _side(axis: Axis, coordinate: Value) -> int:
    """Return −1 if a value lies below the range, 1 if above, 0 otherwise."""
    numbers = as_numbers(axis.dimension.ends)
    if not numbers or not as_numbers([coordinate]):
        return 0
    low, high, at = min(numbers), max(numbers), float(coordinate)
    margin = _ROUNDING * max(abs(low), abs(high)) if low <= 0 else 0.0
    return int(at > high * (1 + _ROUNDING) + margin) - int(at < low * (1 - _ROUNDING) - margin)


def _compared(side: np.ndarray, within: np.ndarray) -> _Side:
    """Compare the trials beyond a border with those within, on average and by how many of the best they have.

    The average alone would mislead: both the optimum and trials that diverge may lie beyond a border.
    """
    from scipy import stats

    better, worse = higher(within, side), higher(side, within)
    if min(len(side), len(within)) < FEWEST:
        return _Side(len(side), better, worse, is_better=False, is_worse=False)
    both = np.concatenate([within, side])
    best = np.argsort(both, kind="stable")[: max(FEWEST, round(_GOOD * len(both)))]
    beyond, drawn = int((best >= len(within)).sum()), (len(both), len(side), len(best))
    return _Side(
        len(side),
        better,
        worse,
        is_better=bool(better > Z_2_5 and stats.hypergeom.sf(beyond - 1, *drawn) < 0.025),
        is_worse=bool(worse > Z_5 and stats.hypergeom.cdf(beyond, *drawn) < 0.25),
    )


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
    if all(parabola(unit[known], last[known]).p >= _CLEAR for unit in units if np.isfinite(unit).all()):
        return True
    progresses = _progresses(outcome, outcome.pool)[known]
    if not np.ptp(progresses):  # such as one value of the loss for each trial, written at every evaluation
        return False
    correlation = stats.spearmanr(progresses, last[known])
    return bool(correlation.statistic > 0 and correlation.pvalue < _CLEAR)


def _judge_choice(
    name: str,
    axis: Axis,
    domain: Hyperparameter,
    trials: Sequence[Trial],
    pool: Pool,
    chances: np.ndarray,
    outside: _Beyond,
) -> Boundary:
    """Judge an axis with few values by the value that wins, and by whether it is the first or the last."""
    from scipy import stats

    values: Sequence[Value] = axis.dimension.ends
    if isinstance(axis.dimension, Integer):
        values = range(axis.dimension.low, axis.dimension.high + 1)
    coordinates = axis.coordinates([trial.point.hyperparameters for trial in trials])
    share = {value: sum(p for p, at in zip(chances, coordinates, strict=True) if at == value) for value in values}
    winner = max(values, key=lambda value: share[value])
    numbers = as_numbers(values)
    lower, upper = (float(share[end(values)]) if numbers else math.nan for end in (min, max))
    place = outside.place(closed_ends(axis, domain)) if numbers else None
    by_beyond = place is not None
    # P(at least as many of the good trials have the winning value by chance), for any of the values
    feasible = np.flatnonzero(np.isfinite(pool.values))
    overall, among_good = (sum(coordinates[i] == winner for i in which) for which in (feasible, pool.good))
    p = stats.hypergeom.sf(among_good - 1, len(feasible), overall, len(pool.good)) * len(values)
    if place is None and share[winner] >= LIKELY and p < 0.05:
        is_end = len(numbers) > 1 and winner in (min(numbers), max(numbers))
        place = Place.INSIDE if not is_end else Place.LOWER if winner == min(numbers) else Place.UPPER
        side = {Place.LOWER: outside.below, Place.UPPER: outside.above}.get(place)
        if (side and side.is_worse) or (place is Place.INSIDE and outside.looks_better):
            place = None
    labels = [list(values).index(at) if at in values else -1 for at in coordinates]
    fit = groups(labels, pool.values)
    place = place or (Place.FLAT if fit.is_small or len(values) == 1 else Place.UNKNOWN)
    needed = None
    if place is Place.UNKNOWN and fit.needed < math.inf:
        needed = max(1, math.ceil(fit.needed - len(labels)))
    proposal = proposed_range(axis, domain, place, (winner, winner))
    return Boundary(
        name, axis, place, lower, upper, (winner,), proposal, beyond=outside.counts, by_beyond=by_beyond, needed=needed
    )
