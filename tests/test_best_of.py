"""The best of K trials and outcomes, compared with enumeration and simulation."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield.analysis.best_of import estimate, probability_better, resample, weights
from levelfield.analysis.outcomes import Outcome, Target
from levelfield.errors import UnknownName, UsageError
from levelfield.trial import Curve, Direction, Point, Status, Trial

NAN, INF = math.nan, math.inf
VALUES = st.floats(-1e3, 1e3)
POOLS = st.lists(VALUES, min_size=1, max_size=30)
TIED_POOLS = st.lists(st.integers(0, 4).map(float), min_size=1, max_size=5)  # small enough to enumerate
KS = st.integers(1, 4)


def enumerated_weights(values: Sequence[float], k: int) -> list[float]:
    """Return how often each trial is the best of k, over all N^k draws; tied trials share."""
    n, counts = len(values), [0.0] * len(values)
    for draw in itertools.product(range(n), repeat=k):
        best = min(values[i] for i in draw)
        tied = [i for i in range(n) if values[i] == best]
        for i in tied:  # by symmetry, tied trials are kept equally often
            counts[i] += 1 / len(tied)
    return [count / n**k for count in counts]


def enumerated_minima(values: Sequence[float], k: int) -> np.ndarray:
    return np.array([min(draw) for draw in itertools.product(values, repeat=k)])


# Weights


@given(values=TIED_POOLS, k=KS)
def test_weights_agree_with_enumeration(values, k):
    np.testing.assert_allclose(weights(values, k), enumerated_weights(values, k), atol=1e-12)


@given(values=st.permutations(range(6)), k=KS)
def test_weights_follow_the_formula_without_ties(values, k):
    n = len(values)
    formula = {i: ((n - i + 1) / n) ** k - ((n - i) / n) ** k for i in range(1, n + 1)}
    assert weights(values, k) == pytest.approx([formula[value + 1] for value in values], abs=1e-15)


@given(values=POOLS, k=st.integers(1, 10_000))
def test_weights_are_a_distribution(values, k):
    probabilities = weights(values, k)
    assert np.all(probabilities >= 0)
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-12)


# Without replacement


@given(values=TIED_POOLS, k=KS)
def test_without_replacement_weights_agree_with_all_subsets(values, k):
    if k > len(values):
        with pytest.raises(ValueError, match=f"k = {k}: expected at most {len(values)}"):
            weights(values, k, replacement=False)
        return
    # By symmetry, a value shares its weight over all trials that have it, drawn or not.
    subsets = list(itertools.combinations(values, k))
    shares = [sum(min(subset) == value for subset in subsets) / len(subsets) / values.count(value) for value in values]
    np.testing.assert_allclose(weights(values, k, replacement=False), shares, atol=1e-12)


@given(ours=TIED_POOLS, theirs=TIED_POOLS, k=st.integers(1, 3))
def test_without_replacement_the_win_rate_agrees_with_all_subsets(ours, theirs, k):
    k = min(k, len(ours), len(theirs))
    minima = [[min(subset) for subset in itertools.combinations(pool, k)] for pool in (ours, theirs)]
    chance = np.mean([a < b for a in minima[0] for b in minima[1]])
    pools = np.array(ours), np.array(theirs)
    assert probability_better(*pools, k, replacement=False) == pytest.approx(chance, abs=1e-12)


def test_without_replacement_the_mean_is_unbiased():
    """The expected best of K of an exponential population is 1 / K."""
    generator, n, k = np.random.default_rng(3), 12, 6
    pools = generator.exponential(size=(4_000, n))
    unbiased, biased = (
        np.array([lf.best_of(pool, k, replacement=replacement).mean for pool in pools]) for replacement in (False, True)
    )
    error = unbiased.std() / math.sqrt(len(pools))
    assert unbiased.mean() == pytest.approx(1 / k, abs=4 * error)
    assert biased.mean() > 1 / k + 10 * error


def test_without_replacement_resamples_agree_with_the_exact_distribution():
    values = [0.3, 0.1, 0.5, 0.2, 0.4, NAN]
    exact = lf.best_of(values, 3, replacement=False)
    drawn = lf.best_of(values, 3, replacement=False, bootstrap=20_000)
    assert drawn.mean == pytest.approx(exact.mean, abs=0.003)
    assert (drawn.low, drawn.high) == (exact.low, exact.high)
    with pytest.raises(ValueError, match="k = 6: expected at most 5"):
        lf.best_of(values, 6, replacement=False, bootstrap=10)


def test_ties_share_their_weight():
    # Best of 2 from {1, 1, 2, 2}: a 1 unless both draws are 2.
    assert weights([2.0, 1.0, 2.0, 1.0], 2) == pytest.approx([1 / 8, 3 / 8, 1 / 8, 3 / 8])
    assert weights([7.0] * 5, 3) == pytest.approx([0.2] * 5)


def test_an_infeasible_trial_is_never_drawn():
    assert weights([NAN, 2.0, NAN, 1.0], 2) == pytest.approx([0.0, 1 / 4, 0.0, 3 / 4])


def test_infinity_is_the_worst_value_but_is_drawn():
    assert weights([INF, 1.0], 2) == pytest.approx([1 / 4, 3 / 4])


# best_of


@given(values=TIED_POOLS, k=KS)
def test_the_mean_agrees_with_enumeration(values, k):
    assert lf.best_of(values, k=k).mean == pytest.approx(enumerated_minima(values, k).mean(), abs=1e-9)


@given(values=TIED_POOLS, k=KS)
def test_the_percentiles_agree_with_enumeration(values, k):
    estimated = lf.best_of(values, k=k)
    minima = enumerated_minima(values, k)
    assert estimated.low == np.quantile(minima, 0.05, method="inverted_cdf")
    assert estimated.high == np.quantile(minima, 0.95, method="inverted_cdf")


@given(values=POOLS)
def test_the_best_of_one_is_the_pool_itself(values):
    estimated = lf.best_of(values, k=1)
    assert estimated.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert estimated.low == np.quantile(values, 0.05, method="inverted_cdf")
    assert estimated.high == np.quantile(values, 0.95, method="inverted_cdf")


@given(values=POOLS, ks=st.tuples(st.integers(1, 200), st.integers(1, 200)).map(sorted))
def test_more_trials_are_never_worse(values, ks):
    fewer, more = (lf.best_of(values, k=k) for k in ks)
    assert more.mean <= fewer.mean + 1e-9
    assert more.low <= fewer.low
    assert more.high <= fewer.high


@given(values=POOLS, k=st.integers(1, 50))
def test_an_estimate_stays_within_the_pool(values, k):
    estimated = lf.best_of(values, k=k)
    assert min(values) <= estimated.low <= estimated.high <= max(values)
    assert min(values) - 1e-9 <= estimated.mean <= max(values) + 1e-9


@given(values=POOLS, k=st.integers(1, 50), data=st.data())
def test_the_order_of_the_pool_does_not_matter(values, k, data):
    shuffled = data.draw(st.permutations(values))
    before, after = lf.best_of(values, k=k), lf.best_of(shuffled, k=k)
    assert (before.low, before.high) == (after.low, after.high)
    assert before.mean == pytest.approx(after.mean, abs=1e-9)


@given(
    values=POOLS, k=st.integers(1, 50), scale=st.sampled_from([0.5, 2.0, 1024.0]), shift=st.sampled_from([0.0, -3.0])
)
def test_estimates_scale_and_shift_with_the_values(values, k, scale, shift):
    # Integers, so that scaling and shifting are exact.
    values = [float(round(value)) for value in values]
    before, after = lf.best_of(values, k=k), lf.best_of([scale * value + shift for value in values], k=k)
    assert (after.low, after.high) == (scale * before.low + shift, scale * before.high + shift)
    assert after.mean == pytest.approx(scale * before.mean + shift, abs=1e-6)


@given(values=POOLS, infeasible=st.integers(1, 5), k=st.integers(1, 50))
def test_infeasible_trials_change_nothing(values, infeasible, k):
    with_them = lf.best_of([*[NAN] * infeasible, *values], k=k)
    without = lf.best_of(values, k=k)
    assert (with_them.low, with_them.high) == (without.low, without.high)
    assert with_them.mean == pytest.approx(without.mean, abs=1e-9)


@pytest.mark.parametrize("k", [1, 2, 1000])
def test_a_pool_of_one_has_one_outcome(k):
    assert lf.best_of([3.5], k=k) == lf.Estimate(3.5, 3.5, 3.5)


@pytest.mark.parametrize("values", [[], [NAN], [NAN, NAN, NAN]], ids=["empty", "one", "three"])
@pytest.mark.parametrize("bootstrap", [None, 10])
def test_there_is_no_estimate_without_feasible_trials(values, bootstrap):
    estimated = lf.best_of(values, k=2, bootstrap=bootstrap)
    assert all(math.isnan(value) for value in (estimated.mean, estimated.low, estimated.high))


def test_an_infinite_value_makes_the_mean_infinite_but_not_the_percentiles():
    estimated = lf.best_of([1.0, 2.0, 3.0, INF], k=4)  # infinite with probability 1/256
    assert (estimated.mean, estimated.low, estimated.high) == (INF, 1.0, 3.0)
    assert lf.best_of([1.0, INF], k=1).high == INF
    assert lf.best_of([INF, INF], k=3) == lf.Estimate(INF, INF, INF)


def test_with_many_trials_the_best_is_certain():
    values = [5.0, 1.0, 3.0]
    assert lf.best_of(values, k=10_000) == lf.Estimate(1.0, 1.0, 1.0)
    assert lf.best_of([INF, *values], k=10_000).mean == pytest.approx(1.0)


@pytest.mark.parametrize("k", [0, -1, 1.5, 2.0001, NAN, INF])
def test_an_invalid_number_of_trials_is_refused(k):
    calls = [
        lambda: weights([1.0, 2.0], k),
        lambda: lf.best_of([1.0, 2.0], k=k),
        lambda: lf.best_of([1.0, 2.0], k=k, bootstrap=10),
        lambda: probability_better(np.array([1.0]), np.array([2.0]), k),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"k = {k}: expected an integer of at least 1"):
            call()


@pytest.mark.parametrize(
    "call",
    [lf.best_of, lf.interval, functools.partial(lf.best_of, bootstrap=5)],
    ids=["exact", "interval", "bootstrap"],
)
def test_values_must_be_one_dimensional(call):
    with pytest.raises(ValueError, match=r"\(2, 2\): expected a one-dimensional list"):
        call([[1.0, 2.0], [3.0, 4.0]], k=1)


def test_numpy_integers_and_integral_floats_are_accepted_as_k():
    assert lf.best_of([1.0, 2.0], k=np.int64(2)) == lf.best_of([1.0, 2.0], k=2.0) == lf.best_of([1.0, 2.0], k=2)


# Simulation


def pool(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(size=n)


@pytest.mark.parametrize("k", [1, 5, 40])
def test_simulation_agrees_within_its_standard_error(k):
    values, draws = pool(50), 200_000
    minima = np.random.default_rng(1).choice(values, size=(draws, k)).min(axis=1)
    exact = lf.best_of(values, k=k)
    assert abs(minima.mean() - exact.mean) < 4 * minima.std() / math.sqrt(draws)
    for quantile, value in ((0.05, exact.low), (0.95, exact.high)):
        error = 4 * math.sqrt(quantile * (1 - quantile) / draws)
        assert np.mean(minima <= value) >= quantile - error
        assert np.mean(minima < value) <= quantile + error


@pytest.mark.parametrize("k", [1, 5, 20])
def test_the_papers_bootstrap_scatters_around_the_exact_mean(k):
    values = pool(100)
    exact = lf.best_of(values, k=k)
    means = np.array([lf.best_of(values, k=k, bootstrap=100, seed=seed).mean for seed in range(300)])
    error = means.std() / math.sqrt(len(means))
    assert abs(means.mean() - exact.mean) < 4 * error
    # The mean of 100 resamples has a tenth of the standard deviation of a single one.
    variance = weights(values, k) @ (values - exact.mean) ** 2
    assert means.std() == pytest.approx(math.sqrt(variance / 100), rel=0.2)


def test_the_bootstrap_is_reproducible_and_depends_on_its_seed():
    values = pool(30)
    assert lf.best_of(values, k=3, bootstrap=100) == lf.best_of(values, k=3, bootstrap=100)
    assert lf.best_of(values, k=3, bootstrap=100, seed=1) != lf.best_of(values, k=3, bootstrap=100, seed=2)


def test_the_bootstrap_shares_ties_equally():
    selected_by, reported, draws = np.array([1.0, 1.0, 2.0]), np.array([10.0, 20.0, 30.0]), 100_000
    exact = estimate(reported, weights(selected_by, 2)).mean
    assert exact == pytest.approx((10 + 20) / 2 * 8 / 9 + 30 / 9)
    mean = reported[resample(selected_by, 2, draws)].mean()
    assert abs(mean - exact) < 4 * 10 / math.sqrt(draws)


# Two optimizers


def enumerated_win_rate(ours: Sequence[float], theirs: Sequence[float], k: int) -> float:
    mine, others = enumerated_minima(ours, k), enumerated_minima(theirs, k)
    return float(np.mean(mine[:, None] < others[None, :]))


@given(ours=TIED_POOLS, theirs=TIED_POOLS, k=st.integers(1, 3))
def test_the_probability_of_winning_agrees_with_enumeration(ours, theirs, k):
    probability = probability_better(np.array(ours), np.array(theirs), k)
    assert probability == pytest.approx(enumerated_win_rate(ours, theirs, k), abs=1e-12)


@given(ours=TIED_POOLS, theirs=TIED_POOLS, k=st.integers(1, 50))
def test_probabilities_of_win_loss_and_tie_sum_to_1(ours, theirs, k):
    ours, theirs = np.array(ours), np.array(theirs)
    better, worse = probability_better(ours, theirs, k), probability_better(theirs, ours, k)
    tied = sum(weights(ours, k)[ours == value].sum() * weights(theirs, k)[theirs == value].sum() for value in {*ours})
    assert better + worse + tied == pytest.approx(1.0, abs=1e-12)


@given(ours=POOLS, theirs=POOLS, k=st.integers(1, 20), data=st.data())
def test_the_probability_of_winning_ignores_order_and_infeasible_trials(ours, theirs, k, data):
    before = probability_better(np.array(ours), np.array(theirs), k)
    shuffled = [np.array(data.draw(st.permutations([*values, NAN]))) for values in (ours, theirs)]
    assert probability_better(*shuffled, k) == pytest.approx(before, abs=1e-12)


def test_an_optimizer_wins_and_loses_equally_often_against_itself():
    values = pool(20)
    # Two independent searches of the same pool win equally often; otherwise they tie.
    tie = np.sum(weights(values, 5) ** 2)
    assert probability_better(values, values, 5) == pytest.approx((1 - tie) / 2)


def test_the_probability_of_winning_in_clear_cases():
    low, high = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    assert probability_better(low, high, 3) == 1.0
    assert probability_better(high, low, 3) == 0.0
    assert probability_better(low, np.array([INF]), 3) == 1.0
    assert math.isnan(probability_better(low, np.array([NAN]), 3))
    assert math.isnan(probability_better(np.array([]), high, 3))


# Outcomes

STEPS = (10, 20, 30)
METRICS = {
    "error": Direction.MINIMIZE,
    "accuracy": Direction.MAXIMIZE,
    "loss": Direction.MINIMIZE,
}


def trial(index: int, **curves: Sequence[float] | float) -> Trial:
    """Return a trial with these metrics at steps 10, 20 and 30; a single number is a constant curve."""
    values = {name: np.broadcast_to(np.asarray(curve, float), len(STEPS)) for name, curve in curves.items()}
    return Trial(Point(index, {"learning_rate": 0.1}, index), Status.FEASIBLE, Curve(np.array(STEPS), values))


def outcome(trials: Sequence[Trial], select: str = "error", target: Target | None = None) -> Outcome:
    return Outcome("ours", trials, len(trials), METRICS, select, target)


def errors(*values: Sequence[float] | float, target: float | None = None) -> Outcome:
    trials = [trial(index, error=value) for index, value in enumerate(values)]
    return outcome(trials, target=None if target is None else Target("error", target))


def accuracies(*values: Sequence[float] | float, target: float | None = None) -> Outcome:
    trials = [trial(index, accuracy=value) for index, value in enumerate(values)]
    return outcome(trials, "accuracy", None if target is None else Target("accuracy", target))


def test_the_best_trial_is_selected_at_the_last_step():
    ours = errors([0.1, 0.1, 0.5], [0.9, 0.9, 0.3])
    assert ours.best(k=1).mean == pytest.approx(0.4)
    assert ours.best(k=10_000).mean == pytest.approx(0.3)
    assert ours.best_trial is ours.pool[1]


@given(values=POOLS, k=st.integers(1, 20))
def test_the_best_of_an_outcome_is_the_best_of_its_values(values, k):
    assert errors(*values).best(k) == lf.best_of(values, k=k)


def test_a_maximized_metric_selects_its_largest_value_and_keeps_its_sign():
    ours = accuracies(0.2, 0.8)
    assert ours.best(k=1).mean == pytest.approx(0.5)
    assert ours.best(k=2) == lf.Estimate(pytest.approx(0.75 * 0.8 + 0.25 * 0.2), 0.2, 0.8)
    assert ours.best_trial is ours.pool[1]


@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=10), k=st.integers(1, 20))
def test_maximizing_is_minimizing_the_negative(values, k):
    up, down = accuracies(*values).best(k), lf.best_of([-value for value in values], k=k)
    assert up.mean == pytest.approx(-down.mean, abs=1e-12)


def test_one_metric_selects_and_another_is_reported():
    trials = [trial(0, error=0.1, loss=5.0), trial(1, error=0.2, loss=1.0)]
    ours = outcome(trials)
    assert ours.best(k=2, metric="loss").mean == pytest.approx(0.75 * 5.0 + 0.25 * 1.0)
    assert ours.best(k=10_000, metric="loss") == lf.Estimate(5.0, 5.0, 5.0)


def test_trials_that_tie_by_the_selection_metric_share_the_reported_one():
    trials = [trial(0, error=0.1, loss=2.0), trial(1, error=0.1, loss=4.0), trial(2, error=0.9, loss=100.0)]
    assert outcome(trials).best(k=2, metric="loss").mean == pytest.approx(8 / 9 * 3.0 + 1 / 9 * 100.0)
    assert outcome(trials).best(k=2, metric="loss") == outcome(trials[::-1]).best(k=2, metric="loss")


def test_a_trial_without_a_selection_metric_ranks_last_but_is_drawn():
    downward = outcome([trial(0, error=NAN, loss=1.0), trial(1, error=0.5, loss=2.0)])
    assert downward.best(k=2, metric="loss").mean == pytest.approx(0.25 * 1.0 + 0.75 * 2.0)
    upward = outcome([trial(0, accuracy=NAN, loss=1.0), trial(1, accuracy=0.5, loss=2.0)], "accuracy")
    assert upward.best(k=2, metric="loss").mean == pytest.approx(0.25 * 1.0 + 0.75 * 2.0)


def test_the_bootstrap_of_an_outcome_scatters_around_its_exact_mean():
    ours = errors(*pool(50))
    means = np.array([ours.best(5, bootstrap=100, seed=seed).mean for seed in range(200)])
    assert abs(means.mean() - ours.best(5).mean) < 4 * means.std() / math.sqrt(len(means))


def test_an_empty_pool_has_no_best():
    empty = outcome([], target=Target("error", 0.5))
    for estimated in (empty.best(3), empty.best(3, bootstrap=10), empty.steps_to_target(3)):
        assert all(math.isnan(value) for value in (estimated.mean, estimated.low, estimated.high))
    assert math.isnan(empty.steps_to_target(3).probability)
    assert empty.best_trial is None
    assert math.isnan(empty.beats(errors(1.0), 3))


def test_an_unknown_metric_is_refused_with_a_suggestion():
    with pytest.raises(UnknownName, match=r"metric.*'eror'; did you mean 'error'"):
        errors(1.0).best(2, metric="eror")


@pytest.mark.parametrize("k", [0, -1, 1.5])
@pytest.mark.parametrize("bootstrap", [None, 10])
def test_an_outcome_refuses_an_invalid_number_of_trials(k, bootstrap):
    ours = errors(1.0, 2.0, target=1.5)
    for call in (ours.best, ours.steps_to_target):
        with pytest.raises(ValueError, match=rf"k = {k}"):
            call(k, bootstrap=bootstrap)
    with pytest.raises(ValueError, match=rf"k = {k}"):
        ours.beats(ours, k)


def test_the_share_of_infeasible_trials():
    trials = [trial(0, error=1.0)]
    assert Outcome("ours", trials, 4, METRICS, "error").infeasible_share == 0.75
    assert math.isnan(Outcome("ours", [], 0, METRICS, "error").infeasible_share)


# Steps to the target


def test_a_trial_reaches_the_target_at_the_first_step_at_or_past_it():
    downward = errors([0.9, 0.4, 0.6], [0.9, 0.9, 0.5], [0.5, 0.5, 0.5], [0.9, 0.9, 0.9], target=0.5)
    assert downward.steps.tolist() == [20, 30, 10, INF]
    upward = accuracies([0.1, 0.6, 0.4], [0.1, 0.1, 0.5], [0.5, 0.5, 0.5], [0.1, 0.1, 0.1], target=0.5)
    assert upward.steps.tolist() == [20, 30, 10, INF]


def test_nan_does_not_reach_the_target():
    assert errors([NAN, NAN, 0.1], [NAN, NAN, NAN], target=0.5).steps.tolist() == [30, INF]
    assert accuracies([NAN, NAN, 0.9], [NAN, NAN, NAN], target=0.5).steps.tolist() == [30, INF]


def test_a_target_that_all_trials_reach():
    reached = errors([0.1, 0.1, 0.1], [0.9, 0.9, 0.1], target=0.5).steps_to_target(2)
    assert reached.mean == pytest.approx(0.75 * 10 + 0.25 * 30)
    assert (reached.low, reached.high, reached.probability) == (10, 30, pytest.approx(1.0))


def test_steps_to_a_target_that_some_trials_reach_are_conditional_on_reaching_it():
    reached = errors([0.1, 0.1, 0.1], [0.9, 0.9, 0.1], 0.9, 0.9, target=0.5).steps_to_target(2)
    # Of the 16 draws of two trials, 7 contain the fastest, 5 more the second fastest, and 4 neither.
    assert reached.probability == pytest.approx(12 / 16)
    assert reached.mean == pytest.approx((7 * 10 + 5 * 30) / 12)
    assert (reached.low, reached.high) == (10, 30)


def test_a_target_that_no_trial_reaches():
    for bootstrap in (None, 50):
        reached = errors(0.9, 0.8, target=0.5).steps_to_target(2, bootstrap=bootstrap)
        assert reached.probability == 0.0
        assert all(math.isnan(value) for value in (reached.mean, reached.low, reached.high))


def test_if_one_trial_reaches_the_target_the_probability_is_that_of_drawing_it():
    ours = errors(0.1, *[0.9] * 9, target=0.5)
    for k in (1, 5, 20):
        reached = ours.steps_to_target(k)
        assert reached.probability == pytest.approx(1 - 0.9**k)
        assert (reached.mean, reached.low, reached.high) == (10, 10, 10)


REACHED = st.lists(st.sampled_from([10.0, 20.0, 30.0, INF]), min_size=1, max_size=5)


def reaching(steps: Sequence[float]) -> Outcome:
    """Return an outcome whose trials reach the target at these steps."""
    return errors(*[[0.0 if step >= reached else 1.0 for step in STEPS] for reached in steps], target=0.5)


@given(steps=REACHED, k=st.integers(1, 3))
def test_steps_to_the_target_agree_with_enumeration(steps, k):
    estimated = reaching(steps).steps_to_target(k)
    minima = enumerated_minima(steps, k)
    finite = minima[np.isfinite(minima)]
    assert estimated.probability == pytest.approx(len(finite) / len(minima), abs=1e-12)
    if len(finite):
        assert estimated.mean == pytest.approx(finite.mean())
        assert estimated.low == np.quantile(finite, 0.05, method="inverted_cdf")
        assert estimated.high == np.quantile(finite, 0.95, method="inverted_cdf")
    else:
        assert math.isnan(estimated.mean)


def test_the_bootstrap_of_steps_agrees_with_the_exact_distribution():
    ours = reaching([10.0, 20.0, 20.0, 30.0, *[INF] * 6])
    exact, resampled = ours.steps_to_target(3), ours.steps_to_target(3, bootstrap=100_000)
    chance = exact.probability
    assert abs(resampled.probability - chance) < 4 * math.sqrt(chance * (1 - chance) / 100_000)
    assert resampled.mean == pytest.approx(exact.mean, rel=0.01)
    assert (resampled.low, resampled.high) == (exact.low, exact.high)


def test_steps_to_the_target_need_a_target():
    with pytest.raises(UsageError, match=r"no target; add target = "):
        errors(1.0).steps_to_target(2)


# Two outcomes


@given(ours=TIED_POOLS, theirs=TIED_POOLS, k=st.integers(1, 3))
def test_beats_is_the_probability_of_a_strictly_better_best(ours, theirs, k):
    if k > min(len(ours), len(theirs)):
        with pytest.raises(UsageError, match=f"k = {k}: expected at most"):
            errors(*ours).beats(errors(*theirs), k)
        return
    chance = enumerated_win_rate(ours, theirs, k)
    assert errors(*ours).beats(errors(*theirs), k) == pytest.approx(chance, abs=1e-12)
    upward = accuracies(*[-value for value in ours]).beats(accuracies(*[-value for value in theirs]), k)
    assert upward == pytest.approx(chance, abs=1e-12)


def test_an_outcome_with_finite_values_beats_one_without():
    assert errors(0.5, 0.6).beats(errors(NAN, NAN), 2) == 1.0
    assert errors(NAN, NAN).beats(errors(0.5, 0.6), 2) == 0.0
    assert accuracies(0.5).beats(accuracies(NAN), 1) == 1.0


@settings(max_examples=25)
@given(values=POOLS, better=st.floats(0.001, 1.0), k=st.integers(1, 20))
def test_a_pool_that_is_better_everywhere_wins_more_often(values, better, k):
    k = min(k, len(values))
    worse, improved = errors(*values), errors(*[value - better for value in values])
    assert improved.beats(worse, k) >= worse.beats(improved, k)
