"""Several pools at once: against enumeration, exact fractions, simulation and what two pools say."""

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


# Who comes first, second, …


def places_of_all_draws(pools: Sequence[Sequence[float]], k: int) -> np.ndarray:
    """How often each pool comes in each place, over all draws of k from every pool; ties share the better place."""
    counts = np.zeros((len(pools), len(pools)))
    minima = [[min(draw) for draw in itertools.product(pool, repeat=k)] for pool in pools]
    for bests in itertools.product(*minima):
        for i, best in enumerate(bests):
            counts[i, sum(other < best for other in bests)] += 1
    return counts / math.prod(len(each) for each in minima)


@settings(max_examples=60)
@given(pools=st.lists(TIED, min_size=1, max_size=3), k=st.integers(1, 2))
def test_places_are_those_of_all_draws(pools, k):
    np.testing.assert_allclose(rank_probabilities(arrays(pools), k), places_of_all_draws(pools, k), atol=1e-12)


def test_places_by_hand():
    # Best of 2 of {0, 2} is 0 with 3/4, else 2; the others are always 1 and always 2, and tie with it at 2.
    found = rank_probabilities(arrays([[0.0, 2.0], [1.0], [2.0]]), 2)
    np.testing.assert_allclose(found, [[3 / 4, 1 / 4, 0], [1 / 4, 3 / 4, 0], [0, 1 / 4, 3 / 4]])


@given(pools=st.lists(LARGER, min_size=1, max_size=6), k=st.integers(1, 30))
def test_every_pool_has_some_place_and_someone_comes_first(pools, k):
    found = rank_probabilities(arrays(pools), k)
    assert np.all(found >= -1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)
    assert found[:, 0].sum() >= 1 - 1e-12  # more than once where the first tie


@given(ours=LARGER, theirs=LARGER, k=st.integers(1, 30))
def test_of_two_the_second_is_the_one_that_is_beaten(ours, theirs, k):
    ours, theirs = arrays([ours, theirs])
    beaten = [probability_better(theirs, ours, k), probability_better(ours, theirs, k)]
    np.testing.assert_allclose(rank_probabilities([ours, theirs], k)[:, 1], beaten, atol=1e-12)


@given(pools=st.lists(LARGER, min_size=2, max_size=5), k=st.integers(1, 30))
def test_the_mean_place_counts_the_pools_that_beat_it(pools, k):
    """By the linearity of the mean, whatever the dependence between them."""
    pools = arrays(pools)
    found = rank_probabilities(pools, k) @ np.arange(len(pools))
    beaten = [sum(probability_better(b, a, k) for b in pools if b is not a) for a in pools]
    np.testing.assert_allclose(found, beaten, atol=1e-11)


@pytest.mark.parametrize("k", [1, 8])
def test_simulated_searches_take_these_places(k):
    generator, draws = np.random.default_rng(0), 100_000
    pools = [np.round(generator.normal(size=size), 1) for size in (40, 25, 60, 40)]
    bests = np.array([generator.choice(pool, size=(draws, k)).min(axis=1) for pool in pools])
    places = np.sum(bests[None] < bests[:, None], axis=1)
    simulated = np.array([[np.mean(row == place) for place in range(len(pools))] for row in places])
    found = rank_probabilities(pools, k)
    assert np.all(np.abs(simulated - found) <= 5 * np.sqrt(found * (1 - found) / draws) + 1e-9)


@given(pools=st.lists(st.one_of(LARGER, EMPTY), min_size=1, max_size=5), k=st.integers(1, 9))
def test_an_empty_pool_has_no_place_and_the_others_are_ranked_without_it(pools, k):
    found = rank_probabilities(arrays(pools), k)
    present = [i for i, pool in enumerate(pools) if not all(map(math.isnan, pool))]
    absent = [i for i in range(len(pools)) if i not in present]
    assert found.shape == (len(pools), len(pools))
    assert np.all(np.isnan(found[absent]))
    among = rank_probabilities(arrays([pools[i] for i in present]), k)
    np.testing.assert_allclose(found[present][:, : len(present)], among, atol=1e-12)
    assert np.all(found[present][:, len(present) :] == 0)


@given(pools=st.lists(LARGER, min_size=1, max_size=4), k=st.integers(1, 9), data=st.data())
def test_infeasible_trials_and_the_order_of_a_pool_change_no_place(pools, k, data):
    shuffled = [data.draw(st.permutations([*pool, NAN])) for pool in pools]
    np.testing.assert_allclose(
        rank_probabilities(arrays(shuffled), k), rank_probabilities(arrays(pools), k), atol=1e-12
    )


@pytest.mark.parametrize("k", [0, -1, 1.5, NAN])
def test_a_number_of_trials_that_is_none_is_refused(k):
    with pytest.raises(ValueError, match=rf"k = {k} .*whole number"):
        rank_probabilities(arrays([[1.0], [2.0]]), k)


def test_no_pools_have_no_places():
    assert rank_probabilities([], 3).shape == (0, 0)


# The expected best

KS = st.lists(st.one_of(st.integers(1, 40), st.just(10_000)), min_size=1, max_size=5)


@given(values=st.lists(st.one_of(st.floats(-1e3, 1e3), st.just(INF), st.just(NAN)), max_size=12), ks=KS)
def test_the_expected_best_is_the_mean_of_the_best_of_k(values, ks):
    """Of the finite ones: draws of which the best is infinite are left out."""
    found = expected_best(np.array(values, float), ks)
    finite = np.isfinite(values)
    shares = [weights(values, k)[finite] for k in ks]
    expected = [share @ np.array(values)[finite] / share.sum() if share.sum() >= 0.95 else NAN for share in shares]
    assert found.shape == (len(ks),)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


@given(values=st.lists(st.integers(-9, 9), min_size=1, max_size=4), k=st.integers(1, 4))
def test_the_expected_best_is_the_mean_of_all_draws(values, k):
    minima = [min(draw) for draw in itertools.product(values, repeat=k)]
    assert expected_best(np.array(values, float), [k]) == pytest.approx([np.mean(minima)], abs=1e-12)


# Numbers of trials


@given(st.integers(1, 100))
def test_few_numbers_of_trials_are_all_taken(most):
    assert several_ks(most) == list(range(1, most + 1))


@given(most=st.integers(1, 100_000), count=st.integers(2, 200))
def test_many_numbers_of_trials_are_evenly_spaced_on_a_log_scale(most, count):
    found = several_ks(most, count)
    assert all(isinstance(k, int) for k in found)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (1, most)
    assert len(found) <= count
    if most > count:
        ratio = most ** (1 / (count - 1))
        for k, following in itertools.pairwise(found):
            # No gap but those of an even spacing, each end rounded to a whole number.
            assert following - 0.5 <= (k + 0.5) * ratio + 1e-6 or following == k + 1


# From which K on the order stays


def exact_best(values: Sequence[float], k: int) -> Fraction:
    """The expected best of k, as a fraction."""
    n = len(values)
    chances = [Fraction(n - i, n) ** k - Fraction(n - i - 1, n) ** k for i in range(n)]
    return sum((chance * int(value) for chance, value in zip(chances, sorted(values), strict=True)), Fraction(0))


def settled(pools: Sequence[Sequence[float]], ks: Sequence[int]) -> int:
    """The first K from which on each pair is ordered as at the last."""
    pairs = list(itertools.combinations(range(len(pools)), 2))
    orders = []
    for k in ks:
        means = [exact_best(pool, k) for pool in pools]
        # Floats cannot tell who leads where the exact means are equal.
        assume(all(means[i] != means[j] for i, j in pairs))
        orders.append([means[i] < means[j] for i, j in pairs])
    return next(k for i, k in enumerate(ks) if all(order == orders[-1] for order in orders[i:]))


CROSSING = st.lists(st.integers(0, 99).map(float), min_size=2, max_size=9)


@settings(max_examples=200)
@given(pools=st.lists(CROSSING, min_size=2, max_size=4))
def test_the_order_settles_where_a_walk_over_all_k_finds_it(pools):
    expected = settled(pools, range(1, min(map(len, pools)) + 1))
    assert settles(arrays(pools)) == expected


def test_two_pools_that_cross_by_hand():
    # All at 5, against one of four at 0 and three at 7: 7 (3/4)^K is below 5 from K = 2 on.
    steady, lucky = [5.0] * 4, [0.0, 7.0, 7.0, 7.0]
    assert 7 * (3 / 4) > 5 > 7 * (3 / 4) ** 2
    assert settles(arrays([steady, lucky])) == 2
    assert settles(arrays([steady, lucky, [9.0] * 4])) == 2
    # At 20 instead of 7 it takes 20 (3/4)^K < 5, K = 5: more than there are trials. The order at K = 4 stands.
    assert settles(arrays([steady, [0.0, 20.0, 20.0, 20.0]])) == 1
    assert settles(arrays([[5.0] * 5, [0.0, 20.0, 20.0, 20.0]])) == 1


def test_large_pools_are_looked_at_for_some_k():
    generator = np.random.default_rng(1)
    pools = [generator.integers(0, 10_000, 150).astype(float), generator.integers(1_000, 8_000, 200).astype(float)]
    means = np.array([[lf.best_of(pool, k=k).mean for k in several_ks(150)] for pool in pools])
    leads = means[0] < means[1]
    assert leads.any()
    assert not leads.all()  # they cross
    last = np.flatnonzero(leads != leads[-1]).max()
    assert settles(pools) == several_ks(150)[last + 1]


@given(pools=st.lists(CROSSING, min_size=2, max_size=4), data=st.data())
def test_neither_infeasible_trials_nor_empty_pools_change_where_the_order_settles(pools, data):
    padded = [data.draw(st.permutations([*pool, *[NAN] * 12])) for pool in pools]
    padded.insert(data.draw(st.integers(0, len(pools))), data.draw(EMPTY))
    assert settles(arrays(padded)) == settles(arrays(pools))


@pytest.mark.parametrize("pools", [[], [[1.0, 2.0]], [[1.0], []], [[1.0, 2.0], [NAN]], [[], []]], ids=str)
def test_fewer_than_two_pools_have_no_order(pools):
    assert settles(arrays(pools)) is None


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ([[1.0, INF], [2.0, INF]], 1),  # both expect infinity, always
        ([[INF, INF], [INF, INF]], 1),
        ([[1.0, 1.0], [0.0, INF]], 1),
        ([[INF] * 3, [3.0, 1.0, 2.0]], 1),
        ([[5.0] * 4, [0.0, 7.0, 7.0, 7.0], [1.0, INF, INF, INF]], 2),
    ],
    ids=str,
)
def test_values_without_bound_do_not_trouble_it(pools, expected):
    assert settles(arrays(pools)) == expected
