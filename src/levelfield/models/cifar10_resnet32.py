"""ResNet-32 for images of 32×32 pixels (He et al. 2016, with the improved block of 2016b)."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax

from levelfield.kernels import pallas
from levelfield.models.augmentation import pad_crop_flip, standardize
from levelfield.models.batched_resnet import evaluated, forward
from levelfield.models.image_classifier import Classifier
from levelfield.models.layers import BatchNorm
from levelfield.models.resnet import Basic, Stages, convolution
from levelfield.workload import Evaluate, Gradients, Precision

_DECAY = 0.997
_NORM = functools.partial(BatchNorm, decay=_DECAY)


class Net(nn.Module):
    """A convolution and three stages of five blocks: 466,714 parameters."""

    blocks: tuple[int, ...] = (5, 5, 5)
    features: int = 16

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = convolution(self.features, 3)(x)
        return Stages(Basic, self.blocks, self.features, 10, _NORM)(x, train)


CLASSIFIER = Classifier(Net(), (32, 32, 3), standardize, pad_crop_flip)
init, loss, evaluate = CLASSIFIER.init, CLASSIFIER.loss, CLASSIFIER.evaluate


def batched(precision: Precision) -> Gradients | None:
    """Return the gradients of many trials at once on this device's kernels, or None without any."""
    dtype = pallas.kernel_type(precision)
    return dtype and gradients(CLASSIFIER, dtype)


def batched_evaluate(precision: Precision) -> Evaluate | None:
    """Return ``evaluate`` for all slots at once on this device's kernels, or None without any."""
    return evaluation(CLASSIFIER) if pallas.kernel_type(precision) else None


def gradients(classifier: Classifier, dtype: Any) -> Gradients:
    """Return the gradients of many trials of this network, with activations of this type."""
    return classifier.batched(functools.partial(forward, decay=_DECAY, dtype=dtype))


def evaluation(classifier: Classifier) -> Evaluate:
    """Return ``evaluate`` for many trials of this network at once, in float32 with products in TF32."""
    return classifier.batched_evaluate(evaluated)
