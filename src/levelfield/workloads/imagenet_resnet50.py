"""ImageNet with ResNet-50 (the improved block of He et al. 2016b) and ghost batch normalization."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from levelfield.data import Data, Pass
from levelfield.datasets import arrays
from levelfield.datasets.imagenet import CROP, Arrays, evaluation_images, stream_imagenet
from levelfield.datasets.splits import split
from levelfield.environment import available_cores
from levelfield.workload import CLASSIFICATION, LABEL_SMOOTHING, Workload, imported

_HELD_OUT, _TRAIN_SUBSET = 50_000, 5_000


def load() -> Data:
    """Test on the published validation images, whose labels are known; hold out training images for validation."""
    stored = arrays("imagenet")
    paths, labels = stored["train_paths"], stored["train_labels"]
    train, valid = split(len(paths), min(_HELD_OUT, len(paths) // 10))
    # Images are sorted by class: take some of each.
    subset = train[:: max(1, len(train) // _TRAIN_SUBSET)][:_TRAIN_SUBSET]
    return Data(
        train=stream_imagenet({**stored, "train_paths": paths[train], "train_labels": labels[train]}),
        evaluation={
            "train": _decoded(stored, "train", subset),
            "valid": _decoded(stored, "train", valid),
            "test": _decoded(stored, "valid", np.arange(len(stored["valid_paths"]))),
        },
    )


def _decoded(stored: Arrays, split: str, indices: np.ndarray) -> Pass:
    """Decode these images in several threads, one batch ahead of the evaluation."""
    cores = available_cores()

    def joined(pieces: Iterable[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
        return tuple(np.concatenate(arrays) for arrays in zip(*pieces, strict=True))

    def batches(batch_size: int) -> Iterator[tuple[np.ndarray, ...]]:
        pending: list[Iterator[tuple[np.ndarray, ...]]] = []
        with ThreadPoolExecutor(cores) as pool:
            for start in range(0, len(indices), batch_size):
                chosen = indices[start : start + batch_size]
                pieces = np.array_split(chosen, min(cores, len(chosen)))
                pending.append(pool.map(functools.partial(evaluation_images, stored, split), pieces))
                if len(pending) > 1:
                    yield joined(pending.pop(0))
            yield joined(pending.pop())

    return Pass((np.zeros((CROP, CROP, 3), np.uint8), np.int32(0)), batches)


WORKLOAD = Workload(
    name="imagenet_resnet50",
    summary="ImageNet (1,231,167/50,000/50,000), ResNet-50 with ghost batch normalization",
    kind="images",
    batch_size=1024,
    eval_interval=2500,
    metrics=CLASSIFICATION,
    select="valid_error",
    load=load,
    **imported("levelfield.models.imagenet_resnet50", "init", "loss", "evaluate"),
    hyperparameters=LABEL_SMOOTHING,
    dataset="imagenet",
    slots_per_core=1,
    version=2,  # version 1 rounded weight decay differently
)
