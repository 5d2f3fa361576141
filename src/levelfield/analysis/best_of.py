"""The distribution of the best of K trials, exactly.

Draw K trials from a pool of N and keep the best. It is the i-th best trial of the pool with probability

    wᵢ = ((N − i + 1) / N)^K − ((N − i) / N)^K,    i = 1 … N,

so means and percentiles under w equal the paper's bootstrap without its Monte Carlo noise. Tied trials share their
weight.

The paper draws with replacement. That repeats trials, so the mean is biased upward if K is not small compared with N.
Drawing without replacement (``replacement=False``) gives the unbiased estimate:

    wᵢ = C(N − i, K − 1) / C(N, K),    K ≤ N.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LOW, HIGH = 0.05, 0.95  # percentiles of an estimate
TOLERANCE = 1e-12  # for the rounding errors of probabilities


@dataclass(frozen=True)
class Estimate:
    """A distribution in three numbers: its mean and its 5th and 95th percentiles. NaN if there are no values."""

    mean: float
    low: float
    high: float


NO_ESTIMATE = Estimate(np.nan, np.nan, np.nan)


def later(n: int, k: int, replacement: bool = True) -> np.ndarray:
    """Return P(all k draws from n ordered trials come after the first i), i = 0 … n.

    >>> later(2, 2), later(2, 2, replacement=False)
    (array([1.  , 0.25, 0.  ]), array([1., 0., 0.]))
    """
    check_k(k)
    before = np.arange(n + 1)
    if replacement:
        return ((n - before) / n) ** k
    if k > n:
        raise ValueError(f"k = {k}: expected at most {n}, the number of trials to draw from without replacement")
    left = n - before[:-1]
    return np.concatenate([[1.0], np.cumprod(np.maximum(left - k, 0) / left)])


def weights(values: Sequence[float] | np.ndarray, k: int, replacement: bool = True) -> np.ndarray:
    """Return the probability that each trial is the best of k (lower is better; NaN is never drawn).

    >>> weights([3.0, 1.0, 2.0], k=1)
    array([0.33333333, 0.33333333, 0.33333333])
    """
    check_k(k)
    return Ties.of(as_values(values)).weights(k, replacement)


class Ties(NamedTuple):
    """The ranks of values: from ``first`` up to, but not including, ``last``; tied values have several."""

    drawn: np.ndarray  # whether a value is drawn at all
    first: np.ndarray  # of those that are
    last: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Ties:
        drawn = ~np.isnan(values)
        ordered = np.sort(values[drawn])
        first, last = (np.searchsorted(ordered, values[drawn], side) for side in ("left", "right"))
        return cls(drawn, first, last)

    def weights(self, k: int, replacement: bool = True) -> np.ndarray:
        """Return the probability that each value is the best of k; tied values share their weight equally."""
        probabilities = np.zeros(len(self.drawn))
        if n := len(self.first):
            chance = later(n, k, replacement)
            probabilities[self.drawn] = (chance[self.first] - chance[self.last]) / (self.last - self.first)
        return probabilities


def as_values(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return values as an array. Raise if they are not a list of numbers."""
    array = np.asarray(values, float)
    if array.ndim != 1:
        raise ValueError(f"values of shape {array.shape}: expected a one-dimensional list")
    return array


def check_k(k: int) -> None:
    """Raise if k is not a number of trials."""
    if not (isinstance(k, int | float | np.number) and math.isfinite(k) and k == int(k) and k >= 1):
        raise ValueError(f"k = {k!r}: expected an integer of at least 1")


def estimate(values: np.ndarray, probabilities: np.ndarray) -> Estimate:
    """Return the mean and percentiles of values with these probabilities, which need not sum to 1."""
    possible = probabilities > 0
    values, probabilities = values[possible], probabilities[possible]
    if not len(values):
        return NO_ESTIMATE
    order = np.argsort(values, kind="stable")
    values, cumulative = values[order], np.cumsum(probabilities[order])
    cumulative /= cumulative[-1]
    # The smallest value at which the distribution function reaches q. The tolerance keeps rounding errors from
    # skipping to the next value.
    low, high = values[np.minimum(np.searchsorted(cumulative, np.array([LOW, HIGH]) - TOLERANCE), len(values) - 1)]
    return Estimate(float(np.average(values, weights=probabilities[order])), float(low), float(high))


def best_of(
    values: Sequence[float] | np.ndarray,
    k: int,
    *,
    replacement: bool = True,
    bootstrap: int | None = None,
    seed: int = 0,
) -> Estimate:
    """Return the mean and the 5th and 95th percentiles of the best (lowest) of k values drawn from these.

    NaN marks an infeasible trial, which is not drawn. ``replacement=False`` gives an unbiased mean and needs k values;
    ``bootstrap`` draws that many resamples instead of computing the distribution exactly.

    >>> best_of([1.0, 2.0, 3.0, 4.0], k=1).mean
    2.5
    >>> best_of([1.0, 2.0], k=2)  # 1, unless both draws are 2
    Estimate(mean=1.25, low=1.0, high=2.0)
    >>> best_of([1.0, 2.0], k=2, replacement=False)
    Estimate(mean=1.0, low=1.0, high=1.0)
    """
    values = as_values(values)
    if bootstrap is None:
        return estimate(values, weights(values, k, replacement))
    bests = values[resample(values, k, bootstrap, seed, replacement)]
    return estimate(bests, np.ones(len(bests)))


def resample(values: np.ndarray, k: int, resamples: int, seed: int = 0, replacement: bool = True) -> np.ndarray:
    """Return the index of the best of k trials in each resample of the pool, as in the paper."""
    check_k(k)
    feasible = np.flatnonzero(~np.isnan(values))
    if not len(feasible):
        return feasible
    generator = np.random.default_rng(seed)
    if replacement:
        drawn = feasible[generator.integers(len(feasible), size=(resamples, int(k)))]
    else:
        later(len(feasible), k, replacement)  # raises if there are fewer than k
        drawn = generator.permuted(np.tile(feasible, (resamples, 1)), axis=1)[:, : int(k)]
    # Draws are in random order, so taking the first of several best trials shares ties equally.
    best: np.ndarray = drawn[np.arange(resamples), np.argmin(values[drawn], axis=1)]
    return best


def probability_better(ours: np.ndarray, theirs: np.ndarray, k: int, replacement: bool = True) -> float:
    """Return P(the best of k of ours is strictly lower than the best of k of theirs), NaN if a pool is empty."""
    ours, theirs = ours[~np.isnan(ours)], theirs[~np.isnan(theirs)]
    if not len(ours) or not len(theirs):
        return float("nan")
    # The best of k of theirs exceeds x if all k draws do.
    exceed = later(len(theirs), k, replacement)[np.searchsorted(np.sort(theirs), ours, side="right")]
    return float(weights(ours, k, replacement) @ exceed)
