"""Products of all slots at once: their gradients, and the kernel that transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_helpers import lowered_for_cuda, relative_error

from levelfield.kernels import products
from levelfield.kernels.products import batched_product, transposed, weight_gradient


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("shape", [(3, 5), (2, 64, 64), (2, 3, 65, 7), (1, 130, 100)])
def test_transposing_swaps_the_last_axes(shape: tuple[int, ...]) -> None:
    array = normal(*shape)
    np.testing.assert_array_equal(transposed(array), array.swapaxes(-1, -2))


# Rows that can be cut into parts, and such that cannot; factors with more columns on either side.
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [((4, 8), 5, 7), ((9,), 7, 3), ((1,), 4, 4), ((6, 2), 3, 8)])
@pytest.mark.parametrize("wide", [1, 256])
def test_gradients_of_products_are_those_of_jax(
    wide: int, rows: tuple[int, ...], inputs: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_WIDE", wide)
    monkeypatch.setattr(products, "_MANY_ROWS", wide)
    x, weights, factors = normal(3, *rows, inputs), normal(3, inputs, outputs), normal(3, *rows, outputs)

    def gradients(product: Callable[[jax.Array, jax.Array], jax.Array]) -> Any:
        return jax.jit(jax.grad(lambda x, weights: (product(x, weights) * factors).sum(), argnums=(0, 1)))(x, weights)

    plain = gradients(lambda x, weights: jnp.einsum("n...i,nio->n...o", x, weights))
    assert relative_error(gradients(lambda x, weights: batched_product(x, weights, jnp.float32)), plain) < 1e-5


def test_gradients_of_weights_are_summed_in_float32() -> None:
    """4,097 products of 1 and 1/64 add up to 64 + 1/64, which bfloat16 would round to 64."""
    x, derivative = jnp.ones((1, 4097, 2), jnp.bfloat16), jnp.full((1, 4097, 3), 1 / 64, jnp.bfloat16)
    found = weight_gradient(x, derivative)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, 64 + 1 / 64)


def test_the_transposition_lowers_for_cuda() -> None:
    assert lowered_for_cuda(weight_gradient, normal(2, 64, 256), normal(2, 64, 300)).count("triton") == 1


def test_products_have_gradients_in_float32() -> None:
    random = np.random.default_rng(0)
    x, weights, factors = (random.normal(size=shape) for shape in ((2, 3, 4, 5), (2, 5, 6), (2, 3, 4, 6)))

    def loss(x: jax.Array, weights: jax.Array) -> jax.Array:
        return (batched_product(x, weights, jnp.float32) * factors).sum()

    for dtype, tolerance in ((jnp.float32, 1e-6), (jnp.bfloat16, 0.01)):
        value, (dx, dweights) = jax.value_and_grad(loss, argnums=(0, 1))(
            jnp.asarray(x, dtype), jnp.asarray(weights, jnp.float32)
        )
        assert (dx.dtype, dweights.dtype) == (dtype, jnp.float32)
        np.testing.assert_allclose(value, (np.einsum("nabi,nio->nabo", x, weights) * factors).sum(), rtol=tolerance)
        expected_dx = np.einsum("nabo,nio->nabi", factors, weights)
        assert relative_error(dx.astype(jnp.float32), jnp.asarray(expected_dx)) < tolerance
        assert relative_error(dweights, jnp.asarray(np.einsum("nabi,nabo->nio", x, factors))) < tolerance
