"""Which optimizer to tune with how many trials, compared with a loop over K and with budgets worked out by hand."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from helpers import make_study
from hypothesis import given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.planning import Plan, plan
from levelfield.errors import UsageError
from levelfield.trial import Curve, Direction, Point, Status, Trial

METRICS = {"valid_error": Direction.MINIMIZE, "accuracy": Direction.MAXIMIZE}
STEPS = 100


def outcome_of(
    values: Sequence[float], name: str = "ours", metric: str = "valid_error", seconds: float = 36.0, wasted: int = 0
) -> Outcome:
    """Return a pool with these values; ``wasted`` is the number of steps of infeasible trials."""
    curves = [Curve(np.array([STEPS]), {metric: np.array([value])}) for value in values]
    pool = [Trial(Point(i, {}, i), Status.FEASIBLE, curve, seconds=seconds) for i, curve in enumerate(curves)]
    return Outcome(name, pool, len(pool), METRICS, metric, spent=STEPS * len(pool) + wasted)


def outcomes_of(**pools: Sequence[float]) -> dict[str, Outcome]:
    return {name: outcome_of(values, name) for name, values in pools.items()}


# The same number of trials for all

SURE = [0.3] * 10  # always the same
LUCKY = [0.1] + [0.9] * 9  # one good trial in ten


def test_a_reliable_optimizer_with_few_trials_and_a_lucky_one_with_many():
    """0.1 + 0.8 × 0.9ᵏ < 0.3 from k = 14 on."""
    pools = {"sure": [0.3] * 20, "lucky": [0.1, 0.1] + [0.9] * 18}
    first, last = plan(outcomes_of(**pools)).stretches
    assert (first.optimizer, first.first, first.last) == ("sure", 1, 13)
    assert (last.optimizer, last.first, last.last) == ("lucky", 14, 20)
    # At the end of its stretch, one wins 0.9¹³ of repetitions and the other 1 − 0.9²⁰, neither of them clearly.
    advice = plan(outcomes_of(**pools))
    assert advice.sentences() == [
        "With 1 to 13 trials, tune sure (with 13 trials, not clearly different from lucky).",
        "With 14 to 20 trials (the size of the pools), lucky has the best expected valid_error; with 20 trials, it is "
        "not clearly different from the other one.",
    ]
    assert str(advice) == repr(advice) == "\n".join(advice.sentences())


def test_a_study_that_draws_without_replacement_is_planned_so():
    """The best of 20 of 20 is the best trial, so lucky is better from the k on at which its mean falls below 0.3."""
    pools = outcomes_of(sure=[0.3] * 20, lucky=[0.1, 0.1] + [0.9] * 18)
    means = [lf.best_of(pools["lucky"].values(), k, replacement=False).mean for k in range(1, 21)]
    crossing = next(k for k, mean in enumerate(means, start=1) if mean < 0.3)
    assert crossing < 14  # where drawing with replacement crosses
    first, last = plan({name: replace(pool, replacement=False) for name, pool in pools.items()}).stretches
    assert (first.optimizer, first.last) == ("sure", crossing - 1)
    assert (last.optimizer, last.first) == ("lucky", crossing)


def test_an_optimizer_that_mostly_loses_but_has_the_better_mean():
    """b is better except for one trial in twenty, which is so bad that b has the worse mean."""
    stretch = plan(outcomes_of(a=[0.5] * 20, b=[0.1] * 19 + [1e60])).stretches[0]
    assert (stretch.optimizer, stretch.rivals, stretch.ahead) == ("a", [], ["b"])
    assert stretch.recommendation.endswith("b wins more often but has the worse mean)")


def test_trials_without_a_finite_value_do_not_count():
    for lost in (math.inf, math.nan):
        (only,) = plan(outcomes_of(a=[5.0] * 19 + [lost], b=[0.1] * 19 + [lost])).stretches
        assert (only.optimizer, only.rivals) == ("b", [])


def test_an_optimizer_that_is_always_ahead():
    advice = plan(outcomes_of(good=np.linspace(0.1, 0.2, 8), bad=np.linspace(0.3, 0.4, 8)))
    (only,) = advice.stretches
    assert (only.optimizer, only.first, only.last) == ("good", 1, 8)
    assert advice.sentences() == ["With any number of trials from 1 to 8, tune good."]
    assert advice.choices == []


pools = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@settings(max_examples=60)
@given(st.lists(pools, min_size=1, max_size=4), st.booleans())
def test_each_stretch_ends_with_the_best_mean(values, maximize):
    metric, sign = ("accuracy", -1) if maximize else ("valid_error", 1)
    outcomes = {str(i): outcome_of([sign * value for value in pool], str(i), metric) for i, pool in enumerate(values)}
    stretches = plan(outcomes).stretches
    most = min(map(len, values))
    assert [stretch.first for stretch in stretches] == [1, *(stretch.last + 1 for stretch in stretches[:-1])]
    assert stretches[-1].last == most
    assert all(a.optimizer != b.optimizer for a, b in itertools.pairwise(stretches))
    for stretch in stretches:
        means = {str(i): lf.best_of(pool, stretch.last).mean for i, pool in enumerate(values)}
        assert means[stretch.optimizer] == pytest.approx(min(means.values()), abs=1e-12)


def test_a_crossing_of_nearly_equal_means_is_not_advice():
    """The pools differ by less than their own noise; their means cross somewhere."""
    generator = np.random.default_rng(5)
    for _ in range(10):
        pools = {"a": generator.random(20), "b": generator.random(20)}
        assert len(plan(outcomes_of(**pools)).stretches) == 1


def test_stretches_end_at_the_size_of_the_smallest_pool():
    stretches = plan(outcomes_of(a=[0.2] * 5, b=[0.3] * 50)).stretches
    assert [stretch.last for stretch in stretches] == [5]


def test_large_pools_are_compared_at_several_ks():
    values = np.random.default_rng(0).random(400)
    stretches = plan(outcomes_of(wide=values, sure=np.full(400, 0.2))).stretches
    assert [stretch.optimizer for stretch in stretches] == ["sure", "wide"]
    crossing = next(k for k in range(1, 400) if lf.best_of(values, k).mean < 0.2)
    assert stretches[0].last < crossing <= stretches[1].first
    assert (stretches[0].first, stretches[-1].last) == (1, 400)


# Within a budget


def test_how_many_trials_fit_by_hand():
    """A trial takes 36 s, a hundredth of an hour, so 5 fit into 0.0599 hours; of those that take 90 s, 2 fit."""
    outcomes = {"quick": outcome_of(SURE, "quick"), "slow": outcome_of(LUCKY, "slow", seconds=90.0)}
    quick, slow = plan(outcomes, 0.0599).choices
    assert (quick.optimizer, quick.trials, quick.hours) == ("quick", 5, pytest.approx(0.01))
    assert quick.expected == pytest.approx(0.3)
    assert (slow.optimizer, slow.trials, slow.hours) == ("slow", 2, pytest.approx(0.025))
    assert slow.expected == pytest.approx(0.1 + 0.8 * 0.9**2)
    assert quick.enough
    assert slow.enough
    assert plan(outcomes, 0.0599).gpu_hours == 0.0599


@pytest.mark.parametrize(
    ("hours", "trials", "enough"),
    [
        (0.0099, 0, True),
        (0.0101, 1, True),
        (0.1001, 10, True),
        (0.1099, 10, True),
        (0.1101, 10, False),
        (1e308, 10, False),
    ],
)
def test_no_more_trials_are_planned_than_the_pool_has(hours, trials, enough):
    (choice,) = plan({"ours": outcome_of(LUCKY)}, hours).choices
    assert (choice.trials, choice.enough) == (trials, enough)
    assert choice.expected == pytest.approx(0.1 + 0.8 * 0.9**trials) if trials else math.isnan(choice.expected)


def test_infeasible_trials_cost_the_steps_they_ran():
    """Ten feasible trials of 100 steps and 500 steps of infeasible ones: a feasible trial costs 1.5 times as much."""
    free, burdened = outcome_of(LUCKY, seconds=36.0), outcome_of(LUCKY, seconds=36.0, wasted=500)
    (cheap,), (expensive,) = (plan({"ours": outcome}, 0.0601).choices for outcome in (free, burdened))
    assert (cheap.trials, cheap.hours) == (6, pytest.approx(0.01))
    assert (expensive.trials, expensive.hours) == (4, pytest.approx(0.015))


def test_choices_are_sorted_by_expected_metric_and_those_that_do_not_fit_come_last():
    outcomes = {
        "late": outcome_of([0.01] * 10, "late", seconds=3600.0),
        "bad": outcome_of([0.5] * 10, "bad"),
        "good": outcome_of(SURE, "good"),
    }
    advice = plan(outcomes, 0.5)
    assert [choice.optimizer for choice in advice.choices] == ["good", "bad", "late"]
    assert advice.sentences()[1:] == [
        "Within 0.5 hours at the speed of these trials:",
        "  good: expected valid_error 30.00% with 10 trials (36 s per trial; the budget allows more than the pool has)",
        "  bad: expected valid_error 50.00% with 10 trials (36 s per trial; the budget allows more than the pool has)",
        "  late: no trial fits (1 hour per trial)",
    ]


def test_a_maximized_metric():
    up = {
        "good": outcome_of([0.9] * 10, "good", "accuracy"),
        "wide": outcome_of([0.99] + [0.1] * 9, "wide", "accuracy"),
    }
    advice = plan(up, 0.0301)
    assert advice.select == "accuracy"
    assert [choice.optimizer for choice in advice.choices] == ["good", "wide"]
    assert advice.choices[1].expected == pytest.approx(0.99 - 0.89 * 0.9**3)
    assert [stretch.optimizer for stretch in advice.stretches] == ["good"]  # 0.99 − 0.89 × 0.9ᵏ > 0.9 from k = 22 on


def test_the_best_choice_depends_on_the_budget():
    """A reliable optimizer that is slow and a lucky one that is fast."""
    outcomes = {"sure": outcome_of(SURE * 2, "sure", seconds=360.0), "lucky": outcome_of(LUCKY * 2, "lucky")}
    assert plan(outcomes, 0.05).choices[0].optimizer == "lucky"  # nothing else fits
    assert plan(outcomes, 0.11).choices[0].optimizer == "sure"
    assert plan(outcomes, 0.20).choices[0].optimizer == "lucky"


def test_the_plan_reports_data_that_did_not_select():
    """Of the trial that the validation set selects, the test error."""
    pairs = [(0.1, 0.3), (0.2, 0.1), (0.3, 0.2)]
    metrics = {"valid_error": Direction.MINIMIZE, "test_error": Direction.MINIMIZE}
    trials = [
        Trial(
            Point(i, {}, i),
            Status.FEASIBLE,
            Curve(np.array([100]), {"valid_error": np.array([valid]), "test_error": np.array([test])}),
            seconds=36.0,
        )
        for i, (valid, test) in enumerate(pairs)
    ]
    advice = plan({"ours": Outcome("ours", trials, 3, metrics, "valid_error", spent=300)}, 0.0201)
    draws = [min(pairs[i], pairs[j]) for i in range(3) for j in range(3)]  # two of three, with replacement
    (choice,) = advice.choices
    assert (choice.expected, choice.reported) == pytest.approx(np.mean(draws, axis=0))
    assert advice.sentences()[-1] == (
        f"  ours: expected valid_error {choice.expected:.2%} and test_error {choice.reported:.2%} with 2 trials "
        f"(36 s per trial)"
    )
    assert advice.as_dict()["report"] == "test_error"


# Nothing to compare


def test_optimizers_without_feasible_trials_are_left_out():
    empty = Outcome("empty", [], 20, METRICS, "valid_error", spent=200)
    advice = plan({"empty": empty}, 1.0)
    assert advice == Plan("valid_error", [], [], [], 1.0, ["empty"])
    assert advice.sentences() == ["empty has no feasible trials."]
    others = {"a": outcome_of(SURE, "a"), "b": outcome_of([0.5] * 10, "b")}
    some = plan({"empty": empty, "nan": outcome_of([math.nan] * 10, "nan"), **others}, 1.0)
    assert [choice.optimizer for choice in some.choices] == ["a", "b"]
    assert [stretch.optimizer for stretch in some.stretches] == ["a"]
    assert some.sentences()[:2] == [
        "empty and nan have no feasible trials.",
        "With any number of trials from 1 to 10, tune a.",
    ]


def test_a_single_optimizer_with_feasible_trials_is_not_recommended():
    """There is nothing to compare it with, but its cost is known."""
    empty = Outcome("adam", [], 20, METRICS, "valid_error", spent=200)
    advice = plan({"sgd": outcome_of(SURE, "sgd"), "adam": empty})
    assert advice.sentences() == ["Only sgd has feasible trials; run the other optimizers to compare them."]
    alone = plan({"sgd": outcome_of(SURE, "sgd")}, 0.01)
    assert alone.sentences() == [
        "sgd is the only optimizer; there is nothing to compare it with.",
        "Within 0.01 hours at the speed of these trials:",
        "  sgd: expected valid_error 30.00% with 1 trial (36 s per trial)",
    ]
    assert [stretch.optimizer for stretch in alone.stretches] == ["sgd"]


def test_trials_without_times_cannot_be_planned_by_the_hour():
    """Those that were imported may have none."""
    with pytest.raises(UsageError, match="ours: the store has no times"):
        plan({"ours": outcome_of(SURE, seconds=0.0)}, 1.0)


def test_trials_that_were_chosen_allow_no_plan():
    chosen = {name: replace(outcome_of(SURE, name), independent=False) for name in ("a", "b")}
    advice = plan(chosen, 1.0)
    assert (advice.stretches, advice.choices) == ([], [])
    (sentence,) = advice.sentences()
    assert "do not tell which optimizer to tune" in sentence


# In a comparison


def test_a_comparison_plans_from_its_trials(made):
    optimizers = {name: {"rule": "sgd", "learning_rate": {"log": [low, 1.0]}} for name, low in (("a", 0.1), ("b", 0.2))}
    study = make_study(optimizers, pool=10)
    pools = {
        name: [{"train_loss": [9.0, value]} for value in values] for name, values in {"a": SURE, "b": LUCKY}.items()
    }
    pools["b"] += [{"train_loss": [9.0]}] * 5  # infeasible after half of their steps
    pools["b"] = pools["b"][10:] + pools["b"][:10]
    comparison = made(study, pools, {"b": range(5)})
    advice = comparison.plan(gpu_hours=4.4 * 0.5 / 3600)  # at 0.5 s per trial
    a, b = advice.choices
    assert (a.optimizer, a.trials, a.hours * 3600) == ("a", 4, pytest.approx(0.5))
    assert (b.optimizer, b.trials, b.hours * 3600) == ("b", 3, pytest.approx(0.5 * 50 / 40))
    assert b.expected == pytest.approx(lf.best_of(LUCKY, 3).mean, rel=1e-6)
    content = advice.as_dict()
    assert json.loads(json.dumps(content)) == content
    assert content["by_trials"] == [{"optimizer": "a", "first": 1, "last": 10, "rivals": ["b"], "ahead": []}]
    assert [choice["optimizer"] for choice in content["within_budget"]] == ["a", "b"]
