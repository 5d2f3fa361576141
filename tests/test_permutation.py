"""The permutation test of a lead, and Holm's correction: against enumeration, simulation and other definitions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from levelfield.analysis.permutation import holm, lead, p_value

NAN, INF = math.nan, math.inf
TIED = st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, INF]), min_size=1, max_size=4)  # small enough to enumerate
KS = st.integers(1, 3)


def minima_of_all_draws(values: Sequence[float], k: int) -> np.ndarray:
    return np.array([min(draw) for draw in itertools.product(values, repeat=k)])


def lead_of_all_draws(ours: Sequence[float], theirs: Sequence[float], k: int) -> float:
    """How often we win, less how often they do, over all k draws from each pool."""
    a, b = minima_of_all_draws(ours, k)[:, None], minima_of_all_draws(theirs, k)
    return float(np.mean(a < b) - np.mean(a > b))


def share_of_all_relabelings(ours: Sequence[float], theirs: Sequence[float], k: int) -> float:
    """In how many of the ways to deal the same values into pools of these sizes the lead is at least ours."""
    values, observed = [*ours, *theirs], lead_of_all_draws(ours, theirs, k)
    reached = []
    for chosen in itertools.combinations(range(len(values)), len(ours)):
        dealt = [values[i] for i in chosen], [values[i] for i in range(len(values)) if i not in chosen]
        reached.append(lead_of_all_draws(*dealt, k) >= observed - 1e-9)
    return float(np.mean(reached))


def noise(share: float, permutations: int) -> float:
    """Six standard deviations of a share found by so many random permutations, and what counting ours adds."""
    return 6 * math.sqrt(share * (1 - share) / permutations) + 2 / permutations


# The lead


@given(ours=TIED, theirs=TIED, k=KS)
def test_the_lead_is_that_of_all_draws(ours, theirs, k):
    assert lead(np.array(ours), np.array(theirs), k) == pytest.approx(lead_of_all_draws(ours, theirs, k), abs=1e-12)


@given(ours=TIED, theirs=TIED, k=st.integers(1, 50))
def test_the_lead_of_one_is_the_arrears_of_the_other(ours, theirs, k):
    ours, theirs = np.array(ours), np.array(theirs)
    assert lead(ours, theirs, k) == pytest.approx(-lead(theirs, ours, k), abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 7])
def test_leads_that_are_plain_to_see(k):
    low, high = np.array([1.0, 2.0]), np.array([3.0, 4.0, INF])
    assert lead(low, high, k) == 1.0
    assert lead(high, low, k) == -1.0
    assert lead(low, low, k) == pytest.approx(0.0, abs=1e-12)
    assert lead(np.full(3, INF), np.full(5, INF), k) == 0.0


def test_a_lead_by_hand():
    # Best of 2 of {0, 2} is 0 with 3/4, else 2; theirs is always 1.
    assert lead(np.array([0.0, 2.0]), np.array([1.0]), 2) == pytest.approx(3 / 4 - 1 / 4)


def test_the_best_of_one_is_compared_as_mann_and_whitney_do():
    generator = np.random.default_rng(3)
    ours, theirs = (generator.integers(0, 9, size).astype(float) for size in (23, 31))
    wins = stats.mannwhitneyu(theirs, ours).statistic  # pairs in which theirs is higher; a tie is half a pair
    assert lead(ours, theirs, 1) == pytest.approx(2 * wins / (23 * 31) - 1)


# The test of it


@settings(max_examples=40)
@given(ours=TIED, theirs=TIED, k=KS)
def test_the_p_value_is_the_share_of_all_relabelings(ours, theirs, k):
    share = share_of_all_relabelings(ours, theirs, k)
    assert p_value(np.array(ours), np.array(theirs), k) == pytest.approx(share, abs=noise(share, 9_999))


def test_a_p_value_by_hand():
    # Of the 10 ways to deal five values into two and three, ours is the only one with so large a lead.
    ours, theirs = np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0])
    assert p_value(ours, theirs, 1) == pytest.approx(1 / 10, abs=noise(0.1, 9_999))
    # At K = 3, too: what is dealt otherwise loses at times.
    assert p_value(ours, theirs, 3) == pytest.approx(1 / 10, abs=noise(0.1, 9_999))
    # With the best value ours and the second best theirs, {1, 2} and {1, 3} lead by as much or more.
    assert p_value(np.array([1.0, 3.0]), np.array([2.0, 4.0, 5.0]), 1) == pytest.approx(2 / 10, abs=noise(0.2, 9_999))


@pytest.mark.parametrize("shift", [-0.5, 0.0, 0.5])
def test_at_one_trial_it_is_mann_and_whitney_s_test(shift):
    generator = np.random.default_rng(7)
    ours, theirs = generator.normal(size=12) + shift, generator.normal(size=15)
    exact = stats.mannwhitneyu(ours, theirs, alternative="less", method="exact").pvalue
    assert p_value(ours, theirs, 1) == pytest.approx(exact, abs=noise(exact, 9_999))


def continuous(generator: np.random.Generator, n: int) -> np.ndarray:
    return generator.standard_cauchy(n)


def tied(generator: np.random.Generator, n: int) -> np.ndarray:
    return generator.integers(0, 4, n).astype(float)


def partly_infinite(generator: np.random.Generator, n: int) -> np.ndarray:
    return np.where(generator.random(n) < 0.4, INF, generator.normal(size=n))


def nearly_all_infinite(generator: np.random.Generator, n: int) -> np.ndarray:
    return np.where(generator.random(n) < 0.9, INF, generator.normal(size=n))


@pytest.mark.parametrize("draw", [continuous, tied, partly_infinite, nearly_all_infinite])
@pytest.mark.parametrize(("sizes", "k"), [((8, 8), 3), ((5, 14), 2), ((14, 5), 10)])
def test_chance_alone_is_called_significant_no_more_often_than_it_says(draw, sizes, k):
    """Two pools of the same distribution, again and again, each with permutations of its own."""
    repetitions, generator = 1_000, np.random.default_rng(11)
    found = np.array(
        [p_value(*(draw(generator, n) for n in sizes), k, permutations=99, seed=seed) for seed in range(repetitions)]
    )
    for level in (0.01, 0.05, 0.2):
        allowed = level + 4 * math.sqrt(level * (1 - level) / repetitions)
        assert np.mean(found <= level + 1e-9) <= allowed


def test_without_ties_the_level_is_reached():
    """At K = 1, where hardly any two leads are equal, the test gives nothing away."""
    repetitions, generator = 1_500, np.random.default_rng(12)
    pools = (continuous(generator, 24).reshape(2, 12) for _ in range(repetitions))
    found = np.array([p_value(*pair, 1, permutations=99, seed=seed) for seed, pair in enumerate(pools)])
    for level in (0.05, 0.2, 0.5):
        assert np.mean(found <= level + 1e-9) >= level - 4 * math.sqrt(level * (1 - level) / repetitions) - 0.02


@pytest.mark.parametrize("k", [1, 5, 40])
def test_the_ends(k):
    low, high = np.arange(20.0), np.arange(20.0) + 100
    assert p_value(low, high, k) <= 1e-3
    assert p_value(high, low, k) > 0.999
    assert p_value(np.zeros(9), np.zeros(7), k) == 1.0
    assert p_value(np.full(4, INF), np.full(4, INF), k) == 1.0
    assert p_value(low, np.full(20, INF), k) <= 1e-3


def test_a_p_value_is_never_zero():
    """Ours is one of the ways to deal: 9,999 permutations tell nothing below 1 in 10,000."""
    assert p_value(np.arange(50.0), np.arange(50.0) + 99, 1) == pytest.approx(1e-4)
    assert p_value(np.arange(50.0), np.arange(50.0) + 99, 1, permutations=19) == pytest.approx(1 / 20)


@given(ours=TIED, theirs=TIED, k=KS, data=st.data())
def test_nothing_but_ranks_counts(ours, theirs, k, data):
    ours, theirs = np.array(ours), np.array(theirs)
    p = p_value(ours, theirs, k, permutations=99)
    shuffled = np.array(data.draw(st.permutations(ours.tolist())))
    assert p_value(shuffled, theirs, k, permutations=99) == p
    # An increasing function of the values keeps all ranks, infinity's too.
    assert p_value(np.exp(ours) - 7, np.exp(theirs) - 7, k, permutations=99) == p


@given(ours=TIED, theirs=TIED, infeasible=st.integers(1, 4), k=KS)
def test_infeasible_trials_take_no_part(ours, theirs, infeasible, k):
    without = p_value(np.array(ours), np.array(theirs), k, permutations=99)
    with_them = p_value(np.array([*[NAN] * infeasible, *ours]), np.array([*theirs, NAN]), k, permutations=99)
    assert with_them == without


@pytest.mark.parametrize(("ours", "theirs"), [([], [1.0]), ([1.0], []), ([], []), ([NAN, NAN], [1.0, 2.0])])
def test_without_a_pool_there_is_no_p_value(ours, theirs):
    assert math.isnan(p_value(np.array(ours, float), np.array(theirs, float), 2))


def test_pools_too_large_to_deal_at_once_are_dealt_in_parts():
    """At K = 1 and these sizes, the normal approximation is as good as exact."""
    generator = np.random.default_rng(5)
    ours, theirs = generator.normal(size=700) + 0.03, generator.normal(size=700)
    normal = stats.mannwhitneyu(ours, theirs, alternative="less", method="asymptotic").pvalue
    assert 0.02 < normal < 0.5
    assert p_value(ours, theirs, 1, permutations=4_000) == pytest.approx(normal, abs=noise(normal, 4_000) + 1e-3)


# Holm's correction

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=6)


def closed_bonferroni(p_values: Sequence[float]) -> list[float]:
    """Holm's correction as a closed test: the worst Bonferroni p-value of all sets that hold a hypothesis."""
    n = len(p_values)
    sets = [each for size in range(1, n + 1) for each in itertools.combinations(range(n), size)]
    return [max(min(1.0, len(s) * min(p_values[j] for j in s)) for s in sets if i in s) for i in range(n)]


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
def test_holm_is_the_closed_test_of_bonferroni(raw):
    assert holm(raw) == pytest.approx(closed_bonferroni(raw), abs=1e-12)


@given(P_VALUES)
def test_a_corrected_p_value_is_no_smaller_and_keeps_its_place(raw):
    found = holm(raw)
    assert all(p <= q <= 1 for p, q in zip(raw, found, strict=True))
    assert min(found) <= min(1.0, len(raw) * min(raw))
    for (p, q), (r, s) in itertools.combinations(zip(raw, found, strict=True), 2):
        assert (q <= s) if p <= r else (q >= s)


@given(P_VALUES, st.data())
def test_what_was_not_tested_takes_no_part(raw, data):
    places = data.draw(st.lists(st.integers(0, len(raw)), max_size=4))
    padded = list(raw)
    for place in sorted(places, reverse=True):
        padded.insert(place, NAN)
    found = holm(padded)
    assert [q for q in found if not math.isnan(q)] == pytest.approx(closed_bonferroni(raw), abs=1e-12)
    assert [math.isnan(q) for q in found] == [math.isnan(p) for p in padded]


def test_nothing_tested_nothing_corrected():
    assert all(math.isnan(q) for q in holm([NAN, NAN]))
