"""Regularization that studies may turn on: a penalty in the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


def l2_regularized(loss: jax.Array, params: Any, hyperparameters: Mapping[str, Any]) -> jax.Array:
    """Add λ/2 ‖w‖² over matrices and kernels, not biases or scales, if the study sets ``l2``."""
    if "l2" not in hyperparameters:
        return loss
    squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
    return loss + 0.5 * hyperparameters["l2"] * sum(squares)
