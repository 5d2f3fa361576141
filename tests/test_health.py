"""Whether a search can be trusted: each check, on pools made so that it fires, and on some where it does not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import levelfield as lf
from levelfield.analysis.health import Check, checks
from levelfield.analysis.outcomes import Outcome
from levelfield.report.narrative import search_sentences
from levelfield.search import Search
from levelfield.trial import Curve, Direction, Status, Trial

MOMENTUM = {"rule": "momentum", "learning_rate": {"log": [1e-4, 1e-1]}, "one_minus_momentum": {"log": [1e-2, 1e0]}}
METRICS = {"train_loss": Direction.MINIMIZE, "error": Direction.MINIMIZE, "accuracy": Direction.MAXIMIZE}
FALLING = (9.0, 4.0, 3.0, 2.5, 2.2, 2.1, 2.05, 2.02, 2.01, 2.0)  # and flat at its end
QUESTIONS = ["infeasible trials", "good trials", "still improving with trials", "curve still improving at the end"]


def study_of(table: Mapping[str, Any] = MOMENTUM, **changes: Any) -> lf.Study:
    content = {"workload": "quadratic", "steps": 10, "eval_interval": 1, "trials": 5, "pool": 20}
    return lf.Study(**content | {"optimizers": {"it": dict(table)}} | changes)


def trials_of(
    values: Sequence[float | None],
    curve: Sequence[float] = FALLING,
    metric: str = "error",
    table: Mapping[str, Any] = MOMENTUM,
) -> list[Trial]:
    """Curves that all look alike and end at these values; None: infeasible."""
    search, found = Search(study_of(table), "it"), []
    for index, value in enumerate(values):
        last = math.nan if value is None else value
        status = Status.INFEASIBLE if value is None else Status.FEASIBLE
        shape = np.asarray(curve) - curve[-1]
        both = {metric: last + (-shape if METRICS[metric] is Direction.MAXIMIZE else shape), "train_loss": 1 + shape}
        found.append(Trial(search.point(index), status, Curve(np.arange(1, len(curve) + 1), both)))
    return found


def outcome_of(trials: Sequence[Trial], metric: str = "error") -> Outcome:
    return Outcome("it", [trial for trial in trials if trial.feasible], len(trials), METRICS, metric)


def asked(
    trials: Sequence[Trial], k: int = 5, metric: str = "error", reruns: Sequence[Trial] = (), **table: Any
) -> dict[str, Check]:
    axes = study_of(table.get("table", MOMENTUM)).optimizer("it").space.free
    again = outcome_of(reruns, metric) if reruns else None
    found = list(checks(outcome_of(trials, metric), trials, axes, k, again))
    assert len({each.question for each in found}) == len(found)
    return {each.question: each for each in found}


PLENTY = [1.0] * 15 + [2.0, 3.0, 4.0, 5.0, 6.0]  # the best is found at once


def test_a_search_without_faults_passes_every_check():
    values = [*np.linspace(1, 1.1, 15), *PLENTY[15:]]
    found = asked(trials_of(values), reruns=trials_of([1.0, 1.01, 1.02]))
    assert list(found) == [*QUESTIONS, "best step", "trials against seeds"]
    assert [each.question for each in found.values() if not each.healthy] == []
    assert all(each.optimizer == "it" for each in found.values())
    assert all(str(each) == f"it: {each.finding}" for each in found.values())


# Infeasible trials


@pytest.mark.parametrize(("broken", "healthy"), [(0, True), (5, True), (20, True), (21, False), (40, False)])
def test_too_many_infeasible_trials(broken, healthy):
    found = asked(trials_of([None] * broken + PLENTY))["infeasible trials"]
    assert found.value == pytest.approx(broken / (broken + 20))
    assert found.threshold == 0.5
    assert found.healthy is healthy
    assert found.finding.startswith(f"{100 * broken / (broken + 20):.0f}% of {broken + 20} trials are infeasible")
    assert ("narrow the space" in str(found)) is not healthy


@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize(("name", "key"), [("learning_rate", "learning_rate"), ("momentum", "one_minus_momentum")])
def test_where_the_infeasible_trials_lie(side, name, key):
    search = Search(study_of(), "it")

    def coordinate(index: int) -> float:
        value = search.point(index).hyperparameters[name]
        return value if name == "learning_rate" else 1 - value

    edge = 10**-2.0 if name == "learning_rate" else 10**-0.8
    values = [None if (coordinate(i) > edge) == (side == "above") else 1.0 + i for i in range(30)]
    broken = [coordinate(i) for i, value in enumerate(values) if value is None]
    said = asked(trials_of(values))["infeasible trials"].finding
    assert f", half of them at {key} = " in said
    assert said.endswith(f" or {side}")
    shown = float(said.rpartition(" = ")[2].partition(" or ")[0])
    assert np.mean([at > shown for at in broken]) == pytest.approx(0.5, abs=0.5 / len(broken) + 0.05)


def test_infeasible_trials_that_lie_anywhere():
    broken = np.random.default_rng(0).permutation(32)[:8]
    values = [None if index in broken else 1.0 for index in range(32)]
    said = asked(trials_of(values))["infeasible trials"].finding
    assert said == "25% of 32 trials are infeasible"


def test_infeasible_choices_are_found_too():
    table = {"rule": "momentum", "learning_rate": 0.1, "one_minus_momentum": {"choice": [0.1, 0.05, 0.001]}}
    search = Search(study_of(table), "it")
    values = [None if search.point(i).hyperparameters["momentum"] > 0.99 else 1.0 for i in range(30)]
    said = asked(trials_of(values, table=table), table=table)["infeasible trials"].finding
    assert said.endswith("half of them at one_minus_momentum = 0.001 or below")


def test_above_is_above_in_whatever_order_choices_are_listed():
    for rates in ([2.0, 1.0, 0.5, 0.25, 0.05], [0.05, 0.25, 0.5, 1.0, 2.0]):
        table = {"rule": "sgd", "learning_rate": {"choice": rates}}
        search = Search(study_of(table), "it")
        values = [None if search.point(i).hyperparameters["learning_rate"] >= 1 else 1.0 for i in range(30)]
        said = asked(trials_of(values, table=table), table=table)["infeasible trials"].finding
        assert said.endswith(
            ("half of them at learning_rate = 1 or above", "half of them at learning_rate = 2 or above")
        )


def test_of_infeasible_trials_alone_nothing_else_is_said():
    found = asked(trials_of([None] * 20))
    assert list(found) == ["infeasible trials"]
    assert found["infeasible trials"].value == 1.0
    assert found["infeasible trials"].finding == "100% of 20 trials are infeasible"
    assert asked([]) == {}


# Enough good trials


@pytest.mark.parametrize(("good", "healthy"), [(1, False), (4, False), (5, True), (12, True)])
def test_few_trials_that_compete_for_the_best(good, healthy):
    """With so many draws, the best of K is one of the good ones, whichever."""
    found = asked(trials_of([1.0] * good + [9.0] * (40 - good)), k=200)["good trials"]
    assert (found.value, found.threshold, found.healthy) == (good, 5, healthy)
    assert found.finding == f"{good} of 40 trials are as good as the best of K = 200 may be"


@pytest.mark.parametrize("k", [1, 2, 5, 19])
def test_good_trials_are_those_up_to_where_the_best_of_k_may_be(k):
    values = np.random.default_rng(0).normal(size=50)
    drawn = np.random.default_rng(1).choice(values, size=(40_000, k)).min(axis=1)
    expected = np.sum(values <= np.quantile(drawn, 0.95))
    assert asked(trials_of(values.tolist()), k=k)["good trials"].value == pytest.approx(expected, abs=1)


def test_a_pool_of_three_cannot_have_five_good_trials():
    assert asked(trials_of([1.0, 1.0, 1.0]), k=1)["good trials"].healthy


# More trials


def test_more_trials_that_would_help():
    """One of 20 is far better than the others: drawn with half as many trials, it is often missed."""
    found = asked(trials_of([0.0] + [1.0] * 19))["still improving with trials"]
    half, whole, first = ((19 / 20) ** k for k in (10, 20, 1))  # P(missed)
    assert found.value == pytest.approx((half - whole) / (first - whole))
    assert not found.healthy
    assert str(found) == "it: the second half of the trials brings 41% of what all bring: run a larger pool"


def test_more_trials_that_would_not_help():
    found = asked(trials_of(PLENTY))["still improving with trials"]
    assert found.value < 0.001
    assert found.healthy
    ties = asked(trials_of([1.0] * 20))["still improving with trials"]
    assert (ties.value, ties.healthy) == (0.0, True)
    assert "still improving with trials" not in asked(trials_of([1.0]))


# Curves


@pytest.mark.parametrize(
    ("curve", "late"),
    [
        (FALLING, 0.01 / 7),
        (np.linspace(9, 2, 10), 1 / 9),
        (np.linspace(9, 2, 4), 0.1 * (1 / 3) / (1 / 4)),  # evaluations further apart than a tenth of the steps
        ((9, 5, 4, 3, 2, 2, 2, 2, 2, 2.5), -0.5 / 7),  # rises at the end
    ],
    ids=["falling", "straight", "few", "rising"],
)
def test_a_curve_that_still_falls_at_its_end(curve, late):
    found = asked(trials_of(PLENTY, curve=list(curve)))["curve still improving at the end"]
    assert found.value == pytest.approx(late)
    assert found.threshold == 0.05
    assert found.healthy is (late <= 0.05)
    assert f"makes {max(late, 0):.0%} of its progress in the last tenth" in found.finding


@pytest.mark.parametrize(
    ("best", "steps", "healthy"), [(1, 20, False), (2, 20, False), (3, 20, True), (1, 5, True), (20, 20, True)]
)
def test_a_best_step_that_comes_early(best, steps, healthy):
    """Within the first tenth: it only gets worse from there."""
    curve = 5 + np.abs(np.arange(1, steps + 1) - best)
    found = asked(trials_of(PLENTY, curve=curve.tolist()))["best step"]
    assert found.value == best / steps
    assert found.healthy is healthy
    assert f"at its best after {best / steps:.0%} of its steps" in found.finding


def test_it_is_the_best_trial_s_curve_that_is_looked_at():
    good, others = trials_of([0.0], curve=np.linspace(9, 2, 10)), trials_of(PLENTY)
    assert not asked([*good, *others])["curve still improving at the end"].healthy
    assert asked([*others, *trials_of([9.0], curve=np.linspace(9, 2, 10))])["curve still improving at the end"].healthy


def test_curves_that_are_too_short_or_broken_are_not_judged():
    short = asked(trials_of(PLENTY, curve=[3.0, 2.0]))
    assert list(short) == QUESTIONS[:3]
    broken = asked(trials_of(PLENTY, curve=[math.inf, *FALLING]))
    assert list(broken) == QUESTIONS[:3]


# Trials against seeds


@pytest.mark.parametrize(("spread", "healthy"), [(0.5, False), (0.99, False), (1.01, True), (8.0, True)])
def test_trials_against_seeds(spread, healthy):
    """Five trials as far apart as five seeds of one, times the spread."""
    apart = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    trials = trials_of([*(5 + spread * apart), 99.0, 99.0])
    found = asked(trials, reruns=trials_of((5 + apart).tolist()))["trials against seeds"]
    assert found.value == pytest.approx(spread)
    assert found.threshold == 1.0
    assert found.healthy is healthy
    assert found.finding == f"the best 5 trials spread {spread:.1f} times as far as seeds of one"


def test_without_several_seeds_they_are_not_compared():
    assert "trials against seeds" not in asked(trials_of(PLENTY))
    assert "trials against seeds" not in asked(trials_of(PLENTY), reruns=trials_of([1.0]))
    assert "trials against seeds" not in asked(trials_of(PLENTY), reruns=trials_of([1.0, None]))
    same = asked(trials_of([1.0, 2.0, 3.0]), reruns=trials_of([1.0, 1.0]))["trials against seeds"]
    assert (same.value, same.healthy) == (math.inf, True)


# Trials without values, metrics that go up


def test_trials_without_a_value_are_left_out():
    values = np.random.default_rng(0).normal(size=30).tolist()
    whole, some = asked(trials_of(values)), asked(trials_of([*values, math.nan, math.nan]))
    for question in QUESTIONS[1:]:
        assert some[question].value == whole[question].value
        assert some[question].healthy == whole[question].healthy
    assert list(asked(trials_of([math.nan] * 8))) == ["infeasible trials"]


@pytest.mark.parametrize("curve", [FALLING, np.linspace(9, 2, 10), [2.0, *np.linspace(3, 9, 19)]])
def test_a_metric_that_goes_up_is_judged_as_its_negative(curve):
    values = np.random.default_rng(2).normal(size=30)
    down = asked(trials_of(values.tolist(), curve), reruns=trials_of([0.1, 0.3]))
    up = asked(
        trials_of((-values).tolist(), curve, "accuracy"),
        metric="accuracy",
        reruns=trials_of([-0.1, -0.3], metric="accuracy"),
    )
    assert list(up) == list(down)
    for question in up:
        assert up[question].value == pytest.approx(down[question].value)
        assert up[question].healthy == down[question].healthy


# In a comparison


def test_a_comparison_checks_every_optimizer_and_says_what_fails(made):
    study = study_of(optimizers={"good": MOMENTUM, "bad": MOMENTUM | {"learning_rate": {"log": [1e-3, 1e0]}}})
    good = [{"train_loss": np.asarray(FALLING) - 2 + value} for value in PLENTY]
    bad = [{"train_loss": np.linspace(9, 1, 10)}] * 20
    comparison = made(study, {"good": good, "bad": [{"train_loss": [9.0]}] * 30 + bad}, {"bad": range(30)})
    found = {(each.optimizer, each.question): each for each in comparison.health()}
    assert all(each.healthy for (name, _), each in found.items() if name == "good")
    assert [question for (name, question), each in found.items() if name == "bad" and not each.healthy] == [
        "infeasible trials",
        "curve still improving at the end",
    ]
    content = [each.as_dict() for each in found.values()]
    assert json.loads(json.dumps(content)) == content
    said = search_sentences(comparison)
    assert sum(sentence.startswith("bad: 60% of 50 trials are infeasible") for sentence in said) == 1
    assert sum("train longer" in sentence for sentence in said) == 1
    assert not any("good: " in sentence and "trials" in sentence and "border" not in sentence for sentence in said)
