"""The noisy quadratic model: curvatures, gradient noise and exact loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

_DIMENSIONS = 100


def _curvatures() -> jax.Array:
    return 1.0 / jnp.arange(1, _DIMENSIONS + 1)


def draw(key: jax.Array, batch_size: int) -> jax.Array:
    """Draw the minimum that a batch sees: displaced so that the gradient's noise has variance h / B."""
    return jax.random.normal(key, (_DIMENSIONS,)) / jnp.sqrt(_curvatures() * batch_size)


def init(key: jax.Array) -> tuple[Any, Any]:
    return jax.random.normal(key, (_DIMENSIONS,)), ()


def loss(
    params: Any, state: Any, batch: Any, key: jax.Array, hyperparameters: Mapping[str, Any]
) -> tuple[jax.Array, Any]:
    return 0.5 * jnp.sum(_curvatures() * (params - batch) ** 2), state


def evaluate(params: Any, state: Any, batch: Any) -> Mapping[str, jax.Array]:
    return {"loss": 0.5 * jnp.sum(_curvatures() * params**2)}
