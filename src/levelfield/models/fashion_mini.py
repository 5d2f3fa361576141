"""A small convolutional network for images of 14×14 pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from levelfield.models.convolution import conv
from levelfield.models.layers import classification_metrics, cross_entropy


class Net(nn.Module):
    """Two strided 3×3 convolutions and a linear layer: 9,930 parameters."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = images[..., None].astype(jnp.float32) / 255.0
        for features in (16, 32):
            x = nn.Conv(features, (3, 3), strides=2, padding=1, conv_general_dilated=conv)(x)
            x = nn.relu(x)
        return nn.Dense(10)(x.reshape(len(x), -1))


def init(key: jax.Array) -> tuple[Any, Any]:
    return Net().init(key, jnp.zeros((1, 14, 14), jnp.uint8)), ()


def loss(
    params: Any, state: Any, batch: Any, key: jax.Array, hyperparameters: Mapping[str, Any]
) -> tuple[jax.Array, Any]:
    images, labels = batch
    return cross_entropy(Net().apply(params, images), labels), state


def evaluate(params: Any, state: Any, batch: Any) -> Mapping[str, jax.Array]:
    images, labels = batch
    return classification_metrics(Net().apply(params, images), labels)
