"""Data sets by name: those that come with levelfield, and those that users register."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import levelfield as lf
from levelfield import datasets
from levelfield.errors import DataError, UnknownName, UsageError

pytestmark = pytest.mark.usefixtures("cache_folder")


def write_squares(source: Path, writer: lf.datasets.cache.Writer, sample: bool, report: lf.datasets.Report) -> None:
    """Read numbers from a text file and store them with their squares."""
    report(f"reading {source}")
    numbers = np.loadtxt(source / "numbers.txt")
    writer.about["source"] = {"numbers.txt": "made up"}
    writer.add("numbers", numbers)
    writer.add("squares", numbers**2)


def test_built_in_data_sets() -> None:
    assert datasets.names() == ["cifar10", "cifar100", "fashion_mnist", "imagenet", "lm1b", "war_and_peace"]
    assert all(datasets.summary(name) for name in datasets.names())


def test_a_registered_data_set_is_read_from_a_folder(source: Path) -> None:
    lf.register_dataset("squares", lf.Dataset("numbers and their squares", write_squares))
    assert datasets.names()[-1] == "squares"
    assert datasets.summary("squares") == "numbers and their squares"
    with pytest.raises(DataError, match="squares is not on this machine: download its files yourself"):
        datasets.arrays("squares")
    (source / "numbers.txt").write_text("1 2 5")
    lines: list[str] = []
    datasets.get("squares", source, report=lines.append)
    assert lines == [f"reading {source}"]
    assert datasets.arrays("squares")["squares"].tolist() == [1, 4, 25]
    assert datasets.about("squares")["source"] == {"numbers.txt": "made up"}


def test_unknown_and_built_in_names_are_refused() -> None:
    for function in (datasets.arrays, datasets.get, datasets.about, datasets.summary):
        with pytest.raises(UnknownName, match="unknown data set 'cifar11'; did you mean 'cifar10"):
            function("cifar11")
    with pytest.raises(UsageError, match="data set 'cifar10' is built into levelfield; choose another name"):
        lf.register_dataset("cifar10", lf.Dataset("", write_squares))
