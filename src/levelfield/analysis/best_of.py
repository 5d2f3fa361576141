"""The best of K trials, exactly.

A tuner who draws K trials from a pool of N and keeps the best keeps the i-th best of the pool with probability

    wᵢ = ((N − i + 1) / N)^K − ((N − i) / N)^K,    i = 1 … N,

so means and percentiles under w are the paper's bootstrap without its Monte Carlo noise. Trials that tie share
their weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LOW, HIGH = 0.05, 0.95  # percentiles of an estimate
TOLERANCE = 1e-12  # of a probability: rounding
CLEAR = 0.95  # from this probability on, one optimizer is said to beat another


@dataclass(frozen=True)
class Estimate:
    """A distribution in three numbers: its mean and its 5th and 95th percentiles. NaN where there is none."""

    mean: float
    low: float
    high: float


NOTHING = Estimate(np.nan, np.nan, np.nan)


def weights(values: Sequence[float] | np.ndarray, k: int) -> np.ndarray:
    """The probability with which each trial is the best of k drawn (lower is better; NaN is never drawn).

    >>> weights([3.0, 1.0, 2.0], k=1)
    array([0.33333333, 0.33333333, 0.33333333])
    """
    values = np.asarray(values, float)
    if values.ndim != 1:
        raise ValueError(f"values must be one-dimensional, not of shape {values.shape}")
    check_k(k)
    drawn = ~np.isnan(values)
    n = int(drawn.sum())
    result = np.zeros(len(values))
    if n:
        # A group of ties occupies the ranks first … last; it holds the whole group's weight, shared equally.
        ordered = np.sort(values[drawn])
        first = np.searchsorted(ordered, values[drawn], side="left") + 1
        last = np.searchsorted(ordered, values[drawn], side="right")
        result[drawn] = (((n - first + 1) / n) ** k - ((n - last) / n) ** k) / (last - first + 1)
    return result


def check_k(k: int) -> None:
    if not (math.isfinite(k) and k == int(k) and k >= 1):
        raise ValueError(f"k = {k} must be a whole number of at least 1")


def estimate(values: np.ndarray, probabilities: np.ndarray) -> Estimate:
    """The mean and percentiles of values under probabilities (which need not add up to one)."""
    likely = probabilities > 0
    values, probabilities = values[likely], probabilities[likely]
    if not len(values):
        return NOTHING
    order = np.argsort(values, kind="stable")
    values, cumulated = values[order], np.cumsum(probabilities[order])
    cumulated /= cumulated[-1]
    # The smallest value at which the distribution function reaches q; rounding must not push it one further.
    low, high = values[np.minimum(np.searchsorted(cumulated, np.array([LOW, HIGH]) - TOLERANCE), len(values) - 1)]
    return Estimate(float(np.average(values, weights=probabilities[order])), float(low), float(high))


def best_of(values: Sequence[float] | np.ndarray, k: int, *, bootstrap: int | None = None, seed: int = 0) -> Estimate:
    """The best (lowest) of k values drawn with replacement: its mean and 5th and 95th percentiles.

    NaN marks an infeasible trial, which is never drawn. With ``bootstrap=100``, the paper's Monte Carlo
    estimate from so many resamples instead.

    >>> best_of([1.0, 2.0, 3.0, 4.0], k=1).mean
    2.5
    >>> best_of([1.0, 2.0], k=2)  # 1, unless both draws are 2
    Estimate(mean=1.25, low=1.0, high=2.0)
    """
    values = np.asarray(values, float)
    if bootstrap is None:
        return estimate(values, weights(values, k))
    found = values[resampled(values, k, bootstrap, seed)]
    return estimate(found, np.ones(len(found)))


def resampled(values: np.ndarray, k: int, resamples: int, seed: int = 0) -> np.ndarray:
    """The paper's way: which trial is the best of k, in each of so many resamples of the pool."""
    check_k(k)
    feasible = np.flatnonzero(~np.isnan(values))
    if not len(feasible):
        return feasible
    generator = np.random.default_rng(seed)
    drawn = feasible[generator.integers(len(feasible), size=(resamples, int(k)))]
    # Draws come in random order, so that taking the first of several best shares ties equally.
    best: np.ndarray = drawn[np.arange(resamples), np.argmin(values[drawn], axis=1)]
    return best


def probability_better(ours: np.ndarray, theirs: np.ndarray, k: int) -> float:
    """P(the best of k of ours is strictly lower than the best of k of theirs). NaN if either pool is empty."""
    ours, theirs = ours[~np.isnan(ours)], theirs[~np.isnan(theirs)]
    if not len(ours) or not len(theirs):
        return float("nan")
    # The best of k of theirs exceeds x if all k draws do.
    exceed = 1 - np.searchsorted(np.sort(theirs), ours, side="right") / len(theirs)
    return float(weights(ours, k) @ exceed**k)
