"""Several pools at once: the probability of each rank with K trials, and the K from which the ranking is stable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from levelfield.analysis.best_of import LOW, TOLERANCE, check_k, later, weights

_MOST_KS = 100  # how many numbers of trials are looked at between 1 and the size of a pool


def rank_probabilities(pools: Sequence[np.ndarray], k: int, replacement: bool = True) -> np.ndarray:
    """Return P(the best of k of pool i has rank r), as [i, r]; lower is better, and ties share the better rank.

    The row of an empty pool is NaN, and the other pools are ranked without it.
    """
    check_k(k)
    pools = [pool[~np.isnan(pool)] for pool in pools]
    present = [i for i, pool in enumerate(pools) if len(pool)]
    probabilities = np.full((len(pools), len(pools)), np.nan)
    for i in present:
        # For each trial of pool i, if it is the best: P(exactly r other pools have a better best).
        ranks = np.zeros((len(pools[i]), len(pools)))
        ranks[:, 0] = 1
        for j in present:
            if j != i:
                before = np.searchsorted(np.sort(pools[j]), pools[i], side="left")
                better = 1 - later(len(pools[j]), k, replacement)[before]
                beaten = np.zeros_like(ranks)
                beaten[:, 1:] = ranks[:, :-1] * better[:, None]
                ranks = beaten + ranks * (1 - better[:, None])
        probabilities[i] = weights(pools[i], k, replacement) @ ranks
    return probabilities


def expected_best(values: np.ndarray, ks: Sequence[int], replacement: bool = True) -> np.ndarray:
    """Return the mean of the best (lowest) of k for several k, over finite bests as in ``Outcome.best``."""
    ordered = np.sort(values[~np.isnan(values)])
    n = len(ordered)
    if not n:
        return np.full(len(ks), np.nan)
    finite = np.isfinite(ordered)
    chances = np.array([-np.diff(later(n, k, replacement))[finite] for k in ks])
    shares = chances.sum(axis=1)
    enough = shares >= 1 - LOW - TOLERANCE
    return np.where(enough, (chances * ordered[finite]).sum(axis=1) / np.where(enough, shares, 1), np.nan)


def several_ks(most: int, count: int = _MOST_KS) -> list[int]:
    """Return numbers of trials from 1 to the most: all of them, or about ``count`` evenly spaced on a log scale."""
    return sorted(
        {round(k) for k in np.geomspace(1, most, count)} | ({*range(1, most + 1)} if most <= count else set())
    )


def settles(pools: Sequence[np.ndarray], replacement: bool = True) -> int | None:
    """Return the number of trials from which the ranking by expected best stays the same as for the whole pools.

    None if fewer than two pools have values. Pools of different sizes are compared up to the smallest size.
    """
    pools = [feasible for pool in pools if len(feasible := pool[~np.isnan(pool)])]
    if len(pools) < 2:
        return None
    ks = several_ks(min(len(pool) for pool in pools))
    means = np.array([expected_best(pool, ks, replacement) for pool in pools])
    leads = means[:, None] < means[None]  # [i, j, k]: pool i is better than pool j
    same = np.all(leads == leads[..., -1:], axis=(0, 1))
    changes = np.flatnonzero(~same)
    return ks[int(changes[-1]) + 1] if len(changes) else ks[0]
