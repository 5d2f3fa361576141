"""The noisy quadratic model (Zhang et al. 2019): a convex problem whose loss is known exactly.

The loss is ½ Σ hᵢ θᵢ² with curvatures hᵢ = 1/i; a gradient over a batch of B is hᵢ θᵢ plus Gaussian noise
of variance hᵢ / B. Trials start at θ ~ N(0, 1).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from levelfield.data import Data
from levelfield.workloads.base import Workload, minimized

_DIMENSIONS = 100


def _curvatures() -> jax.Array:
    return 1.0 / jnp.arange(1, _DIMENSIONS + 1)


def draw(key: jax.Array, batch_size: int) -> jax.Array:
    """The minimum as a batch sees it: displaced so that the gradient's noise has variance h / B."""
    return jax.random.normal(key, (_DIMENSIONS,)) / jnp.sqrt(_curvatures() * batch_size)


def init(key: jax.Array) -> tuple[Any, Any]:
    return jax.random.normal(key, (_DIMENSIONS,)), ()


def loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> tuple[jax.Array, Any]:
    return 0.5 * jnp.sum(_curvatures() * (params - batch) ** 2), state


def evaluate(params: Any, state: Any, batch: Any) -> Any:
    return {"loss": 0.5 * jnp.sum(_curvatures() * params**2)}


WORKLOAD = Workload(
    name="quadratic",
    summary="noisy quadratic model in 100 dimensions, exact loss",
    batch_size=16,
    eval_interval=500,
    metrics=minimized("train_loss"),
    select="train_loss",
    load=lambda: Data(train=(), evaluation={"train": ()}),
    init=init,
    loss=loss,
    evaluate=evaluate,
    slots_per_core=8,
    draw=draw,
)
