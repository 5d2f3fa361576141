"""The "Simple CNN" of Shallue et al. 2019 for images of 28×28 pixels."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from levelfield.kernels import pallas
from levelfield.models.batched_cnn import forward
from levelfield.models.image_classifier import Classifier
from levelfield.models.layers import Conv, Dense, add_bias, max_pool
from levelfield.workload import Evaluate, Gradients, Precision


class Net(nn.Module):
    """Two 5×5 convolutions with max pooling, a hidden and a linear layer: 3,274,634 parameters.

    The paper does not specify the initialization; docs/results.md compares flax's default with TensorFlow's.
    """

    features: tuple[int, ...] = (32, 64)
    hidden: int = 1024

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        for layer, features in enumerate(self.features):
            x = Conv(features, (5, 5), padding=2, use_bias=False)(x)
            # Bias and ReLU are monotone: applied after the pooling they give the same on a quarter of the values.
            x = nn.relu(add_bias(max_pool(x), self.param(f"bias_{layer}", nn.initializers.zeros, (features,))))
        x = nn.relu(Dense(self.hidden)(x.reshape(len(x), -1)))
        return Dense(10)(x)


def prepare(images: jax.Array) -> jax.Array:
    return images[..., None].astype(jnp.float32) / 255.0


CLASSIFIER = Classifier(Net(), (28, 28), prepare)
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
    return classifier.batched(functools.partial(forward, dtype=dtype))


def evaluation(classifier: Classifier) -> Evaluate:
    """Return ``evaluate`` for many trials of this network at once, in float32 with products in TF32."""
    return classifier.batched_evaluate(functools.partial(forward, dtype=jnp.float32))
