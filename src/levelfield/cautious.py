"""Cautious AdamW (Liang et al. 2024). Importing this module loads JAX.

Where the step and the present gradient have different signs, nothing moves; the other entries move further instead, so
that the length of a step stays about the same. The weight decay and its order are those of AdamW.
"""

from __future__ import annotations

from typing import Any

import jax
import optax


def cautious_adamw(
    learning_rate: Any, beta1: Any = 0.9, beta2: Any = 0.999, epsilon: Any = 1e-8, weight_decay: Any = 0.0
) -> optax.GradientTransformation:
    """Return Cautious AdamW as an optax transformation."""
    return optax.chain(
        _cautious(optax.scale_by_adam(beta1, beta2, epsilon)),
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(learning_rate),
    )


def _cautious(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        steps, state = inner.update(gradients, state, params)
        return jax.tree.map(_masked, steps, gradients), state

    return optax.GradientTransformation(inner.init, update)


def _masked(step: Any, gradient: Any) -> Any:
    """Return the entries of a step that agree with the gradient, times d / (their number + 1)."""
    agree = (step * gradient > 0).astype(step.dtype)
    return step * agree * (step.size / (agree.sum() + 1))
