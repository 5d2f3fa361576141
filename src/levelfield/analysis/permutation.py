"""A permutation test: is one pool's best of K worse than another's by more than chance?

The report computes the same test in the page from the same random numbers: report/statistics.js must follow every
change here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from levelfield.analysis.best_of import TOLERANCE

PERMUTATIONS = 9_999
ENOUGH = 200  # the p-value is known well enough once this many permutations have reached the observed lead
NEGLIGIBLE = 1e-16  # probability that neither best has been seen yet below which the lead no longer changes
HASH_MULTIPLIERS = 0x7FEB352D, 0x846CA68B  # of the hash function that deals the trials


def lead(ours: np.ndarray, theirs: np.ndarray, k: int) -> float:
    """Return P(the best of k of ours is lower than the best of k of theirs) minus P(it is higher)."""
    values = np.concatenate([ours, theirs])
    order = np.argsort(values, kind="stable")
    counts = np.cumsum(order < len(ours))
    return float(_leads(counts[:, None], values[order], len(ours), k)[0])


def p_value(ours: np.ndarray, theirs: np.ndarray, k: int, *, permutations: int = PERMUTATIONS) -> float:
    """Return how often chance alone gives ours at least the lead over theirs that it has; lower values are better.

    The trials of both pools are dealt anew at random until enough permutations have reached that lead (Besag and
    Clifford 1991), or all permutations are used. The test is valid for any distribution that both pools share and
    depends only on ranks. NaN if a pool is empty.
    """
    ours, theirs = ours[~np.isnan(ours)], theirs[~np.isnan(theirs)]
    if not len(ours) or not len(theirs):
        return float("nan")
    values, observed = np.sort(np.concatenate([ours, theirs])), lead(ours, theirs, k)
    reached, start, batch = 0, 0, ENOUGH  # batches grow because most tests are decided early
    while start < permutations:
        stop = min(permutations, start + batch)
        counts = deal(len(ours), len(values), start, stop)
        large = _leads(counts, values, len(ours), k) >= observed - TOLERANCE
        if reached + large.sum() >= ENOUGH:
            last = start + int(np.flatnonzero(large)[ENOUGH - reached - 1])
            return ENOUGH / (last + 1)
        # A pass over large pools takes long whatever the batch, so few passes are best there.
        reached, start, batch = reached + int(large.sum()), stop, batch * (4 if len(values) <= 2_000 else 50)
    return (1 + reached) / (1 + permutations)


def permuted_leads(ours: np.ndarray, theirs: np.ndarray, k: int, permutations: int) -> np.ndarray:
    """Return the leads of ours that chance alone gives."""
    values = np.sort(np.concatenate([ours, theirs]))
    return _leads(deal(len(ours), len(values), 0, permutations), values, len(ours), k)


def _leads(counts: Iterable[np.ndarray], values: np.ndarray, ours: int, k: int) -> np.ndarray:
    """Return the lead for each permutation; counts say how many of the first 1, 2, … sorted values are ours."""
    n, theirs = len(values), len(values) - ours
    # P(the best of k comes after the first i of a pool)
    beyond_ours, beyond_theirs = (((size - np.arange(size + 1)) / size) ** k for size in (ours, theirs))
    total, a, b = np.zeros(()), np.ones(()), np.ones(())
    for i, count in enumerate(counts):
        if i + 1 < n and values[i] == values[i + 1]:
            continue  # equal values share a rank
        # Our best is among these equal values with probability a − a_after, and wins if theirs comes later.
        a_after, b_after = beyond_ours[count], beyond_theirs[i + 1 - count]
        total = total + (a * b_after - b * a_after)
        a, b = a_after, b_after
        if i % 64 == 0 and np.max(a * b) < NEGLIGIBLE:
            break
    return total


def deal(ours: int, n: int, start: int, stop: int) -> Iterator[np.ndarray]:
    """Yield how many of the first 1, 2, … of n values are ours, for each of the permutations start … stop − 1.

    Each value in turn becomes ours with probability (values that ours still needs) / (values that are left).
    """
    first = np.arange(start, stop, dtype=np.uint32) * np.uint32(n)
    counts = np.zeros(stop - start, np.intp)
    for i in range(n):
        counts = counts + (hash32(first + np.uint32(i)).astype(np.float64) * (n - i) < (ours - counts) * 2.0**32)
        yield counts


def hash32(x: np.ndarray) -> np.ndarray:
    """Return a random 32-bit number for each counter (Wellons' "lowbias32")."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(HASH_MULTIPLIERS[0])
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(HASH_MULTIPLIERS[1])
    return np.asarray(x ^ (x >> np.uint32(16)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method, which controls the error over all of them; NaN is left out.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = np.array(p_values, float)
    tested = np.flatnonzero(~np.isnan(adjusted))
    order = tested[np.argsort(adjusted[tested], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(adjusted[order] * factors), 1.0)
    return [float(p) for p in adjusted]
