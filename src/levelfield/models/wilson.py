"""Linear least squares for the separable problem of Wilson et al. 2017."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from levelfield.workloads.wilson import FEATURES


def init(key: jax.Array) -> tuple[Any, Any]:
    return jnp.zeros(FEATURES), ()


def loss(
    params: Any, state: Any, batch: Any, key: jax.Array, hyperparameters: Mapping[str, Any]
) -> tuple[jax.Array, Any]:
    return _squared_errors(params, batch).mean(), state


def evaluate(params: Any, state: Any, batch: Any) -> Mapping[str, jax.Array]:
    features, labels = batch
    return {"loss": _squared_errors(params, batch), "error": labels * (features @ params) <= 0}


def _squared_errors(params: Any, batch: Any) -> jax.Array:
    features, labels = batch
    return 0.5 * ((features @ params).astype(jnp.float32) - labels) ** 2
