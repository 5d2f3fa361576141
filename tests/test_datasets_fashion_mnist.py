"""Fashion-MNIST: reading idx files, refusing broken ones."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from dataset_files import complete_or_absent, real

from levelfield import datasets
from levelfield.datasets import arrays, get, get_dataset
from levelfield.datasets.fashion_mnist import read_fashion_mnist
from levelfield.errors import DataError

pytestmark = pytest.mark.usefixtures("cache_folder")


def idx(array: np.ndarray, magic: bytes | None = None) -> bytes:
    header = magic or bytes([0, 0, 8, array.ndim])
    return header + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def fashion_mnist(folder: Path, n: int = 6) -> Path:
    random = np.random.default_rng(0)
    for part in ("train", "t10k"):
        pixels = random.integers(0, 256, (n, 28, 28), np.uint8)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(n, dtype=np.uint8))))
    return folder


class TestFashionMNIST:
    def test_reads_four_files_compressed_or_not(self, source):
        stored = read_fashion_mnist(fashion_mnist(source), verify=False)
        assert {name: array.shape for name, array in stored.items()} == {
            "train_images": (6, 28, 28),
            "train_labels": (6,),
            "test_images": (6, 28, 28),
            "test_labels": (6,),
        }
        for path in list(source.iterdir()):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
        unpacked = read_fashion_mnist(source, verify=False)
        assert all(np.array_equal(stored[name], unpacked[name]) for name in stored)

    def test_finds_the_folder_below(self, source):
        (source / "fashion-mnist").mkdir()
        fashion_mnist(source / "fashion-mnist")
        assert len(read_fashion_mnist(source, verify=False)["train_labels"]) == 6

    @pytest.mark.parametrize(
        ("file", "damage", "message"),
        [
            ("train-images-idx3-ubyte.gz", lambda packed: packed[:-20], "truncated"),
            ("train-images-idx3-ubyte.gz", lambda packed: b"no gzip at all", "not a gzip file"),
            ("train-images-idx3-ubyte.gz", lambda packed: packed[:50] + b"xxxx" + packed[54:], "damaged"),
            ("train-images-idx3-ubyte.gz", lambda packed: gzip.compress(b""), "empty"),
            (
                "train-images-idx3-ubyte.gz",
                lambda packed: gzip.compress(b"\0\0\x08\x03\0\0"),
                "truncated in its header",
            ),
            (
                "train-images-idx3-ubyte.gz",
                lambda packed: gzip.compress(gzip.decompress(packed)[:-1]),
                "truncated .4719 bytes; expected 4720 by its header",
            ),
            ("train-images-idx3-ubyte.gz", lambda packed: gzip.compress(gzip.decompress(packed) + b"x"), "too long"),
            (
                "train-images-idx3-ubyte.gz",
                lambda packed: gzip.compress(idx(np.zeros((6, 32, 32), np.uint8))),
                "shape .32, 32.; expected .28, 28.",
            ),
            (
                "t10k-labels-idx1-ubyte.gz",
                lambda packed: gzip.compress(idx(np.zeros(6, np.uint8), b"\0\0\x0d\x01")),
                "starts with 00000d01; expected 00000801",
            ),
            (
                "t10k-labels-idx1-ubyte.gz",
                lambda packed: gzip.compress(idx(np.array([0, 1, 10], np.uint8))),
                "label 10 of example 2 is out of range 0 to 9",
            ),
        ],
    )
    def test_refuses_broken_files_by_name(self, source, file, damage, message):
        path = fashion_mnist(source) / file
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(DataError, match=f"{file}: .*{message}"):
            read_fashion_mnist(source, verify=False)

    def test_refuses_other_images(self, source):
        with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: not the published content"):
            get("fashion_mnist", fashion_mnist(source))

    def test_refuses_a_missing_file_and_unequal_counts(self, source):
        (fashion_mnist(source) / "t10k-labels-idx1-ubyte.gz").unlink()
        with pytest.raises(DataError, match=r"source: contains no t10k-labels-idx1-ubyte\.gz or t10k-labels"):
            read_fashion_mnist(source, verify=False)
        (source / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(5, np.uint8))))
        with pytest.raises(DataError, match="6 test images, but 5 labels"):
            read_fashion_mnist(source, verify=False)

    def test_debians_package_is_found(self, source, monkeypatch, cache_folder):
        """Made-up files there are refused by their checksum, so they were read."""
        installed = get_dataset("fashion_mnist")._replace(installed=(fashion_mnist(source),))
        monkeypatch.setitem(datasets._built_in(), "fashion_mnist", installed)
        with pytest.raises(DataError, match=f"{source}/train-images-idx3-ubyte.gz: not the published"):
            get("fashion_mnist")
        complete_or_absent(cache_folder)

    def test_real(self):
        get("fashion_mnist", real("fashion-mnist"))
        stored = arrays("fashion_mnist")
        assert stored["train_images"].shape == (60_000, 28, 28)
        assert stored["test_images"].shape == (10_000, 28, 28)
        assert all(array.dtype == np.uint8 for array in stored.values())
        assert stored["train_labels"][:5].tolist() == [9, 0, 0, 3, 0]
        assert np.bincount(stored["train_labels"]).tolist() == [6000] * 10
        assert np.bincount(stored["test_labels"]).tolist() == [1000] * 10
