"""What the classifiers of images share: pre-processing and augmentation on the device, and a workload's functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from levelfield.data import Data
from levelfield.workloads.base import CLASSIFICATION, L2, Workload
from levelfield.workloads.layers import classification_metrics, cross_entropy, regularised

_HELD_OUT = 5_000  # for validation; the training metrics are taken on as many
_LUMA = np.array([0.299, 0.587, 0.114])
# From RGB to brightness and the two axes of colour (YIQ).
_YIQ = np.array([_LUMA, [0.595716, -0.274453, -0.321263], [0.211456, -0.522591, 0.311135]])


@dataclass(frozen=True)
class Classifier:
    """A workload's ``init``, ``loss`` and ``evaluate`` for a net of (images, train).

    Images come as bytes; ``augment`` changes them at random while training, ``prepare`` makes of them what the
    net takes. The state is what the net keeps beside its parameters: batch statistics, or nothing.
    """

    net: nn.Module
    shape: tuple[int, ...]  # of an image as it is stored
    prepare: Callable[[jax.Array], jax.Array]
    augment: Callable[[Any, jax.Array], jax.Array] = lambda key, images: images

    def init(self, key: Any) -> tuple[Any, Any]:
        state = self.net.init(key, self.prepare(jnp.zeros((1, *self.shape), jnp.uint8)))
        return state.pop("params"), state

    def loss(
        self, params: Any, state: Any, batch: Any, key: Any, hyperparameters: Mapping[str, Any]
    ) -> tuple[jax.Array, Any]:
        images, labels = batch
        augmentation, dropout = jax.random.split(key)
        logits, state = self.net.apply(
            {"params": params, **state},
            self.prepare(self.augment(augmentation, images)),
            train=True,
            rngs={"dropout": dropout},
            mutable=list(state),
        )
        hard_or_smooth = cross_entropy(logits, labels, hyperparameters.get("label_smoothing"))
        return regularised(hard_or_smooth, params, hyperparameters), state

    def evaluate(self, params: Any, state: Any, batch: Any) -> Mapping[str, jax.Array]:
        images, labels = batch
        return classification_metrics(self.net.apply({"params": params, **state}, self.prepare(images)), labels)

    def workload(self, name: str, summary: str, dataset: str, **others: Any) -> Workload:
        """The workload, one trial at a time on a device: nets of this size fill it."""
        common = {"load": functools.partial(load, dataset), "hyperparameters": L2, "slots_per_core": 1} | others
        return Workload(
            name,
            summary,
            metrics=CLASSIFICATION,
            select="valid_error",
            init=self.init,
            loss=self.loss,
            evaluate=self.evaluate,
            dataset=dataset,
            slots_per_gpu=1,
            **common,
        )


def load(dataset: str) -> Data:
    """The data set's own test images; its other images are split into training and validation."""
    from levelfield.datasets import arrays, split

    stored = arrays(dataset)
    images, labels = stored["train_images"], stored["train_labels"].astype(np.int32)
    train, valid = split(len(images), _HELD_OUT)
    return Data(
        train=(images[train], labels[train]),
        evaluation={
            "train": (images[train[:_HELD_OUT]], labels[train[:_HELD_OUT]]),
            "valid": (images[valid], labels[valid]),
            "test": (stored["test_images"], stored["test_labels"].astype(np.int32)),
        },
    )


def standardise(images: jax.Array) -> jax.Array:
    """Each image to mean 0 and deviation 1, as tf.image.per_image_standardization: a flat one is not blown up."""
    x = images.astype(jnp.float32)
    axes = tuple(range(1, x.ndim))
    x -= x.mean(axes, keepdims=True)
    deviation = jnp.sqrt(jnp.square(x).mean(axes, keepdims=True))
    return x / jnp.maximum(deviation, np.prod(x.shape[1:]) ** -0.5)


def flip(key: Any, images: jax.Array) -> jax.Array:
    """Half of the images, at random, mirrored left to right."""
    mirrored = jax.random.bernoulli(key, shape=(len(images), 1, 1, 1))
    return jnp.where(mirrored, images[:, :, ::-1], images)


def crop(key: Any, images: jax.Array, size: int) -> jax.Array:
    """A window of size × size from each image, all places alike."""
    _, height, width, channels = images.shape
    corners = jax.random.randint(key, (len(images), 2), 0, jnp.array([height - size + 1, width - size + 1]))

    def window(image: jax.Array, corner: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(image, (corner[0], corner[1], 0), (size, size, channels))

    return jax.vmap(window)(images, corners)


def centre(images: jax.Array, size: int) -> jax.Array:
    """The window of size × size in the middle."""
    top, left = (images.shape[1] - size) // 2, (images.shape[2] - size) // 2
    return images[:, top : top + size, left : left + size]


def pad_crop_flip(key: Any, images: jax.Array) -> jax.Array:
    """CIFAR's usual augmentation (He et al. 2016): 4 black pixels on each side, a random window or its mirror image."""
    for_crop, for_flip = jax.random.split(key)
    padded = jnp.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    return flip(for_flip, crop(for_crop, padded, images.shape[1]))


def distort_colours(key: Any, images: jax.Array) -> jax.Array:
    """Brightness, saturation, hue and contrast at random, as strong as in TensorFlow's Inception pre-processing.

    That one turns the hue and scales the saturation in HSV; here the same turn and scale act on the plane of
    colours of YIQ, which makes them one matrix for each image. Bytes or floats in 0 … 255 give floats in 0 … 255.
    """
    brightness, saturation, hue, contrast = (
        jax.random.uniform(each, (len(images), 1, 1, 1), minval=low, maxval=high)
        for each, (low, high) in zip(
            jax.random.split(key, 4), ((-32.0, 32.0), (0.5, 1.5), (-0.2, 0.2), (0.5, 1.5)), strict=True
        )
    )
    x = images.astype(jnp.float32) + brightness
    x = jnp.einsum("nhwc,ncd->nhwd", x, colour_matrices(saturation.ravel(), hue.ravel()), precision="highest")
    mean = x.mean((1, 2), keepdims=True)
    return jnp.clip((x - mean) * contrast + mean, 0, 255)


def colour_matrices(saturation: jax.Array, hue: jax.Array) -> jax.Array:
    """For each image the matrix, to be multiplied from the right, that scales its colours and turns them by ``hue``
    of a circle; brightness stays."""
    across, along = saturation * jnp.sin(2 * jnp.pi * hue), saturation * jnp.cos(2 * jnp.pi * hue)
    zero, one = jnp.zeros_like(hue), jnp.ones_like(hue)
    turned = jnp.array([[one, zero, zero], [zero, along, -across], [zero, across, along]])
    return jnp.einsum("dy,yxn,xc->ncd", np.linalg.inv(_YIQ), turned, _YIQ, precision="highest")
