"""Outcomes by another metric, at another step and with another target, compared with trials made to match."""

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
    """Return an outcome of trials with these errors, and accuracies to match, up to a step."""
    n = sum(step <= end for step in STEPS)
    trials = [
        trial(i, STEPS[:n], error=curve[:n], accuracy=[1 - value for value in curve[:n]])
        for i, curve in enumerate(curves)
    ]
    return outcome(trials, target=Target("error", 0.4))


# A curve at a step


@given(steps=st.lists(st.integers(1, 60), min_size=0, max_size=8, unique=True).map(sorted), step=st.integers(0, 70))
def test_a_curve_is_read_at_the_last_evaluation_up_to_a_step(steps, step):
    curve = Curve(np.array(steps, int), {"error": np.array([evaluated / 100 for evaluated in steps])})
    before = [evaluated for evaluated in steps if evaluated <= step]
    assert curve.at("error", step) == pytest.approx(before[-1] / 100 if before else NAN, nan_ok=True)
    assert curve.at("error") == pytest.approx(steps[-1] / 100 if steps else NAN, nan_ok=True)
    assert curve.final("error") == pytest.approx(curve.at("error"), nan_ok=True)


@pytest.mark.parametrize("step", [None, 5, 10, 99])
def test_a_metric_that_was_not_measured_is_nan(step):
    assert math.isnan(trial(0, error=[0.3, 0.2, 0.1]).curve.at("accuracy", step))


# Another step


@given(curves=ERRORS, step=ANY_STEP, k=st.integers(1, 5))
def test_an_outcome_at_a_step_equals_that_of_shorter_trials(curves, step, k):
    at, cut = from_errors(curves).at(step=step), from_errors(curves, end=step)
    np.testing.assert_array_equal(at.values(), cut.values())
    np.testing.assert_array_equal(at.ranked("accuracy"), cut.ranked("accuracy"))
    for read in (
        lambda ours: ours.best(k),
        lambda ours: ours.best(k, "accuracy"),
        lambda ours: ours.best(k, bootstrap=9),
        lambda ours: ours.steps_to_target(k),
    ):
        np.testing.assert_equal(vars(read(at)), vars(read(cut)))
    points = [ours.best_trial and ours.best_trial.point for ours in (at, cut)]
    assert points[0] == points[1]
    assert (points[0] is None) == (not np.isfinite(at.values()).any())
    other = [[0.5, 0.4, 0.3]] * 3
    k = min(k, len(curves), len(other))
    assert at.beats(from_errors(other).at(step=step), k) == cut.beats(from_errors(other, end=step), k)


@given(curves=ERRORS, k=st.integers(1, 5))
def test_the_last_step_and_later_ones_change_nothing(curves, k):
    whole = from_errors(curves)
    for step in (30, 31, 10**9):
        at = whole.at(step=step)
        assert at.best(k) == whole.best(k)
        assert at.steps.tolist() == whole.steps.tolist()


def test_nothing_is_known_before_the_first_evaluation():
    early = from_errors([[0.1, 0.1, 0.1], [0.2, 0.2, 0.2]]).at(step=9)
    assert np.isnan(early.values()).all()
    assert math.isnan(early.best(2).mean)
    assert early.ranked().tolist() == [INF, INF]
    assert early.steps_to_target(2).probability == 0.0
    assert early.beats(early, 2) == 0.0


def test_a_target_that_is_reached_later_is_not_reached_yet():
    whole = from_errors([[0.9, 0.4, 0.4], [0.9, 0.9, 0.4], [0.4, 0.9, 0.9]])
    assert whole.steps.tolist() == [20, 30, 10]
    assert whole.at(step=29).steps.tolist() == [20, INF, 10]
    assert whole.at(step=10).steps.tolist() == [INF, INF, 10]
    assert whole.at(step=9).steps.tolist() == [INF, INF, INF]


def test_trials_may_be_evaluated_at_different_steps():
    ours = outcome([trial(0, [10, 20], error=[0.5, 0.1]), trial(1, [15, 25], error=[0.4, 0.2])])
    assert [ours.at(step=step).values().tolist() for step in (10, 15, 20, 25)] == [
        pytest.approx([0.5, NAN], nan_ok=True),
        [0.5, 0.4],
        [0.1, 0.4],
        [0.1, 0.2],
    ]


def test_an_invalid_step_is_refused():
    with pytest.raises(UsageError, match=r"step = -1: expected an integer of at least 0"):
        from_errors([[0.1, 0.1, 0.1]]).at(step=-1)


# Another metric, another target


@given(curves=ERRORS, k=st.integers(1, 5))
def test_selecting_by_another_metric_equals_a_study_that_selects_by_it(curves, k):
    whole = from_errors(curves)
    view, expected = whole.at(select="accuracy"), outcome(whole.pool, "accuracy")
    assert view.best(k) == expected.best(k)
    assert view.best(k, "error") == expected.best(k, "error")
    # Accuracies are 1 − errors: the same trial is best either way.
    assert view.best_trial is whole.best_trial


def test_metrics_that_disagree_select_different_trials():
    trials = [trial(0, error=[0.1] * 3, accuracy=[0.2] * 3), trial(1, error=[0.3] * 3, accuracy=[0.9] * 3)]
    assert outcome(trials).best_trial is trials[0]
    assert outcome(trials).at(select="accuracy").best_trial is trials[1]


@pytest.mark.parametrize(
    ("select", "metrics", "reported"),
    [
        ("valid_error", "train_loss valid_loss valid_error test_loss test_error", "test_error"),
        ("train_loss", "train_loss valid_loss valid_error test_loss test_error", "test_loss"),
        ("test_error", "train_loss valid_loss valid_error test_loss test_error", "valid_error"),
        ("valid_perplexity", "train_loss valid_perplexity test_loss test_error", "test_loss"),
        ("train_loss", "train_loss valid_loss", "valid_loss"),
        ("valid_loss", "train_loss valid_loss", None),  # nothing else is held out
        ("test_error", "train_loss train_error test_error", None),
        ("train_loss", "train_loss", None),
    ],
)
def test_the_reported_metric_is_of_data_that_did_not_select(select, metrics, reported):
    assert (
        Outcome("ours", [], 0, dict.fromkeys(metrics.split(), Direction.MINIMIZE), select).held_out_metric == reported
    )


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
def test_changes_can_be_combined(curves, step, k):
    whole, target = from_errors(curves), Target("accuracy", 0.5)
    at_once = whole.at(select="accuracy", step=step, target=target)
    in_turn = whole.at(target=target).at(step=step).at(select="accuracy")
    np.testing.assert_equal(vars(at_once.best(k)), vars(in_turn.best(k)))
    assert at_once.steps.tolist() == in_turn.steps.tolist()
    assert (in_turn.select, in_turn.step, in_turn.target) == ("accuracy", step, target)


def test_a_view_does_not_change_the_outcome():
    whole = from_errors([[0.9, 0.6, 0.2], [0.7, 0.1, 0.1]])
    before = whole.best(2), whole.steps.tolist(), whole.values().tolist()
    whole.at(select="accuracy", step=10, target=Target("error", 0.9)).best(2)
    assert (whole.best(2), whole.steps.tolist(), whole.values().tolist()) == before
    assert (whole.select, whole.step, whole.target) == ("error", None, Target("error", 0.4))


def test_values_are_read_only():
    whole = from_errors([[0.9, 0.6, 0.2]])
    with pytest.raises(ValueError, match="read-only"):
        whole.values()[0] = 0.0
    whole.ranked()[0] = 0.0
    assert whole.ranked().tolist() == [0.2]


def test_an_unknown_metric_is_refused_with_a_suggestion():
    whole = from_errors([[0.9, 0.6, 0.2]])
    for call in (
        lambda: whole.at(select="eror"),
        lambda: whole.at(target=Target("eror", 0.1)),
        lambda: whole.values("eror"),
    ):
        with pytest.raises(UnknownName, match=r"metric.*'eror'; did you mean 'error'"):
            call()


def test_an_outcome_has_a_short_repr():
    """It does not list all its trials."""
    whole = Outcome("ours", from_errors([[0.9, 0.6, 0.2]]).pool, 4, METRICS, "error")
    assert repr(whole) == "<Outcome of ours: 1 of 4 trials feasible, selected by error>"


# Missing metrics


def test_a_trial_without_the_metric_ranks_last():
    trials = [trial(0, accuracy=[0.9] * 3), trial(1, error=[0.8] * 3), trial(2, error=[0.2] * 3)]
    ours = outcome(trials, target=Target("error", 0.5))
    assert ours.values().tolist() == pytest.approx([NAN, 0.8, 0.2], nan_ok=True)
    assert ours.ranked().tolist() == [INF, 0.8, 0.2]
    assert ours.best_trial is trials[2]
    assert ours.steps.tolist() == [INF, INF, 10]
    assert ours.at(select="accuracy").best_trial is trials[0]
    assert ours.at(select="accuracy").ranked().tolist() == [-0.9, INF, INF]


def test_a_metric_that_no_trial_has_has_no_best_trial():
    ours = outcome([trial(0, error=[0.5] * 3), trial(1, error=[0.4] * 3)]).at(select="accuracy")
    assert math.isnan(ours.best(2).mean)
    assert math.isnan(ours.best(2, "error").mean)  # no trial would be selected
    assert ours.best_trial is None
    assert ours.at(target=Target("accuracy", 0.1)).steps_to_target(2).probability == 0.0


# Cost


@pytest.mark.parametrize("k", [1, 4])
def test_the_cost_agrees_with_drawing_trials_until_k_are_feasible(k):
    lengths, whole = np.array([30, 30, 7, 30, 12, 1, 30]), np.array([True, True, False, True, False, False, True])
    pool = [trial(i, error=[0.5] * 3) for i in range(int(whole.sum()))]
    ours = Outcome("ours", pool, len(lengths), METRICS, "error", spent=int(lengths.sum()))

    draws = np.random.default_rng(0).integers(len(lengths), size=(20_000, 60))
    enough = np.cumsum(whole[draws], axis=1) >= k
    assert enough[:, -1].all()
    spent = np.take_along_axis(np.cumsum(lengths[draws], axis=1), enough.argmax(axis=1)[:, None], axis=1)
    assert abs(spent.mean() - ours.cost(k)) < 4 * spent.std() / math.sqrt(len(spent))


def test_there_is_no_cost_without_feasible_trials():
    assert math.isnan(Outcome("ours", [], 5, METRICS, "error", spent=100).cost(3))


def test_the_cost_by_hand():
    pool = [trial(i, error=[0.5] * 3) for i in range(4)]  # 30 steps each; two infeasible ones ended after 10 and 5
    ours = Outcome("ours", pool, 6, METRICS, "error", spent=4 * 30 + 10 + 5)
    assert ours.cost(4) == 135
    assert ours.cost(1) == pytest.approx(33.75)


def test_reading_trials_at_an_earlier_step_costs_less():
    steps = np.array([10, 20, 40])
    curves = [Curve(steps, {"train_loss": np.array([3.0, 2.0, 1.0])}) for _ in range(4)]
    pool = [Trial(Point(i, {}, i), Status.FEASIBLE, curve, seconds=8.0) for i, curve in enumerate(curves)]
    whole = Outcome("ours", pool, 4, {"train_loss": Direction.MINIMIZE}, "train_loss")
    early = whole.at(step=25)
    assert (whole.seconds, early.seconds) == (8.0, 4.0)
    assert (whole.last(pool[0]), early.last(pool[0]), early.at(step=9).last(pool[0])) == (40, 20, 0)
    assert list(early.curve(pool[0]).steps) == [10, 20]


@pytest.mark.parametrize(("direction", "count"), [(Direction.MINIMIZE, 280), (Direction.MAXIMIZE, 1720)])
def test_a_target_that_is_met_exactly_is_reached(direction, count):
    """Curves are float32: 280 / 2,000 is slightly more than 0.14 there, and 0.86 is rounded as well."""
    value = np.array([count / 2000], np.float32)
    trial = Trial(Point(0, {}, 0), Status.FEASIBLE, Curve(np.array([10]), {"m": value}))
    ours = Outcome("ours", [trial], 1, {"m": direction}, "m", Target("m", count / 2000))
    assert ours.steps_to_target(1).probability == 1
