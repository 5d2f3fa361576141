"""Products of all slots at once, whose factors may be in bfloat16 while weights and their gradients stay in float32."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp


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
    return _einsum("nri,nro->nio", _rows(x), _rows(derivative), jnp.float32)


def _rows(array: jax.Array) -> jax.Array:
    return array.reshape(len(array), -1, array.shape[-1])


batched_product.defvjp(_forward, _backward)
