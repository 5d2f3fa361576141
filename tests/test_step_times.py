"""What steps take: measured while trials train, stored by device, and turned into seconds to a target."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from fakes import FormulaExecutor
from helpers import make_study
from hypothesis import given
from hypothesis import strategies as st

import levelfield as lf
from levelfield import work
from levelfield.analysis.intervals import interval
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.planning import plan
from levelfield.analysis.step_times import differ, on_one_device
from levelfield.errors import UsageError
from levelfield.executors._jax import JaxExecutor, job
from levelfield.executors.base import hand_out
from levelfield.report.figures import figures
from levelfield.search import Search
from levelfield.store import Store
from levelfield.training import program as programs
from levelfield.trial import Curve, Direction, Point, Status, StepTime, Target, Trial

STEPS = (10, 20, 30)
TARGET = {"metric": "train_loss", "value": 5.0}


def timed_study(**changes: Any) -> lf.Study:
    return make_study(**{"trials": 2, "pool": 8, "target": TARGET} | changes)


def trained(store: Any, seconds: dict[str, list[float]], study: lf.Study | None = None) -> lf.Comparison:
    return lf.compare(study or timed_study(), store, executor=FormulaExecutor(lambda *_: 1.0, step_seconds=seconds))


# Measuring


def test_a_step_is_a_stretch_divided_by_its_steps_and_slots(monkeypatch):
    """The clock of the processors advances by 3 s each time somebody looks: a stretch takes 3 s of all devices."""
    study = make_study(steps=4, eval_interval=2)
    compiled = programs.program(job(study, "sgd"), 2)
    clock = itertools.count(step=3)
    monkeypatch.setattr(programs, "process_time", lambda: next(clock))
    compiled.advance(compiled.empty())
    assert compiled.step_seconds == 3 / compiled.devices / (2 * 2)


def test_the_first_stretch_is_not_timed_and_the_device_is_named():
    study = make_study(steps=6, eval_interval=2)
    take = hand_out("sgd", map(Search(study, "sgd").point, range(4)))
    first, *others = [each.step_time for each in JaxExecutor(2).train(study, take)]
    assert first is None
    assert len(others) > 1
    for measured in others:
        assert measured.slots == 2
        assert measured.seconds > 0
        assert measured.device.endswith("cpu")


def test_a_run_stores_the_median_of_its_stretches(tmp_path):
    """The eight trials of sgd take 2, 5, 3, 2, 5, 3, 2 and 5 seconds per step: the quartiles are 2, 3, and 5."""
    comparison = trained(tmp_path / "trials.db", {"sgd": [2.0, 5.0, 3.0], "momentum": [4.0]})
    assert comparison.step_times["sgd"] == StepTime(3.0, 1, "1 × none", 8, 2.5)
    assert comparison.step_times["momentum"] == StepTime(4.0, 1, "1 × none", 8, 1.0)
    again = lf.Comparison.load(comparison.study, tmp_path / "trials.db")
    assert again.step_times == comparison.step_times


def test_a_run_beside_another_one_on_the_machine_stores_none(tmp_path, monkeypatch):
    monkeypatch.setattr(work.Work, "_sees_neighbors", lambda self: True)
    assert not trained(tmp_path / "trials.db", {"sgd": [1.0], "momentum": [4.0]}).step_times


def test_seconds_are_measured_on_request(tmp_path):
    store = tmp_path / "trials.db"
    assert not trained(store, {}).step_times
    clock = FormulaExecutor(lambda *_: 1.0, step_seconds={"sgd": [1.0], "momentum": [3.0]})
    comparison = lf.compare(timed_study(), store, executor=clock, seconds=True)
    assert {name: each.seconds for name, each in comparison.step_times.items()} == {"sgd": 1.0, "momentum": 3.0}
    slower = FormulaExecutor(lambda *_: 1.0, step_seconds={"sgd": [2.0], "momentum": [6.0]})
    assert lf.compare(timed_study(), store, executor=slower, seconds=True).step_times["sgd"].seconds == 2.0


def test_an_executor_that_cannot_measure_is_told_apart(tmp_path):
    with pytest.raises(UsageError, match="how long its steps take cannot be measured here"):
        lf.compare(timed_study(), tmp_path / "trials.db", executor=FormulaExecutor(lambda *_: 1.0), seconds=True)


# Storing


def test_the_measurement_with_the_most_stretches_stays(tmp_path):
    with Store.open(tmp_path / "trials.db") as store:
        for seconds, stretches in ((1.0, 3), (2.0, 2), (3.0, 3)):
            store.add_step_time("a", StepTime(seconds, 4, "gpu", stretches))
        store.add_step_time("a", StepTime(9.0, 4, "cpu", 1))
        store.add_step_time("b", StepTime(8.0, 4, "cpu", 1))
        assert store.step_times("a") == [StepTime(9.0, 4, "cpu", 1), StepTime(3.0, 4, "gpu", 3)]


def test_a_store_of_schema_3_has_none_until_a_run_upgrades_it(tmp_path):
    path = tmp_path / "trials.db"
    Store.open(path).close()
    with sa.create_engine(f"sqlite:///{path}").begin() as connection:
        connection.execute(sa.text("DROP TABLE step_times"))
        connection.execute(sa.text("UPDATE levelfield SET value = '3' WHERE key = 'schema'"))
    with Store.open(path, create=False) as store:
        assert store.step_times("a") == []
    with Store.open(path) as store:
        store.add_step_time("a", StepTime(1.0, 1, "cpu"))
        assert store.step_times("a") == [StepTime(1.0, 1, "cpu")]


DEVICES = st.lists(st.sampled_from("xyz"), unique=True)


@given(found=st.dictionaries(st.sampled_from("abc"), DEVICES, min_size=1))
def test_devices_are_never_mixed(found):
    measured = {name: [StepTime(1.0, 1, device) for device in devices] for name, devices in found.items()}
    times = on_one_device(measured)
    shared = set.intersection(*map(set, found.values()))
    assert set(times) == (set(found) if shared else set())
    assert len({each.device for each in times.values()}) == bool(shared)


def test_the_device_with_the_most_stretches_counts():
    measured = {name: [StepTime(1.0, 1, "old", 2), StepTime(2.0, 1, "new", 5)] for name in "ab"}
    assert {each.device for each in on_one_device(measured).values()} == {"new"}


def test_a_fifth_more_is_noticeable():
    def times(*seconds: float) -> dict[str, StepTime]:
        return {str(i): StepTime(each, 1) for i, each in enumerate(seconds)}

    assert differ(times(1.0, 1.21))
    assert not differ(times(1.0, 1.19))
    assert not differ(times(1.0))
    assert not differ({"busy": StepTime(1.0, 1, spread=2.0), "idle": StepTime(2.3, 1)})
    assert differ({"busy": StepTime(1.0, 1, spread=2.0), "idle": StepTime(2.5, 1)})
    assert not differ({})


# Seconds


def outcome(errors: list[list[float]], seconds: float | None = None) -> Outcome:
    curves = [Curve(np.array(STEPS), {"error": np.array(values)}) for values in errors]
    trials = [Trial(Point(i, {}, i), Status.FEASIBLE, curve) for i, curve in enumerate(curves)]
    target = Target("error", 0.4)
    about = Outcome("ours", trials, len(trials), {"error": Direction.MINIMIZE}, "error", target, spent=30 * len(trials))
    return about if seconds is None else replace(about, step_time=StepTime(seconds, 1))


ERRORS = st.lists(st.lists(st.sampled_from((0.1, 0.3, 0.5, 0.9)), min_size=3, max_size=3), min_size=1, max_size=6)
SECONDS = st.sampled_from((1e-5, 0.03, 1 / 3, 7.0))


@given(errors=ERRORS, seconds=SECONDS, k=st.integers(1, 6))
def test_seconds_to_the_target_are_those_of_each_trial(errors, seconds, k):
    taken = [next((s * seconds for s, e in zip(STEPS, each, strict=True) if e <= 0.4), math.inf) for each in errors]
    found, expected = outcome(errors, seconds).seconds_interval(k), interval(np.array(taken), k)
    np.testing.assert_allclose(
        [found.median, found.low, found.high], [expected.median, expected.low, expected.high], rtol=1e-12
    )
    # The fastest of k, over all draws of k with replacement.
    draws = [min(draw) for draw in itertools.product(taken, repeat=min(k, 4))]
    reached = [each for each in draws if math.isfinite(each)]
    fastest = outcome(errors, seconds).seconds_to_target(min(k, 4))
    assert fastest.probability == pytest.approx(len(reached) / len(draws))
    if reached:
        assert fastest.mean == pytest.approx(np.mean(reached))


@given(errors=ERRORS, seconds=SECONDS, stop=st.integers(0, 35), k=st.integers(1, 6))
def test_within_a_time_a_trial_is_its_last_evaluation_before(errors, seconds, stop, k):
    budget = stop * seconds
    done = sum(step <= stop for step in STEPS)
    cut = outcome(errors, seconds).within(budget)
    finals = [each[done - 1] if done else math.nan for each in errors]
    np.testing.assert_array_equal(cut.values(), finals)
    if done:
        best = [min(draw) for draw in itertools.product(finals, repeat=min(k, 4))]
        assert cut.best(min(k, 4)).mean == pytest.approx(np.mean(best))


def test_seconds_that_were_not_measured_are_an_error():
    with pytest.raises(UsageError, match="compare --seconds"):
        outcome([[0.5, 0.4, 0.3]]).seconds_interval(1)


def test_a_plan_counts_steps_of_training():
    """Each trial takes 30 steps of 12 s, a tenth of an hour."""
    pools = {"ours": outcome([[0.9, 0.5, 0.1]] * 10, seconds=12.0)}
    (choice,) = plan(pools, gpu_hours=0.55).choices
    assert choice.hours == pytest.approx(0.1)
    assert choice.trials == 5


# Showing


@pytest.fixture(scope="module")
def slow_momentum(tmp_path_factory) -> lf.Comparison:
    return trained(tmp_path_factory.mktemp("times") / "trials.db", {"sgd": [0.002], "momentum": [0.005]})


def test_the_sentences_say_what_steps_take_and_how_it_was_measured(slow_momentum):
    text = " ".join(slow_momentum.sentences())
    assert (
        "A step of momentum takes 2.5 times as long as one of sgd (5 ms and 2 ms per trial, with one trial alone on "
        "1 × none, without evaluations)." in text
    )
    # Both reach the target at the last of 4 steps.
    assert "sgd has the least median time to the target: 8 ms" in text
    assert "before momentum (20 ms). This order is not tested" in text


def test_the_rows_have_seconds(slow_momentum):
    sgd, momentum = slow_momentum.rows()
    assert (sgd["seconds_per_step"], momentum["seconds_per_step"]) == (0.002, 0.005)
    assert momentum["seconds_to_target"] == pytest.approx(momentum["steps_median"] * 0.005)
    assert momentum["seconds_to_target_low"] == pytest.approx(momentum["steps_median_low"] * 0.005)
    assert slow_momentum.table()["seconds_per_step"].to_list() == [0.002, 0.005]


def test_the_figures_have_seconds_only_if_steps_differ(slow_momentum, tmp_path):
    def titles(comparison: lf.Comparison) -> str:
        return json.dumps([panel.spec() for figure in figures(comparison.results) for panel in figure.panels])

    for title in ("seconds to the target", "budget of a trial, seconds", "seconds of training"):
        assert title in titles(slow_momentum)
    alike = trained(tmp_path / "trials.db", {"sgd": [0.002], "momentum": [0.0021]})
    assert "seconds" not in titles(alike)
    assert "A step takes about as long with each optimizer (2 ms to 2.1 ms per trial, with" in " ".join(
        alike.sentences()
    )


def test_views_keep_the_times(slow_momentum):
    view = slow_momentum.at(step=2).narrowed({"sgd": {"learning_rate": (1e-3, 5e-2)}})
    assert view.outcome("sgd").step_seconds == 0.002
    assert view.step_times == slow_momentum.step_times


def test_a_part_of_the_optimizers_measured_is_not_shown(tmp_path):
    comparison = trained(tmp_path / "trials.db", {"sgd": [0.002]})
    assert not comparison.step_times
    assert "seconds_per_step" not in comparison.rows()[0]
    assert not [sentence for sentence in comparison.sentences() if "A step" in sentence]


def test_nothing_is_said_of_costs_that_a_busy_machine_hides(tmp_path):
    """sgd takes 1, 5, 3, 1, 5, 3, 1 and 5 ms: in the middle 3, with quartiles 1 and 5."""
    comparison = trained(tmp_path / "trials.db", {"sgd": [0.001, 0.005, 0.003], "momentum": [0.002]})
    text = " ".join(comparison.sentences())
    assert "The steps of different optimizers cannot be compared in seconds (2 ms to 3 ms per trial" in text
    assert "measurements of the same optimizer differ by a factor of 5." in text
    assert "least median time" not in text
