"""What N trials say about the best of K: intervals and separated pairs, against closed forms and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import make_study
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import levelfield as lf
from levelfield.analysis.intervals import (
    binomial_cdf,
    chance_of_any,
    compare_pairs,
    needed_trials,
)

finite = st.floats(-1e6, 1e6)


@given(st.integers(1, 200), st.floats(1e-6, 1 - 1e-6))
def test_the_binomial_distribution_is_scipys(n: int, p: float) -> None:
    np.testing.assert_allclose(binomial_cdf(n, p), stats.binom.cdf(np.arange(n + 1), n, p), atol=1e-9)


# The median best of K


def true_median(k: int) -> float:
    """Of uniform numbers: P(the least of k exceeds x) = (1 − x)^k = 1/2."""
    return 1 - 0.5 ** (1 / k)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (20, 20), (20, 10), (25, 5), (50, 10), (100, 20), (100, 100)])
def test_intervals_cover_the_true_median_as_often_as_they_say(n: int, k: int) -> None:
    """The bar is 90%, less three standard errors of 1,000 simulated pools."""
    generator, truth, pools = np.random.default_rng(n + k), true_median(k), 1_000
    intervals = [lf.interval(generator.random(n), k) for _ in range(pools)]
    covered = np.mean([interval.low <= truth <= interval.high for interval in intervals])
    assert covered >= 0.9 - 3 * math.sqrt(0.09 / pools)


@pytest.mark.parametrize("k", [1, 5, 10, 20, 100])
def test_five_trials_for_each_of_k_close_both_ends(k: int) -> None:
    interval = lf.interval(np.random.default_rng(0).random(5 * k), k)
    assert -math.inf < interval.low <= interval.median <= interval.high < math.inf


@pytest.mark.parametrize("k", [1, 3, 10, 37])
def test_the_lower_end_is_open_below_the_needed_number_of_trials(k: int) -> None:
    """A bound exists if all trials exceed the median with a chance of at most 5%: (1/2)^(N/K) ≤ 0.05."""
    needed = needed_trials(k)
    assert 0.5 ** (needed / k) <= 0.05 < 0.5 ** ((needed - 1) / k)
    values = np.arange(needed, dtype=float)
    assert lf.interval(values, k).low == 0.0
    assert lf.interval(values[1:], k).low == -math.inf


@given(st.lists(finite, min_size=1, max_size=60), st.integers(1, 20), st.floats(0.5, 0.99))
def test_an_interval_holds_its_median_and_grows_with_its_level(values: list[float], k: int, level: float) -> None:
    narrow, wide = lf.interval(values, k, level), lf.interval(values, k, (1 + level) / 2)
    assert wide.low <= narrow.low <= narrow.median <= narrow.high <= wide.high
    assert narrow.median in values


def test_an_interval_follows_the_values_and_ignores_infeasible_trials() -> None:
    values = np.random.default_rng(3).normal(size=60)
    plain, scaled = lf.interval(values, 8), lf.interval(np.exp(values), 8)
    assert (scaled.low, scaled.median, scaled.high) == pytest.approx(
        (math.exp(plain.low), math.exp(plain.median), math.exp(plain.high))
    )
    assert lf.interval([*values, math.nan, math.nan], 8) == plain
    assert math.isnan(lf.interval([math.nan], 1).median)


@pytest.mark.parametrize("level", [0.0, 1.0, 90.0, math.nan])
def test_a_level_is_a_probability(level: float) -> None:
    with pytest.raises(ValueError, match="expected a number between 0 and 1"):
        lf.interval([1.0], 1, level)


# P(ours beats theirs)


@pytest.mark.parametrize(("n", "k", "shift"), [(25, 5, 0.0), (50, 10, 0.5), (20, 20, 0.3)])
def test_intervals_of_the_win_rate_cover_the_true_one(n: int, k: int, shift: float) -> None:
    generator, pools = np.random.default_rng(n), 100
    ours, theirs = (generator.normal(size=(40_000, k)).min(1) + at for at in (0.0, shift))
    truth = float(np.mean(ours < theirs))
    chances = [lf.beats(generator.normal(size=n), generator.normal(size=n) + shift, k) for _ in range(pools)]
    assert np.mean([chance.low <= truth <= chance.high for chance in chances]) >= 0.85
    assert all(0 <= chance.low <= chance.probability <= chance.high <= 1 for chance in chances)


@pytest.mark.parametrize("level", [0.8, 0.9, 0.99])
def test_the_interval_of_a_success_is_scipys_exact_one(level: float) -> None:
    for successes, n in ((0, 5), (1, 5), (5, 5), (7, 20)):
        theirs = stats.binomtest(successes, n).proportion_ci(level, method="exact")
        ours = chance_of_any(successes, n, 1, level)
        assert (ours.probability, ours.low, ours.high) == pytest.approx((successes / n, theirs.low, theirs.high))


@given(st.integers(0, 30), st.integers(1, 30), st.integers(1, 50))
def test_the_chance_of_any_success_rises_with_the_number_of_trials(successes: int, n: int, k: int) -> None:
    successes = min(successes, n)
    fewer, more = chance_of_any(successes, n, k), chance_of_any(successes, n, k + 1)
    assert 0 <= fewer.low <= fewer.probability <= fewer.high <= 1
    assert (fewer.low, fewer.probability, fewer.high) <= (more.low, more.probability, more.high)


def test_a_win_rate_is_at_most_1() -> None:
    """Also where all of many small terms are added up."""
    for k in (1, 2, 10, 25):
        chance = lf.beats(np.arange(25.0), 100 + np.arange(25.0), k)
        assert (chance.probability, chance.high) == (pytest.approx(1), 1)
        assert 0 <= chance.low <= chance.probability


def test_a_win_rate_needs_as_many_trials_as_k() -> None:
    with pytest.raises(ValueError, match="k = 500: expected at most 3"):
        lf.beats([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 500)


# Which pairs are separated


@pytest.mark.parametrize(("n", "k"), [(20, 20), (20, 10), (25, 5), (1, 1)])
@pytest.mark.parametrize("optimizers", [2, 6])
def test_identical_optimizers_are_hardly_ever_separated(n: int, k: int, optimizers: int) -> None:
    """At most 5% of studies make a claim; the bar adds three standard errors of 200 studies."""
    generator, studies = np.random.default_rng(100 * n + k), 200
    claims = sum(
        bool(lf.separated({str(i): generator.lognormal(size=n) for i in range(optimizers)}, k)) for _ in range(studies)
    )
    assert claims / studies <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / studies)


def test_a_large_difference_is_found_in_its_direction() -> None:
    generator = np.random.default_rng(1)
    pools = {"worse": generator.normal(size=50) + 3, "better": generator.normal(size=50)}
    assert lf.separated(pools, 5) == [("better", "worse")]


def test_one_trial_each_separates_nothing() -> None:
    assert lf.separated({"a": [0.0], "b": [1e9], "c": [math.nan]}, 1) == []


def test_the_two_sided_test_has_no_side() -> None:
    generator = np.random.default_rng(2)
    ours, theirs = generator.normal(size=30), generator.normal(size=40) + 0.4
    (forward,), (backward,) = compare_pairs({"a": ours, "b": theirs}, 5), compare_pairs({"b": theirs, "a": ours}, 5)
    assert forward.p_value == pytest.approx(backward.p_value, abs=0.02)
    assert (forward.better, forward.worse) == (backward.better, backward.worse)


def test_the_trials_that_would_separate_two_pools_do() -> None:
    """With the estimated number of trials, most studies separate what the first ones could not."""
    generator, k, shift = np.random.default_rng(4), 5, 0.5

    def pair(n: int) -> tuple[np.ndarray, np.ndarray]:
        return generator.normal(size=n), generator.normal(size=n) + shift

    tests = [compare_pairs(dict(zip("ab", pair(25), strict=True)), k)[0] for _ in range(60)]
    assert all(test.needed is None or test.needed > 25 for test in tests)
    known = [test.needed for test in tests if test.needed]
    assert len(known) > 20
    typical = int(np.median(known))
    separated = [compare_pairs(dict(zip("ab", pair(typical), strict=True)), k)[0].separated for _ in range(40)]
    assert np.mean(separated) > 0.4


# The same numbers for a study


def test_a_comparison_gives_the_same_numbers(made) -> None:
    generator = np.random.default_rng(5)
    study = make_study(
        {name: {"rule": "sgd", "learning_rate": {"log": [1e-3, high]}} for name, high in (("a", 0.1), ("b", 0.2))},
        trials=3,
        pool=20,
    )
    losses = {"a": generator.random(20).astype(np.float32), "b": 5 + generator.random(20).astype(np.float32)}
    evaluations = -(-study.steps // study.eval_interval)
    comparison = made(
        study,
        {name: [{"train_loss": [float(loss)] * evaluations} for loss in values] for name, values in losses.items()},
    )
    assert comparison.interval("a", 3) == lf.interval(losses["a"], 3)
    assert comparison.interval("b") == lf.interval(losses["b"], study.trials)
    assert comparison.separated() == lf.separated(losses, study.trials) == [("a", "b")]
    assert any(sentence.startswith("It beats b in all repetitions, more than") for sentence in comparison.sentences())
