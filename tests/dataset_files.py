"""What the tests of data sets share: real data on this machine, archives, a made-up data set."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from levelfield.datasets.cache import Writer
from levelfield.datasets.sources import Report

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
SAMPLES = Path(__file__).parent.parent.parent / "shared/data/imagenet-samples"


def real(name: str) -> Path:
    """Return a folder of real data, or skip the test if there is none."""
    folder = Path(os.environ.get("LEVELFIELD_TEST_DATA", "/nonexistent")) / name
    if not folder.is_dir() and name == "fashion-mnist":
        folder = DEBIAN
    if not folder.is_dir() and name == "imagenet-samples":
        folder = SAMPLES
    if not folder.is_dir():
        pytest.skip(f"no real data: set LEVELFIELD_TEST_DATA to a folder that contains {name}")
    return folder


def complete_or_absent(cache_folder: Path) -> None:
    """Assert that the cache contains nothing but locks, downloads and complete data sets."""
    for path in cache_folder.iterdir():
        assert path.name.endswith(".lock") or path.name == "downloads" or (path / "about.json").exists(), path


def pack(folder: Path, archive: Path, top: str) -> Path:
    """Pack a folder into a .tar.gz archive, under another name."""
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, top)
    return archive


class Toy:
    """A data set of made-up numbers."""

    def __init__(self) -> None:
        self.reads, self.sample = 0, False
        self.fail: BaseException | None = None  # raised in the middle of writing

    def write(self, source: Path, writer: Writer, sample: bool, report: Report) -> None:
        self.reads += 1
        writer.about["sample"] = self.sample
        writer.add("numbers", np.arange(3))
        grown = writer.growing("grown", np.uint16)
        grown.append([1])
        if self.fail:
            raise self.fail
        grown.append([2, 3])
        if source.is_dir() and (source / "file.bin").exists():
            writer.add("bytes", np.frombuffer((source / "file.bin").read_bytes(), np.uint8))
