"""Runs that save their trials after each segment, and are stopped as if they were killed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from training_helpers import by_index

import levelfield as lf
from levelfield.executors._jax import JaxExecutor
from levelfield.executors.base import hand_out
from levelfield.search import Search
from levelfield.training.checkpoints import CheckpointFolder
from levelfield.trial import Point, Progress, Trial

STEPS, INTERVAL = 22, 4  # the last stretch is shorter
STUDY = lf.Study(
    workload="quadratic",
    steps=STEPS,
    eval_interval=INTERVAL,
    trials=1,
    pool=5,
    optimizers={
        # Some of the learning rates diverge, at once or later.
        "momentum": {"learning_rate": {"log": [1e-3, 1e1]}, "momentum": 0.9},
        "adam": {"learning_rate": {"log": [1e-3, 1e-1]}, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8},
    },
)


def points(count: int = 5, optimizer: str = "momentum") -> list[Point]:
    return [Search(STUDY, optimizer).point(index) for index in range(count)]


def saving(folder: Path, slots: int = 4) -> JaxExecutor:
    """Return an executor that saves after each segment."""
    return JaxExecutor(slots, CheckpointFolder(folder, interval=0.0))


def segments(executor: JaxExecutor, handed_out: list[Point], optimizer: str = "momentum") -> Iterator[Progress]:
    return executor.train(STUDY, hand_out(optimizer, handed_out))


_killed: list[Iterator[Progress]] = []


def stop(progress: Iterator[Progress], after: int) -> list[Trial]:
    """Let a run train some segments, as if it was killed then; return what has finished."""
    finished = []
    for segment in progress:
        finished += segment.finished
        after -= segment.trial_steps > 0
        if after == 0:
            break
    _killed.append(progress)  # closing it would give it the chance to save
    return finished


def finish(progress: Iterator[Progress]) -> tuple[list[Trial], list[str], int]:
    """Return the finished trials, the notes, and how many steps were trained."""
    parts = list(progress)
    assert not any(part.failed for part in parts)
    trials = [trial for part in parts for trial in part.finished]
    return by_index(trials), [part.note for part in parts if part.note], sum(part.trial_steps for part in parts)


def left(handed_out: list[Point], finished: list[Trial]) -> list[Point]:
    return [point for point in handed_out if point not in [trial.point for trial in finished]]


def assert_equal(ours: list[Trial], theirs: list[Trial]) -> None:
    """Every bit of every curve is the same."""
    assert [trial.point for trial in ours] == [trial.point for trial in theirs]
    for trial, reference in zip(ours, theirs, strict=True):
        assert trial.status is reference.status
        np.testing.assert_array_equal(trial.curve.steps, reference.curve.steps)
        assert list(trial.curve.values) == list(reference.curve.values)
        for metric, values in trial.curve.values.items():
            assert values.tobytes() == reference.curve.values[metric].tobytes(), metric


@functools.cache
def undisturbed(optimizer: str = "momentum", slots: int = 4) -> list[Trial]:
    return finish(segments(JaxExecutor(slots), points(optimizer=optimizer), optimizer))[0]


def checkpoint(folder: Path, after: int = 3, count: int = 3) -> Path:
    """Return the checkpoint of a run that was killed after some segments."""
    stop(segments(saving(folder), points(count, "adam"), "adam"), after)
    (path,) = folder.iterdir()
    return path
