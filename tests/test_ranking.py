"""Ranks of several pools, compared with enumeration, exact fractions, simulation and pairwise win rates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield.analysis.best_of import probability_better, weights
from levelfield.analysis.ranking import expected_best, rank_probabilities, settles, several_ks

NAN, INF = math.nan, math.inf
TIED = st.lists(st.sampled_from([0.0, 1.0, 2.0, INF]), min_size=1, max_size=3)  # small enough to enumerate
LARGER = st.lists(st.integers(0, 20).map(float), min_size=1, max_size=12)
EMPTY = st.sampled_from([[], [NAN], [NAN, NAN]])


def arrays(pools: Sequence[Sequence[float]]) -> list[np.ndarray]:
    return [np.array(pool, float) for pool in pools]


# Rank probabilities


def enumerated_ranks(pools: Sequence[Sequence[float]], k: int) -> np.ndarray:
    """Return how often each pool has each rank, over all draws of k from every pool; ties share the better rank."""
    counts = np.zeros((len(pools), len(pools)))
    minima = [[min(draw) for draw in itertools.product(pool, repeat=k)] for pool in pools]
    for bests in itertools.product(*minima):
        for i, best in enumerate(bests):
            counts[i, sum(other < best for other in bests)] += 1
    return counts / math.prod(len(pool_minima) for pool_minima in minima)


@settings(max_examples=60)
@given(pools=st.lists(TIED, min_size=1, max_size=3), k=st.integers(1, 2))
def test_rank_probabilities_agree_with_enumeration(pools, k):
    np.testing.assert_allclose(rank_probabilities(arrays(pools), k), enumerated_ranks(pools, k), atol=1e-12)


def test_rank_probabilities_by_hand():
    # The best of 2 of {0, 2} is 0 with probability 3/4, otherwise 2. The others are always 1 and always 2.
    probabilities = rank_probabilities(arrays([[0.0, 2.0], [1.0], [2.0]]), 2)
    np.testing.assert_allclose(probabilities, [[3 / 4, 1 / 4, 0], [1 / 4, 3 / 4, 0], [0, 1 / 4, 3 / 4]])


@given(pools=st.lists(LARGER, min_size=1, max_size=6), k=st.integers(1, 30))
def test_every_pool_has_a_rank_and_at_least_one_ranks_first(pools, k):
    probabilities = rank_probabilities(arrays(pools), k)
    assert np.all(probabilities >= -1e-12)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-12)
    assert probabilities[:, 0].sum() >= 1 - 1e-12  # above 1 if there are ties for the first rank


@given(ours=LARGER, theirs=LARGER, k=st.integers(1, 30))
def test_of_two_pools_the_beaten_one_ranks_second(ours, theirs, k):
    ours, theirs = arrays([ours, theirs])
    beaten = [probability_better(theirs, ours, k), probability_better(ours, theirs, k)]
    np.testing.assert_allclose(rank_probabilities([ours, theirs], k)[:, 1], beaten, atol=1e-12)


@given(pools=st.lists(LARGER, min_size=2, max_size=5), k=st.integers(1, 30))
def test_the_mean_rank_counts_the_pools_that_win(pools, k):
    """This follows from the linearity of the mean."""
    pools = arrays(pools)
    mean_ranks = rank_probabilities(pools, k) @ np.arange(len(pools))
    beaten = [sum(probability_better(b, a, k) for b in pools if b is not a) for a in pools]
    np.testing.assert_allclose(mean_ranks, beaten, atol=1e-11)


@pytest.mark.parametrize("k", [1, 8])
def test_simulated_searches_have_these_ranks(k):
    generator, draws = np.random.default_rng(0), 100_000
    pools = [np.round(generator.normal(size=size), 1) for size in (40, 25, 60, 40)]
    bests = np.array([generator.choice(pool, size=(draws, k)).min(axis=1) for pool in pools])
    ranks = np.sum(bests[None] < bests[:, None], axis=1)
    simulated = np.array([[np.mean(row == rank) for rank in range(len(pools))] for row in ranks])
    exact = rank_probabilities(pools, k)
    assert np.all(np.abs(simulated - exact) <= 5 * np.sqrt(exact * (1 - exact) / draws) + 1e-9)


@given(pools=st.lists(st.one_of(LARGER, EMPTY), min_size=1, max_size=5), k=st.integers(1, 9))
def test_an_empty_pool_has_no_rank_and_the_others_are_ranked_without_it(pools, k):
    probabilities = rank_probabilities(arrays(pools), k)
    present = [i for i, pool in enumerate(pools) if not all(map(math.isnan, pool))]
    absent = [i for i in range(len(pools)) if i not in present]
    assert probabilities.shape == (len(pools), len(pools))
    assert np.all(np.isnan(probabilities[absent]))
    among = rank_probabilities(arrays([pools[i] for i in present]), k)
    np.testing.assert_allclose(probabilities[present][:, : len(present)], among, atol=1e-12)
    assert np.all(probabilities[present][:, len(present) :] == 0)


@given(pools=st.lists(LARGER, min_size=1, max_size=4), k=st.integers(1, 9), data=st.data())
def test_infeasible_trials_and_the_order_of_a_pool_change_no_rank(pools, k, data):
    shuffled = [data.draw(st.permutations([*pool, NAN])) for pool in pools]
    np.testing.assert_allclose(
        rank_probabilities(arrays(shuffled), k), rank_probabilities(arrays(pools), k), atol=1e-12
    )


@pytest.mark.parametrize("k", [0, -1, 1.5, NAN])
def test_an_invalid_number_of_trials_is_refused(k):
    with pytest.raises(ValueError, match=rf"k = {k}: expected an integer of at least 1"):
        rank_probabilities(arrays([[1.0], [2.0]]), k)


def test_no_pools_have_no_ranks():
    assert rank_probabilities([], 3).shape == (0, 0)


# The expected best

KS = st.lists(st.one_of(st.integers(1, 40), st.just(10_000)), min_size=1, max_size=5)


@given(values=st.lists(st.one_of(st.floats(-1e3, 1e3), st.just(INF), st.just(NAN)), max_size=12), ks=KS)
def test_the_expected_best_is_the_mean_of_the_best_of_k(values, ks):
    """Draws whose best is infinite are left out."""
    means = expected_best(np.array(values, float), ks)
    finite = np.isfinite(values)
    shares = [weights(values, k)[finite] for k in ks]
    expected = [share @ np.array(values)[finite] / share.sum() if share.sum() >= 0.95 else NAN for share in shares]
    assert means.shape == (len(ks),)
    assert means == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


@given(values=st.lists(st.integers(-9, 9), min_size=1, max_size=4), k=st.integers(1, 4))
def test_the_expected_best_agrees_with_enumeration(values, k):
    minima = [min(draw) for draw in itertools.product(values, repeat=k)]
    assert expected_best(np.array(values, float), [k]) == pytest.approx([np.mean(minima)], abs=1e-12)


# Numbers of trials


@given(st.integers(1, 100))
def test_small_pools_use_every_number_of_trials(most):
    assert several_ks(most) == list(range(1, most + 1))


@given(most=st.integers(1, 100_000), count=st.integers(2, 200))
def test_large_pools_use_numbers_of_trials_evenly_spaced_on_a_log_scale(most, count):
    ks = several_ks(most, count)
    assert all(isinstance(k, int) for k in ks)
    assert ks == sorted(set(ks))
    assert (ks[0], ks[-1]) == (1, most)
    assert len(ks) <= count
    if most > count:
        ratio = most ** (1 / (count - 1))
        for k, following in itertools.pairwise(ks):
            # Gaps are those of an even spacing whose ends are rounded to integers.
            assert following - 0.5 <= (k + 0.5) * ratio + 1e-6 or following == k + 1


# Where the ranking settles


def exact_best(values: Sequence[float], k: int, replacement: bool = True) -> Fraction:
    """Return the expected best of k as an exact fraction."""
    n = len(values)
    if replacement:
        chances = [Fraction(n - i, n) ** k - Fraction(n - i - 1, n) ** k for i in range(n)]
    else:
        chances = [Fraction(math.comb(n - i - 1, k - 1), math.comb(n, k)) for i in range(n)]
    return sum((chance * int(value) for chance, value in zip(chances, sorted(values), strict=True)), Fraction(0))


def settled(pools: Sequence[Sequence[float]], ks: Sequence[int], replacement: bool) -> int:
    """Return the first K from which on every pair is ordered as at the last K."""
    pairs = list(itertools.combinations(range(len(pools)), 2))
    orders = []
    for k in ks:
        means = [exact_best(pool, k, replacement) for pool in pools]
        # With equal exact means, rounding decides who leads.
        assume(all(means[i] != means[j] for i, j in pairs))
        orders.append([means[i] < means[j] for i, j in pairs])
    return next(k for i, k in enumerate(ks) if all(order == orders[-1] for order in orders[i:]))


CROSSING = st.lists(st.integers(0, 99).map(float), min_size=2, max_size=9)


@settings(max_examples=200)
@given(pools=st.lists(CROSSING, min_size=2, max_size=4), replacement=st.booleans())
def test_settles_agrees_with_exact_means_at_every_k(pools, replacement):
    expected = settled(pools, range(1, min(map(len, pools)) + 1), replacement)
    assert settles(arrays(pools), replacement) == expected


def test_settles_by_hand():
    # Four values of 5 against 0, 7, 7, 7, whose expected best 7 (3/4)^K is below 5 from K = 2 on.
    steady, lucky = [5.0] * 4, [0.0, 7.0, 7.0, 7.0]
    assert 7 * (3 / 4) > 5 > 7 * (3 / 4) ** 2
    assert settles(arrays([steady, lucky])) == 2
    assert settles(arrays([steady, lucky, [9.0] * 4])) == 2
    # With 20 instead of 7, 20 (3/4)^K is below 5 only from K = 5 on, which is more than the pool has trials.
    assert settles(arrays([steady, [0.0, 20.0, 20.0, 20.0]])) == 1
    assert settles(arrays([[5.0] * 5, [0.0, 20.0, 20.0, 20.0]])) == 1


def test_large_pools_settle_at_one_of_several_ks():
    generator = np.random.default_rng(1)
    pools = [generator.integers(0, 10_000, 150).astype(float), generator.integers(1_000, 8_000, 200).astype(float)]
    means = np.array([[lf.best_of(pool, k=k).mean for k in several_ks(150)] for pool in pools])
    leads = means[0] < means[1]
    assert leads.any()
    assert not leads.all()  # they cross
    last = np.flatnonzero(leads != leads[-1]).max()
    assert settles(pools) == several_ks(150)[last + 1]


@given(pools=st.lists(CROSSING, min_size=2, max_size=4), data=st.data())
def test_infeasible_trials_and_empty_pools_do_not_change_where_the_ranking_settles(pools, data):
    padded = [data.draw(st.permutations([*pool, *[NAN] * 12])) for pool in pools]
    padded.insert(data.draw(st.integers(0, len(pools))), data.draw(EMPTY))
    assert settles(arrays(padded)) == settles(arrays(pools))


@pytest.mark.parametrize("pools", [[], [[1.0, 2.0]], [[1.0], []], [[1.0, 2.0], [NAN]], [[], []]], ids=str)
def test_fewer_than_two_pools_have_no_ranking(pools):
    assert settles(arrays(pools)) is None


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ([[1.0, INF], [2.0, INF]], 1),  # both means are infinite
        ([[INF, INF], [INF, INF]], 1),
        ([[1.0, 1.0], [0.0, INF]], 1),
        ([[INF] * 3, [3.0, 1.0, 2.0]], 1),
        ([[5.0] * 4, [0.0, 7.0, 7.0, 7.0], [1.0, INF, INF, INF]], 2),
    ],
    ids=str,
)
def test_settles_handles_infinite_values(pools, expected):
    assert settles(arrays(pools)) == expected
