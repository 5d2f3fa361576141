"""Whether one pool's best of K is worse than another's by more than chance: a permutation test.

The report computes the same test in the page, from the same random numbers: a change here is one in
report/statistics.js, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PERMUTATIONS = 9_999
ENOUGH = 200  # leads as large as ours: once chance has given so many, the p-value is known well enough
_TOLERANCE = 1e-12
_CHUNK = 2_000_000  # labels that are dealt at once


def lead(ours: np.ndarray, theirs: np.ndarray, k: int) -> float:
    """P(the best of k of ours is lower than the best of k of theirs), less the probability of the reverse."""
    values = np.concatenate([ours, theirs])
    order = np.argsort(values, kind="stable")
    labels = (order < len(ours)).astype(np.intp)
    return float(_lead(np.cumsum(labels)[None], _ends(values[order]), k)[0])


def p_value(ours: np.ndarray, theirs: np.ndarray, k: int, *, permutations: int = PERMUTATIONS) -> float:
    """How often chance alone would give ours a lead over theirs as large as it has; lower values are better.

    The trials of both pools are dealt anew at random, until chance has reached that lead often enough (Besag and
    Clifford 1991), or so many times. The test is valid for pools that do not differ, whatever their
    distribution, and looks at nothing but ranks. NaN if a pool is empty.
    """
    ours, theirs = ours[~np.isnan(ours)], theirs[~np.isnan(theirs)]
    if not len(ours) or not len(theirs):
        return float("nan")
    ends, observed = _ends(np.sort(np.concatenate([ours, theirs]))), lead(ours, theirs, k)
    reached, n = 0, len(ours) + len(theirs)
    at_once = ENOUGH  # more as it goes on: most tests are decided soon
    start = 0
    while start < permutations:
        stop = min(permutations, start + min(at_once, max(1, _CHUNK // n)))
        large = _lead(_dealt(len(ours), n, start, stop), ends, k) >= observed - _TOLERANCE
        if reached + large.sum() >= ENOUGH:
            last = start + int(np.flatnonzero(large)[ENOUGH - reached - 1])
            return ENOUGH / (last + 1)
        reached, start, at_once = reached + int(large.sum()), stop, 4 * at_once
    return (1 + reached) / (1 + permutations)


def _ends(values: np.ndarray) -> np.ndarray:
    """Where each group of equal values ends, of values in order."""
    return np.flatnonzero(np.append(values[1:] != values[:-1], True))


def _lead(counts: np.ndarray, ends: np.ndarray, k: int) -> np.ndarray:
    """The lead, for each row of counts: how many of ours are among the first 1, 2, … values in order."""
    ours = counts[:, ends]
    theirs = ends + 1 - ours

    def beyond(counts: np.ndarray) -> np.ndarray:
        """P(the best of k comes after each group), with 1 before the first."""
        n = int(counts[0, -1])
        table = ((n - np.arange(n + 1)) / n) ** k
        return np.concatenate([np.ones((len(counts), 1)), table[counts]], axis=1)

    a, b = beyond(ours), beyond(theirs)
    # Ours is best in a group with probability a_before − a_after, and wins if theirs comes after that group.
    lead: np.ndarray = np.sum(a[:, :-1] * b[:, 1:] - b[:, :-1] * a[:, 1:], axis=1)
    return lead


def _dealt(ours: int, n: int, start: int, stop: int) -> np.ndarray:
    """Of the permutations start … stop − 1: how many of the first 1, 2, … of n values fall to ours.

    Each value in turn falls to ours with the share that ours still lack of those that are left.
    """
    # Values that come first in memory are those that are dealt together: one of each permutation.
    counts = np.empty((n, stop - start), np.int32)
    first = np.arange(start, stop, dtype=np.uint32) * np.uint32(n)
    dealt = np.zeros(stop - start, np.int32)
    for i in range(n):
        dealt += _hashed(first + np.uint32(i)).astype(np.float64) * (n - i) < (ours - dealt) * 2.0**32
        counts[i] = dealt
    return counts.T


def _hashed(x: np.ndarray) -> np.ndarray:
    """Counters to random 32-bit numbers (Wellons' "lowbias32")."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return np.asarray(x ^ (x >> np.uint32(16)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: p-values that hold together; NaN stays out of it.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    found = np.array(p_values, float)
    tested = np.flatnonzero(~np.isnan(found))
    order = tested[np.argsort(found[tested], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    found[order] = np.minimum(np.maximum.accumulate(found[order] * factors), 1.0)
    return [float(value) for value in found]
