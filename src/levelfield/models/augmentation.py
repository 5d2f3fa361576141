"""Preprocessing and augmentation of batches of images, on the device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

_LUMA = np.array([0.299, 0.587, 0.114])
# From RGB to brightness and the two color axes (YIQ).
_YIQ = np.array([_LUMA, [0.595716, -0.274453, -0.321263], [0.211456, -0.522591, 0.311135]])


def standardize(images: jax.Array) -> jax.Array:
    """Give each image mean 0 and standard deviation 1, as tf.image.per_image_standardization does.

    The standard deviation is bounded from below, so that a nearly uniform image is not amplified.
    """
    x = images.astype(jnp.float32)
    axes = tuple(range(1, x.ndim))
    x -= x.mean(axes, keepdims=True)
    deviation = jnp.sqrt(jnp.square(x).mean(axes, keepdims=True))
    return x / jnp.maximum(deviation, np.prod(x.shape[1:]) ** -0.5)


def flip(key: jax.Array, images: jax.Array) -> jax.Array:
    """Flip a random half of the images left to right."""
    flipped = jax.random.bernoulli(key, shape=(len(images), 1, 1, 1))
    return jnp.where(flipped, images[:, :, ::-1], images)


def crop(key: jax.Array, images: jax.Array, size: int) -> jax.Array:
    """Take a random window of size × size from each image."""
    _, height, width, channels = images.shape
    corners = jax.random.randint(key, (len(images), 2), 0, jnp.array([height - size + 1, width - size + 1]))

    def window(image: jax.Array, corner: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(image, (corner[0], corner[1], 0), (size, size, channels))

    return jax.vmap(window)(images, corners)


def center(images: jax.Array, size: int) -> jax.Array:
    """Take the central window of size × size from each image."""
    top, left = (images.shape[1] - size) // 2, (images.shape[2] - size) // 2
    return images[:, top : top + size, left : left + size]


def pad_crop_flip(key: jax.Array, images: jax.Array) -> jax.Array:
    """Augment as is usual for CIFAR (He et al. 2016): pad by 4 black pixels, take a random crop, flip at random."""
    crop_key, flip_key = jax.random.split(key)
    padded = jnp.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    return flip(flip_key, crop(crop_key, padded, images.shape[1]))


def distort_colors(key: jax.Array, images: jax.Array) -> jax.Array:
    """Change brightness, saturation, hue and contrast at random, as strongly as TensorFlow's Inception preprocessing.

    TensorFlow rotates the hue and scales the saturation in HSV. Here the same rotation and scale act on the color plane
    of YIQ, which makes them one matrix per image. Bytes or floats in 0 … 255 become floats in 0 … 255.
    """
    brightness, saturation, hue, contrast = (
        jax.random.uniform(draw_key, (len(images), 1, 1, 1), minval=low, maxval=high)
        for draw_key, (low, high) in zip(
            jax.random.split(key, 4), ((-32.0, 32.0), (0.5, 1.5), (-0.2, 0.2), (0.5, 1.5)), strict=True
        )
    )
    x = images.astype(jnp.float32) + brightness
    x = jnp.einsum("nhwc,ncd->nhwd", x, color_matrices(saturation.ravel(), hue.ravel()), precision="highest")
    mean = x.mean((1, 2), keepdims=True)
    return jnp.clip((x - mean) * contrast + mean, 0, 255)


def color_matrices(saturation: jax.Array, hue: jax.Array) -> jax.Array:
    """Return, for each image, the matrix that scales its colors and rotates them by ``hue`` of a full turn.

    A color c, as a row vector, becomes c @ matrix. Brightness does not change.
    """
    across, along = saturation * jnp.sin(2 * jnp.pi * hue), saturation * jnp.cos(2 * jnp.pi * hue)
    zero, one = jnp.zeros_like(hue), jnp.ones_like(hue)
    rotation = jnp.array([[one, zero, zero], [zero, along, -across], [zero, across, along]])
    return jnp.einsum("dy,yxn,xc->ncd", np.linalg.inv(_YIQ), rotation, _YIQ, precision="highest")
