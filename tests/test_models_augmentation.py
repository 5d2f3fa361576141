"""What happens to images before the network sees them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from model_references import (
    bytes_of,
)
from scipy import stats

from levelfield.models import (
    augmentation,
    imagenet_resnet50,
)


def test_standardize() -> None:
    pictures = bytes_of((5, 6, 7, 3))
    pictures[1] = 200  # uniform
    pictures[2] = 100
    pictures[2, 0, 0, 0] = 101  # nearly uniform: its deviation is below 1/√126
    actual = np.asarray(augmentation.standardize(jnp.asarray(pictures)))
    for picture, standard in zip(pictures.astype(np.float64), actual, strict=True):
        expected = (picture - picture.mean()) / max(picture.std(), 1 / np.sqrt(6 * 7 * 3))
        np.testing.assert_allclose(standard, expected, atol=1e-3)  # the mean of a uniform image is rounded


def test_pad_crop_flip() -> None:
    """Each of the 81 windows and their mirror images is equally likely."""
    picture, draws = bytes_of((8, 8, 3)), 8100
    padded = np.pad(picture, ((4, 4), (4, 4), (0, 0)))
    windows = {}
    for top in range(9):
        for left in range(9):
            window = padded[top : top + 8, left : left + 8]
            windows[window.tobytes()] = (top, left, 0)
            windows[window[:, ::-1].tobytes()] = (top, left, 1)
    assert len(windows) == 162
    actual = jax.jit(augmentation.pad_crop_flip)(jax.random.key(0), jnp.tile(picture, (draws, 1, 1, 1)))
    assert actual.dtype == jnp.uint8
    counts = dict.fromkeys(windows.values(), 0)
    for window in np.asarray(actual):
        counts[windows[window.tobytes()]] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4
    mirrored = sum(count for (_, _, mirror), count in counts.items() if mirror)
    assert abs(mirrored / draws - 0.5) < 0.03


def test_flips_keep_images_in_order() -> None:
    pictures = bytes_of((500, 4, 6, 3))
    actual = np.asarray(augmentation.flip(jax.random.key(0), jnp.asarray(pictures)))
    same = (actual == pictures).all((1, 2, 3))
    mirrored = (actual == pictures[:, :, ::-1]).all((1, 2, 3))
    assert (same ^ mirrored).all()
    assert 200 < mirrored.sum() < 300


def test_crops() -> None:
    pictures = np.arange(200 * 9 * 11 * 3, dtype=np.int32).reshape(200, 9, 11, 3)
    actual = np.asarray(augmentation.crop(jax.random.key(0), jnp.asarray(pictures), 5))
    corners = actual[:, 0, 0, 0] - pictures[:, 0, 0, 0]
    tops, lefts = corners // 33, corners % 33 // 3
    assert (np.unique(tops) == np.arange(5)).all()
    assert (np.unique(lefts) == np.arange(7)).all()
    for picture, window, top, left in zip(pictures, actual, tops, lefts, strict=True):
        np.testing.assert_array_equal(window, picture[top : top + 5, left : left + 5])
    np.testing.assert_array_equal(augmentation.center(jnp.asarray(pictures), 5), pictures[:, 2:7, 3:8])


def test_imagenet_is_prepared_as_the_paper_says() -> None:
    pictures = bytes_of((2, 256, 256, 3))
    expected = pictures[:, 16:240, 16:240] - np.array([123.68, 116.779, 103.939])
    prepared = imagenet_resnet50.prepare(jnp.asarray(pictures))
    np.testing.assert_allclose(prepared, expected, atol=1e-4)
    np.testing.assert_array_equal(imagenet_resnet50.prepare(jnp.asarray(pictures[:, 16:240, 16:240])), prepared)
    augmented = jax.jit(imagenet_resnet50.augment)(jax.random.key(0), jnp.asarray(pictures))
    assert augmented.shape == (2, 224, 224, 3)
    assert imagenet_resnet50.prepare(augmented).shape == (2, 224, 224, 3)


def test_color_matrices_rotate_and_scale_colors() -> None:
    luma, colors = np.array([0.299, 0.587, 0.114]), np.random.default_rng(0).uniform(0, 255, (50, 3))

    def changed(saturation: float, hue: float) -> np.ndarray:
        matrix = augmentation.color_matrices(jnp.array([saturation]), jnp.array([hue]))[0]
        return colors @ np.asarray(matrix, np.float64)

    np.testing.assert_allclose(changed(1, 0), colors, atol=1e-3)
    np.testing.assert_allclose(changed(1, 1), colors, atol=1e-3)
    np.testing.assert_allclose(changed(0, 0.1), np.repeat((colors @ luma)[:, None], 3, 1), atol=1e-3)
    gray = (colors @ luma)[:, None]
    np.testing.assert_allclose(changed(0.6, 0), gray + 0.6 * (colors - gray), atol=1e-3)  # as torchvision's saturation
    for hue in (0.1, 0.2, -0.2):
        np.testing.assert_allclose(changed(1.3, hue) @ luma, colors @ luma, atol=1e-3)
        assert np.abs(changed(1, hue) - colors).max() > 10
    there = augmentation.color_matrices(jnp.array([2.0]), jnp.array([0.15]))[0]
    back = augmentation.color_matrices(jnp.array([0.5]), jnp.array([-0.15]))[0]
    np.testing.assert_allclose(there @ back, np.eye(3), atol=1e-5)


def test_color_distortion_is_as_strong_as_tensorflows() -> None:
    """On gray pictures, which have no color to rotate, only brightness and contrast change."""
    noise = np.random.default_rng(0).normal(0, 5, (8, 8))
    pictures = np.tile(128 + noise[None, :, :, None], (2000, 1, 1, 3)).astype(np.float32)
    actual = np.asarray(jax.jit(augmentation.distort_colors)(jax.random.key(0), pictures), np.float64)
    np.testing.assert_allclose(actual, actual[..., :1].repeat(3, -1), atol=1e-2)
    brightness = actual.mean((1, 2, 3)) - pictures[0].mean()
    contrast = actual[..., 0].std((1, 2)) / noise.std()
    for drawn, low, high in ((brightness, -32, 32), (contrast, 0.5, 1.5)):
        assert stats.kstest(drawn, stats.uniform(low, high - low).cdf).pvalue > 1e-4
    extreme = np.asarray(augmentation.distort_colors(jax.random.key(1), bytes_of((50, 8, 8, 3))))
    assert extreme.min() == 0
    assert extreme.max() == 255
