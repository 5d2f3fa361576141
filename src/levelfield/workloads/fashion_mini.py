"""Fashion-MNIST at 14×14 with a small convolutional net: the default workload, embedded in the package."""

from __future__ import annotations

from importlib import resources
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from levelfield.data import Data
from levelfield.workloads.base import CLASSIFICATION, Workload
from levelfield.workloads.convolution import conv
from levelfield.workloads.layers import classification_metrics, cross_entropy

_TRAIN, _VALID = 10_000, 2_000  # the other 2,000 images are the test set
_TRAIN_SUBSET = 1_000


class Net(nn.Module):
    """Two strided 3×3 convolutions and a linear layer: 9,930 parameters."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = images[..., None].astype(jnp.float32) / 255.0
        for features in (16, 32):
            x = nn.Conv(features, (3, 3), strides=2, padding=1, conv_general_dilated=conv)(x)
            x = nn.relu(x)
        return nn.Dense(10)(x.reshape(len(x), -1))


def load() -> Data:
    file = resources.files("levelfield.workloads") / "data/fashion_mini.npz"
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        images, labels = archive["images"], archive["labels"].astype(np.int32)

    def split(start: int, end: int | None) -> tuple[np.ndarray, np.ndarray]:
        return images[start:end], labels[start:end]

    return Data(
        train=split(0, _TRAIN),
        evaluation={
            "train": split(0, _TRAIN_SUBSET),
            "valid": split(_TRAIN, _TRAIN + _VALID),
            "test": split(_TRAIN + _VALID, None),
        },
    )


def init(key: jax.Array) -> tuple[Any, Any]:
    return Net().init(key, jnp.zeros((1, 14, 14), jnp.uint8)), ()


def loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> tuple[jax.Array, Any]:
    images, labels = batch
    return cross_entropy(Net().apply(params, images), labels), state


def evaluate(params: Any, state: Any, batch: Any) -> Any:
    images, labels = batch
    return classification_metrics(Net().apply(params, images), labels)


WORKLOAD = Workload(
    name="fashion_mini",
    summary="Fashion-MNIST at 14×14 (10,000/2,000/2,000), small CNN",
    batch_size=64,
    eval_interval=250,
    metrics=CLASSIFICATION,
    select="valid_error",
    load=load,
    init=init,
    loss=loss,
    evaluate=evaluate,
    slots_per_core=1,
)
