"""Outcomes by another metric, at another step, with another target: against trials that were cut there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levelfield.analysis.outcomes import Outcome, Target
from levelfield.errors import UnknownName, UsageError
from levelfield.trial import Curve, Direction, Point, Status, Trial

NAN, INF = math.nan, math.inf
STEPS = (10, 20, 30)
METRICS = {"error": Direction.MINIMIZE, "accuracy": Direction.MAXIMIZE}
VALUES = st.integers(0, 9).map(lambda tenths: tenths / 10)
ERRORS = st.lists(st.lists(VALUES, min_size=3, max_size=3), min_size=1, max_size=6)  # trials × steps
ANY_STEP = st.integers(1, 40)


def trial(index: int, steps: Sequence[int] = STEPS, **curves: Sequence[float]) -> Trial:
    values = {name: np.array(curve, float) for name, curve in curves.items()}
    return Trial(Point(index, {}, index), Status.FEASIBLE, Curve(np.array(steps, int), values))


def outcome(trials: Sequence[Trial], select: str = "error", target: Target | None = None) -> Outcome:
    return Outcome("ours", trials, len(trials), METRICS, select, target)


def from_errors(curves: Sequence[Sequence[float]], end: int = STEPS[-1]) -> Outcome:
    """Trials with these errors, and accuracies to match, up to a step."""
    n = sum(step <= end for step in STEPS)
    trials = [
        trial(i, STEPS[:n], error=curve[:n], accuracy=[1 - value for value in curve[:n]])
        for i, curve in enumerate(curves)
    ]
    return outcome(trials, target=Target("error", 0.4))


# A curve at a step


@given(steps=st.lists(st.integers(1, 60), min_size=0, max_size=8, unique=True).map(sorted), step=st.integers(0, 70))
def test_a_curve_is_read_at_the_last_evaluation_up_to_a_step(steps, step):
    curve = Curve(np.array(steps, int), {"error": np.array([each / 100 for each in steps])})
    before = [each for each in steps if each <= step]
    assert curve.at("error", step) == pytest.approx(before[-1] / 100 if before else NAN, nan_ok=True)
    assert curve.at("error") == pytest.approx(steps[-1] / 100 if steps else NAN, nan_ok=True)
    assert curve.final("error") == pytest.approx(curve.at("error"), nan_ok=True)


@pytest.mark.parametrize("step", [None, 5, 10, 99])
def test_a_metric_that_was_not_measured_has_no_value(step):
    assert math.isnan(trial(0, error=[0.3, 0.2, 0.1]).curve.at("accuracy", step))


# Another step


@given(curves=ERRORS, step=ANY_STEP, k=st.integers(1, 5))
def test_an_outcome_at_a_step_is_that_of_trials_cut_there(curves, step, k):
    at, cut = from_errors(curves).at(step=step), from_errors(curves, end=step)
    np.testing.assert_array_equal(at.values(), cut.values())
    np.testing.assert_array_equal(at.ranked("accuracy"), cut.ranked("accuracy"))
    for ask in (
        lambda one: one.best(k),
        lambda one: one.best(k, "accuracy"),
        lambda one: one.best(k, bootstrap=9),
        lambda one: one.steps_to_target(k),
    ):
        np.testing.assert_equal(vars(ask(at)), vars(ask(cut)))
    points = [each.best_trial and each.best_trial.point for each in (at, cut)]
    assert points[0] == points[1]
    assert (points[0] is None) == (not np.isfinite(at.values()).any())
    other = from_errors([[0.5, 0.4, 0.3]])
    assert at.beats(other.at(step=step), k) == cut.beats(from_errors([[0.5, 0.4, 0.3]], end=step), k)


@given(curves=ERRORS, k=st.integers(1, 5))
def test_the_last_step_and_any_later_one_change_nothing(curves, k):
    whole = from_errors(curves)
    for step in (30, 31, 10**9):
        at = whole.at(step=step)
        assert at.best(k) == whole.best(k)
        assert at.steps.tolist() == whole.steps.tolist()


def test_before_the_first_evaluation_nothing_is_known():
    found = from_errors([[0.1, 0.1, 0.1], [0.2, 0.2, 0.2]]).at(step=9)
    assert np.isnan(found.values()).all()
    assert math.isnan(found.best(2).mean)
    assert found.ranked().tolist() == [INF, INF]
    assert found.steps_to_target(2).probability == 0.0
    assert found.beats(found, 2) == 0.0


def test_a_target_that_is_reached_later_is_not_reached_yet():
    found = from_errors([[0.9, 0.4, 0.4], [0.9, 0.9, 0.4], [0.4, 0.9, 0.9]])
    assert found.steps.tolist() == [20, 30, 10]
    assert found.at(step=29).steps.tolist() == [20, INF, 10]
    assert found.at(step=10).steps.tolist() == [INF, INF, 10]
    assert found.at(step=9).steps.tolist() == [INF, INF, INF]


def test_trials_may_be_evaluated_at_other_steps():
    found = outcome([trial(0, [10, 20], error=[0.5, 0.1]), trial(1, [15, 25], error=[0.4, 0.2])])
    assert [found.at(step=step).values().tolist() for step in (10, 15, 20, 25)] == [
        pytest.approx([0.5, NAN], nan_ok=True),
        [0.5, 0.4],
        [0.1, 0.4],
        [0.1, 0.2],
    ]


@pytest.mark.parametrize("step", [0, -1])
def test_a_step_that_is_none_is_refused(step):
    with pytest.raises(UsageError, match=rf"step = {step}: .*from 1 on"):
        from_errors([[0.1, 0.1, 0.1]]).at(step=step)


# Another metric, another target


@given(curves=ERRORS, k=st.integers(1, 5))
def test_another_metric_selects_as_if_the_study_had_named_it(curves, k):
    whole = from_errors(curves)
    found, expected = whole.at(select="accuracy"), outcome(whole.pool, "accuracy")
    assert found.best(k) == expected.best(k)
    assert found.best(k, "error") == expected.best(k, "error")
    # Accuracies are 1 − errors: the same trial is best either way.
    assert found.best_trial is whole.best_trial


def test_metrics_that_disagree_select_other_trials():
    trials = [trial(0, error=[0.1] * 3, accuracy=[0.2] * 3), trial(1, error=[0.3] * 3, accuracy=[0.9] * 3)]
    assert outcome(trials).best_trial is trials[0]
    assert outcome(trials).at(select="accuracy").best_trial is trials[1]


@pytest.mark.parametrize(
    ("target", "steps"),
    [
        (Target("error", 0.2), [30, 20]),
        (Target("error", 0.7), [20, 10]),
        (Target("accuracy", 0.75), [30, 20]),
        (Target("accuracy", 0.95), [INF, INF]),
    ],
)
def test_another_target(target, steps):
    whole = from_errors([[0.9, 0.6, 0.2], [0.7, 0.1, 0.1]])
    assert whole.steps.tolist() == [30, 20]
    assert whole.at(target=target).steps.tolist() == steps


@given(curves=ERRORS, step=ANY_STEP, k=st.integers(1, 5))
def test_changes_may_be_made_one_after_another(curves, step, k):
    whole, target = from_errors(curves), Target("accuracy", 0.5)
    at_once = whole.at(select="accuracy", step=step, target=target)
    in_turn = whole.at(target=target).at(step=step).at(select="accuracy")
    np.testing.assert_equal(vars(at_once.best(k)), vars(in_turn.best(k)))
    assert at_once.steps.tolist() == in_turn.steps.tolist()
    assert (in_turn.select, in_turn.step, in_turn.target) == ("accuracy", step, target)


def test_a_view_leaves_the_outcome_as_it_was():
    whole = from_errors([[0.9, 0.6, 0.2], [0.7, 0.1, 0.1]])
    before = whole.best(2), whole.steps.tolist(), whole.values().tolist()
    whole.at(select="accuracy", step=10, target=Target("error", 0.9)).best(2)
    assert (whole.best(2), whole.steps.tolist(), whole.values().tolist()) == before
    assert (whole.select, whole.step, whole.target) == ("error", None, Target("error", 0.4))


def test_what_was_read_cannot_be_changed_by_accident():
    whole = from_errors([[0.9, 0.6, 0.2]])
    with pytest.raises(ValueError, match="read-only"):
        whole.values()[0] = 0.0
    whole.ranked()[0] = 0.0
    assert whole.ranked().tolist() == [0.2]


def test_an_unknown_metric_is_refused_with_the_nearest():
    whole = from_errors([[0.9, 0.6, 0.2]])
    for ask in (
        lambda: whole.at(select="eror"),
        lambda: whole.at(target=Target("eror", 0.1)),
        lambda: whole.values("eror"),
    ):
        with pytest.raises(UnknownName, match=r"metric.*'eror'; did you mean 'error'"):
            ask()


# Metrics that some trials lack


def test_a_trial_that_lacks_the_metric_comes_last():
    trials = [trial(0, accuracy=[0.9] * 3), trial(1, error=[0.8] * 3), trial(2, error=[0.2] * 3)]
    found = outcome(trials, target=Target("error", 0.5))
    assert found.values().tolist() == pytest.approx([NAN, 0.8, 0.2], nan_ok=True)
    assert found.ranked().tolist() == [INF, 0.8, 0.2]
    assert found.best_trial is trials[2]
    assert found.steps.tolist() == [INF, INF, 10]
    assert found.at(select="accuracy").best_trial is trials[0]
    assert found.at(select="accuracy").ranked().tolist() == [-0.9, INF, INF]


def test_a_metric_that_all_trials_lack_has_no_best():
    found = outcome([trial(0, error=[0.5] * 3), trial(1, error=[0.4] * 3)]).at(select="accuracy")
    assert math.isnan(found.best(2).mean)
    assert math.isnan(found.best(2, "error").mean)  # nothing tells which would be selected
    assert found.best_trial is None
    assert found.at(target=Target("accuracy", 0.1)).steps_to_target(2).probability == 0.0


# What it costs


@pytest.mark.parametrize("k", [1, 4])
def test_the_cost_is_what_random_trials_take_until_k_are_feasible(k):
    lengths, whole = np.array([30, 30, 7, 30, 12, 1, 30]), np.array([True, True, False, True, False, False, True])
    pool = [trial(i, error=[0.5] * 3) for i in range(int(whole.sum()))]
    found = Outcome("ours", pool, len(lengths), METRICS, "error", spent=int(lengths.sum()))

    draws = np.random.default_rng(0).integers(len(lengths), size=(20_000, 60))
    enough = np.cumsum(whole[draws], axis=1) >= k
    assert enough[:, -1].all()
    spent = np.take_along_axis(np.cumsum(lengths[draws], axis=1), enough.argmax(axis=1)[:, None], axis=1)
    assert abs(spent.mean() - found.cost(k)) < 4 * spent.std() / math.sqrt(len(spent))


def test_without_a_feasible_trial_there_is_no_cost():
    assert math.isnan(Outcome("ours", [], 5, METRICS, "error", spent=100).cost(3))


def test_a_cost_by_hand():
    pool = [trial(i, error=[0.5] * 3) for i in range(4)]  # 30 steps each, and two that broke off after 10 and 5
    found = Outcome("ours", pool, 6, METRICS, "error", spent=4 * 30 + 10 + 5)
    assert found.cost(4) == 135
    assert found.cost(1) == pytest.approx(33.75)


def test_trials_read_earlier_cost_less():
    steps = np.array([10, 20, 40])
    curves = [Curve(steps, {"train_loss": np.array([3.0, 2.0, 1.0])}) for _ in range(4)]
    pool = [Trial(Point(i, {}, i), Status.FEASIBLE, curve, seconds=8.0) for i, curve in enumerate(curves)]
    whole = Outcome("it", pool, 4, {"train_loss": Direction.MINIMIZE}, "train_loss")
    early = whole.at(step=25)
    assert (whole.seconds, early.seconds) == (8.0, 4.0)
    assert (whole.last(pool[0]), early.last(pool[0]), early.at(step=9).last(pool[0])) == (40, 20, 0)
    assert list(early.curve(pool[0]).steps) == [10, 20]


@pytest.mark.parametrize(("way", "wrong"), [(Direction.MINIMIZE, 280), (Direction.MAXIMIZE, 1720)])
def test_a_target_that_is_met_exactly_is_reached(way, wrong):
    """Curves are float32, in which 280 / 2,000 is a little more than 0.14, and 0.86 a little more or less."""
    value = np.array([wrong / 2000], np.float32)
    trial = Trial(Point(0, {}, 0), Status.FEASIBLE, Curve(np.array([10]), {"m": value}))
    it = Outcome("it", [trial], 1, {"m": way}, "m", Target("m", wrong / 2000))
    assert it.steps_to_target(1).probability == 1
