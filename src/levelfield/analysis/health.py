"""Whether a search can be trusted: checks of an optimizer's pool, each with its number, threshold and remedy."""

from __future__ import annotations

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
from levelfield.trial import Direction, Trial

_INFEASIBLE = 0.5  # share of the trials
_GOOD_TRIALS = 5  # that compete for the best of K
_FALLING = 0.05  # of what N trials gain over one: if the second half of them brings more, more would help
_LATE = 0.05  # of a curve's fall: in its last tenth
_EARLY = 0.1  # of the steps


@dataclass(frozen=True)
class Check:
    """One question about a search, and the answer."""

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
        return f"{self.optimizer}: {self.finding}" + ("" if self.healthy else f": {self.remedy}")


def health(results: Results, k: int | None = None) -> list[Check]:
    """Check every optimizer's search."""
    study = results.study
    answers: list[Check] = []
    for name, outcome in results.outcomes.items():
        more = "give the grid more points" if results.count(name).exhausted else "run a larger pool"
        axes, trials = study.optimizer(name).space.free, results.trials[name]
        answers += checks(outcome, trials, axes, results.k(k), results.reruns.get(name), more)
    return answers


def checks(
    outcome: Outcome,
    trials: Sequence[Trial],
    axes: Sequence[Axis],
    k: int,
    reruns: Outcome | None = None,
    more: str = "run a larger pool",
) -> Iterator[Check]:
    """The checks that there are trials for. ``trials`` are all that were tried; ``reruns``, seeds of the best one.

    ``more`` says how to get more trials.
    """
    name = outcome.name
    if trials:
        share = outcome.infeasible_share
        where = _where(trials, axes) if share else ""
        yield Check(
            name,
            "infeasible trials",
            share,
            _INFEASIBLE,
            share <= _INFEASIBLE,
            f"{share:.0%} of {len(trials)} trials are infeasible{where}",
            "narrow the space there" if where else "narrow the space, most likely the learning rate",
        )
    ranked = outcome.ranked()
    if not np.isfinite(ranked).any():
        return
    if any(axis.dimension.free for axis in axes):  # else all differ by their seeds alone
        yield from _of_search(outcome, ranked[np.isfinite(ranked)], k, more)
    yield from _of_curves(outcome)
    if reruns and len(reruns.pool) > 1:
        yield from _of_seeds(outcome, ranked, reruns)


def _where(trials: Sequence[Trial], axes: Sequence[Axis]) -> str:
    """On which axis the infeasible trials lie apart from the others, and on which side."""
    failed = np.array([not trial.feasible for trial in trials])
    if failed.all():
        return ""
    best, said = 0.75, ""  # the chance that an infeasible trial lies beyond a feasible one
    for axis in axes:
        found = [axis.coordinate(trial.point.hyperparameters) for trial in trials]
        if any(isinstance(value, bool | str) for value in found):
            continue
        values = np.array(found, float)
        beyond = np.mean(np.sign(values[failed][:, None] - values[~failed][None]) / 2 + 0.5)
        if max(beyond, 1 - beyond) > best:
            best = max(beyond, 1 - beyond)
            middle = np.sort(values[failed])[(failed.sum() - (beyond > 0.5)) // 2]  # one of them, choices have no other
            said = f", half of them at {axis.key} = {format_number(middle)} or {'above' if beyond > 0.5 else 'below'}"
    return said


def _of_search(outcome: Outcome, ranked: np.ndarray, k: int, more: str) -> Iterator[Check]:
    name, n = outcome.name, len(ranked)
    good = int((ranked <= best_of(ranked, k).high).sum())
    yield Check(
        name,
        "good trials",
        good,
        _GOOD_TRIALS,
        good >= min(_GOOD_TRIALS, n),
        f"{good} of {n} trials are as good as the best of K = {k} may be",
        f"{more}, or narrow the space to where they lie",
    )
    if n > 1:
        first, half, whole = (best_of(ranked, each).mean for each in (1, max(1, n // 2), n))
        gain = (half - whole) / (first - whole) if first > whole else 0.0
        yield Check(
            name,
            "still improving with trials",
            gain,
            _FALLING,
            gain <= _FALLING,
            f"the second half of the trials brings {gain:.0%} of what all bring",
            more,
        )


def _of_curves(outcome: Outcome) -> Iterator[Check]:
    best = outcome.best_trial
    found = outcome.curve(best) if best else None
    values = found.values.get(outcome.select) if found else None
    if found is None or values is None or len(values) < 3:
        return
    sign = -1 if outcome.metrics[outcome.select] is Direction.MAXIMIZE else 1
    curve, steps = sign * np.asarray(values, float), found.steps
    if not np.isfinite(curve).all():
        return
    at = max(0, int(np.searchsorted(steps, 0.9 * steps[-1], side="right")) - 1)
    fall, part = curve.max() - curve.min(), 1 - steps[at] / steps[-1]  # evaluations may be further apart than a tenth
    late = float((curve[at] - curve[-1]) / fall * 0.1 / part) if fall and part else 0.0
    yield Check(
        outcome.name,
        "curve still improving at the end",
        late,
        _LATE,
        late <= _LATE,
        f"the best trial makes {max(late, 0):.0%} of its progress in the last tenth of its steps",
        "train longer, or let the learning rate fall further",
    )
    early = float(steps[int(curve.argmin())] / steps[-1])
    yield Check(
        outcome.name,
        "best step",
        early,
        _EARLY,
        early > _EARLY or bool(curve[-1] <= curve.min()),
        f"the best trial is at its best after {early:.0%} of its steps",
        "fewer steps would do, or it overfits: lower rates or regularise",
    )


def _of_seeds(outcome: Outcome, ranked: np.ndarray, reruns: Outcome) -> Iterator[Check]:
    """How far the best trials lie apart, against how far seeds alone would move them."""
    seeds = float(np.std(reruns.values(), ddof=1))
    top = np.sort(ranked[np.isfinite(ranked)])[:_GOOD_TRIALS]
    spread = float(np.std(top, ddof=1)) if len(top) > 1 else math.nan
    if math.isnan(spread) or math.isnan(seeds):
        return
    ratio = spread / seeds if seeds else math.inf
    yield Check(
        outcome.name,
        "trials against seeds",
        ratio,
        1.0,
        ratio >= 1,
        f"the best {len(top)} trials spread {ratio:.1f} times as far as seeds of one",
        "they cannot be told apart: rerun the best with more seeds before choosing",
    )
