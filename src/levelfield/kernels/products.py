"""Products of all slots at once, whose factors may be in bfloat16 while weights and their gradients stay in float32."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

_TILE = 128  # rows and columns of a product that a GPU's processor computes at once
_TILES = 144  # about as many as a large GPU has processors


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def batched_product(x: jax.Array, weights: jax.Array, dtype: Any) -> jax.Array:
    """Multiply (slots, …, inputs) by each slot's (slots, inputs, outputs); return numbers of this type.

    The factors have the type of ``x``, and float32 becomes TF32 on a GPU. Sums are in float32, and so is the gradient
    of the weights, which JAX would round to bfloat16.
    """
    return _einsum("n...i,nio->n...o", x, weights.astype(x.dtype), dtype)


def _einsum(equation: str, a: jax.Array, b: jax.Array, dtype: Any) -> jax.Array:
    return jnp.einsum(equation, a, b, precision="default", preferred_element_type=dtype)


def _forward(x: jax.Array, weights: jax.Array, dtype: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return batched_product(x, weights, dtype), (x, weights)


def _backward(dtype: Any, residuals: tuple[jax.Array, jax.Array], derivative: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weights = residuals
    derivative = derivative.astype(x.dtype)
    dx = _einsum("n...o,nio->n...i", derivative, weights.astype(x.dtype), x.dtype)
    return dx, weight_gradient(x, derivative)


def weight_gradient(x: jax.Array, derivative: jax.Array) -> jax.Array:
    """Return the gradient of weights, in float32, from their inputs and the derivative by their products."""
    parts = _parts(x, derivative)
    found = _einsum("npri,npro->npio", _in_parts(x, parts), _in_parts(derivative, parts), jnp.float32)
    # Without the barrier, XLA would undo the parts.
    return found[:, 0] if parts == 1 else jax.lax.optimization_barrier(found).sum(1)


def _in_parts(array: jax.Array, parts: int) -> jax.Array:
    slots, *rows, width = array.shape
    return array.reshape(slots, parts, math.prod(rows) // parts, width)


def _parts(x: jax.Array, derivative: jax.Array) -> int:
    """Return into how many parts to cut the rows, so that few slots with small weights keep the whole GPU busy.

    In bfloat16, XLA's libraries do that themselves.
    """
    if x.dtype == jnp.bfloat16:
        return 1
    tiles = len(x) * -(-x.shape[-1] // _TILE) * -(-derivative.shape[-1] // _TILE)
    rows = x.size // (len(x) * x.shape[-1])
    return math.gcd(rows, 1 << (max(1, _TILES // tiles).bit_length() - 1))


batched_product.defvjp(_forward, _backward)
