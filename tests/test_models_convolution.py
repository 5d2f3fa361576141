"""Convolutions on a CPU against numpy and JAX."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from levelfield.models import convolution
from levelfield.models.convolution import conv

NHWC = ("NHWC", "HWIO", "NHWC")


def images_and_kernel(size: int, channels: int = 3, features: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size)
    images = rng.normal(size=(2, 9, 8, channels)).astype(np.float32)
    return images, rng.normal(size=(size, size, channels, features)).astype(np.float32)


def plain_convolution(images: np.ndarray, kernel: np.ndarray, stride: int, padding: int) -> np.ndarray:
    size = len(kernel)
    padded = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    rows, columns = ((length - size) // stride + 1 for length in padded.shape[1:3])
    result = np.zeros((len(images), rows, columns, kernel.shape[-1]))
    for row in range(rows):
        for column in range(columns):
            top, left = row * stride, column * stride
            window = padded[:, top : top + size, left : left + size]
            result[:, row, column] = np.einsum("nijc,ijcf->nf", window, kernel)
    return result


# These numbers decide which algorithm a CPU runs.
FEW_AND_MANY = pytest.mark.parametrize(("channels", "features"), [(3, 4), (4, 3), (32, 33)])


@FEW_AND_MANY
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("size", [3, 5])
def test_conv_is_a_convolution(channels: int, features: int, stride: int, padding: int, size: int) -> None:
    images, kernel = images_and_kernel(size, channels, features)
    around = [(padding, padding), (padding, padding)]
    convolve = jax.jit(lambda *arrays: conv(*arrays, (stride, stride), around, dimension_numbers=NHWC))
    expected = plain_convolution(images, kernel, stride, padding)
    np.testing.assert_allclose(convolve(images, kernel), expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("size", [3, 5])
def test_conv_is_as_exact_as_float32_allows(size: int) -> None:
    """Winograd's algorithm subtracts large numbers; what it costs is a digit, as the root mean square has it."""
    images, kernel = images_and_kernel(size, 64, 64)
    exact = plain_convolution(images.astype(np.float64), kernel.astype(np.float64), 1, 1)
    actual = jax.jit(lambda *arrays: conv(*arrays, (1, 1), [(1, 1), (1, 1)], dimension_numbers=NHWC))(images, kernel)
    assert np.sqrt(np.mean((actual - exact) ** 2) / np.mean(exact**2)) < 5e-6


@pytest.mark.parametrize(
    ("channels", "features"),
    [pytest.param(3, 4, marks=pytest.mark.slow), pytest.param(4, 3, marks=pytest.mark.slow), (32, 33)],
)
def test_conv_of_more_images_than_fit_into_the_cache(
    monkeypatch: pytest.MonkeyPatch, channels: int, features: int
) -> None:
    """A few at a time; and side by side with other kernels."""
    few, kernel = images_and_kernel(5, channels, features)
    images = np.concatenate([few, -few[:, ::-1], few[:, :, ::-1]])
    images, kernel = (np.stack([array, 2 * array[::-1]]) for array in (images, kernel / channels))

    def gradients() -> Any:
        def scalar(images: Any, kernel: Any) -> Any:
            return jnp.sum(jnp.sin(conv(images, kernel, (1, 1), [(2, 1), (0, 2)], dimension_numbers=NHWC)))

        gradient = jax.jit(jax.grad(scalar, (0, 1)))
        together = jax.jit(jax.vmap(jax.grad(scalar, (0, 1))))(images, kernel)
        for i in range(2):
            for stacked, alone in zip(together, gradient(images[i], kernel[i]), strict=True):
                np.testing.assert_allclose(stacked[i], alone, rtol=1e-3, atol=1e-3)
        return together

    at_once = gradients()
    monkeypatch.setattr(convolution, "_CACHE_BYTES", 1)
    for some, all_of_them in zip(gradients(), at_once, strict=True):
        np.testing.assert_allclose(some, all_of_them, rtol=1e-3, atol=1e-3)


@FEW_AND_MANY
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("around", [((1, 1), (1, 1)), ((0, 2), (2, 1)), ((3, 0), (0, 3))], ids=str)
@pytest.mark.parametrize("size", [3, 5])
def test_conv_has_the_gradient_of_a_convolution(
    channels: int, features: int, stride: int, around: Any, size: int
) -> None:
    with jax.enable_x64(True):
        images, kernel = (array.astype(np.float64) for array in images_and_kernel(size, channels, features))

        def gradient(convolve: Any) -> Any:
            def scalar(images: Any, kernel: Any) -> Any:
                return jnp.sum(jnp.sin(convolve(images, kernel, (stride, stride), around, dimension_numbers=NHWC)))

            return jax.jit(jax.grad(scalar, (0, 1)))(images, kernel / channels)

        for ours, theirs in zip(gradient(conv), gradient(jax.lax.conv_general_dilated), strict=True):
            assert ours.dtype == np.float64
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"padding": "SAME"},
        {"padding": ((2, 0), (1, 3))},
        {"padding": 1, "strides": (2, 1)},
        {"padding": 1, "kernel_dilation": 2},
        {"padding": 1, "input_dilation": (2, 1)},
        {"padding": 1, "feature_group_count": 2},
    ],
    ids=str,
)
def test_flax_gives_the_same_with_our_convolution(options: dict[str, Any]) -> None:
    """Also where the patches do not apply."""
    images = images_and_kernel(3, channels=4)[0]
    theirs = nn.Conv(6, (3, 3), **options)
    ours = nn.Conv(6, (3, 3), conv_general_dilated=conv, **options)
    params = theirs.init(jax.random.key(0), images)
    expected = theirs.apply(params, images)
    np.testing.assert_allclose(jax.jit(ours.apply)(params, images), expected, rtol=1e-4, atol=1e-5)
