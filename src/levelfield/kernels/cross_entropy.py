"""A linear layer's logits, and their cross entropy, with its gradient computed in the same pass over the logits.

Rows are (slots, …), and the linear layer's weights (slots, width, classes).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from levelfield.kernels import pallas
from levelfield.kernels.products import batched_product

_ROWS = 16  # rows that a program computes


def linear_logits(x: jax.Array, weights: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Return the logits of each class in float32."""
    logits = _padded_logits(x, weights)[..., : weights.shape[2]]
    return logits if bias is None else logits + bias.reshape(len(x), *[1] * (x.ndim - 2), -1)


def _padded_logits(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the logits, with zeros after them: tensor cores need a multiple of 8."""
    return batched_product(x, jnp.pad(weights, ((0, 0), (0, 0), (0, -weights.shape[2] % 8))), jnp.float32)


def linear_cross_entropy(x: jax.Array, weights: jax.Array, bias: jax.Array | None, targets: jax.Array) -> jax.Array:
    """Return each slot's mean over its rows, in float32. Gradients of the logits have the type of ``x``."""
    logits = _padded_logits(x, weights)
    bias = jnp.zeros((len(x), weights.shape[2])) if bias is None else bias
    return _of_logits(logits.reshape(len(x), -1, logits.shape[-1]), bias, targets.reshape(len(x), -1), x.dtype)


def reference(x: jax.Array, weights: jax.Array, bias: jax.Array | None, targets: jax.Array) -> jax.Array:
    """Return what ``linear_cross_entropy`` returns, as XLA computes it."""
    logits = batched_product(x.reshape(len(x), -1, x.shape[-1]), weights, jnp.float32)
    logits = logits if bias is None else logits + bias[:, None]
    chosen = jnp.take_along_axis(logits, targets.reshape(len(x), -1, 1), -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - chosen).mean(1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _of_logits(logits: jax.Array, bias: jax.Array, targets: jax.Array, dtype: Any) -> jax.Array:
    return _forward(logits, bias, targets, dtype)[0]


def _forward(logits: jax.Array, bias: jax.Array, targets: jax.Array, dtype: Any) -> tuple[jax.Array, Any]:
    """Compute the losses and their derivatives. The bias has a number per class; there may be more logits than that."""
    slots, rows, width = logits.shape
    classes = bias.shape[1]
    programs, columns = -(-rows // _ROWS), 1 << (width - 1).bit_length()

    def program(logits_ref: Any, bias_ref: Any, targets_ref: Any, losses_ref: Any, derivatives_ref: Any) -> None:
        slot, part = lax.div(pallas.number(), programs), lax.rem(pallas.number(), programs)
        row, column = part * _ROWS + jnp.arange(_ROWS, dtype=jnp.int32), jnp.arange(columns, dtype=jnp.int32)
        exists, is_class = row < rows, column < classes
        at = (slot * rows + row)[:, None] * width + column[None, :]
        values = pallas.load(logits_ref.at[at], exists[:, None] & is_class[None, :])
        values += pallas.load(bias_ref.at[slot * classes + column], is_class)[None, :]
        target = pallas.load(targets_ref.at[slot * rows + row], exists)
        correct = column[None, :] == target[:, None]
        largest = jnp.where(is_class[None, :], values, -jnp.inf).max(1)
        powers = jnp.where(is_class[None, :], jnp.exp(values - largest[:, None]), 0.0)
        total = powers.sum(1)
        losses = jnp.log(total) + largest - jnp.where(correct, values, 0.0).sum(1)
        pallas.store(losses_ref.at[slot * rows + row], losses, exists)
        derivatives = (powers / total[:, None] - correct.astype(jnp.float32)) / rows
        pallas.store(derivatives_ref.at[at], derivatives, exists[:, None] & (column < width)[None, :])

    losses, derivatives = pallas.call(
        program,
        grid=(slots * programs,),
        out_shape=[
            jax.ShapeDtypeStruct((slots * rows,), jnp.float32),
            jax.ShapeDtypeStruct((logits.size,), dtype),
        ],
        name="cross_entropy",
        warps=4,
    )(logits.reshape(-1), bias.reshape(-1), targets.reshape(-1))
    return losses.reshape(slots, rows).mean(1), (derivatives.reshape(logits.shape), classes)


def _backward(dtype: Any, residuals: Any, derivative: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    derivatives, classes = residuals
    dlogits = derivatives.astype(jnp.float32) * derivative[:, None, None]
    return dlogits, dlogits.sum(1)[:, :classes], None


_of_logits.defvjp(_forward, _backward)
