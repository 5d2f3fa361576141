"""A small deterministic workload, least squares with a matrix and a bias, and its training in a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from training_helpers import trained

from levelfield.data import Data
from levelfield.rules import Rule
from levelfield.training.step import Job
from levelfield.trial import Point, Trial
from levelfield.workload import Workload, minimized

_random = np.random.default_rng(0)
INPUTS = _random.normal(size=(6, 3)).astype(np.float32)
OUTPUTS = _random.normal(size=(6, 4)).astype(np.float32)
START = {"w": _random.normal(size=(3, 4)).astype(np.float32), "b": np.zeros(4, np.float32)}
STEPS, INTERVAL = 6, 3


def errors(params: Any) -> Any:
    return jnp.square(INPUTS @ params["w"] + params["b"] - OUTPUTS).mean(-1)


def _loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> Any:
    return errors(params).mean(), state


WORKLOAD = Workload(
    name="least_squares",
    summary="least squares",
    batch_size=6,
    eval_interval=INTERVAL,
    metrics=minimized("train_loss"),
    select="train_loss",
    load=lambda: Data(train=(np.arange(6),), evaluation={"train": (np.arange(6),)}),
    init=lambda key: (jax.tree.map(jnp.asarray, START), ()),
    loss=_loss,
    evaluate=lambda params, state, batch: {"loss": errors(params)[batch[0]]},
)


def job(rule: Rule, *traced: str, schedule: str = "constant", **static: Any) -> Job:
    names = ("learning_rate", *traced)
    return Job(WORKLOAD, rule, schedule, STEPS, 6, INTERVAL, names, tuple(static.items()))


def train(job: Job, *points: dict[str, float], slots: int = 2) -> list[Trial]:
    """Return the trials at these hyperparameters, in their order; their seeds are 100, 101, …."""
    chosen = [Point(i, point, seed=100 + i) for i, point in enumerate(points)]
    return sorted(trained(job, slots, chosen), key=lambda trial: trial.point.index)


def objective(params: Any) -> Any:
    return errors(params).mean()


def plain_curve(
    transformation: Any,
    evaluated: Callable[[Any, Any], Any] = lambda state, params: params,
    asks_for: tuple[str, ...] = ("value", "grad", "value_fn"),
) -> list[float]:
    """Return the loss at each evaluation of a plain loop with an optax transformation."""
    transformation = optax.with_extra_args_support(transformation)

    params: Any = jax.tree.map(jnp.asarray, START)
    state, losses = transformation.init(params), []
    for step in range(1, STEPS + 1):
        value, gradient = jax.value_and_grad(objective)(params)
        extra = {"value": value, "grad": gradient, "value_fn": objective, "obj_fn": objective}
        asked = {name: extra[name] for name in asks_for}
        updates, state = transformation.update(gradient, state, params, **asked)
        params = optax.apply_updates(params, updates)
        if step % INTERVAL == 0:
            losses.append(float(objective(evaluated(state, params))))
    return losses
