"""Look up rows of a table for each slot, such as the embeddings of characters."""

from __future__ import annotations

import functools
from typing import Any

import jax

from levelfield.kernels.products import weight_gradient


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def lookup(table: jax.Array, indices: jax.Array, dtype: Any) -> jax.Array:
    """Return rows of each slot's table (slots, rows, width) in this type; indices are (slots, …).

    The gradient of the table is a product, which is faster than adding up rows. It is in float32.
    """
    return jax.vmap(lambda table, indices: table[indices])(table.astype(dtype), indices)


def _forward(table: jax.Array, indices: jax.Array, dtype: Any) -> tuple[jax.Array, Any]:
    return lookup(table, indices, dtype), (indices, table.shape[1])


def _backward(dtype: Any, residuals: Any, derivative: jax.Array) -> tuple[jax.Array, None]:
    indices, rows = residuals
    # Tensor cores need a multiple of 8.
    one_hot = jax.nn.one_hot(indices, rows + -rows % 8, dtype=dtype)
    return weight_gradient(one_hot, derivative)[:, :rows], None


lookup.defvjp(_forward, _backward)
