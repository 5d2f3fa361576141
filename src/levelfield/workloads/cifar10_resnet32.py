"""CIFAR-10 with ResNet-32 (He et al. 2016, with the improved block of 2016b)."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax

from levelfield.workloads import images
from levelfield.workloads.layers import BatchNorm
from levelfield.workloads.resnet import Basic, Stages, convolution

_NORM = functools.partial(BatchNorm, decay=0.997)


class Net(nn.Module):
    """A convolution and three stages of five blocks: 466,714 parameters."""

    blocks: tuple[int, ...] = (5, 5, 5)
    features: int = 16

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = convolution(self.features, 3)(x)
        return Stages(Basic, self.blocks, self.features, 10, _NORM)(x, train)


CLASSIFIER = images.Classifier(Net(), (32, 32, 3), images.standardise, images.pad_crop_flip)

WORKLOAD = CLASSIFIER.workload(
    "cifar10_resnet32",
    "CIFAR-10 (45,000/5,000/10,000), ResNet-32 with batch normalisation",
    "cifar10",
    batch_size=256,
    eval_interval=500,
)
