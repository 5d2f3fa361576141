"""Performance profiles: how far each optimizer's steps to the target are from the best one's, over several studies.

Dolan and Moré (2002) compare solvers over many problems by the ratio r of each one's time to the best one's time on the
same problem. ρ(τ) is the share of problems with r ≤ τ. AlgoPerf's score is the mean of ρ over τ from 1 to 4:

    1/3 ∫₁⁴ ρ(τ) dτ  =  the mean over problems of max(0, 4 − r) / 3.

Here the time is the median number of steps that the fastest of K trials takes to the target. Trials that miss the
target take infinitely many steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from levelfield.analysis.intervals import LEVEL, binomial_cdf, interval

LIMIT = 4.0  # the largest ratio that counts, as in AlgoPerf
_SLACK = 1e-12
_NEGLIGIBLE = 1e-12  # probability


@dataclass(frozen=True)
class Bounds:
    """An estimate and its confidence interval. An open end is infinite."""

    value: float
    low: float
    high: float


def credit(ratio: float) -> float:
    """Return what a ratio contributes to the score: 1 for the best, 0 from four times its steps on.

    >>> credit(1.0), credit(2.5), credit(4.0), credit(math.inf)
    (1.0, 0.5, 0.0, 0.0)
    """
    return max(0.0, LIMIT - ratio) / (LIMIT - 1)


def ratio_bounds(pools: Mapping[str, np.ndarray], k: int, first: float, level: float = LEVEL) -> dict[str, Bounds]:
    """Return each optimizer's ratio of steps to the best one's, with its confidence interval.

    ``pools``: optimizer → the steps that each of its trials takes to the target. ``first``: the first step at which the
    target can be reached. Empty if no optimizer reaches the target in at least half of the repetitions.

    The ratio is the largest of the ratios to each other optimizer, and at least 1. So the interval's upper end is the
    largest upper end of these, because one of them belongs to the best optimizer. Its lower end is the largest lower
    end, each corrected for the number of other optimizers.
    """
    medians = {name: interval(pool, k).median for name, pool in pools.items()}
    best = min(medians.values(), default=math.inf)
    if math.isinf(best):
        return {}
    drawn = {name: _confidence_distribution(pool, k, first) for name, pool in pools.items()}
    tail = (1 - level) / 2
    bounds = {}
    for name, ours in drawn.items():
        others = [theirs for other, theirs in drawn.items() if other != name]
        ratio = medians[name] / best
        low = max([1.0, *(_least_ratio(ours, theirs, tail / len(others)) for theirs in others)])
        high = max([1.0, *(_largest_ratio(ours, theirs, tail) for theirs in others)])
        bounds[name] = Bounds(ratio, min(low, ratio), max(high, ratio))
    return bounds


@dataclass(frozen=True, eq=False)
class _Confidence:
    """Where the median steps of the fastest of K may lie: between which ordered trials, with which confidence."""

    lows: np.ndarray
    highs: np.ndarray
    weights: np.ndarray


def _confidence_distribution(steps: np.ndarray, k: int, first: float) -> _Confidence:
    """Return between which ordered trials the median best of K lies: after i of them with a binomial probability."""
    n = len(steps)
    weights = np.diff(binomial_cdf(n, 1 - 0.5 ** (1 / k)), prepend=0.0)
    possible = np.flatnonzero(weights > _NEGLIGIBLE)
    ordered = np.concatenate([[first], np.sort(steps), [math.inf]])
    return _Confidence(ordered[possible], ordered[possible + 1], weights[possible])


def _least_ratio(ours: _Confidence, theirs: _Confidence, tail: float) -> float:
    """Return the lower confidence bound of ours / theirs. If neither reaches the target, nothing is known: 0."""
    values, cumulated = _ratios(ours.lows, theirs.highs, ours.weights, theirs.weights, unknown=0.0)
    return float(values[min(int(np.searchsorted(cumulated, tail + _SLACK, side="right")), len(values) - 1)])


def _largest_ratio(ours: _Confidence, theirs: _Confidence, tail: float) -> float:
    """Return the upper confidence bound of ours / theirs. If neither reaches the target, it is infinite."""
    values, cumulated = _ratios(ours.highs, theirs.lows, ours.weights, theirs.weights, unknown=math.inf)
    return float(values[min(int(np.searchsorted(cumulated, 1 - tail - _SLACK)), len(values) - 1)])


def _ratios(
    ours: np.ndarray, theirs: np.ndarray, our_weights: np.ndarray, their_weights: np.ndarray, unknown: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return all ratios in order, and the cumulated probabilities."""
    with np.errstate(invalid="ignore"):  # ∞ / ∞
        ratios = (ours[:, None] / theirs[None]).ravel()
    ratios = np.where(np.isnan(ratios), unknown, ratios)
    order = np.argsort(ratios, kind="stable")
    return ratios[order], np.cumsum(np.outer(our_weights, their_weights).ravel()[order])
