"""ImageNet with ResNet-50 (the improved block of He et al. 2016b) and ghost batch normalisation."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from levelfield.data import Data, Pass
from levelfield.workloads import images
from levelfield.workloads.base import LABEL_SMOOTHING, WEIGHT_DECAY
from levelfield.workloads.layers import BatchNorm
from levelfield.workloads.resnet import Bottleneck, Stages, convolution

_SIZE = 224
_MEAN_RGB = (123.68, 116.779, 103.939)  # of Simonyan and Zisserman 2014
_HELD_OUT, _TRAIN_SUBSET = 50_000, 5_000
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
    """The largest of 3×3 at every second place; an even size is padded at its end, as TensorFlow's "same" does."""
    x = jnp.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=-jnp.inf)
    x = jnp.maximum(jnp.maximum(x[:, :-2:2], x[:, 1:-1:2]), x[:, 2::2])
    return jnp.maximum(jnp.maximum(x[:, :, :-2:2], x[:, :, 1:-1:2]), x[:, :, 2::2])


def augment(key: Any, stored: jax.Array) -> jax.Array:
    """A random window, or its mirror image, in distorted colours."""
    for_crop, for_flip, for_colours = jax.random.split(key, 3)
    x = images.flip(for_flip, images.crop(for_crop, stored, _SIZE))
    return images.distort_colours(for_colours, x)


def prepare(stored: jax.Array) -> jax.Array:
    """The middle of an image (all of it, where a window was taken) less the mean colour."""
    return images.centre(stored, _SIZE).astype(jnp.float32) - jnp.array(_MEAN_RGB)


def load() -> Data:
    """The published validation images, whose labels are known, are for the test; validation is cut from training."""
    from levelfield.datasets import arrays, split
    from levelfield.datasets.imagenet import images as decoded
    from levelfield.datasets.imagenet import stream_imagenet

    stored, cores = arrays("imagenet"), os.cpu_count() or 1
    paths, labels = stored["train_paths"], stored["train_labels"]
    train, valid = split(len(paths), min(_HELD_OUT, len(paths) // 10))
    subset = train[:: max(1, len(train) // _TRAIN_SUBSET)][:_TRAIN_SUBSET]  # images lie class by class: some of each

    def joined(pieces: Iterable[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
        return tuple(np.concatenate(part) for part in zip(*pieces, strict=True))

    def read(split: str, indices: np.ndarray) -> Pass:
        def batches(batch_size: int) -> Iterator[tuple[np.ndarray, ...]]:
            coming: list[Any] = []
            with ThreadPoolExecutor(cores) as pool:
                for start in range(0, len(indices), batch_size):
                    chosen = indices[start : start + batch_size]
                    pieces = np.array_split(chosen, min(cores, len(chosen)))
                    coming.append(pool.map(functools.partial(decoded, stored, split), pieces))
                    if len(coming) > 1:  # the next is decoded while this one is evaluated
                        yield joined(coming.pop(0))
                yield joined(coming.pop())

        return Pass((np.zeros((_SIZE, _SIZE, 3), np.uint8), np.int32(0)), batches)

    return Data(
        train=stream_imagenet({**stored, "train_paths": paths[train], "train_labels": labels[train]}),
        evaluation={
            "train": read("train", subset),
            "valid": read("train", valid),
            "test": read("valid", np.arange(len(stored["valid_paths"]))),
        },
    )


CLASSIFIER = images.Classifier(Net(), (256, 256, 3), prepare, augment)

WORKLOAD = CLASSIFIER.workload(
    "imagenet_resnet50",
    "ImageNet (1,231,167/50,000/50,000), ResNet-50 with ghost batch normalisation",
    "imagenet",
    batch_size=1024,
    eval_interval=2500,
    load=load,
    hyperparameters=WEIGHT_DECAY | LABEL_SMOOTHING,
)
