"""Fashion-MNIST at 14×14 with a small convolutional network: the default workload, embedded in the package."""

from __future__ import annotations

from importlib import resources

import numpy as np

from levelfield.data import Data
from levelfield.workload import CLASSIFICATION, Workload, imported

_TRAIN, _VALID = 10_000, 2_000  # the other 2,000 images are the test set
_TRAIN_SUBSET = 1_000  # images that the training metrics are computed on


def load() -> Data:
    file = resources.files("levelfield.datasets") / "embedded/fashion_mini.npz"
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


WORKLOAD = Workload(
    name="fashion_mini",
    summary="Fashion-MNIST at 14×14 (10,000/2,000/2,000), small CNN",
    kind="images",
    batch_size=64,
    eval_interval=250,
    metrics=CLASSIFICATION,
    select="valid_error",
    examples={"valid": _VALID, "test": 2_000},
    load=load,
    **imported("levelfield.models.fashion_mini", "init", "loss", "evaluate"),
    slots_per_core=1,
)
