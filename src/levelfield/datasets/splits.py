"""Training, validation and test sets of data sets that are published with training and test sets only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from levelfield.data import Data
from levelfield.datasets import arrays
from levelfield.errors import UsageError

_SPLIT_SEED = 2020
_HELD_OUT = 5_000  # images for validation; the training metrics are computed on as many


def split(n: int, held_out: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Hold out some of n examples: return the indices of the rest and of those held out, each sorted.

    The split is the same on every call and with every version of numpy.

    >>> train, valid = split(10, 3)
    >>> train, valid
    (array([1, 2, 3, 5, 6, 7, 8]), array([0, 4, 9]))
    """
    if not 0 <= held_out <= n:
        raise UsageError(f"held_out = {held_out}: expected a number from 0 to {n}, the number of examples")
    # The raw draws of a bit generator do not change between versions of numpy; a Generator's permutation may.
    order = np.argsort(np.random.PCG64(_SPLIT_SEED).random_raw(n), kind="stable")
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def labeled_images(dataset: str) -> Data:
    """Return a data set of images with its own test set; its training set is split into training and validation."""
    stored = arrays(dataset)
    images, labels = stored["train_images"], stored["train_labels"].astype(np.int32)
    train, valid = split(len(images), _HELD_OUT)
    return Data(
        train=(images[train], labels[train]),
        evaluation={
            "train": (images[train[:_HELD_OUT]], labels[train[:_HELD_OUT]]),
            "valid": (images[valid], labels[valid]),
            "test": (stored["test_images"], stored["test_labels"].astype(np.int32)),
        },
    )
