"""Kernels for convolutions against XLA, in JAX's interpreter."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from levelfield.kernels import convolution as kernels
from levelfield.kernels.convolution import Normalization
from levelfield.kernels.windowed_products import Tuning


def arrays(*shapes, seed=0):
    generator = np.random.default_rng(seed)
    return [jnp.asarray(generator.normal(size=shape), jnp.float32) for shape in shapes]


def assert_close(got, expected, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())


# (slots, images, side, channels, features, stride, tuning); the last tile of some is partly empty
CASES = [
    (3, 4, 8, 16, 16, 1, Tuning((2, 2), rows=16, tiles=2, parts=3, window_rows=2, ahead=True)),
    (2, 3, 4, 16, 32, 1, Tuning((1, 2), rows=16, run=2, loop="blocks", parts=2, transposed=True)),
    (2, 5, 6, 32, 16, 1, Tuning((1, 1), rows=32, run=1, loop="rows", parts=2, window_rows=3)),
    (3, 3, 8, 16, 32, 2, Tuning((2, 2), rows=16, parts=4)),
    (1, 2, 4, 16, 16, 2, Tuning((2, 4), rows=32, tiles=3, parts=1)),
    (2, 3, 5, 16, 16, 1, Tuning((2, 2), rows=16, parts=2, transposed=True, ahead=True)),
]


@pytest.mark.parametrize(("slots", "images", "side", "channels", "features", "stride", "tuning"), CASES)
def test_a_kernel_computes_what_xla_computes(slots, images, side, channels, features, stride, tuning):
    out = side // stride
    x, kernel, residual, dy, *rest = arrays(
        (slots, images, side, side, channels),
        (slots, 3, 3, channels, features),
        *[(slots, images, out, out, features)] * 2,
        *[(slots, channels)] * 4,
    )
    normalization = Normalization(rest[0] / 4, jnp.exp(rest[1]), *rest[2:])

    next_normalization = Normalization(*arrays(*[(slots, features)] * 4, seed=1))

    def ours(x, kernel, residual, dy, normalization):
        activated = functools.partial(kernels.activated_convolution, x, kernel, next_normalization)
        return (
            kernels.convolution(x, kernel, stride=stride, tuning=tuning),
            kernels.convolution(x, kernel, residual, stride=stride, tuning=tuning),
            activated(stride=stride, tuning=tuning),
            activated(residual, keep=True, stride=stride, tuning=tuning),
            kernels.input_gradient(dy, kernel, x, normalization, stride=stride, tuning=tuning),
            kernels.kernel_gradient(x, dy, stride=stride, tuning=tuning),
        )

    def xla(x, kernel, residual, dy, normalization):
        activated = functools.partial(kernels.activated_convolution_reference, x, kernel, next_normalization)
        return (
            kernels.convolution_reference(x, kernel, stride=stride),
            kernels.convolution_reference(x, kernel, residual, stride=stride),
            activated(stride=stride),
            activated(residual, keep=True, stride=stride),
            kernels.input_gradient_reference(dy, kernel, x, normalization, stride=stride),
            kernels.kernel_gradient_reference(x, dy, stride=stride),
        )

    arguments = (x, kernel, residual, dy, normalization)
    assert_close(jax.jit(ours)(*arguments), jax.jit(xla)(*arguments))


def test_the_number_of_slots_changes_gradients_of_kernels_by_rounding_only():
    """With more slots, the batch is cut into fewer parts."""
    x, dy = arrays(*[(70, 5, 4, 4, 16)] * 2)
    expected = jax.jit(kernels.kernel_gradient_reference)(x, dy)
    for slots in (1, 20, 70):
        assert_close(kernels.kernel_gradient(x[:slots], dy[:slots]), expected[:slots])


@pytest.mark.parametrize(("slots", "images", "side", "features", "stride"), [(3, 3, 5, 16, 1), (2, 1, 6, 32, 2)])
def test_tuned_kernels_in_bfloat16_err_by_rounding_only_and_keep_slots_apart(slots, images, side, features, stride):
    x, kernel, dy, *rest = arrays(
        (slots, images, side, side, 16),
        (slots, 3, 3, 16, features),
        (slots, images, side // stride, side // stride, features),
        *[(slots, 16)] * 4,
    )
    x, dy = x.astype(jnp.bfloat16), dy.astype(jnp.bfloat16)
    normalization = Normalization(rest[0] / 4, jnp.exp(rest[1]), *rest[2:])

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": "0"})  # it runs twice only
    def ours(x, kernel, dy, normalization):
        return (
            kernels.convolution(x, kernel, stride=stride),
            kernels.input_gradient(dy, kernel, x, normalization, stride=stride),
            kernels.kernel_gradient(x, dy, stride=stride),
        )

    wide, wide_dy = x.astype(jnp.float32), dy.astype(jnp.float32)
    got = ours(x, kernel, dy, normalization)
    expected = (
        kernels.convolution_reference(wide, kernel, stride=stride),
        kernels.input_gradient_reference(wide_dy, kernel, wide, normalization, stride=stride),
        kernels.kernel_gradient_reference(wide, wide_dy, stride=stride),
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(a.astype(jnp.float32) - b) < 1e-2 * np.linalg.norm(b)
    last = jax.tree.map(lambda array: array[-1:], (x, kernel, dy, normalization))
    for a, b in zip(jax.tree.leaves(ours(*last)), jax.tree.leaves(got), strict=True):
        np.testing.assert_array_equal(a, b[-1:])
