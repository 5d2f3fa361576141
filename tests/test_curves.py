"""Curves as arrays say what the trials say one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from levelfield.analysis.curves import Curves
from levelfield.trial import Curve, Point, Status, Target, Trial


def trial_of(generator: np.random.Generator, length: int, every: int) -> Trial:
    """Return a trial with a curve of some length; every third has no train_error."""
    values = {"train_loss": generator.normal(size=length).astype(np.float32)}
    values["train_loss"][generator.random(length) < 0.2] = generator.choice([np.nan, np.inf])
    if generator.random() < 2 / 3:
        values["train_error"] = (generator.integers(0, 5, length) / 5).astype(np.float32)
    return Trial(Point(0, {}, 0), Status.FEASIBLE, Curve(every * np.arange(1, length + 1), values))


def ragged(seed: int) -> list[Trial]:
    generator = np.random.default_rng(seed)
    return [trial_of(generator, int(generator.integers(0, 6)), int(generator.integers(1, 4))) for _ in range(40)]


def even(seed: int) -> list[Trial]:
    generator = np.random.default_rng(seed)
    return [trial_of(generator, 5, 2) for _ in range(10)]


POOLS = {"ragged": ragged(0), "even": even(1), "none": [], "empty curves": [trial_of(np.random.default_rng(0), 0, 1)]}


@pytest.mark.parametrize("trials", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("step", [None, 1, 2, 3, 7, 100])
def test_values_and_last_steps(trials, step):
    curves = Curves(trials)
    for metric in ("train_loss", "train_error", "test_error"):
        expected = [trial.curve.at(metric, step) for trial in trials]
        np.testing.assert_array_equal(curves.at(metric, step), np.array(expected, float))
    shown = [trial.curve if step is None else trial.curve.until(step) for trial in trials]
    assert curves.last(step).tolist() == [max(curve.steps.tolist(), default=0) for curve in shown]


@pytest.mark.parametrize("trials", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("target", [Target("train_loss", 0.1), Target("train_error", 0.2), Target("test_error", 0.5)])
@pytest.mark.parametrize("sign", [1, -1])
def test_first_steps_to_a_target(trials, target, sign):
    def first(trial: Trial) -> float:
        values = trial.curve.values.get(target.metric, np.full(len(trial.curve.steps), np.nan))
        wanted = np.float32(target.value)
        reached = [value <= wanted if sign > 0 else value >= wanted for value in values]
        return next((float(step) for step, there in zip(trial.curve.steps, reached, strict=True) if there), math.inf)

    assert Curves(trials).first(target, sign).tolist() == [first(trial) for trial in trials]
