"""Tests of what trials say about a search range, on plain arrays.

A unit coordinate is 0 at the lower and 1 at the upper border of the range. Lower values are better, and infinity is the
worst. Evidence is a z-score, so that it can be compared with a quantile of the normal distribution.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

# scipy.stats takes a second to import. The functions that need it import it themselves, because `status` and `plan`
# import this module without calling them.

Z_25, Z_5, Z_2_5 = 0.674, 1.645, 1.960  # quantiles of the normal distribution: one-sided tests at 25%, 5%, 2.5%
SMALL = 0.15  # share of the variance of the ranks: an axis that explains less has hardly an effect
_CLEAR = 0.005  # p-value below which the better half of the trials clearly improves along an axis
_INTERACTS = 0.01  # p-value below which the effect of one axis depends on another
_VISIBLE = 0.05  # p-value below which an axis has an effect
_PER_TERM = 4  # trials for each term of a fit over the other axes
_FEWEST_RESTS = 6  # degrees of freedom that a fit of an interaction must leave
_MOST = 100_000  # trials; a larger extrapolation is not reported


def higher(first: np.ndarray, second: np.ndarray) -> float:
    """Return the z-score of a Mann–Whitney test of whether the first numbers are higher than the second.

    It is corrected for continuity and ties, and −inf if one of the samples is empty.

    >>> round(higher(np.array([7, 8, 9]), np.arange(7)), 2)
    2.28
    """
    from scipy import stats

    n, m = len(first), len(second)
    if not n or not m:
        return -math.inf
    both = np.concatenate([first, second])
    ranks = stats.rankdata(both)
    counts = np.unique(both, return_counts=True)[1].astype(float)
    variance = n * m / 12 * (n + m + 1 - (counts**3 - counts).sum() / ((n + m) * max(n + m - 1, 1)))
    if variance <= 0:
        return 0.0
    return float((ranks[:n].sum() - n * (n + 1) / 2 - n * m / 2 - 0.5) / math.sqrt(variance))


@dataclass(frozen=True)
class Fit:
    """How much of the variance of the values' ranks an axis explains: an F statistic and its degrees of freedom."""

    f: float
    terms: int
    rest: int

    @property
    def p(self) -> float:
        """P(an axis without effect explains as much)."""
        from scipy import stats

        return float(stats.f.sf(self.f, self.terms, self.rest)) if self.rest > 0 else 1.0

    @property
    def is_small(self) -> bool:
        """Whether the upper 95% confidence bound of the explained share is below ``SMALL``."""
        return self.rest > 0 and bool(_is_small(self.f, self.terms, self.rest))

    @property
    def needed(self) -> float:
        """The number of trials at which ``is_small`` would hold if the explained share stays the same."""
        n = self.terms + self.rest + 1
        # An axis without effect has an F of 1 on average; what is above it grows with the number of trials.
        sizes = np.unique(np.geomspace(self.terms + 4, _MOST, 400).astype(int))
        enough = _is_small(1 + max(self.f - 1, 0) * sizes / n, self.terms, sizes - self.terms - 1)
        return float(sizes[np.argmax(enough)]) if enough.any() else math.inf


def _is_small(f: float | np.ndarray, terms: int, rest: int | np.ndarray) -> np.ndarray:
    from scipy import stats

    noncentrality = SMALL / (1 - SMALL) * (terms + rest + 1)
    small: np.ndarray = np.logical_or(f == 0, stats.ncf.cdf(np.maximum(f, 1e-12), terms, rest, noncentrality) < 0.05)
    return small


def parabola(unit: np.ndarray, values: np.ndarray) -> Fit:
    """Fit a parabola to the ranks of the values."""
    return _fit(np.stack([unit, unit**2], axis=1), values)


def groups(labels: Sequence[int], values: np.ndarray) -> Fit:
    """Fit a mean of the ranks to each group of trials."""
    present = np.unique(labels)
    return _fit((np.asarray(labels)[:, None] == present[1:]).astype(float), values)


def _fit(columns: np.ndarray, values: np.ndarray) -> Fit:
    from scipy import stats

    n, terms = columns.shape
    ranks = stats.rankdata(values) - (n + 1) / 2
    rest = n - terms - 1
    total = float(np.square(ranks).sum())
    if not total or not terms or rest < 1:
        return Fit(0.0 if not total else 1.0, max(terms, 1), rest)
    design = np.column_stack([np.ones(n), columns])
    unexplained = float(np.square(ranks - design @ np.linalg.lstsq(design, ranks)[0]).sum())
    return Fit(max((total - unexplained) / terms, 0.0) / max(unexplained / rest, 1e-12), terms, rest)


@dataclass(frozen=True)
class Pool:
    """The trials of a pool, with what all axes together show."""

    units: Mapping[str, np.ndarray]  # the unit coordinates of each axis
    values: np.ndarray
    good: np.ndarray  # indices of the good trials
    better: np.ndarray  # indices of the trials among which a slope is looked for

    @cached_property
    def ranks(self) -> np.ndarray:
        from scipy import stats

        return np.asarray(stats.rankdata(self.values))

    @cached_property
    def adjusted(self) -> dict[tuple[str, ...], np.ndarray]:
        """A cache of what ``adjusted`` returns: a verdict needs the same values several times."""
        return {}

    @cached_property
    def others(self) -> np.ndarray:
        return np.setdiff1d(np.arange(len(self.values)), self.good)

    @cached_property
    def interactions(self) -> set[tuple[str, str]]:
        """The pairs of axes, in both orders, where the effect of one depends on the other: its optimum may shift."""
        from scipy import stats

        n, pairs = len(self.values), set()
        rest = n - 6
        if rest < _FEWEST_RESTS:
            return set()
        ranks, limit = self.ranks, stats.t.isf(_INTERACTS / 2, rest)
        known = [key for key, unit in self.units.items() if np.isfinite(unit).all()]
        for one, other in itertools.combinations(known, 2):
            u, v = self.units[one] - 0.5, self.units[other] - 0.5
            design = np.stack([np.ones(n), u, u**2, v, v**2, u * v], axis=1)
            fitted = np.linalg.lstsq(design, ranks)[0]
            variance = np.square(ranks - design @ fitted).sum() / rest
            error = math.sqrt(max(np.linalg.pinv(design.T @ design)[-1, -1] * variance, 1e-30))
            if abs(fitted[-1]) > limit * error:
                pairs |= {(one, other), (other, one)}
        return pairs

    def interacting(self, key: str) -> list[str]:
        """Return the axes on which the effect of an axis depends."""
        return [other for one, other in sorted(self.interactions) if one == key]


def nearer(pool: Pool, distance: np.ndarray) -> float:
    """Return the evidence that the good trials are nearer to a border than the others, given the distances to it.

    It must hold with and without infeasible trials: that these fill the other part of the range says nothing about
    the feasible ones, and if they fill this part, the border is not a good place.
    """
    feasible = pool.others[np.isfinite(pool.values[pool.others])]
    return min(higher(distance[others], distance[pool.good]) for others in (pool.others, feasible))


def edge(distance: np.ndarray, center: float, values: np.ndarray) -> float:
    """Return the evidence that the trials near a border are worse than those around ``center``."""
    near, far = distance < center / 2, distance > (1 + center) / 2
    return higher(values[near], values[~near & ~far])


def edges(unit: np.ndarray, center: float, values: np.ndarray) -> tuple[float, float]:
    """Return the evidence that the trials near the lower and near the upper border are worse than those between."""
    return edge(unit, center, values), edge(1 - unit, 1 - center, values)


def doubts(distance: np.ndarray, center: float, values: np.ndarray) -> bool:
    """Return whether the trials near a border look worse than those around ``center``."""
    return edge(distance, center, values) > Z_25


def before(distance: np.ndarray, center: float, values: np.ndarray) -> float:
    """Return the evidence that the trials between a border and ``center`` are worse than those just around it."""
    near, around = distance < center / 2, (center / 2 <= distance) & (distance <= 3 * center / 2)
    return higher(values[near], values[around])


def slopes(pool: Pool) -> dict[str, int]:
    """Return the axes along which the better half of the trials still improves, from one linear fit over all axes.

    1 means that lower is better, −1 that higher is. Hyperparameters compensate for each other (a low rate for a high
    momentum), so a border can hold the search back although the best trials do not lie at it. All axes together show
    it, unless the trials that are farthest along the slope of an axis and of those it interacts with are worse again.
    """
    from scipy import stats

    keys = [key for key, unit in pool.units.items() if np.isfinite(unit).all() and np.ptp(unit[pool.better]) > 1e-9]
    freedom = len(pool.better) - len(keys) - 1
    if not keys or freedom < 3:
        return {}
    matrix = np.stack([pool.units[key] for key in keys], axis=1)
    design = np.column_stack([np.ones(len(pool.better)), matrix[pool.better] - 0.5])
    ranks = stats.rankdata(pool.values[pool.better]) - (len(pool.better) + 1) / 2
    fitted = np.linalg.lstsq(design, ranks)[0]
    variance = np.square(ranks - design @ fitted).sum() / freedom
    errors = np.sqrt(np.maximum(np.diag(np.linalg.pinv(design.T @ design)) * variance, 1e-30))
    p_values = 2 * stats.t.sf(np.abs(fitted / errors), freedom)[1:]
    clear = {key: int(np.sign(s)) for key, s, p in zip(keys, fitted[1:], p_values, strict=True) if p < _CLEAR}
    weights = dict(zip(keys, fitted[1:], strict=True))
    return {key: sign for key, sign in clear.items() if not _turns(pool, key, weights)}


def _turns(pool: Pool, key: str, weights: Mapping[str, float]) -> bool:
    """Return whether the trials farthest along the slope of an axis and of those it interacts with are worse again."""
    from scipy import stats

    keys = [key, *(other for other in pool.interacting(key) if other in weights)]
    along = stats.rankdata(sum(weights[key] * pool.units[key] for key in keys)) / len(pool.values)
    return before(along, float(np.median(along[pool.good])), adjusted(pool, *keys)) > 0


def _columns(pool: Pool, keys: Sequence[str], squares: bool) -> np.ndarray:
    columns = [np.ones(len(pool.values))]
    for key in keys:
        columns += [pool.units[key], pool.units[key] ** 2] if squares else [pool.units[key]]
    return np.stack(columns, axis=1)


def _other_terms(pool: Pool, keys: Sequence[str]) -> np.ndarray:
    """Return the terms of a fit over all other axes: parabolas, lines if there are few trials, or only a constant."""
    others = [other for other, at in pool.units.items() if other not in keys and np.isfinite(at).all()]
    for squares in (True, False):
        terms = _columns(pool, others, squares)
        if len(terms) >= _PER_TERM * terms.shape[1]:
            return terms
    return _columns(pool, [], False)


def adjusted(pool: Pool, *keys: str) -> np.ndarray:
    """Return what the other axes do not explain of the values' ranks, so that they do not hide these axes' effect."""
    if keys not in pool.adjusted:
        terms = _other_terms(pool, keys)
        pool.adjusted[keys] = np.round(pool.ranks - terms @ np.linalg.lstsq(terms, pool.ranks)[0], 9)
    return pool.adjusted[keys]


def is_visible(pool: Pool, key: str, unit: np.ndarray) -> bool:
    """Return whether an axis has an effect next to those of the others: by itself, or on what another axis does."""
    return parabola(unit, adjusted(pool, key)).p < _VISIBLE or bool(pool.interacting(key))
