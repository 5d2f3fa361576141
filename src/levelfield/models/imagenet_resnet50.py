"""ResNet-50 for images of 224×224 pixels, with the improved block of He et al. 2016b and ghost batch normalization."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from levelfield.datasets.imagenet import CROP, SIDE
from levelfield.models.augmentation import center, crop, distort_colors, flip
from levelfield.models.image_classifier import Classifier
from levelfield.models.layers import BatchNorm
from levelfield.models.resnet import Bottleneck, Stages, convolution

_SIZE = CROP
_MEAN_RGB = (123.68, 116.779, 103.939)  # of Simonyan and Zisserman 2014
_NORM = functools.partial(BatchNorm, decay=0.9, ghost=32)


class Net(nn.Module):
    """A 7×7 convolution, max pooling and stages of 3, 4, 6 and 3 blocks: 25,549,352 parameters."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    features: int = 64
    classes: int = 1000

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = max_pool_3x3(convolution(self.features, 7, stride=2)(x))
        return Stages(Bottleneck, self.blocks, self.features, self.classes, _NORM)(x, train)


def max_pool_3x3(x: jax.Array) -> jax.Array:
    """Pool 3×3 windows with stride 2; an even size is padded at its end, as TensorFlow's "same" does."""
    x = jnp.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=-jnp.inf)
    x = jnp.maximum(jnp.maximum(x[:, :-2:2], x[:, 1:-1:2]), x[:, 2::2])
    return jnp.maximum(jnp.maximum(x[:, :, :-2:2], x[:, :, 1:-1:2]), x[:, :, 2::2])


def augment(key: jax.Array, images: jax.Array) -> jax.Array:
    """Take a random crop, flip it at random and distort its colors."""
    crop_key, flip_key, color_key = jax.random.split(key, 3)
    return distort_colors(color_key, flip(flip_key, crop(crop_key, images, _SIZE)))


def prepare(images: jax.Array) -> jax.Array:
    """Take the central crop (the whole image, if it is cropped already) and subtract the mean color."""
    return center(images, _SIZE).astype(jnp.float32) - jnp.array(_MEAN_RGB)


CLASSIFIER = Classifier(Net(), (SIDE, SIDE, 3), prepare, augment)
init, loss, evaluate = CLASSIFIER.init, CLASSIFIER.loss, CLASSIFIER.evaluate
