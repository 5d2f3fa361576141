"""Which optimizer with how many trials: against a loop over K, and budgets counted by hand."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.planning import Plan, plan
from levelfield.trial import Curve, Direction, Point, Status, Trial

METRICS = {"valid_error": Direction.MINIMIZE, "accuracy": Direction.MAXIMIZE}
STEPS = 100


def outcome_of(
    values: Sequence[float], name: str = "it", metric: str = "valid_error", seconds: float = 36.0, wasted: int = 0
) -> Outcome:
    """A pool with these values; ``wasted``: steps of infeasible trials."""
    curves = [Curve(np.array([STEPS]), {metric: np.array([value])}) for value in values]
    pool = [Trial(Point(i, {}, i), Status.FEASIBLE, curve, seconds=seconds) for i, curve in enumerate(curves)]
    return Outcome(name, pool, len(pool), METRICS, metric, spent=STEPS * len(pool) + wasted)


def outcomes_of(**pools: Sequence[float]) -> dict[str, Outcome]:
    return {name: outcome_of(values, name) for name, values in pools.items()}


# With as many trials each

SURE = [0.3] * 10  # always the same
LUCKY = [0.1] + [0.9] * 9  # one in ten


def test_the_sure_one_with_few_trials_and_the_lucky_one_with_many():
    """0.1 + 0.8 × 0.9ᵏ < 0.3 from k = 14 on, had the pool as many."""
    pools = {"sure": [0.3] * 20, "lucky": [0.1, 0.1] + [0.9] * 18}
    first, last = plan(outcomes_of(**pools)).stretches
    assert (first.optimizer, first.first, first.last) == ("sure", 1, 13)
    assert (last.optimizer, last.first, last.last) == ("lucky", 14, 20)
    # At its last, the one is better in 0.9¹³ of repetitions, the other in 1 − 0.9²⁰: neither clearly.
    found = plan(outcomes_of(**pools))
    assert found.sentences() == [
        "With 13 trials or fewer, tune sure (with 13, not told apart from lucky);",
        "from 14 on, lucky (with 20, not told apart from sure) (up to 20, the size of the pools).",
    ]


def test_one_that_is_mostly_beaten_and_better_on_average():
    """b has the lower values but for one in twenty, which is so bad that with few trials its mean is the worse one."""
    found = plan(outcomes_of(a=[0.5] * 20, b=[0.1] * 19 + [1e9])).stretches[0]
    assert (found.optimizer, found.rivals, found.ahead) == ("a", [], ["b"])
    assert found.named == "a (mostly beaten by b, but better on average)"


def test_trials_without_a_finite_value_do_not_decide():
    for lost in (math.inf, math.nan):
        (only,) = plan(outcomes_of(a=[5.0] * 19 + [lost], b=[0.1] * 19 + [lost])).stretches
        assert (only.optimizer, only.rivals) == ("b", [])


def test_one_that_is_always_ahead():
    found = plan(outcomes_of(good=np.linspace(0.1, 0.2, 8), bad=np.linspace(0.3, 0.4, 8)))
    (only,) = found.stretches
    assert (only.optimizer, only.first, only.last) == ("good", 1, 8)
    assert found.sentences() == ["Tune good, with however many trials from 1 to 8."]
    assert found.choices == []


pools = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@settings(max_examples=60)
@given(st.lists(pools, min_size=1, max_size=4), st.booleans())
def test_stretches_are_those_of_a_loop_over_k(values, maximize):
    metric, sign = ("accuracy", -1) if maximize else ("valid_error", 1)
    outcomes = {str(i): outcome_of([sign * each for each in pool], str(i), metric) for i, pool in enumerate(values)}
    found = plan(outcomes).stretches
    most = min(map(len, values))
    assert [each.first for each in found] == [1, *(each.last + 1 for each in found[:-1])]
    assert found[-1].last == most
    assert all(a.optimizer != b.optimizer for a, b in itertools.pairwise(found))
    for each in found:
        for k in range(each.first, each.last + 1):
            means = {str(i): lf.best_of(pool, k).mean for i, pool in enumerate(values)}
            assert means[each.optimizer] == pytest.approx(min(means.values()), abs=1e-12)


def test_the_smallest_pool_ends_the_stretches():
    found = plan(outcomes_of(a=[0.2] * 5, b=[0.3] * 50)).stretches
    assert [each.last for each in found] == [5]


def test_large_pools_are_compared_at_some_k():
    values = np.random.default_rng(0).random(400)
    found = plan(outcomes_of(wide=values, sure=np.full(400, 0.2))).stretches
    assert [each.optimizer for each in found] == ["sure", "wide"]
    crossing = next(k for k in range(1, 400) if lf.best_of(values, k).mean < 0.2)
    assert found[0].last < crossing <= found[1].first
    assert (found[0].first, found[-1].last) == (1, 400)


# Within a budget


def test_trials_that_fit_by_hand():
    """36 s, a hundredth of an hour, each: 5 fit into 0.0599 hours; of the other, which takes 90 s, 2."""
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
def test_a_pool_is_all_there_is_to_draw_from(hours, trials, enough):
    (found,) = plan({"it": outcome_of(LUCKY)}, hours).choices
    assert (found.trials, found.enough) == (trials, enough)
    assert found.expected == pytest.approx(0.1 + 0.8 * 0.9**trials) if trials else math.isnan(found.expected)


def test_infeasible_trials_cost_their_steps():
    """Ten feasible trials of 100 steps, and 500 steps of infeasible ones: half as much again for each."""
    free, burdened = outcome_of(LUCKY, seconds=36.0), outcome_of(LUCKY, seconds=36.0, wasted=500)
    (one,), (other,) = (plan({"it": each}, 0.0601).choices for each in (free, burdened))
    assert (one.trials, one.hours) == (6, pytest.approx(0.01))
    assert (other.trials, other.hours) == (4, pytest.approx(0.015))


def test_the_best_expected_comes_first_and_what_does_not_fit_last():
    outcomes = {
        "late": outcome_of([0.01] * 10, "late", seconds=3600.0),
        "bad": outcome_of([0.5] * 10, "bad"),
        "good": outcome_of(SURE, "good"),
    }
    found = plan(outcomes, 0.5)
    assert [each.optimizer for each in found.choices] == ["good", "bad", "late"]
    assert found.sentences()[1:] == [
        "With 0.5 hours of this device:",
        "  good: 30.00% expected, the best of 10 trials (36 s a trial, all of the pool; more trials would fit)",
        "  bad: 50.00% expected, the best of 10 trials (36 s a trial, all of the pool; more trials would fit)",
        "  late: not one trial (1 hours a trial)",
    ]


def test_a_metric_that_goes_up():
    up = {
        "good": outcome_of([0.9] * 10, "good", "accuracy"),
        "wide": outcome_of([0.99] + [0.1] * 9, "wide", "accuracy"),
    }
    found = plan(up, 0.0301)
    assert found.select == "accuracy"
    assert [each.optimizer for each in found.choices] == ["good", "wide"]
    assert found.choices[1].expected == pytest.approx(0.99 - 0.89 * 0.9**3)
    assert [each.optimizer for each in found.stretches] == ["good"]  # 0.99 − 0.89 × 0.9ᵏ > 0.9 from 22 on


def test_which_one_is_best_depends_on_the_budget():
    """A sure one that takes long, and a lucky one that is quick."""
    outcomes = {"sure": outcome_of(SURE * 2, "sure", seconds=360.0), "lucky": outcome_of(LUCKY * 2, "lucky")}
    assert plan(outcomes, 0.05).choices[0].optimizer == "lucky"  # nothing else fits
    assert plan(outcomes, 0.11).choices[0].optimizer == "sure"
    assert plan(outcomes, 0.20).choices[0].optimizer == "lucky"


# Nothing to plan with


def test_without_a_feasible_trial_nothing_is_planned():
    empty = Outcome("empty", [], 20, METRICS, "valid_error", spent=200)
    found = plan({"empty": empty}, 1.0)
    assert found == Plan("valid_error", [], [], 1.0, ["empty"])
    assert found.sentences()[0] == "Of empty there is no trial to judge by."
    beside = plan({"empty": empty, "it": outcome_of(SURE)}, 1.0)
    assert [each.optimizer for each in beside.stretches] == ["it"]
    assert [each.optimizer for each in beside.choices] == ["it"]
    lost = plan({"nan": outcome_of([math.nan] * 10, "nan"), "it": outcome_of(SURE)}, 1.0)
    assert [each.optimizer for each in lost.choices] == ["it"]


def test_trials_that_took_no_time_all_fit():
    (found,) = plan({"it": outcome_of(SURE, seconds=0.0)}, 1e-9).choices
    assert found.trials == 10
    assert found.hours == 0


# In a comparison


def test_a_comparison_plans_from_its_trials(made):
    optimizers = {name: {"rule": "sgd", "learning_rate": {"log": [low, 1.0]}} for name, low in (("a", 0.1), ("b", 0.2))}
    content = {"workload": "quadratic", "steps": 4, "eval_interval": 2, "trials": 2, "pool": 10}
    study = lf.Study(**content, optimizers=optimizers)
    pools = {
        name: [{"train_loss": [9.0, value]} for value in values] for name, values in {"a": SURE, "b": LUCKY}.items()
    }
    pools["b"] += [{"train_loss": [9.0]}] * 5  # infeasible, after half of their steps; they end the prefix
    pools["b"] = pools["b"][10:] + pools["b"][:10]
    comparison = made(study, pools, {"b": range(5)})
    found = comparison.plan(gpu_hours=4.4 * 0.5 / 3600)  # at half a second a trial
    a, b = found.choices
    assert (a.optimizer, a.trials, a.hours * 3600) == ("a", 4, pytest.approx(0.5))
    assert (b.optimizer, b.trials, b.hours * 3600) == ("b", 3, pytest.approx(0.5 * 50 / 40))
    assert b.expected == pytest.approx(lf.best_of(LUCKY, 3).mean, rel=1e-6)
    content = found.as_dict()
    assert json.loads(json.dumps(content)) == content
    assert content["by_trials"] == [{"optimizer": "a", "first": 1, "last": 10, "rivals": ["b"], "ahead": []}]
    assert [each["optimizer"] for each in content["within_budget"]] == ["a", "b"]
