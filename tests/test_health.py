"""Checks of a search, on invented pools that pass or fail them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from helpers import make_study

import levelfield as lf
from levelfield.analysis.health import Check, checks
from levelfield.analysis.outcomes import Outcome
from levelfield.report.narrative import search_sentences
from levelfield.search import Search
from levelfield.trial import Curve, Direction, Status, Trial

MOMENTUM = {"rule": "momentum", "learning_rate": {"log": [1e-4, 1e-1]}, "one_minus_momentum": {"log": [1e-2, 1e0]}}
METRICS = {"train_loss": Direction.MINIMIZE, "error": Direction.MINIMIZE, "accuracy": Direction.MAXIMIZE}
FALLING = (9.0, 4.0, 3.0, 2.5, 2.2, 2.1, 2.05, 2.02, 2.01, 2.0)  # flat at the end
QUESTIONS = ["infeasible trials", "good trials", "still improving with trials", "curve still improving at the end"]


def study_of(table: Mapping[str, Any] = MOMENTUM, **changes: Any) -> lf.Study:
    """Return a study of a single optimizer, called "ours"."""
    content = {"steps": 10, "eval_interval": 1, "trials": 5, "pool": 20}
    return make_study({"ours": dict(table)}, **content | changes)


def trials_of(
    values: Sequence[float | None],
    curve: Sequence[float] = FALLING,
    metric: str = "error",
    table: Mapping[str, Any] = MOMENTUM,
) -> list[Trial]:
    """Return trials whose curves have the same shape and end at these values; None is infeasible."""
    search, trials = Search(study_of(table), "ours"), []
    for index, value in enumerate(values):
        last = math.nan if value is None else value
        status = Status.INFEASIBLE if value is None else Status.FEASIBLE
        shape = np.asarray(curve) - curve[-1]
        curves = {metric: last + METRICS[metric].sign * shape, "train_loss": 1 + shape}
        trials.append(Trial(search.point(index), status, Curve(np.arange(1, len(curve) + 1), curves)))
    return trials


def outcome_of(trials: Sequence[Trial], metric: str = "error") -> Outcome:
    return Outcome("ours", [trial for trial in trials if trial.feasible], len(trials), METRICS, metric)


def asked(
    trials: Sequence[Trial], k: int = 5, metric: str = "error", reruns: Sequence[Trial] = (), **table: Any
) -> dict[str, Check]:
    axes = study_of(table.get("table", MOMENTUM)).optimizer("ours").space.free
    again = outcome_of(reruns, metric) if reruns else None
    answers = list(checks(outcome_of(trials, metric), trials, axes, k, again))
    assert len({check.question for check in answers}) == len(answers)
    return {check.question: check for check in answers}


PLENTY = [1.0] * 15 + [2.0, 3.0, 4.0, 5.0, 6.0]  # most trials are as good as the best


def test_a_healthy_search_passes_every_check():
    values = [*np.linspace(1, 1.1, 15), *PLENTY[15:]]
    answers = asked(trials_of(values), reruns=trials_of([1.0, 1.01, 1.02]))
    assert list(answers) == [*QUESTIONS, "best step", "trials against seeds"]
    assert [check.question for check in answers.values() if not check.healthy] == []
    assert all(check.optimizer == "ours" for check in answers.values())
    assert all(str(check) == f"ours: {check.finding}." for check in answers.values())


# Infeasible trials


@pytest.mark.parametrize(("broken", "healthy"), [(0, True), (5, True), (20, True), (21, False), (40, False)])
def test_too_many_infeasible_trials(broken, healthy):
    check = asked(trials_of([None] * broken + PLENTY))["infeasible trials"]
    assert check.value == pytest.approx(broken / (broken + 20))
    assert check.threshold == 0.5
    assert check.healthy is healthy
    assert check.finding.startswith(f"{100 * broken / (broken + 20):.0f}% of {broken + 20} trials are infeasible")
    assert ("Narrow the space" in str(check)) is not healthy
    assert repr([check]) == f"[<{check}>]"


@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize(("name", "key"), [("learning_rate", "learning_rate"), ("momentum", "one_minus_momentum")])
def test_the_finding_says_where_the_infeasible_trials_are(side, name, key):
    search = Search(study_of(), "ours")

    def coordinate(index: int) -> float:
        value = search.point(index).hyperparameters[name]
        return value if name == "learning_rate" else 1 - value

    edge = 10**-2.0 if name == "learning_rate" else 10**-0.8
    values = [None if (coordinate(i) > edge) == (side == "above") else 1.0 + i for i in range(30)]
    broken = [coordinate(i) for i, value in enumerate(values) if value is None]
    finding = asked(trials_of(values))["infeasible trials"].finding
    assert f", half of them at {key} = " in finding
    assert finding.endswith(f" or {side}")
    shown = float(finding.rpartition(" = ")[2].partition(" or ")[0])
    assert np.mean([at > shown for at in broken]) == pytest.approx(0.5, abs=0.5 / len(broken) + 0.05)


def test_infeasible_trials_all_over_the_space_have_no_location():
    broken = np.random.default_rng(0).permutation(32)[:8]
    values = [None if index in broken else 1.0 for index in range(32)]
    finding = asked(trials_of(values))["infeasible trials"].finding
    assert finding == "25% of 32 trials are infeasible"


def test_infeasible_choices_are_located_too():
    table = {"rule": "momentum", "learning_rate": 0.1, "one_minus_momentum": {"choice": [0.1, 0.05, 0.001]}}
    search = Search(study_of(table), "ours")
    values = [None if search.point(i).hyperparameters["momentum"] > 0.99 else 1.0 for i in range(30)]
    finding = asked(trials_of(values, table=table), table=table)["infeasible trials"].finding
    assert finding.endswith("half of them at one_minus_momentum = 0.001 or below")


def test_the_order_of_choices_does_not_change_above_and_below():
    for rates in ([2.0, 1.0, 0.5, 0.25, 0.05], [0.05, 0.25, 0.5, 1.0, 2.0]):
        table = {"rule": "sgd", "learning_rate": {"choice": rates}}
        search = Search(study_of(table), "ours")
        values = [None if search.point(i).hyperparameters["learning_rate"] >= 1 else 1.0 for i in range(30)]
        finding = asked(trials_of(values, table=table), table=table)["infeasible trials"].finding
        assert finding.endswith(
            ("half of them at learning_rate = 1 or above", "half of them at learning_rate = 2 or above")
        )


def test_infeasible_trials_alone_get_no_other_check():
    answers = asked(trials_of([None] * 20))
    assert list(answers) == ["infeasible trials"]
    assert answers["infeasible trials"].value == 1.0
    assert answers["infeasible trials"].finding == "100% of 20 trials are infeasible"
    assert asked([]) == {}


# Enough good trials


@pytest.mark.parametrize(("good", "healthy"), [(1, False), (4, False), (5, True), (12, True)])
def test_too_few_trials_compete_for_the_best(good, healthy):
    """With this many draws, the best of K is one of the good trials."""
    check = asked(trials_of([1.0] * good + [9.0] * (40 - good)), k=200)["good trials"]
    assert (check.value, check.threshold, check.healthy) == (good, 5, healthy)
    assert check.finding == f"{good} of 40 trials compete for the best of K = 200"


@pytest.mark.parametrize("k", [1, 2, 5, 19])
def test_good_trials_are_those_within_the_95th_percentile_of_the_best_of_k(k):
    values = np.random.default_rng(0).normal(size=50)
    drawn = np.random.default_rng(1).choice(values, size=(40_000, k)).min(axis=1)
    expected = np.sum(values <= np.quantile(drawn, 0.95))
    assert asked(trials_of(values.tolist()), k=k)["good trials"].value == pytest.approx(expected, abs=1)


def test_a_pool_of_three_needs_only_three_good_trials():
    assert asked(trials_of([1.0, 1.0, 1.0]), k=1)["good trials"].healthy


# More trials


def test_more_trials_would_help():
    """One of 20 trials is far better than the others, and half as many draws often miss it."""
    check = asked(trials_of([0.0] + [1.0] * 19))["still improving with trials"]
    half, whole, first = ((19 / 20) ** k for k in (10, 20, 1))  # P(it is missed)
    assert check.value == pytest.approx((half - whole) / (first - whole))
    assert not check.healthy
    assert str(check) == "ours: the second half of the trials brings 41% of the improvement. Run a larger pool."


def test_more_trials_would_not_help():
    check = asked(trials_of(PLENTY))["still improving with trials"]
    assert check.value < 0.001
    assert check.healthy
    ties = asked(trials_of([1.0] * 20))["still improving with trials"]
    assert (ties.value, ties.healthy) == (0.0, True)
    assert "still improving with trials" not in asked(trials_of([1.0]))


# Curves


@pytest.mark.parametrize(
    ("curve", "late"),
    [
        (FALLING, 0.01 / 7),
        (np.linspace(9, 2, 10), 1 / 9),
        (np.linspace(9, 2, 4), 0.1 * (1 / 3) / (1 / 4)),  # evaluations are further apart than a tenth of the steps
        ((9, 5, 4, 3, 2, 2, 2, 2, 2, 2.5), -0.5 / 7),  # gets worse at the end
    ],
    ids=["falling", "straight", "few", "rising"],
)
def test_a_curve_that_still_improves_at_its_end(curve, late):
    check = asked(trials_of(PLENTY, curve=list(curve)))["curve still improving at the end"]
    assert check.value == pytest.approx(late)
    assert check.threshold == 0.05
    assert check.healthy is (late <= 0.05)
    assert f"makes {max(late, 0):.0%} of its progress in the last tenth" in check.finding


@pytest.mark.parametrize(
    ("best", "steps", "healthy"), [(1, 20, False), (2, 20, False), (3, 20, True), (1, 5, True), (20, 20, True)]
)
def test_a_curve_that_peaks_early(best, steps, healthy):
    """It peaks within the first tenth and only gets worse from there."""
    curve = 5 + np.abs(np.arange(1, steps + 1) - best)
    check = asked(trials_of(PLENTY, curve=curve.tolist()))["best step"]
    assert check.value == best / steps
    assert check.healthy is healthy
    assert f"peaks after {best / steps:.0%} of its steps" in check.finding


def test_only_the_best_trials_curve_is_checked():
    good, others = trials_of([0.0], curve=np.linspace(9, 2, 10)), trials_of(PLENTY)
    assert not asked([*good, *others])["curve still improving at the end"].healthy
    assert asked([*others, *trials_of([9.0], curve=np.linspace(9, 2, 10))])["curve still improving at the end"].healthy


def test_short_and_infinite_curves_are_not_checked():
    short = asked(trials_of(PLENTY, curve=[3.0, 2.0]))
    assert list(short) == QUESTIONS[:3]
    broken = asked(trials_of(PLENTY, curve=[math.inf, *FALLING]))
    assert list(broken) == QUESTIONS[:3]


# Trials against seeds


@pytest.mark.parametrize(("spread", "healthy"), [(0.5, False), (0.99, False), (1.01, True), (8.0, True)])
def test_trials_against_seeds(spread, healthy):
    """Five trials vary as much as five seeds, times the spread."""
    apart = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    trials = trials_of([*(5 + spread * apart), 99.0, 99.0])
    check = asked(trials, reruns=trials_of((5 + apart).tolist()))["trials against seeds"]
    assert check.value == pytest.approx(spread)
    assert check.threshold == 1.0
    assert check.healthy is healthy
    assert check.finding == (f"the best 5 trials vary {spread:.1f} times as much as the best trial does between seeds")


def test_seeds_are_compared_only_if_there_are_several():
    assert "trials against seeds" not in asked(trials_of(PLENTY))
    assert "trials against seeds" not in asked(trials_of(PLENTY), reruns=trials_of([1.0]))
    assert "trials against seeds" not in asked(trials_of(PLENTY), reruns=trials_of([1.0, None]))
    same = asked(trials_of([1.0, 2.0, 3.0]), reruns=trials_of([1.0, 1.0]))["trials against seeds"]
    assert (same.value, same.healthy) == (math.inf, True)
    assert same.finding == "the best trial gives the same result with every seed"


# Missing values and maximized metrics


def test_trials_without_a_finite_value_are_left_out():
    values = np.random.default_rng(0).normal(size=30).tolist()
    whole, some = asked(trials_of(values)), asked(trials_of([*values, math.nan, math.nan]))
    for question in QUESTIONS[1:]:
        assert some[question].value == whole[question].value
        assert some[question].healthy == whole[question].healthy
    assert list(asked(trials_of([math.nan] * 8))) == ["infeasible trials"]


@pytest.mark.parametrize("curve", [FALLING, np.linspace(9, 2, 10), [2.0, *np.linspace(3, 9, 19)]])
def test_a_maximized_metric_is_checked_like_its_negative(curve):
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


def test_a_comparison_checks_every_optimizer_and_reports_what_fails(made):
    optimizers = {"good": MOMENTUM, "bad": MOMENTUM | {"learning_rate": {"log": [1e-3, 1e0]}}}
    study = make_study(optimizers, steps=10, eval_interval=1, trials=5, pool=20)
    good = [{"train_loss": np.asarray(FALLING) - 2 + value} for value in PLENTY]
    bad = [{"train_loss": np.linspace(9, 1, 10)}] * 20
    comparison = made(study, {"good": good, "bad": [{"train_loss": [9.0]}] * 30 + bad}, {"bad": range(30)})
    answers = {(check.optimizer, check.question): check for check in comparison.health()}
    good_checks = [check for (name, _), check in answers.items() if name == "good"]
    assert len(good_checks) == len(QUESTIONS) + 1
    assert all(check.healthy for check in good_checks)
    assert [question for (name, question), check in answers.items() if name == "bad" and not check.healthy] == [
        "infeasible trials",
        "curve still improving at the end",
    ]
    content = [check.as_dict() for check in answers.values()]
    assert json.loads(json.dumps(content)) == content
    sentences = search_sentences(comparison.results)
    assert sum(sentence.startswith("bad: 60% of 50 trials are infeasible") for sentence in sentences) == 1
    assert sum("Train longer" in sentence for sentence in sentences) == 1
    assert not any("good: " in sentence and "trials" in sentence and "border" not in sentence for sentence in sentences)
