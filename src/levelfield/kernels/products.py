"""Products of all slots at once, whose factors may be in bfloat16 while weights and their gradients stay in float32."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from levelfield.kernels import pallas

_SIDE = 64  # of the square that a program transposes
_WIDE = 256  # with at least this many columns in both factors, products take longer than moving the factors
_MANY_ROWS = 4096  # with these, transposing the weights takes less than it saves
_TILE = 128  # rows and columns of a product that a GPU's processor computes at once
_TILES = 864  # several for each processor of a large GPU, so that few are idle while the last ones compute
_MOST_PARTS = 8  # of a sum: each one is stored


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def batched_product(x: jax.Array, weights: jax.Array, dtype: Any) -> jax.Array:
    """Multiply (slots, …, inputs) by each slot's (slots, inputs, outputs); return numbers of this type.

    The factors have the type of ``x``, and float32 becomes TF32 on a GPU. Sums are in float32, and so is the gradient
    of the weights, which JAX would round to bfloat16.
    """
    inputs, outputs = weights.shape[1:]
    if x.dtype == jnp.float32 and inputs > outputs >= _WIDE and math.prod(x.shape[1:-1]) >= _MANY_ROWS:
        # In TF32, sums over many inputs are faster if both factors are contiguous along them.
        return _einsum("n...i,noi->n...o", x, transposed(weights), dtype)
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
    """Return the gradient of the weights, in float32, from their inputs and the gradient of their products."""
    x, derivative = (array.reshape(len(array), -1, array.shape[-1]) for array in (x, derivative))
    if x.dtype == jnp.bfloat16 or min(x.shape[-1], derivative.shape[-1]) < _WIDE:
        return _einsum("nri,nro->nio", x, derivative, jnp.float32)
    # In TF32, libraries multiply two transposed factors at a third of the speed, and they do not cut a sum over many
    # rows into parts, although other processors are idle.
    parts = _parts(x, derivative)
    x, derivative = (array.reshape(len(array), parts, -1, array.shape[-1]) for array in (x, derivative))
    if x.shape[-1] <= derivative.shape[-1]:
        found = _einsum("npir,npro->npio", transposed(x), derivative, jnp.float32)
    else:
        found = _einsum("npri,npor->npio", x, transposed(derivative), jnp.float32)
    # Without the barrier, XLA would undo the parts.
    return found[:, 0] if parts == 1 else jax.lax.optimization_barrier(found).sum(1)


def _parts(x: jax.Array, derivative: jax.Array) -> int:
    """Return how many parts to cut the rows into, so that even a few slots with small weights keep a whole GPU busy."""
    slots, rows, inputs = x.shape
    tiles = slots * -(-inputs // _TILE) * -(-derivative.shape[-1] // _TILE)
    return math.gcd(rows, 1 << (min(_MOST_PARTS, max(1, _TILES // tiles)).bit_length() - 1))


@jax.jit  # layers of the same shape share one trace
def transposed(array: jax.Array) -> jax.Array:
    """Swap the last two axes in memory. XLA would only note that they are swapped."""
    *outer, rows, columns = array.shape
    down, across = -(-rows // _SIDE), -(-columns // _SIDE)

    def program(array_ref: Any, out_ref: Any) -> None:
        number = pallas.number()
        matrix, tile = lax.div(number, down * across), lax.rem(number, down * across)
        row = lax.div(tile, across) * _SIDE + jnp.arange(_SIDE, dtype=jnp.int32)
        column = lax.rem(tile, across) * _SIDE + jnp.arange(_SIDE, dtype=jnp.int32)
        exists, first = (row < rows)[:, None] & (column < columns)[None, :], matrix * (rows * columns)
        values = pallas.load(array_ref.at[first + row[:, None] * columns + column[None, :]], exists)
        pallas.store(out_ref.at[first + column[:, None] * rows + row[None, :]], values.T, exists.T)

    result: jax.Array = pallas.call(
        program,
        grid=(math.prod(outer) * down * across,),
        out_shape=jax.ShapeDtypeStruct((array.size,), array.dtype),
        name="transposed",
        warps=4,
    )(array.reshape(-1))
    return result.reshape(*outer, columns, rows)


batched_product.defvjp(_forward, _backward)
