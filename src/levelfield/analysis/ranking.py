"""Several pools at once: who comes first, second, … with K trials each, and from which K on that stays so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from levelfield.analysis.best_of import LOW, TOLERANCE, check_k, weights

_MOST_KS = 100  # between 1 and the size of a pool


def rank_probabilities(pools: Sequence[np.ndarray], k: int) -> np.ndarray:
    """P(the best of k of pool i comes in place r), as [i, r]; lower is better, those that tie share the better place.

    A row is NaN where a pool is empty, and the others are ranked without it.
    """
    check_k(k)
    pools = [pool[~np.isnan(pool)] for pool in pools]
    present = [i for i, pool in enumerate(pools) if len(pool)]
    found = np.full((len(pools), len(pools)), np.nan)
    for i in present:
        chances = np.zeros((len(pools[i]), len(pools)))  # for each trial as the best: P(r others are better)
        chances[:, 0] = 1
        for j in present:
            if j != i:
                better = 1 - (1 - np.searchsorted(np.sort(pools[j]), pools[i], side="left") / len(pools[j])) ** k
                beaten = np.zeros_like(chances)
                beaten[:, 1:] = chances[:, :-1] * better[:, None]
                chances = beaten + chances * (1 - better[:, None])
        found[i] = weights(pools[i], k) @ chances
    return found


def expected_best(values: np.ndarray, ks: Sequence[int]) -> np.ndarray:
    """The mean of the best (lowest) of k, for several k: as an Outcome's, of the finite ones."""
    ordered = np.sort(values[~np.isnan(values)])
    n = len(ordered)
    if not n:
        return np.full(len(ks), np.nan)
    # P(the best is the i-th or a later one), i = 0 … n
    later = ((n - np.arange(n + 1)) / n) ** np.asarray(ks)[:, None]
    finite = np.isfinite(ordered)
    chances = (later[:, :-1] - later[:, 1:])[:, finite]
    shares = chances.sum(axis=1)
    enough = shares >= 1 - LOW - TOLERANCE
    return np.where(enough, (chances * ordered[finite]).sum(axis=1) / np.where(enough, shares, 1), np.nan)


def several_ks(most: int, count: int = _MOST_KS) -> list[int]:
    """Numbers of trials from 1 to the most, all of them or evenly spaced on a log scale."""
    return sorted(
        {round(k) for k in np.geomspace(1, most, count)} | ({*range(1, most + 1)} if most <= count else set())
    )


def settles(pools: Sequence[np.ndarray]) -> int | None:
    """From which number of trials on the order by expected best is the one that all the trials give.

    None if fewer than two pools have values. Pools of unequal size are compared up to the smallest.
    """
    pools = [drawn for pool in pools if len(drawn := pool[~np.isnan(pool)])]
    if len(pools) < 2:
        return None
    ks = several_ks(min(len(pool) for pool in pools))
    means = np.array([expected_best(pool, ks) for pool in pools])
    leads = means[:, None] < means[None]  # each pair: the first is better
    same = np.all(leads == leads[..., -1:], axis=(0, 1))
    changes = np.flatnonzero(~same)
    return ks[int(changes[-1]) + 1] if len(changes) else ks[0]
