"""A small convolutional network for images of 14×14 pixels."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from levelfield.models.image_classifier import Classifier
from levelfield.models.layers import Conv, Dense


class Net(nn.Module):
    """Two strided 3×3 convolutions and a linear layer: 9,930 parameters."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        for features in (16, 32):
            x = Conv(features, (3, 3), strides=2, padding=1)(x)
            x = nn.relu(x)
        return Dense(10)(x.reshape(len(x), -1))


def prepare(images: jax.Array) -> jax.Array:
    return images[..., None].astype(jnp.float32) / 255.0


CLASSIFIER = Classifier(Net(), (14, 14), prepare)
init, loss, evaluate = CLASSIFIER.init, CLASSIFIER.loss, CLASSIFIER.evaluate
