"""The contract of executors (levelfield.executors.base), which every executor must pass, including the fake one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from fakes import FormulaExecutor
from helpers import FIXTURES

import levelfield as lf
from levelfield.errors import UsageError
from levelfield.executors import EXECUTORS, get_executor
from levelfield.executors.base import Executor, hand_out
from levelfield.search import Search
from levelfield.study import workload_of
from levelfield.trial import Batch, Point, Status, Trial

CONTENT = {
    "steps": 6,
    "eval_interval": 4,
    "trials": 2,
    "pool": 5,
    "optimizers": {
        # Most learning rates from 20 on diverge within six steps.
        "sgd": {"learning_rate": {"log": [1e-2, 1e30]}},
        "momentum": {"learning_rate": {"log": [1e-3, 1e-1]}, "momentum": 0.9},
    },
}


def jax_study() -> lf.Study:
    return lf.Study(workload="quadratic", **CONTENT)


def custom_study() -> lf.Study:
    return lf.Study(code=str(FIXTURES / "quadratic_training.py"), **CONTENT)


def fake(slots: int) -> Executor:
    """Diverges above a learning rate of 1e10."""
    return FormulaExecutor(
        lambda _, point: float("inf") if float(point.hyperparameters["learning_rate"]) > 1e10 else 1.0, slots=slots
    )


FACTORIES: dict[str, Callable[[int], Executor]] = {
    name: lambda slots, name=name: get_executor(name, slots) for name in EXECUTORS
}
FACTORIES["fake"] = fake
CASES = [*((name, jax_study) for name in FACTORIES), *((name, custom_study) for name in EXECUTORS)]


@pytest.fixture(scope="module")
def ray_factory(ray_cluster) -> Iterator[Callable[[int], Executor]]:
    """Workers take seconds to start, so the tests share them: only a new number of slots needs new ones."""
    cached = functools.lru_cache(maxsize=1)(FACTORIES["ray"])
    yield cached
    cached.cache_clear()  # other tests need the CPUs


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].__name__}")
def case(request) -> tuple[Callable[[int], Executor], lf.Study]:
    name, study = request.param
    return request.getfixturevalue("ray_factory") if name == "ray" else FACTORIES[name], study()


@pytest.fixture
def factory(case) -> Callable[[int], Executor]:
    return case[0]


@pytest.fixture
def study(case) -> lf.Study:
    return case[1]


def points(count: int, optimizer: str, study: lf.Study) -> list[Point]:
    search = Search(study, optimizer)
    return [search.point(index) for index in range(count)]


def train(executor: Executor, optimizer: str, handed_out: list[Point], study: lf.Study) -> list[Trial]:
    progress = executor.train(study, hand_out(optimizer, handed_out))
    return [trial for stretch in progress for trial in stretch.finished]


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_every_point_is_reported_exactly_once(factory, study, slots):
    handed_out = points(5, "sgd", study)
    trials = train(factory(slots), "sgd", handed_out, study)
    assert sorted((trial.point for trial in trials), key=lambda point: point.index) == handed_out


def test_curves_have_every_metric_up_to_the_end_of_their_trial(factory, study):
    trials = train(factory(2), "sgd", points(8, "sgd", study), study)
    assert {trial.status for trial in trials} == {Status.FEASIBLE, Status.INFEASIBLE}  # the test covers both
    for trial in trials:
        assert trial.curve.values.keys() == workload_of(study).metrics.keys()
        steps, losses = trial.curve.steps.tolist(), trial.curve.values["train_loss"]
        assert len(losses) == len(steps)
        assert steps == [4, 6][: len(steps)]  # every interval, and the last step
        if trial.feasible:
            assert steps[-1] == study.steps
            assert np.isfinite(losses).all()
        else:
            assert np.isfinite(losses[:-1]).all()
            assert not np.isfinite(losses[-1])


def test_a_trial_depends_on_neither_its_neighbors_nor_their_order(factory, study):
    handed_out = points(4, "momentum", study)
    alone = {point.index: train(factory(1), "momentum", [point], study)[0] for point in handed_out}
    for slots, order in ((4, handed_out), (2, handed_out[::-1])):
        for trial in train(factory(slots), "momentum", order, study):
            np.testing.assert_allclose(
                trial.curve.values["train_loss"], alone[trial.point.index].curve.values["train_loss"], rtol=1e-5
            )


def test_take_can_return_a_point_after_none(factory, study):
    """A trial that ends infeasible makes the pool need one more point."""
    first, second = points(2, "momentum", study)
    reported: list[Trial] = []
    started: list[Point] = []

    def take(count: int, optimizer: str | None = None) -> Batch | None:
        point = first if not started else second if reported and len(started) == 1 else None
        if point is None:
            return None
        started.append(point)
        return Batch("momentum", [point])

    for progress in factory(2).train(study, take):
        reported += progress.finished
    assert [trial.point for trial in reported] == [first, second]


def test_every_optimizer_is_trained_with_its_own_points(factory, study):
    waiting = {name: points(3, name, study) for name in study.optimizers}

    def take(count: int, optimizer: str | None = None) -> Batch | None:
        name = optimizer or max(waiting, key=lambda name: len(waiting[name]))
        chosen, waiting[name] = waiting[name][:count], waiting[name][count:]
        return Batch(name, chosen) if chosen else None

    trained = [
        (progress.optimizer, trial.point) for progress in factory(2).train(study, take) for trial in progress.finished
    ]
    assert len(trained) == 6
    for name in study.optimizers:
        assert {point.index: point for optimizer, point in trained if optimizer == name} == dict(
            enumerate(points(3, name, study))
        )


def test_training_can_be_closed_at_any_time(factory, study):
    progress: Iterator = factory(1).train(study, hand_out("momentum", points(5, "momentum", study)))
    next(progress)
    progress.close()


def test_without_points_nothing_is_trained(factory, study):
    assert train(factory(2), "sgd", [], study) == []


def test_an_executor_checks_a_study_and_tells_where_trials_were_trained(factory, study):
    executor = factory(1)
    executor.check(study)
    finished = [
        stretch for stretch in executor.train(study, hand_out("sgd", points(1, "sgd", study))) if stretch.finished
    ]
    assert {"versions", "device", "devices", "backend"} <= finished[0].provenance.keys()
    scale = executor.gradient_scale(study)
    assert scale is None or scale > 0


@pytest.mark.parametrize("slots", [0, -1, True, 2.5, "auto"])
@pytest.mark.parametrize("name", EXECUTORS)
def test_a_number_of_slots_is_refused_before_training(name, slots):
    with pytest.raises(UsageError, match=f"slots = {slots!r}: expected an integer of at least 1, or None"):
        get_executor(name, slots)
