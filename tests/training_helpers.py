"""What tests of training share: jobs, trials trained without a store, and a workload that records its randomness."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from levelfield.data import Data
from levelfield.hyperparameters import Hyperparameter
from levelfield.kernels import pallas
from levelfield.rules import get_rule
from levelfield.schedules import SCHEDULES, WARMUP
from levelfield.training.program import program
from levelfield.training.slots import train
from levelfield.training.step import Job
from levelfield.trial import Point, Progress, Trial
from levelfield.workload import Workload, minimized
from levelfield.workloads import get_workload

EMBEDDED = ("fashion_mini", "tolstoi_mini", "quadratic", "wilson")
ADAM = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
DIVERGES = 1e38  # a learning rate at which every workload's loss overflows at once


def job_of(
    workload: str | Workload,
    rule: str = "adam",
    *,
    steps: int = 20,
    eval_interval: int = 10,
    batch_size: int | None = None,
    schedule: str = "constant",
) -> Job:
    workload = get_workload(workload) if isinstance(workload, str) else workload
    traced = (*get_rule(rule).hyperparameters, *SCHEDULES[schedule].keys() - {WARMUP}, *workload.hyperparameters)
    batch_size = batch_size or workload.batch_size
    return Job(workload, get_rule(rule), schedule, steps, batch_size, eval_interval, traced)


def lowered_for_cuda(function: Callable[..., Any], *arguments: Any) -> str:
    """Return a function as it is lowered for an NVIDIA GPU, with its kernels. This needs no GPU."""
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    with (
        pytest.MonkeyPatch.context() as patch,
        use_abstract_mesh(AbstractMesh((1,), ("device",), abstract_device=device)),
    ):
        patch.setattr(pallas, "interpreted", lambda: False)
        lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    return str(lowered.as_text())


def relative_error(actual: Any, expected: Any) -> float:
    """Return the largest relative error of an array in a tree, in the norm."""

    def error(a: jax.Array, b: jax.Array) -> float:
        assert a.shape == b.shape
        wide = b.astype(jnp.float32)
        return float(jnp.linalg.norm((a.astype(jnp.float32) - wide).ravel()) / jnp.linalg.norm(wide.ravel()))

    errors = jax.tree.leaves(jax.tree.map(error, actual, expected))
    assert np.isfinite(errors).all()  # max would pass over NaN
    return max(errors)


def stretches(job: Job, slots: int, points: list[Point]) -> list[Progress]:
    return list(train(program(job, slots), "optimizer", from_list(points)))


def from_list(points: Iterable[Point]) -> Callable[[int], list[Point]]:
    """Return a function that hands out these points, as many as it is asked for."""
    waiting = iter(points)
    return lambda count: list(itertools.islice(waiting, count))


def trained(job: Job, slots: int, points: list[Point]) -> list[Trial]:
    """Return the trials in the order in which they finish."""
    return [trial for stretch in stretches(job, slots, points) for trial in stretch.finished]


def by_index(trials: list[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: trial.point.index)


def assert_same(ours: Trial, theirs: Trial, *, rtol: float = 1e-4) -> None:
    """Compare up to rounding in float32, which may also flip an example or two near a tie."""
    assert ours.point == theirs.point
    assert ours.status is theirs.status
    np.testing.assert_array_equal(ours.curve.steps, theirs.curve.steps)
    assert list(ours.curve.values) == list(theirs.curve.values)
    for metric, values in ours.curve.values.items():
        atol = 2e-3 if metric.endswith("error") else 1e-6
        np.testing.assert_allclose(values, theirs.curve.values[metric], rtol=rtol, atol=atol, err_msg=metric)


# A parameter that walks by the loss's randomness, a state that counts steps, and a record of which examples were drawn.
def _walk_loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> Any:
    (examples,) = batch
    walked = params["walk"] * hyperparameters["pull"] * jax.random.normal(key)
    met = params["met"] @ jax.nn.one_hot(examples, 10).sum(0)
    return walked + met, state + 1


def _walk_evaluate(params: Any, state: Any, batch: Any) -> Any:
    return {"loss": params["walk"], "steps": state, **{f"met{i}": -params["met"][i] for i in range(10)}}


WALK = Workload(
    name="walk",
    summary="a random walk",
    batch_size=5,
    eval_interval=4,
    metrics=minimized("train_loss", "train_steps", *(f"train_met{i}" for i in range(10))),
    select="train_loss",
    load=lambda: Data(train=(np.arange(10),), evaluation={"train": (np.arange(10),)}),
    init=lambda key: ({"walk": jax.random.normal(key), "met": jnp.zeros(10)}, jnp.zeros((), jnp.int32)),
    loss=_walk_loss,
    evaluate=_walk_evaluate,
    hyperparameters={"pull": Hyperparameter()},
)


def walkers(count: int) -> list[Point]:
    return [Point(i, {"learning_rate": 1.0, "pull": 1.0}, seed=i) for i in range(count)]
