"""The loop on the host: when trials enter and leave slots, and what is recorded."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from training_helpers import DIVERGES, WALK, assert_same, by_index, job_of, stretches, trained, walkers

from levelfield.training.program import program
from levelfield.training.slots import train
from levelfield.trial import Point


@pytest.mark.parametrize(
    ("steps", "eval_interval", "expected"),
    [(12, 4, [4, 8, 12]), (10, 4, [4, 8, 10]), (9, 4, [4, 8, 9]), (3, 4, [3]), (3, 50, [3]), (1, 1, [1])],
)
@pytest.mark.parametrize("slots", [1, 2])
def test_the_last_evaluation_is_at_the_last_step(
    steps: int, eval_interval: int, expected: list[int], slots: int
) -> None:
    """After it, the trial no longer changes while its slot continues."""
    job = job_of(WALK, "sgd", steps=steps, eval_interval=eval_interval)
    for trial in trained(job, slots, walkers(3)):
        assert list(trial.curve.steps) == expected
        assert list(trial.curve.values["train_steps"]) == expected


def test_diverged_trials_leave_early_and_the_next_points_enter() -> None:
    """With slots at different steps, every trial has its own steps, curve and end."""
    # On the quadratic, a rate of 100 overflows after about 10 steps, 1e38 at once.
    rates = [0.1, DIVERGES, 100.0, 0.2, DIVERGES, 0.3, 0.4]
    points = [Point(i, {"learning_rate": rate}, seed=i) for i, rate in enumerate(rates)]
    job = job_of("quadratic", "sgd", steps=20, eval_interval=4)
    alone = [trained(job, 1, [point])[0] for point in points]
    trained_stretches = stretches(job, 2, points)
    finished = [trial for stretch in trained_stretches for trial in stretch.finished]

    for trial, reference in zip(by_index(finished), alone, strict=True):
        assert_same(trial, reference)
    for trial in finished:
        steps, losses = list(trial.curve.steps), trial.curve.values["train_loss"]
        assert steps == list(range(4, steps[-1] + 1, 4))
        assert np.isfinite(losses[:-1]).all()
        assert trial.feasible == np.isfinite(losses[-1])
        assert steps[-1] == 20 or not trial.feasible
    lengths = {trial.point.index: len(trial.curve.steps) for trial in finished}
    assert lengths[1] == lengths[4] == 1
    assert 1 < lengths[2] < 5

    # Trial 0 occupies one slot for five stretches; meanwhile 1, 2 and 3 use the other.
    assert [trial.point.index for trial in finished] != sorted(lengths)
    assert sum(len(stretch.finished) for stretch in trained_stretches[:1]) == 1
    assert len(trained_stretches) < sum(lengths.values())
    assert sum(stretch.trial_steps for stretch in trained_stretches) == 4 * sum(lengths.values())
    assert trained_stretches[-1].running == 0


def test_finished_trials_are_seen_before_the_next_point_is_taken() -> None:
    """Which point comes next depends on what has finished."""
    job = job_of("quadratic", "sgd", steps=20, eval_interval=4)
    log: list[str] = []
    queue = iter([Point(i, {"learning_rate": DIVERGES if i == 0 else 0.1}, i) for i in range(2)])

    def take(count: int) -> list[Point]:
        points = list(itertools.islice(queue, count))
        log.append(f"take {[point.index for point in points]}")
        return points

    for stretch in train(program(job, 1), "sgd", take):
        log += [f"finished {trial.point.index}" for trial in stretch.finished]
    assert log == ["take [0]", "finished 0", "take [1]", "finished 1", "take []"]


def test_nothing_to_train_trains_nothing() -> None:
    assert stretches(job_of("quadratic", "sgd", steps=20, eval_interval=4), 2, []) == []
