"""Checks of an optimizer's search, each with its number, threshold and remedy: can the search be trusted?"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from levelfield.analysis.best_of import best_of
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.results import Results
from levelfield.formatting import format_number
from levelfield.space import Axis
from levelfield.trial import Trial

MOST_INFEASIBLE = 0.5  # share of the trials
STILL_IMPROVING = 0.05  # share of the pool's total improvement: if its second half brings more, more trials would help
_FEWEST_GOOD = 5  # trials that compete for the best of K
_LATE = 0.05  # share of a curve's improvement in its last tenth
_EARLY = 0.1  # share of the steps
_MORE = {
    "quasirandom": "Run a larger pool",
    "grid": "Give the grid more points",
    "imported": "Add more trials",
}
_APART = 0.75  # P(an infeasible trial lies beyond a feasible one) above which an axis separates them


@dataclass(frozen=True)
class Check:
    """A question about a search and its answer."""

    optimizer: str
    question: str
    value: float
    threshold: float
    healthy: bool
    finding: str
    remedy: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.optimizer}: {self.finding}." + ("" if self.healthy else f" {self.remedy}.")

    def __repr__(self) -> str:
        return f"<{self}>"


def health(results: Results, k: int | None = None) -> list[Check]:
    """Check the search of every optimizer."""
    return list(_answers(results, results.k(k)))


@functools.lru_cache(maxsize=4)  # the sentences and the page both need the answers
def _answers(results: Results, k: int) -> tuple[Check, ...]:
    study = results.study
    answers: list[Check] = []
    for name, outcome in results.outcomes.items():
        more = _MORE[study.search]
        axes, trials = study.optimizer(name).space.free, results.trials[name]
        answers += checks(outcome, trials, axes, k, results.reruns.get(name), more)
    return tuple(answers)


def checks(
    outcome: Outcome,
    trials: Sequence[Trial],
    axes: Sequence[Axis],
    k: int,
    reruns: Outcome | None = None,
    more: str = _MORE["quasirandom"],
) -> Iterator[Check]:
    """Yield the checks for which there are trials.

    ``trials`` includes infeasible ones, ``reruns`` is the best trial with other seeds, and ``more`` says how to get
    more trials.
    """
    name = outcome.name
    if trials:
        share = outcome.infeasible_share
        location = _where_infeasible(trials, axes) if share else ""
        yield Check(
            name,
            "infeasible trials",
            share,
            MOST_INFEASIBLE,
            share <= MOST_INFEASIBLE,
            f"{share:.0%} of {len(trials):,} trials are infeasible{location}",
            "Narrow the space there" if location else "Narrow the space, most likely the learning rate",
        )
    ranked = outcome.ranked()
    if not np.isfinite(ranked).any():
        return
    # Where nothing is free, trials differ only by their seeds; and a tuner's trials do not get better by chance.
    if outcome.independent and any(axis.dimension.free for axis in axes):
        yield from _check_search(outcome, ranked[np.isfinite(ranked)], k, more)
    yield from _check_curve(outcome)
    if reruns and len(reruns.pool) > 1:
        yield from _check_seeds(outcome, ranked, reruns)


def _where_infeasible(trials: Sequence[Trial], axes: Sequence[Axis]) -> str:
    """Describe the axis and side that best separate infeasible trials from feasible ones, if any does."""
    infeasible = np.array([not trial.feasible for trial in trials])
    if infeasible.all():
        return ""
    best, description = _APART, ""
    for axis in axes:
        coordinates = axis.coordinates([trial.point.hyperparameters for trial in trials])
        if {bool, str} & set(map(type, coordinates)):
            continue
        values = np.array(coordinates, float)
        above = _share_above(values[infeasible], values[~infeasible])
        if max(above, 1 - above) > best:
            best = max(above, 1 - above)
            # The median, but always one of the values: a choice has nothing in between.
            middle = np.sort(values[infeasible])[(infeasible.sum() - (above > 0.5)) // 2]
            side = "above" if above > 0.5 else "below"
            description = f", half of them at {axis.key} = {format_number(middle)} or {side}"
    return description


def _share_above(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the share of pairs in which our value is above theirs; equal ones count half."""
    ordered = np.sort(theirs)
    ranks = np.searchsorted(ordered, ours, "left") + np.searchsorted(ordered, ours, "right")
    return float(np.mean(ranks / (2 * len(theirs))))


def _check_search(outcome: Outcome, ranked: np.ndarray, k: int, more: str) -> Iterator[Check]:
    """Check whether enough trials are good, and whether more trials would help."""
    name, n = outcome.name, len(ranked)
    good = int((ranked <= best_of(ranked, k).high).sum())
    yield Check(
        name,
        "good trials",
        good,
        _FEWEST_GOOD,
        good >= min(_FEWEST_GOOD, n),
        f"{good} of {n} trials compete for the best of K = {k}",
        f"{more}, or narrow the space to where the good trials lie",
    )
    if n > 1:
        first, half, whole = (best_of(ranked, trials).mean for trials in (1, max(1, n // 2), n))
        gain = (half - whole) / (first - whole) if first > whole else 0.0
        yield Check(
            name,
            "still improving with trials",
            gain,
            STILL_IMPROVING,
            gain <= STILL_IMPROVING,
            f"the second half of the trials brings {gain:.0%} of the improvement",
            more,
        )


def _check_curve(outcome: Outcome) -> Iterator[Check]:
    """Check whether the best trial's curve still improves at its end, or peaked early."""
    trial = outcome.best_trial
    curve = outcome.curve(trial) if trial else None
    values = curve.values.get(outcome.select) if curve else None
    if curve is None or values is None or len(values) < 3:
        return
    ranked, steps = np.asarray(values, float) * outcome.metrics[outcome.select].sign, curve.steps
    if not np.isfinite(ranked).all():
        return
    at = max(0, int(np.searchsorted(steps, 0.9 * steps[-1], side="right")) - 1)
    # Evaluations may be further apart than a tenth of the steps: scale what the last stretch brought.
    fall, stretch = ranked.max() - ranked.min(), 1 - steps[at] / steps[-1]
    late = float((ranked[at] - ranked[-1]) / fall * 0.1 / stretch) if fall and stretch else 0.0
    yield Check(
        outcome.name,
        "curve still improving at the end",
        late,
        _LATE,
        late <= _LATE,
        f"the best trial makes {max(late, 0):.0%} of its progress in the last tenth of its steps",
        "Train longer, or let the learning rate decay further",
    )
    early = float(steps[int(ranked.argmin())] / steps[-1])
    yield Check(
        outcome.name,
        "best step",
        early,
        _EARLY,
        early > _EARLY or bool(ranked[-1] <= ranked.min()),
        f"the best trial peaks after {early:.0%} of its steps",
        "Train for fewer steps; if the model overfits, lower the learning rate or regularize",
    )


def _check_seeds(outcome: Outcome, ranked: np.ndarray, reruns: Outcome) -> Iterator[Check]:
    """Check whether the best trials differ by more than seeds alone would make them."""
    seed_deviation = float(np.std(reruns.values(), ddof=1))
    top = np.sort(ranked[np.isfinite(ranked)])[:_FEWEST_GOOD]
    deviation = float(np.std(top, ddof=1)) if len(top) > 1 else math.nan
    if math.isnan(deviation) or math.isnan(seed_deviation):
        return
    ratio = deviation / seed_deviation if seed_deviation else math.inf
    yield Check(
        outcome.name,
        "trials against seeds",
        ratio,
        1.0,
        ratio >= 1,
        f"the best {len(top)} trials vary {ratio:.1f} times as much as the best trial does between seeds"
        if seed_deviation
        else "the best trial gives the same result with every seed",
        "They are not clearly different; rerun the best ones with more seeds before choosing",
    )
