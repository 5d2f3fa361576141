"""Rows of tables and their gradients, against sums in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from levelfield.kernels.lookup import lookup


@pytest.mark.parametrize("rows", [1, 8, 11])
def test_rows_are_found_and_gradients_are_added_up(rows: int) -> None:
    random = np.random.default_rng(0)
    table, indices = random.normal(size=(2, rows, 16)), random.integers(0, rows, (2, 5, 3))
    factors = random.normal(size=(2, 5, 3, 16))
    expected = np.zeros_like(table)
    for slot in range(2):
        np.add.at(expected[slot], indices[slot], factors[slot])

    def total(table: jax.Array, dtype: type) -> tuple[jax.Array, jax.Array]:
        found = lookup(table, jnp.asarray(indices), dtype)
        return (found.astype(jnp.float32) * factors).sum(), found

    for dtype, tolerance in ((jnp.float32, 1e-5), (jnp.bfloat16, 0.02)):
        gradient, found = jax.grad(total, has_aux=True)(jnp.asarray(table, jnp.float32), dtype)
        assert (found.dtype, gradient.dtype) == (dtype, jnp.float32)
        np.testing.assert_array_equal(found, np.asarray(table[np.arange(2)[:, None, None], indices], dtype))
        np.testing.assert_allclose(gradient, expected, rtol=tolerance, atol=tolerance)
