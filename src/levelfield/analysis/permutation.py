"""Whether one pool's best of K is worse than another's by more than chance: a permutation test.

The report computes the same test in the page, from the same random numbers: a change here is one in
report/statistics.js, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from levelfield.analysis.best_of import TOLERANCE

PERMUTATIONS = 9_999
ENOUGH = 200  # leads as large as ours: once chance has given so many, the p-value is known well enough
NEGLIGIBLE = 1e-16  # if both bests are still to come with no more than this chance, nothing changes the lead
MULTIPLIERS = 0x7FEB352D, 0x846CA68B  # of the hash that deals the trials


def lead(ours: np.ndarray, theirs: np.ndarray, k: int) -> float:
    """P(the best of k of ours is lower than the best of k of theirs), less the probability of the reverse."""
    values = np.concatenate([ours, theirs])
    order = np.argsort(values, kind="stable")
    counts = np.cumsum(order < len(ours))
    return float(_leads(counts[:, None], values[order], len(ours), k)[0])


def p_value(ours: np.ndarray, theirs: np.ndarray, k: int, *, permutations: int = PERMUTATIONS) -> float:
    """How often chance alone would give ours a lead over theirs as large as it has; lower values are better.

    The trials of both pools are dealt anew at random, until chance has reached that lead often enough (Besag and
    Clifford 1991), or so many times. The test is valid for pools that do not differ, whatever their
    distribution, and looks at nothing but ranks. NaN if a pool is empty.
    """
    ours, theirs = ours[~np.isnan(ours)], theirs[~np.isnan(theirs)]
    if not len(ours) or not len(theirs):
        return float("nan")
    values, observed = np.sort(np.concatenate([ours, theirs])), lead(ours, theirs, k)
    reached, start, at_once = 0, 0, ENOUGH  # more at once as it goes on: most tests are decided soon
    while start < permutations:
        stop = min(permutations, start + at_once)
        dealt = _dealt(len(ours), len(values), start, stop)
        large = _leads(dealt, values, len(ours), k) >= observed - TOLERANCE
        if reached + large.sum() >= ENOUGH:
            last = start + int(np.flatnonzero(large)[ENOUGH - reached - 1])
            return ENOUGH / (last + 1)
        reached, start, at_once = reached + int(large.sum()), stop, 4 * at_once
    return (1 + reached) / (1 + permutations)


def _leads(counts: Iterable[np.ndarray], values: np.ndarray, ours: int, k: int) -> np.ndarray:
    """The lead, for each way to deal values in order: counts of how many of the first 1, 2, … fall to ours."""
    n, theirs = len(values), len(values) - ours
    # P(the best of k comes after so many of a pool)
    beyond_ours, beyond_theirs = (((size - np.arange(size + 1)) / size) ** k for size in (ours, theirs))
    lead, a, b = np.zeros(()), np.ones(()), np.ones(())
    for i, count in enumerate(counts):
        if i + 1 < n and values[i] == values[i + 1]:
            continue  # a group of equal values is one place
        # Ours is best in a group with probability a_before − a_after, and wins if theirs comes after that group.
        a_after, b_after = beyond_ours[count], beyond_theirs[i + 1 - count]
        lead = lead + (a * b_after - b * a_after)
        a, b = a_after, b_after
        if i % 64 == 0 and np.max(a * b) < NEGLIGIBLE:
            break
    return lead


def _dealt(ours: int, n: int, start: int, stop: int) -> Iterator[np.ndarray]:
    """How many of the first 1, 2, … of n values fall to ours, for each of the permutations start … stop − 1.

    Each value in turn falls to ours with the share that ours still lack of those that are left.
    """
    first = np.arange(start, stop, dtype=np.uint32) * np.uint32(n)
    dealt = np.zeros(stop - start, np.intp)
    for i in range(n):
        dealt = dealt + (_hashed(first + np.uint32(i)).astype(np.float64) * (n - i) < (ours - dealt) * 2.0**32)
        yield dealt


def _hashed(x: np.ndarray) -> np.ndarray:
    """Counters to random 32-bit numbers (Wellons' "lowbias32")."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(MULTIPLIERS[0])
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(MULTIPLIERS[1])
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
