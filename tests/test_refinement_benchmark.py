"""The random cases of benchmarks/refinement.py, and the executor that trains them together."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from helpers import make_study

from levelfield.analysis.intervals import Interval
from levelfield.analysis.ranges import Place
from levelfield.executors._jax import JaxExecutor
from levelfield.reading import read_pools
from levelfield.run import run
from levelfield.search import Search
from levelfield.space import parse_axis
from levelfield.store import Store
from levelfield.trial import Point

SGD = {"rule": "sgd", "learning_rate": {"log": [1e-2, 1e30]}}  # most rates from 20 on diverge


def benchmark_module(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
        return importlib.import_module(name)


cases, combining = benchmark_module("refinement_cases"), benchmark_module("combining")
refinement, taskset = benchmark_module("refinement"), benchmark_module("refinement_taskset")


@pytest.mark.parametrize("workload", cases.STEPS)
@pytest.mark.parametrize("rule", cases.RULES)
def test_only_the_listed_ranges_are_bad(workload, rule):
    """The studies themselves refuse what is not legal."""
    for index in range(5):
        case = cases.draw_case(0, workload, rule, index)
        good, bad = (study.optimizer(rule).space.spec() for study in (case.good, case.bad))
        assert {key for key in good if bad[key] != good[key]} == case.changes.keys()
        assert 1 <= len(case.changes) <= 3
        assert "decay_factor" not in case.changes
        assert {study.seed for study in (case.bad, case.wide)} == {case.good.seed}
        spaces = (case.good.optimizer(rule).space, case.wide.optimizer(rule).space)
        for axis, wide in zip(*spaces, strict=True):
            assert wide.dimension.ends[0] <= axis.dimension.ends[0]
            assert axis.dimension.ends[-1] <= wide.dimension.ends[-1]


def test_cases_depend_on_the_seed_alone():
    first, same, other = (cases.draw_case(seed, "quadratic", "adam", 1) for seed in (3, 3, 4))
    assert first.bad.spec() == same.bad.spec()
    assert first.wide.spec() == same.wide.spec()
    assert first.good.seed != other.good.seed
    assert first.good.seed != cases.draw_case(3, "quadratic", "adam", 2).good.seed


@pytest.mark.parametrize(
    ("key", "decades", "expected"),
    [
        ("learning_rate", 3, [1e0, 1e2]),
        ("learning_rate", -1, [1e-4, 1e-2]),
        ("one_minus_beta1", -2, [1e-5, 1e-3]),
        ("one_minus_beta1", -4, [1e-6, 1e-5]),  # clipped
    ],
)
def test_a_displaced_range_is_decades_away(key, decades, expected):
    axis = parse_axis(key, {"log": [1e-3, 1e-1]})
    assert cases.displaced(axis, decades)["log"] == pytest.approx(expected)


def test_ranges_are_spoiled_as_described():
    """A fraction's range never goes up; a displaced one keeps its width or half a decade, a cut one a tenth."""
    random = np.random.default_rng(0)
    axes = [
        parse_axis("one_minus_beta1", {"log": [1e-2, 1e0]}),
        parse_axis("learning_rate", {"log": [1e-2, 1e1]}),
        parse_axis("decay_steps", {"uniform": [0.5, 1.0]}),
    ]
    seen = set()
    for axis in axes:
        for _ in range(50):
            key, spec, change = cases.spoil(axis, random)
            spoiled = parse_axis(key, spec)
            low, high = spoiled.dimension.ends
            seen.add((key, change))
            if change == "cut":
                first, last = (axis.dimension.unit(end) for end in (low, high))
                assert last - first == pytest.approx(0.1, abs=2e-3)
                assert -1e-3 <= first < last <= 1 + 1e-3
            else:
                decades = int(change.split()[2])
                assert math.log10(high / axis.dimension.high) == pytest.approx(decades, abs=1e-3)
    assert {change for key, change in seen if key == "decay_steps"} == {"cut"}
    both = {"cut", *(f"displaced by -{decades} decades" for decades in (1, 2, 3))}
    assert {change for key, change in seen if key == "one_minus_beta1"} == both
    up = {f"displaced by +{decades} decades" for decades in (1, 2, 3)}
    assert {change for key, change in seen if key == "learning_rate"} == both | up


def trials_of(study, executor):
    with Store.open("sqlite://") as store:
        run(study, store, executor)
        return [trial for trials in read_pools(study, store).trials.values() for trial in trials]


def test_trials_that_train_together_are_those_of_the_local_executor():
    """Three studies with different seeds and spaces, all with a job in common; some trials diverge."""
    studies = {
        "wide": make_study({"sgd": SGD}, steps=6, pool=5),
        "narrow": make_study({"sgd": SGD | {"learning_rate": {"log": [1e-3, 1e-1]}}}, steps=6, pool=3, seed=1),
        "two": make_study(steps=6, pool=3, seed=2),
    }
    tasks = {name: lambda executor, study=study: trials_of(study, executor) for name, study in studies.items()}
    together = combining.Dispatcher(slots=4).run(tasks)
    for name, study in studies.items():
        alone = trials_of(study, JaxExecutor(2))
        assert [(trial.point, trial.status) for trial in together[name]] == [
            (trial.point, trial.status) for trial in alone
        ]
        for ours, theirs in zip(together[name], alone, strict=True):
            assert ours.curve.steps.tolist() == theirs.curve.steps.tolist()
            losses, expected = (trial.curve.values["train_loss"] for trial in (ours, theirs))
            np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert {trial.feasible for trial in together["wide"]} == {True, False}


def test_an_error_reaches_the_task_that_asked():
    sgd = make_study({"sgd": SGD})
    momentum = make_study({"momentum": {"learning_rate": 0.1, "momentum": 0.9}})

    def fails(executor):
        with pytest.raises(KeyError, match="learning_rate"):
            executor.train_points(sgd, "sgd", [Point(0, {}, 0)])
        return "failed"

    def works(executor):
        (trial,) = executor.train_points(momentum, "momentum", [Search(momentum, "momentum").point(0)])
        return trial.feasible

    dispatcher = combining.Dispatcher(slots=2)
    assert dispatcher.run({"fails": fails, "works": works}) == {"fails": "failed", "works": True}
    with pytest.raises(KeyError, match="learning_rate"):
        dispatcher.run({"raises": lambda executor: executor.train_points(sgd, "sgd", [Point(0, {}, 0)])})


@pytest.mark.parametrize(
    ("ours", "theirs", "worse"),
    [
        ([1.0, 1.1, 0.9, 1.0], [0.5, 0.6, 0.4, 0.5], True),
        ([0.5, 0.6, 0.4, 0.5], [1.0, 1.1, 0.9, 1.0], False),
        ([1.0, 3.0, 0.0, 2.0], [0.5, 2.5, 0.0, 1.0], False),  # within the noise
        ([1.0, 1.0, 1.0, math.nan], [2.0, 2.0, 2.0, 2.0], True),  # one diverges
        ([math.nan] * 4, [math.nan] * 4, False),
    ],
)
def test_a_best_trial_is_clearly_worse_beyond_two_standard_errors(ours, theirs, worse):
    record = {"retrained": {"refined": ours, "wide": theirs}}
    assert refinement.clearly_worse(record, "wide") is worse


@pytest.mark.parametrize(
    ("place", "part", "wrong"),
    [
        (Place.INSIDE, 0, True),
        (Place.FLAT, 1, True),
        (Place.INSIDE, 2, False),
        (Place.UPPER, 0, False),
        (Place.LOWER, 2, True),
        (Place.UPPER, 2, None),
    ],
)
def test_verdicts_are_compared_with_the_other_parts_of_the_range(place, part, wrong):
    """The losses fall from one third to the next."""
    truth = [Interval(3.0, 2.9, 3.1), Interval(2.0, 1.9, 2.1), Interval(1.0, 0.9, 1.1)]
    assert taskset.is_wrong(place, part, truth) is wrong
