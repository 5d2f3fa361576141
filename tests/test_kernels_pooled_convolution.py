"""Kernels for convolutions with pooling against XLA, in JAX's interpreter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from levelfield.kernels import convolution, pooled_convolution
from levelfield.kernels.windowed_products import Tuning


def pooled(convolved, bias):
    return jax.nn.relu(
        convolved.reshape(*convolved.shape[:2], -1, 2, convolved.shape[3] // 2, 2, 16).max((3, 5)) + bias
    )


@pytest.mark.parametrize("channels", [1, 16])
def test_outputs_of_weights_that_have_diverged_are_not_zero(channels):
    x, kernel = jnp.ones((2, 1, 4, 4, channels)), jnp.ones((2, 5, 5, channels, 16)).at[1, ..., 3].set(jnp.nan)
    out = pooled_convolution.pooled_convolution(x, kernel, jnp.zeros((2, 16)).at[1, 5].set(jnp.nan))[0]
    diverged = np.isnan(np.asarray(out)).all((1, 2, 3))
    assert np.argwhere(diverged).tolist() == [[1, 3], [1, 5]]
    assert not np.isnan(out).any((1, 2, 3))[~diverged].any()


@pytest.mark.parametrize(("channels", "group"), [(16, (1, 2)), (16, (2, 4)), (1, (2, 1))])
def test_groups_that_are_no_pooling_windows_are_refused(channels, group):
    x, kernel = jnp.ones((1, 1, 4, 4, channels)), jnp.ones((1, 5, 5, channels, 16))
    with pytest.raises(ValueError, match="group"):
        pooled_convolution.pooled_convolution(x, kernel, jnp.zeros((1, 16)), tuning=Tuning(group, rows=16))


# (images, side, channels, tuning); the last tile of some is partly empty
@pytest.mark.parametrize(
    ("images", "side", "channels", "tuning"),
    [
        (2, 6, 16, Tuning((2, 2), rows=16, run=2)),
        (3, 4, 16, Tuning((2, 1), rows=16, run=4, loop="rows")),
        (3, 6, 1, Tuning((2, 2), rows=16, run=64)),
    ],
)
def test_pooled_convolutions_are_those_of_xla(images, side, channels, tuning):
    generator = np.random.default_rng(0)
    # Small integers, so that sums are exact and maxima often tie.
    x, kernel, bias, d = (
        jnp.asarray(generator.integers(-1, 2, shape), jnp.float32)
        for shape in [
            (2, images, side, side, channels),
            (2, 5, 5, channels, 16),
            (2, 16),
            (2, images, side // 2, side // 2, 16),
        ]
    )
    out, winners = pooled_convolution.pooled_convolution(x, kernel, bias, tuning=tuning)
    expected = pooled_convolution.pooled_convolution_reference(x, kernel, bias)
    np.testing.assert_array_equal(out, expected[0])
    np.testing.assert_array_equal(winners, expected[1])

    wide_bias = bias[:, None, None, None]
    convolved = convolution.convolve(x, kernel, 1)
    dy, dbias = jax.vjp(pooled, convolved, wide_bias)[1](d)
    for function in (pooled_convolution.spread, pooled_convolution.spread_reference):
        found = function(d, winners)
        np.testing.assert_allclose(found[0], dy, rtol=1e-6)
        np.testing.assert_allclose(found[1], dbias.squeeze((1, 2, 3)), rtol=1e-6)
    if channels == 1:
        for window_rows in (4, 8):  # two programs share a part of the gradient, or each has one of its own
            tuning = tuning._replace(window_rows=window_rows, parts=3)
            got, got_bias = pooled_convolution.first_kernel_gradient(x, d, winners, tuning=tuning)
            np.testing.assert_allclose(got, convolution.kernel_gradient_reference(x, dy, size=5), rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(got_bias, dbias.squeeze((1, 2, 3)), rtol=1e-6)
    else:
        got = pooled_convolution.input_gradient(dy, kernel, tuning=tuning)
        np.testing.assert_allclose(got, pooled_convolution.input_gradient_reference(dy, kernel), rtol=1e-5, atol=1e-5)
