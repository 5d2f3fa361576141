"""Whether one pool's best of K is worse than another's by more than chance: a permutation test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_CHUNK = 2_000_000  # elements that are permuted at once


def lead(ours: np.ndarray, theirs: np.ndarray, k: int) -> float:
    """P(the best of k of ours is lower than the best of k of theirs), less the probability of the reverse."""
    labels = np.concatenate([np.ones(len(ours)), np.zeros(len(theirs))])
    values = np.concatenate([ours, theirs])
    order = np.argsort(values, kind="stable")
    return float(_lead(labels[order][None], _groups(values[order]), k)[0])


def p_value(ours: np.ndarray, theirs: np.ndarray, k: int, *, permutations: int = 9_999, seed: int = 0) -> float:
    """How often chance alone would give ours a lead over theirs as large as it has; lower values are better.

    The trials of both pools are dealt anew at random. The test is exact for pools that do not differ, whatever
    their distribution, and looks at nothing but ranks. NaN if a pool is empty.
    """
    ours, theirs = ours[~np.isnan(ours)], theirs[~np.isnan(theirs)]
    if not len(ours) or not len(theirs):
        return float("nan")
    values = np.sort(np.concatenate([ours, theirs]))
    groups, observed = _groups(values), lead(ours, theirs, k)
    generator = np.random.default_rng(seed)
    labels = np.zeros(len(values))
    labels[: len(ours)] = 1
    reached, left = 0, permutations
    while left:
        n = min(left, max(1, _CHUNK // len(values)))
        dealt = generator.permuted(np.broadcast_to(labels, (n, len(values))), axis=1)
        reached += int((_lead(dealt, groups, k) >= observed - 1e-12).sum())
        left -= n
    return (1 + reached) / (1 + permutations)


def _groups(values: np.ndarray) -> np.ndarray:
    """Where each group of equal values ends, of values in order."""
    return np.flatnonzero(np.append(values[1:] != values[:-1], True))


def _lead(labels: np.ndarray, ends: np.ndarray, k: int) -> np.ndarray:
    """The lead, for each row of labels (1: ours) of values in order."""
    ours = np.cumsum(labels, axis=1)[:, ends]
    theirs = np.cumsum(1 - labels, axis=1)[:, ends]

    def beyond(counts: np.ndarray) -> np.ndarray:
        """P(the best of k comes after each group), with 1 before the first."""
        tail = ((counts[:, -1:] - counts) / counts[:, -1:]) ** k
        return np.concatenate([np.ones((len(counts), 1)), tail], axis=1)

    a, b = beyond(ours), beyond(theirs)
    # Ours is best in a group with probability a_before − a_after, and wins if theirs comes after that group.
    won, lost = (a[:, :-1] - a[:, 1:]) * b[:, 1:], (b[:, :-1] - b[:, 1:]) * a[:, 1:]
    lead: np.ndarray = np.sum(won - lost, axis=1)
    return lead


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
