"""Residual networks with pre-activation (He et al. 2016b), like TensorFlow's official "resnet v2"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from levelfield.models.layers import Conv, Dense


def convolution(features: int, size: int, stride: int = 1, **options: Any) -> Conv:
    """A convolution without bias, padded by half the kernel size, initialized like TensorFlow's by default."""
    return Conv(features, (size, size), stride, padding=size // 2, use_bias=False, **options)


class Basic(nn.Module):
    """Two 3×3 convolutions, each after normalization and ReLU."""

    features: int
    stride: int
    norm: Callable[[], nn.Module]

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool) -> jax.Array:
        x = nn.relu(self.norm()(inputs, train))
        bypass = shortcut(inputs, x, self.features, self.stride)
        x = convolution(self.features, 3, self.stride)(x)
        x = nn.relu(self.norm()(x, train))
        return bypass + convolution(self.features, 3)(x)


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions, each after normalization and ReLU; the last has four times the features."""

    features: int
    stride: int
    norm: Callable[[], nn.Module]

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool) -> jax.Array:
        x = nn.relu(self.norm()(inputs, train))
        bypass = shortcut(inputs, x, 4 * self.features, self.stride)
        x = convolution(self.features, 1)(x)
        x = nn.relu(self.norm()(x, train))
        x = convolution(self.features, 3, self.stride)(x)
        x = nn.relu(self.norm()(x, train))
        return bypass + convolution(4 * self.features, 1)(x)


def shortcut(inputs: jax.Array, activated: jax.Array, features: int, stride: int) -> jax.Array:
    """Return a block's input or, if the shape changes, a projection of the activated input."""
    if stride == 1 and inputs.shape[-1] == features:
        return inputs
    return convolution(features, 1, stride, name="projection")(activated)


class Stages(nn.Module):
    """Stages of blocks, each with twice the features at half the size of the one before, and a linear classifier."""

    block: Callable[..., nn.Module]
    blocks: tuple[int, ...]  # in each stage
    features: int  # of the first stage
    classes: int
    norm: Callable[[], nn.Module]

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        for stage, count in enumerate(self.blocks):
            for i in range(count):
                stride = 2 if stage and i == 0 else 1
                x = self.block(self.features * 2**stage, stride, self.norm)(x, train)
        x = nn.relu(self.norm()(x, train))
        return Dense(self.classes)(x.mean((1, 2)))
