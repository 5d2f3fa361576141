"""Data that are not arrays on the device: streams, texts read in order; regularization; memory."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_helpers import from_list

import levelfield as lf
from levelfield.data import Data, Pass, Stream
from levelfield.environment import available_cores
from levelfield.errors import OutOfMemory, StudyError
from levelfield.executors import _jax
from levelfield.executors._jax import JaxExecutor
from levelfield.executors.base import Take, hand_out
from levelfield.models.layers import cross_entropy
from levelfield.models.regularization import l2_regularized
from levelfield.rules import get_rule
from levelfield.search import Search
from levelfield.training.checks import check_workload
from levelfield.training.feeds import Feeds
from levelfield.training.program import Program, program
from levelfield.training.shuffle import batch_indices
from levelfield.training.slots import train
from levelfield.training.step import Job
from levelfield.trial import Point, Trial
from levelfield.workload import L2, Workload, minimized

EXAMPLES, BATCH = 24, 4
FEATURES = np.random.default_rng(0).normal(size=(EXAMPLES, 3)).astype(np.float32)
TARGETS = (FEATURES @ np.array([1.0, -2.0, 0.5], np.float32))[:, None]


def init(key: Any) -> Any:
    return {"w": jnp.ones((3, 1)), "b": jnp.ones(1)}, {"seen": jnp.zeros(())}


def errors(params: Any, batch: Any) -> Any:
    features, targets = batch
    return (features @ params["w"] + params["b"] - targets) ** 2


def mean_error(params: Any, batch: Any) -> Any:
    return errors(params, batch).mean()


def loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> Any:
    return l2_regularized(mean_error(params, batch), params, hyperparameters), {"seen": state["seen"] + 1}


def evaluate(params: Any, state: Any, batch: Any) -> Any:
    return {"loss": errors(params, batch), "seen": jnp.full(len(batch[0]), state["seen"])}


def own_batches(seed: int, batch_size: int) -> Iterator[Any]:
    """Yield the batches that a trial of this seed would get from arrays in memory."""
    for step in range(10_000):
        rows = np.asarray(batch_indices(jnp.uint32(seed), jnp.arange(step, step + 1), EXAMPLES, batch_size))[0]
        yield FEATURES[rows], TARGETS[rows]


def whole(batch_size: int) -> Iterator[Any]:
    for start in range(0, EXAMPLES, 7):
        yield FEATURES[start : start + 7], TARGETS[start : start + 7]


@functools.cache
def workload(kind: str) -> Workload:
    arrays = (FEATURES, TARGETS)
    example = (FEATURES[0], TARGETS[0])
    data = {
        "arrays": Data(arrays, {"train": arrays}),
        "stream": Data(Stream(EXAMPLES, example, own_batches), {"train": Pass(example, whole)}),
    }[kind]
    return Workload(
        name=f"regression_{kind}",
        summary="",
        batch_size=BATCH,
        eval_interval=5,
        metrics=minimized("train_loss", "train_seen"),
        select="train_loss",
        load=lambda: data,
        init=init,
        loss=loss,
        evaluate=evaluate,
        hyperparameters=L2,
    )


def trials(
    on: Workload, points: list[Point], steps: int = 12, slots: int = 2, schedule: str = "constant"
) -> list[Trial]:
    traced = tuple(points[0].hyperparameters)
    job = Job(on, get_rule("sgd"), schedule, steps, on.batch_size, on.eval_interval, traced)
    waiting = iter(points)
    segments = train(program(job, slots), "sgd", from_list(waiting))
    finished = [trial for segment in segments for trial in segment.finished]
    return sorted(finished, key=lambda trial: trial.point.index)


def points(count: int, **hyperparameters: float) -> list[Point]:
    return [Point(i, {"learning_rate": 0.05 * (i + 1)} | hyperparameters, seed=100 + i) for i in range(count)]


def test_a_stream_trains_as_arrays_do():
    """Three trials in two slots: the third gets its own stream in a slot that was used before."""
    streamed = trials(workload("stream"), points(3))
    for ours, theirs in zip(streamed, trials(workload("arrays"), points(3)), strict=True):
        np.testing.assert_array_equal(ours.curve.steps, [5, 10, 12])
        np.testing.assert_allclose(ours.curve.values["train_loss"], theirs.curve.values["train_loss"], rtol=1e-5)


def test_batches_of_a_stream_come_in_bounded_portions(monkeypatch):
    monkeypatch.setattr("levelfield.training.feeds._BYTES", 1)
    job = Job(workload("stream"), get_rule("sgd"), "constant", 12, BATCH, 5, ("learning_rate",))
    compiled = Program(job, 2)
    portions = list(compiled._feeds.until_evaluation())
    assert [leaf.shape for leaf in portions[0]] == [(2, 1, BATCH, 3), (2, 1, BATCH, 1)]
    assert len(portions) == 5


def test_a_stream_of_other_types_fails_alone():
    """On a device, a number of 64 bits is one of 32, so those are no other types."""

    def batches(seed: int, size: int) -> Iterator[Any]:
        for features, targets in own_batches(seed, size):
            yield features.astype([np.float32, np.int32, np.float64][seed]), targets

    feeds = Feeds(Stream(EXAMPLES, (FEATURES[0], TARGETS[0]), batches), 3, BATCH, 5, 5)
    for slot in range(3):
        feeds.open(slot, slot)
    (portion,) = feeds.until_evaluation()
    assert [leaf.shape for leaf in portion] == [(3, 5, BATCH, 3), (3, 5, BATCH, 1)]
    ((slot, (reason, _)),) = feeds.failures.items()
    assert slot == 1
    assert reason.startswith(f"batch 0 has the types and shapes ('int32[{BATCH}, 3]', 'float32[{BATCH}, 1]'); expected")


@pytest.mark.parametrize(("steps", "interval", "rate"), [(3, 50, 0.05), (12, 5, 0.05), (12, 5, 1e30)])
def test_nothing_is_read_after_a_trial_ends(steps, interval, rate):
    """It ends with its last step, or with the evaluation at which it has diverged."""
    read: dict[int, int] = {}

    def counted(seed: int, batch_size: int) -> Iterator[Any]:
        for batch in own_batches(seed, batch_size):
            read[seed] = read.get(seed, 0) + 1
            yield batch

    data = Data(Stream(EXAMPLES, (FEATURES[0], TARGETS[0]), counted), {"train": (FEATURES, TARGETS)})
    on = dataclasses.replace(workload("stream"), load=lambda: data, eval_interval=interval)
    chosen = [Point(0, {"learning_rate": rate}, seed=1), *points(2)]
    finished = trials(on, chosen, steps=steps, slots=2)
    assert read == {trial.point.seed: trial.curve.steps[-1] for trial in finished}
    assert read[1] == (steps if rate < 1 else interval)


def regression(steps: int, seed: int, rate: Any, l2: float = 0.0, decay: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Gradient descent on the squared error by hand, in float64."""
    w, b = np.ones((3, 1)), np.ones(1)
    for step, (features, targets) in zip(range(steps), own_batches(seed, BATCH), strict=False):
        residual = features.astype(float) @ w + b - targets
        gradient_w = 2 * features.T.astype(float) @ residual / BATCH + l2 * w
        gradient_b = 2 * residual.mean(0)
        w, b = w - rate(step) * gradient_w - rate(step) * decay * w, b - rate(step) * gradient_b
    return w, b


@pytest.mark.parametrize("regularization", [{"l2": 0.3}, {"weight_decay": 0.3}, {"l2": 0.2, "weight_decay": 0.1}])
def test_regularization_by_hand(regularization):
    """L2 is part of the gradient; weight decay is scaled by the learning rate alone; biases have neither."""
    (trial,) = trials(workload("arrays"), points(1, **regularization))
    l2, decay = (regularization.get(name, 0.0) for name in ("l2", "weight_decay"))
    w, b = regression(12, 100, lambda step: 0.05, l2, decay)
    expected = np.mean((FEATURES @ w + b - TARGETS) ** 2)
    assert trial.curve.final("train_loss") == pytest.approx(expected, rel=1e-4)


def test_weight_decay_follows_the_schedule():
    chosen = points(1, weight_decay=0.5, decay_steps=1.0, decay_factor=0.01)
    (trial,) = trials(workload("arrays"), chosen, schedule="linear")
    w, b = regression(12, 100, lambda step: 0.05 * (1 - 0.99 * step / 12), decay=0.5)
    assert trial.curve.final("train_loss") == pytest.approx(np.mean((FEATURES @ w + b - TARGETS) ** 2), rel=1e-4)


def test_the_weight_decay_of_a_rule_is_not_applied_twice():
    job = Job(workload("arrays"), get_rule("optax.adamw"), "constant", 5, BATCH, 5, ("learning_rate", "weight_decay"))
    waiting = iter(points(1, weight_decay=1.0))
    (segment,) = train(program(job, 1), "sgd", from_list(waiting))
    params = {"w": jnp.ones((3, 1)), "b": jnp.ones(1)}
    tx = lf.optimizer("optax.adamw", learning_rate=0.05, weight_decay=1.0)
    held = tx.init(params)
    for _, batch in zip(range(5), own_batches(100, BATCH), strict=False):
        updates, held = tx.update(jax.grad(mean_error)(params, batch), held, params)
        params = jax.tree.map(jnp.add, params, updates)
    assert segment.finished[0].curve.final("train_loss") == pytest.approx(
        float(mean_error(params, (FEATURES, TARGETS))), rel=1e-4
    )


# Text that is read in order


def counting_loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> Any:
    """The state is a number written in base 10 by the batches it has seen."""
    digit, first = batch
    number = jnp.where(first, 0.0, state["number"]) * 10 + digit
    return jnp.sum(params["w"] ** 2), {"number": number}


SEQUENTIAL = Workload(
    name="digits",
    summary="",
    batch_size=1,
    eval_interval=2,
    metrics=minimized("train_loss", "train_number"),
    select="train_loss",
    load=lambda: Data((np.array([1.0, 2.0, 3.0], np.float32), np.array([True, False, False])), {"train": np.zeros(5)}),
    init=lambda key: ({"w": jnp.ones(2)}, {"number": jnp.zeros(())}),
    loss=counting_loss,
    evaluate=lambda params, state, split: {"loss": jnp.float32(len(split)), "number": state["number"]},
    sequential=True,
)


def test_a_text_is_read_in_order_and_its_state_carries_over():
    (trial,) = trials(SEQUENTIAL, points(1), steps=8, slots=1)
    assert trial.curve.values["train_number"].tolist() == [12, 1, 123, 12]  # after 2, 4, 6 and 8 batches of 3
    assert trial.curve.final("train_loss") == 5  # a whole split at once


def test_the_layout_of_a_text_fixes_the_batch_size():
    with pytest.raises(StudyError, match="batch_size = 2: expected 1, which the text of digits is laid out for"):
        check_workload(SEQUENTIAL, 2)


def test_label_smoothing_by_hand():
    logits = np.array([[2.0, -1.0, 0.5], [0.0, 0.0, 3.0]])
    log_shares = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    smoothed = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]])  # 0.3 spread over three classes
    expected = -(smoothed * log_shares).sum(1).mean()
    assert float(cross_entropy(jnp.array(logits), jnp.array([0, 1]), 0.3)) == pytest.approx(expected, rel=1e-5)


# Memory


def quadratic(pool: int = 8) -> lf.Study:
    space = {"learning_rate": {"log": [1e-2, 1e0]}}
    return lf.Study(workload="quadratic", steps=20, eval_interval=10, trials=1, pool=pool, optimizers={"sgd": space})


def first_points(count: int) -> Take:
    return hand_out("sgd", map(Search(quadratic(), "sgd").point, range(count)))


def run(executor: JaxExecutor, study: lf.Study) -> tuple[list[Trial], list[str]]:
    segments = list(executor.train(study, first_points(study.pool)))
    finished = [trial for segment in segments for trial in segment.finished]
    return sorted(finished, key=lambda trial: trial.point.index), [segment.note for segment in segments if segment.note]


class Exhausted(Exception):
    def __str__(self) -> str:
        return "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 byte."


def test_running_out_of_memory_halves_the_slots_and_loses_nothing(monkeypatch):
    real = _jax.train
    calls = []

    def failing(compiled: Program, optimizer: str, take: Any, checkpoints: Any) -> Any:
        calls.append(compiled.slots)
        for number, segment in enumerate(real(compiled, optimizer, take)):
            if compiled.slots > 2 and number == 1:
                raise jax.errors.JaxRuntimeError(str(Exhausted()))
            yield segment

    expected, _ = run(JaxExecutor(2), quadratic())
    monkeypatch.setattr(_jax, "train", failing)
    finished, notes = run(JaxExecutor(8), quadratic())
    assert calls == [8, 4, 2]
    assert notes == ["out of memory with 8 slots; continuing with 4", "out of memory with 4 slots; continuing with 2"]
    assert [trial.point.index for trial in finished] == list(range(8))
    for ours, theirs in zip(finished, expected, strict=True):
        np.testing.assert_allclose(ours.curve.values["train_loss"], theirs.curve.values["train_loss"], rtol=1e-5)


def test_a_trial_that_does_not_fit_into_memory_is_refused(monkeypatch):
    def failing(compiled: Program, optimizer: str, take: Any, checkpoints: Any) -> Any:
        take(1)
        raise jax.errors.JaxRuntimeError(str(Exhausted()))
        yield

    monkeypatch.setattr(_jax, "train", failing)
    (progress,) = [part for part in JaxExecutor(2).train(quadratic(), first_points(2)) if part.failed]
    assert isinstance(progress.error, OutOfMemory)
    assert "a single trial with batch_size = 16 does not fit" in progress.failed[0].reason


def test_another_failure_is_not_mistaken_for_lack_of_memory(monkeypatch):
    def failing(compiled: Program, optimizer: str, take: Any, checkpoints: Any) -> Any:
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
        yield

    monkeypatch.setattr(_jax, "train", failing)
    (progress,) = JaxExecutor(2).train(quadratic(), first_points(2))
    assert [failure.point.index for failure in progress.failed] == [0, 1]
    assert progress.failed[0].reason == "JaxRuntimeError: INTERNAL: something else"


def test_more_slots_than_fit_into_memory_are_not_tried(monkeypatch):
    """A device needs a tebibyte per slot; all devices of a CPU share the three of the machine."""

    def memory(compiled: Program) -> int:
        return compiled.slots // compiled.devices * 2**40

    monkeypatch.setattr(Program, "memory", property(memory))
    monkeypatch.setattr(_jax.os, "sysconf", lambda name: 2**20 if name == "SC_PAGE_SIZE" else 3 * 2**20)
    finished, notes = run(JaxExecutor(8), quadratic())
    assert notes == ["8 slots need more memory than available; using 2"]
    assert len(finished) == 8


@pytest.mark.parametrize(("asked", "pool", "slots"), [(3, 8, 4), (2, 8, 2), (1, 8, 1), (5, 8, 6), (8, 3, 4), (8, 1, 1)])
def test_devices_have_equally_many_slots(asked, pool, slots, monkeypatch):
    """At least as many as requested, so that no device is idle, but not many more than the pool has trials."""
    monkeypatch.setattr(_jax.jax, "local_device_count", lambda: 2)
    assert JaxExecutor(asked).slots(quadratic().replace(trials=1, pool=pool)) == slots


def test_a_device_holds_the_data_once_for_any_number_of_slots():
    job = Job(workload("arrays"), get_rule("sgd"), "constant", 12, BATCH, 5, ("learning_rate",))
    devices = jax.local_device_count()
    few, many = (Program(job, slots)._common for slots in (4 * devices, 8 * devices))
    assert all(array is shared for array, shared in zip(few.train, many.train, strict=True))


def test_a_program_reports_its_memory():
    """More slots need more memory, at least for their parameters."""

    def memory(slots: int) -> int:
        job = Job(workload("arrays"), get_rule("sgd"), "constant", 12, BATCH, 5, ("learning_rate",))
        return Program(job, slots).memory

    assert 0 < memory(2) < memory(64)


def test_training_needs_nothing_that_only_linux_has(monkeypatch):
    for name in ("sched_getaffinity", "sysconf"):
        monkeypatch.delattr(os, name)
    assert available_cores() == os.cpu_count()
    trials, notes = run(JaxExecutor(2), quadratic())
    assert len(trials) == 8
    assert notes == []
