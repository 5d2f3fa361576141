"""The data sets of benchmarks: a missing one is reported before anything is measured, or replaced by random numbers."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterable

import numpy as np

from levelfield.datasets import about, cache
from levelfield.workloads import get_workload

# Data set → its arrays: their shapes and the number of different values.
_ARRAYS = {
    "fashion_mnist": {
        "train_images": ((60_000, 28, 28), 256),
        "train_labels": ((60_000,), 10),
        "test_images": ((10_000, 28, 28), 256),
        "test_labels": ((10_000,), 10),
    },
    "cifar10": {
        "train_images": ((50_000, 32, 32, 3), 256),
        "train_labels": ((50_000,), 10),
        "test_images": ((10_000, 32, 32, 3), 256),
        "test_labels": ((10_000,), 10),
    },
    "war_and_peace": {"tokens": ((3_266_185,), 83)},
}


def prepare(workloads: Iterable[str], *, random: bool) -> None:
    """Exit if data sets are missing, or put random ones in their places, for this process and those that it starts."""
    needed = {get_workload(name).dataset for name in workloads} - {None}
    missing = sorted(name for name in needed if name and about(name) is None)
    if not missing:
        return
    commands = ", ".join(f"levelfield data get {name}" for name in missing)
    if not random or not set(missing) <= _ARRAYS.keys():
        raise SystemExit(f"missing data sets: {commands}; to measure speed alone, --random-data replaces those of "
                         f"{', '.join(_ARRAYS)}")  # fmt: skip
    print(f"random numbers take the place of {', '.join(missing)}", flush=True)
    folder, real = tempfile.mkdtemp(), cache.root()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["LEVELFIELD_DATA"] = folder
    for name in sorted(needed - set(missing)):
        os.symlink(real / name, cache.folder(name))
    generator = np.random.default_rng(0)
    for name in missing:
        with cache.writing(name) as writer:
            writer.about["source"] = {"random numbers": ""}
            for array, (shape, values) in _ARRAYS[name].items():
                writer.add(array, generator.integers(0, values, shape, np.uint8, endpoint=False))
