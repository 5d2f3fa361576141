"""The permutation test and Holm's method, compared with enumeration, simulation and other definitions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from levelfield.analysis import permutation
from levelfield.analysis.best_of import probability_better
from levelfield.analysis.permutation import ENOUGH, PERMUTATIONS, holm, lead, lead_tests, p_value, relevant

NAN, INF = math.nan, math.inf
TIED = st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, INF]), min_size=1, max_size=4)  # small enough to enumerate
KS = st.integers(1, 3)


def enumerated_minima(values: Sequence[float], k: int) -> np.ndarray:
    return np.array([min(draw) for draw in itertools.product(values, repeat=k)])


def enumerated_lead(ours: Sequence[float], theirs: Sequence[float], k: int) -> float:
    """Return how often we win minus how often they win, over all draws of k from each pool."""
    a, b = enumerated_minima(ours, k)[:, None], enumerated_minima(theirs, k)
    return float(np.mean(a < b) - np.mean(a > b))


def enumerated_p_value(ours: Sequence[float], theirs: Sequence[float], k: int) -> float:
    """Return the share of all ways to deal the values into pools of these sizes whose lead is at least ours."""
    values, observed = [*ours, *theirs], enumerated_lead(ours, theirs, k)
    reached = []
    for chosen in itertools.combinations(range(len(values)), len(ours)):
        dealt = [values[i] for i in chosen], [values[i] for i in range(len(values)) if i not in chosen]
        reached.append(enumerated_lead(*dealt, k) >= observed - 1e-9)
    return float(np.mean(reached))


def noise(share: float, permutations: int = PERMUTATIONS) -> float:
    """Return six standard deviations of a share estimated by random permutations, plus the bias of counting ours.

    Either all permutations are made, or about ENOUGH / share of them.
    """
    made = min(permutations, ENOUGH / share) if share else permutations
    return 6 * math.sqrt(share * (1 - share) / made) + 2 / made


# The lead


@given(ours=TIED, theirs=TIED, k=KS)
def test_the_lead_agrees_with_enumeration(ours, theirs, k):
    assert lead(np.array(ours), np.array(theirs), k) == pytest.approx(enumerated_lead(ours, theirs, k), abs=1e-12)


@given(ours=TIED, theirs=TIED, k=st.integers(1, 50))
def test_the_lead_is_antisymmetric(ours, theirs, k):
    ours, theirs = np.array(ours), np.array(theirs)
    assert lead(ours, theirs, k) == pytest.approx(-lead(theirs, ours, k), abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 7])
def test_the_lead_in_clear_cases(k):
    low, high = np.array([1.0, 2.0]), np.array([3.0, 4.0, INF])
    assert lead(low, high, k) == 1.0
    assert lead(high, low, k) == -1.0
    assert lead(low, low, k) == pytest.approx(0.0, abs=1e-12)
    assert lead(np.full(3, INF), np.full(5, INF), k) == 0.0


def test_a_lead_by_hand():
    # Best of 2 of {0, 2} is 0 with 3/4, else 2; theirs is always 1.
    assert lead(np.array([0.0, 2.0]), np.array([1.0]), 2) == pytest.approx(3 / 4 - 1 / 4)


def test_with_one_trial_the_lead_is_the_mann_whitney_statistic():
    generator = np.random.default_rng(3)
    ours, theirs = (generator.integers(0, 9, size).astype(float) for size in (23, 31))
    wins = stats.mannwhitneyu(theirs, ours).statistic  # pairs in which theirs is higher; a tie is half a pair
    assert lead(ours, theirs, 1) == pytest.approx(2 * wins / (23 * 31) - 1)


@pytest.mark.parametrize("k", [1, 30, 400])
@pytest.mark.parametrize("sizes", [(300, 300), (20, 400)])
def test_the_lead_of_large_pools_is_the_difference_of_the_win_rates(sizes, k):
    """With large K most values hardly matter, and the sum stops early; it must not stop too early."""
    generator = np.random.default_rng(2)
    ours, theirs = (generator.integers(0, 90, size).astype(float) for size in sizes)
    chances = probability_better(ours, theirs, k), probability_better(theirs, ours, k)
    assert lead(ours, theirs, k) == pytest.approx(chances[0] - chances[1], abs=1e-13)


# Random numbers


def lowbias32(x: int) -> int:
    """Wellons' hash as published, in Python integers."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> shift)) * factor % 2**32
    return x ^ (x >> 16)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20))
def test_the_hash_agrees_with_the_published_one(counters):
    hashes = permutation.hash32(np.array(counters, np.uint32))
    assert hashes.dtype == np.uint32
    assert hashes.tolist() == [lowbias32(counter) for counter in counters]


def test_every_bit_of_the_hash_is_set_half_the_time():
    n = 1 << 16
    bits = np.unpackbits(permutation.hash32(np.arange(n, dtype=np.uint32)).view(np.uint8)).reshape(n, 32)
    assert np.all(np.abs(bits.mean(axis=0) - 0.5) < 5 * 0.5 / math.sqrt(n))


def dealt(ours: int, n: int, start: int, stop: int) -> np.ndarray:
    """Return which values are ours: permutations × values."""
    counts = np.array([np.array(row) for row in permutation.deal(ours, n, start, stop)]).T
    assert counts.shape == (stop - start, n)
    return np.diff(counts, axis=1, prepend=0)


DEALS = [(1, 2), (1, 6), (5, 6), (2, 5), (3, 6), (4, 8)]


@pytest.mark.parametrize(("ours", "n"), DEALS)
def test_each_way_to_deal_is_equally_likely(ours, n):
    labels = dealt(ours, n, 0, 50_000)
    ways, counts = np.unique(labels, axis=0, return_counts=True)
    expected = {tuple(int(i in chosen) for i in range(n)) for chosen in itertools.combinations(range(n), ours)}
    assert {tuple(way) for way in ways.tolist()} == expected
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(("ours", "n"), [(1, 2), (2, 4), (2, 5), (3, 6)])
def test_consecutive_permutations_are_independent(ours, n):
    _, way = np.unique(dealt(ours, n, 0, 50_000), axis=0, return_inverse=True)
    ways = math.comb(n, ours)
    pairs = np.bincount(way[0::2] * ways + way[1::2], minlength=ways**2)
    assert stats.chisquare(pairs).pvalue > 1e-4


@given(ours=st.integers(1, 9), theirs=st.integers(1, 9), ends=st.tuples(st.integers(0, 40), st.integers(1, 40)))
def test_a_permutation_does_not_depend_on_its_batch(ours, theirs, ends):
    start, stop = ends[0], sum(ends)
    np.testing.assert_array_equal(dealt(ours, ours + theirs, start, stop), dealt(ours, ours + theirs, 0, stop)[start:])


# The test of the lead


@settings(max_examples=40)
@given(ours=TIED, theirs=TIED, k=KS)
def test_the_p_value_agrees_with_enumeration(ours, theirs, k):
    share = enumerated_p_value(ours, theirs, k)
    assert p_value(np.array(ours), np.array(theirs), k) == pytest.approx(share, abs=noise(share))


def sequential_p_value(ours: Sequence[float], theirs: Sequence[float], k: int, enough: int, permutations: int) -> float:
    """Besag and Clifford's p-value as they describe it: deal, compare, stop once enough have reached the lead."""
    values, reached = np.sort([*ours, *theirs]), 0
    observed = enumerated_lead(ours, theirs, k)
    for made, labels in enumerate(dealt(len(ours), len(values), 0, permutations), start=1):
        reached += enumerated_lead(values[labels == 1], values[labels == 0], k) >= observed - 1e-9
        if reached == enough:
            return enough / made
    return (reached + 1) / (permutations + 1)


@settings(max_examples=40)
@given(ours=TIED, theirs=TIED, k=st.integers(1, 2), enough=st.integers(1, 20), permutations=st.integers(1, 99))
def test_permutations_stop_once_enough_have_reached_the_lead(ours, theirs, k, enough, permutations):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutation, "ENOUGH", enough)
        p = p_value(np.array(ours), np.array(theirs), k, permutations=permutations)
    assert p == pytest.approx(sequential_p_value(ours, theirs, k, enough, permutations), abs=1e-12)


@pytest.mark.parametrize("shift", [-1.0, -0.6, -0.4, -0.2, 0.0, 0.2, 1.0])
@pytest.mark.parametrize("k", [1, 6])
def test_stopping_early_changes_the_p_value_only_within_its_noise(shift, k, monkeypatch):
    generator = np.random.default_rng(4)
    ours, theirs = generator.normal(size=30) + shift, generator.normal(size=25)
    early = p_value(ours, theirs, k)
    monkeypatch.setattr(permutation, "ENOUGH", PERMUTATIONS + 1)
    full = p_value(ours, theirs, k)
    assert early == pytest.approx(full, abs=noise(full))
    assert (early == full) == (full < ENOUGH / PERMUTATIONS)


def test_most_tests_stop_early(monkeypatch):
    """Equal pools need a few hundred permutations; only a certain lead needs all."""
    made = []
    whole = permutation.deal
    monkeypatch.setattr(permutation, "deal", lambda m, n, start, stop: made.append(stop) or whole(m, n, start, stop))
    p_value(np.arange(20.0), np.arange(20.0), 5)
    assert max(made) <= 1_000
    p_value(np.arange(20.0), np.arange(20.0) + 99, 5)
    assert max(made) == PERMUTATIONS


def test_a_p_value_by_hand():
    # Of the 10 ways to deal five values into two and three, only ours has such a large lead.
    ours, theirs = np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0])
    assert p_value(ours, theirs, 1) == pytest.approx(1 / 10, abs=noise(0.1))
    # Also at K = 3: with any other deal, ours sometimes loses.
    assert p_value(ours, theirs, 3) == pytest.approx(1 / 10, abs=noise(0.1))
    # With {1, 3}, only {1, 2} and {1, 3} itself lead by as much.
    assert p_value(np.array([1.0, 3.0]), np.array([2.0, 4.0, 5.0]), 1) == pytest.approx(2 / 10, abs=noise(0.2))


@pytest.mark.parametrize("shift", [-0.5, 0.0, 0.5])
def test_with_one_trial_the_test_is_the_mann_whitney_test(shift):
    generator = np.random.default_rng(7)
    ours, theirs = generator.normal(size=12) + shift, generator.normal(size=15)
    exact = stats.mannwhitneyu(ours, theirs, alternative="less", method="exact").pvalue
    assert p_value(ours, theirs, 1) == pytest.approx(exact, abs=noise(exact))


def continuous(generator: np.random.Generator, n: int) -> np.ndarray:
    return generator.standard_cauchy(n)


def tied(generator: np.random.Generator, n: int) -> np.ndarray:
    return generator.integers(0, 4, n).astype(float)


def partly_infinite(generator: np.random.Generator, n: int) -> np.ndarray:
    return np.where(generator.random(n) < 0.4, INF, generator.normal(size=n))


def nearly_all_infinite(generator: np.random.Generator, n: int) -> np.ndarray:
    return np.where(generator.random(n) < 0.9, INF, generator.normal(size=n))


DRAWS = [continuous, tied, partly_infinite, nearly_all_infinite]


def allowed(level: float) -> float:
    """Return a level plus the noise of the p-values."""
    return level + noise(level)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize(("sizes", "k"), [((4, 4), 3), ((3, 6), 2), ((6, 3), 10)])
def test_the_level_holds_over_all_relabelings(draw, sizes, k):
    """If pools do not differ, all ways to deal their values are equally likely, and few may have small p-values."""
    n, generator = sum(sizes), np.random.default_rng(11)
    values = draw(generator, n)
    ways = [np.isin(np.arange(n), chosen) for chosen in itertools.combinations(range(n), sizes[0])]
    p_values = np.array([p_value(values[way], values[~way], k) for way in ways])
    for level in (0.02, 0.05, 0.1, 0.2, 0.5):
        assert np.mean(p_values <= level) <= allowed(level)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize(("sizes", "k"), [((20, 20), 5), ((8, 30), 12)])
def test_the_level_holds_for_pools_of_the_same_distribution(draw, sizes, k):
    """Simulate two pools of the same distribution many times."""
    repetitions, generator = 300, np.random.default_rng(12)
    p_values = np.array([p_value(*(draw(generator, n) for n in sizes), k) for _ in range(repetitions)])
    for level in (0.01, 0.05, 0.2):
        assert np.mean(p_values <= level) <= allowed(level) + 4 * math.sqrt(level * (1 - level) / repetitions)


def test_the_test_is_not_conservative_without_ties():
    """At K = 1, where few leads are equal, the p-values are uniform."""
    repetitions, generator = 600, np.random.default_rng(13)
    p_values = np.array([p_value(*continuous(generator, 24).reshape(2, 12), 1) for _ in range(repetitions)])
    for level in (0.05, 0.2, 0.5):
        error = 4 * math.sqrt(level * (1 - level) / repetitions)
        assert abs(np.mean(p_values <= level) - level) <= error + noise(level)


@pytest.mark.parametrize("k", [1, 5, 40])
def test_the_p_value_in_clear_cases(k):
    low, high = np.arange(20.0), np.arange(20.0) + 100
    assert p_value(low, high, k) <= 1e-3
    assert p_value(high, low, k) > 0.999
    assert p_value(np.zeros(9), np.zeros(7), k) == 1.0
    assert p_value(np.full(4, INF), np.full(4, INF), k) == 1.0
    assert p_value(low, np.full(20, INF), k) <= 1e-3


def test_a_p_value_is_never_zero():
    """The observed deal counts as one: with 9,999 permutations, the smallest p-value is 1 in 10,000."""
    assert p_value(np.arange(50.0), np.arange(50.0) + 99, 1) == pytest.approx(1e-4)
    assert p_value(np.arange(50.0), np.arange(50.0) + 99, 1, permutations=19) == pytest.approx(1 / 20)


def test_a_cautious_p_value_includes_its_standard_errors():
    """If r deals reach the lead, their share is known up to a relative standard error of 1 / √r."""
    high, low = np.arange(50.0) + 99, np.arange(50.0)
    only_the_observed = lead_tests([(low, high)], 1)[0]
    assert only_the_observed.cautious_p_value(2) == pytest.approx(3 * only_the_observed.p_value)
    stopped_early = lead_tests([(low, low)], 1)[0]
    assert stopped_early.cautious_p_value(3) == pytest.approx(stopped_early.p_value * (1 + 3 / math.sqrt(ENOUGH)))
    assert lead_tests([(high, low)], 1)[0].cautious_p_value(2) == 1
    assert math.isnan(lead_tests([(np.array([]), low)], 1)[0].cautious_p_value(2))


@given(ours=TIED, theirs=TIED, k=KS, data=st.data())
def test_only_ranks_count(ours, theirs, k, data):
    ours, theirs = np.array(ours), np.array(theirs)
    p = p_value(ours, theirs, k, permutations=99)
    shuffled = np.array(data.draw(st.permutations(ours.tolist())))
    assert p_value(shuffled, theirs, k, permutations=99) == p
    # An increasing function of the values keeps all ranks, including that of infinity.
    assert p_value(np.exp(ours) - 7, np.exp(theirs) - 7, k, permutations=99) == p


@given(ours=TIED, theirs=TIED, infeasible=st.integers(1, 4), k=KS)
def test_infeasible_trials_are_ignored(ours, theirs, infeasible, k):
    without = p_value(np.array(ours), np.array(theirs), k, permutations=99)
    with_them = p_value(np.array([*[NAN] * infeasible, *ours]), np.array([*theirs, NAN]), k, permutations=99)
    assert with_them == without


@pytest.mark.parametrize(("ours", "theirs"), [([], [1.0]), ([1.0], []), ([], []), ([NAN, NAN], [1.0, 2.0])])
def test_an_empty_pool_has_no_p_value(ours, theirs):
    assert math.isnan(p_value(np.array(ours, float), np.array(theirs, float), 2))


def test_with_one_trial_large_pools_agree_with_the_normal_approximation():
    """At these sizes the approximation is practically exact."""
    generator = np.random.default_rng(5)
    ours, theirs = generator.normal(size=700) + 0.03, generator.normal(size=700)
    normal = stats.mannwhitneyu(ours, theirs, alternative="less", method="asymptotic").pvalue
    assert 0.02 < normal < 0.5
    assert p_value(ours, theirs, 1) == pytest.approx(normal, abs=noise(normal) + 1e-3)


@pytest.mark.parametrize("k", [1, 4, 60])
def test_the_values_left_out_do_not_change_the_lead(k):
    """Beyond the relevant values, hardly any best of k is left to be found."""
    generator = np.random.default_rng(6)
    ours, theirs = generator.normal(size=300), generator.normal(size=250)
    values = np.sort([*ours, *theirs])
    cut = values[relevant(len(values), k) - 1]
    shuffled = [np.where(pool > cut, math.inf, pool) for pool in (ours, theirs)]
    assert lead(*shuffled, k) == pytest.approx(lead(ours, theirs, k), abs=1e-7)


@pytest.mark.parametrize("draw", [continuous, tied, partly_infinite])
def test_tests_together_are_the_tests_alone(draw):
    """Pairs of the same sizes share their deals, with or without the same ties."""
    generator = np.random.default_rng(7)
    pools = [draw(generator, n) for n in (20, 20, 20, 15)]
    pools.append(pools[0] - 9)  # a lead that takes all permutations
    pairs = [*itertools.permutations(pools, 2), (np.array([]), pools[0])]
    together = lead_tests(pairs, 4)
    for (ours, theirs), test in zip(pairs[:-1], together[:-1], strict=True):
        assert test == lead_tests([(ours, theirs)], 4)[0]
        assert test.lead == lead(ours, theirs, 4)
        assert test.p_value == p_value(ours, theirs, 4)
    assert math.isnan(together[-1].p_value)


def test_the_spread_is_that_of_all_deals():
    values, k = np.array([0.0, 1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 9.0]), 2
    ways = itertools.combinations(range(8), 3)
    leads = [lead(values[list(way)], np.delete(values, way), k) for way in ways]
    test = lead_tests([(values[:3], values[3:])], k)[0]
    assert test.spread == pytest.approx(np.std(leads), rel=0.15)


# Holm's method

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=6)


def closed_bonferroni(p_values: Sequence[float]) -> list[float]:
    """Holm's method as a closed test: the largest Bonferroni p-value of all subsets that contain a hypothesis."""
    n = len(p_values)
    subsets = [subset for size in range(1, n + 1) for subset in itertools.combinations(range(n), size)]
    return [
        max(min(1.0, len(subset) * min(p_values[j] for j in subset)) for subset in subsets if i in subset)
        for i in range(n)
    ]


@pytest.mark.parametrize(
    ("raw", "corrected"),
    [
        ([0.03], [0.03]),
        ([0.01, 0.02, 0.03, 0.04], [0.04, 0.06, 0.06, 0.06]),
        ([0.04, 0.01, 0.03, 0.02], [0.06, 0.04, 0.06, 0.06]),
        ([0.001, 0.5, 0.02], [0.003, 0.5, 0.04]),
        ([0.3, 0.4, 0.9], [0.9, 0.9, 0.9]),
        ([0.6, 0.7], [1.0, 1.0]),
        ([0.02, 0.02], [0.04, 0.04]),
        ([], []),
    ],
)
def test_holm_by_hand(raw, corrected):
    assert holm(raw) == pytest.approx(corrected)


@given(P_VALUES)
def test_holm_is_the_closed_bonferroni_test(raw):
    assert holm(raw) == pytest.approx(closed_bonferroni(raw), abs=1e-12)


@given(P_VALUES)
def test_adjusted_p_values_are_no_smaller_and_keep_their_order(raw):
    adjusted = holm(raw)
    assert all(p <= q <= 1 for p, q in zip(raw, adjusted, strict=True))
    assert min(adjusted) <= min(1.0, len(raw) * min(raw))
    for (p, q), (r, s) in itertools.combinations(zip(raw, adjusted, strict=True), 2):
        assert (q <= s) if p <= r else (q >= s)


@given(P_VALUES, st.data())
def test_nan_does_not_count_as_a_test(raw, data):
    positions = data.draw(st.lists(st.integers(0, len(raw)), max_size=4))
    padded = list(raw)
    for position in sorted(positions, reverse=True):
        padded.insert(position, NAN)
    adjusted = holm(padded)
    assert [q for q in adjusted if not math.isnan(q)] == pytest.approx(closed_bonferroni(raw), abs=1e-12)
    assert [math.isnan(q) for q in adjusted] == [math.isnan(p) for p in padded]


def test_nan_stays_nan():
    assert all(math.isnan(q) for q in holm([NAN, NAN]))
