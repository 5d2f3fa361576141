"""Regularization that studies may turn on: a penalty in the loss, or decoupled weight decay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax


def l2_regularized(loss: jax.Array, params: Any, hyperparameters: Mapping[str, Any]) -> jax.Array:
    """Add λ/2 ‖w‖² over matrices and kernels, not biases or scales, if the study sets ``l2``."""
    if "l2" not in hyperparameters:
        return loss
    squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
    return loss + 0.5 * hyperparameters["l2"] * sum(squares)


def weight_decay(hyperparameters: Mapping[str, Any], learning_rate: Any) -> optax.GradientTransformation:
    """Subtract learning rate · λ · w from the update of matrices and kernels, if the study sets ``weight_decay``.

    The decay is decoupled: it does not pass through the rule. ``learning_rate`` is a number or a function of the step.
    """
    if "weight_decay" not in hyperparameters:
        return optax.identity()
    decay = hyperparameters["weight_decay"]
    rate = (lambda step: -learning_rate(step) * decay) if callable(learning_rate) else -learning_rate * decay
    return optax.add_decayed_weights(rate, mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params))
