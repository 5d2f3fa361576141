"""Gradients and metrics of all slots may come from the workload: then its trials are those of its other functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_helpers import assert_same, by_index, job_of, trained

from levelfield.data import Data, Stream
from levelfield.hyperparameters import Hyperparameter
from levelfield.trial import Point, Trial
from levelfield.workload import Gradients, Precision, Workload, minimized

_GENERATOR = np.random.default_rng(0)
_INPUTS = _GENERATOR.normal(size=(24, 3)).astype(np.float32)
_TARGETS = _GENERATOR.normal(size=24).astype(np.float32)


def _noise(key: Any) -> jax.Array:
    return 0.1 * jax.random.normal(key, (3,))


def _loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Mapping[str, Any]) -> Any:
    """Squared errors with random weights added and a penalty; the state counts the examples seen."""
    inputs, targets = batch
    errors = inputs @ (params + _noise(key)) - targets
    return 0.5 * jnp.mean(errors**2) + 0.5 * hyperparameters["penalty"] * jnp.sum(params**2), state + len(inputs)


def _evaluate(params: Any, state: Any, batch: Any) -> Any:
    inputs, targets = batch
    return {"loss": (inputs @ params - targets) ** 2, "seen": jnp.full(len(inputs), state)}


LINEAR = Workload(
    name="linear",
    summary="linear regression",
    batch_size=4,
    eval_interval=4,
    metrics=minimized("train_loss", "train_seen"),
    select="train_loss",
    load=lambda: Data(train=(_INPUTS, _TARGETS), evaluation={"train": (_INPUTS, _TARGETS)}),
    init=lambda key: (jax.random.normal(key, (3,)), jnp.zeros(())),
    loss=_loss,
    evaluate=_evaluate,
    hyperparameters={"penalty": Hyperparameter()},
)


class Batched:
    """The same gradients, written out for all slots at once; it records how it was called."""

    def __init__(self) -> None:
        self.precisions: list[Precision] = []
        self.shapes: set[Any] = set()

    def __call__(self, precision: Precision) -> Gradients:
        self.precisions.append(precision)
        return self._gradients

    def _gradients(self, params: Any, state: Any, batch: Any, keys: Any, hyperparameters: Mapping[str, Any]) -> Any:
        self.shapes.add(jax.tree.map(jnp.shape, (params, state, *batch, keys, hyperparameters["penalty"])))
        (inputs, targets), penalty = batch, hyperparameters["penalty"]
        noisy = params + jax.vmap(_noise)(keys)
        errors = jnp.einsum("sbi,si->sb", inputs, noisy) - targets
        losses = 0.5 * (errors**2).mean(1) + 0.5 * penalty * (params**2).sum(1)
        gradients = jnp.einsum("sb,sbi->si", errors, inputs) / errors.shape[1] + penalty[:, None] * params
        return losses, gradients, state + errors.shape[1]


def _points() -> list[Point]:
    return [Point(i, {"learning_rate": 0.05 * (i + 1), "penalty": 0.1 * i}, seed=i) for i in range(5)]


def _trials(workload: Workload, slots: int) -> list[Trial]:
    trials = by_index(trained(job_of(workload, "sgd", steps=10, eval_interval=4), slots, _points()))
    assert len(trials) == len(_points())
    return trials


def _streamed() -> Workload:
    """The same data, read batch by batch."""

    def batches(seed: int, size: int) -> Any:
        order = np.random.default_rng(seed)
        while True:
            chosen = order.integers(24, size=size)
            yield _INPUTS[chosen], _TARGETS[chosen]

    stream = Stream(24, (_INPUTS[0], _TARGETS[0]), batches)
    return dataclasses.replace(LINEAR, load=lambda: Data(stream, {"train": (_INPUTS, _TARGETS)}))


@pytest.mark.parametrize("plain", [LINEAR, _streamed()], ids=["in memory", "streamed"])
def test_gradients_of_the_workload_give_the_trials_of_its_loss(plain: Workload) -> None:
    batched = Batched()
    own = dataclasses.replace(plain, batched=batched)
    expected = _trials(plain, 1)
    for slots in (1, 3, 4):  # three share a device; four are spread over two, if there are two
        for ours, theirs in zip(_trials(own, slots), expected, strict=True):
            assert_same(ours, theirs, rtol=1e-5)
    assert set(batched.precisions) == {"tf32"}
    per_device = {shape[-1][0] for shape in batched.shapes}
    assert {((n, 3), (n,), (n, 4, 3), (n, 4), (n,), (n,)) for n in per_device} == batched.shapes
    assert {1, 3} <= per_device


def test_a_workload_may_leave_a_device_to_its_loss() -> None:
    declined = dataclasses.replace(LINEAR, batched=lambda precision: None)
    for ours, theirs in zip(_trials(declined, 2), _trials(LINEAR, 2), strict=True):
        assert_same(ours, theirs, rtol=0)


@pytest.mark.parametrize("text", [False, True])
def test_metrics_of_all_slots_may_come_from_the_workload(text: bool) -> None:
    """Of examples in chunks, the last two of which overlap, or of a text that is evaluated as a whole."""
    examples, sizes = (np.tile(_INPUTS, (7, 1))[:149], np.tile(_TARGETS, 7)[:149]), set()

    def at_once(params: Any, state: Any, batch: Any) -> Any:
        inputs, targets = batch
        sizes.add(len(inputs))
        seen = jnp.broadcast_to(state[:, None], (len(state), len(inputs)))
        return {"loss": (jnp.einsum("bi,si->sb", inputs, params) - targets) ** 2, "seen": seen}

    def whole(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Mapping[str, Any]) -> Any:
        return _loss(params, state, jax.tree.map(lambda array: array[None], batch), key, hyperparameters)

    data = Data(train=(_INPUTS, _TARGETS), evaluation={"train": examples})
    plain = dataclasses.replace(LINEAR, load=lambda: data, sequential=text, loss=whole if text else _loss)
    own = dataclasses.replace(plain, batched_evaluate=lambda precision: at_once)
    for ours, theirs in zip(_trials(own, 3), _trials(plain, 3), strict=True):
        assert_same(ours, theirs, rtol=1e-5)
    assert sizes == ({149} if text else {50})
    declined = dataclasses.replace(plain, batched_evaluate=lambda precision: None)
    for ours, theirs in zip(_trials(declined, 3), _trials(plain, 3), strict=True):
        assert_same(ours, theirs, rtol=0)
