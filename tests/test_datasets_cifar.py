"""CIFAR-10 and CIFAR-100: reading the binary files, refusing broken ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from dataset_files import pack, real

from levelfield.datasets import arrays, get
from levelfield.datasets.cifar import Cifar
from levelfield.datasets.cifar10 import CIFAR10
from levelfield.datasets.cifar100 import CIFAR100
from levelfield.errors import DataError

pytestmark = pytest.mark.usefixtures("cache_folder")


def cifar(folder: Path, kind: Cifar, n: int = 4) -> Path:
    """Write pixels that encode their position: red is the row, green the column, blue the image."""
    place = folder / kind.folder
    place.mkdir()
    row, column = np.mgrid[:32, :32]
    for file in (*kind.train, *kind.test):
        records = [
            bytes([i + 10] * (kind.label_bytes - 1) + [i])
            + np.stack([row, column, np.full((32, 32), i)]).astype(np.uint8).tobytes()
            for i in range(n)
        ]
        (place / file).write_bytes(b"".join(records))
    return folder


KINDS = pytest.mark.parametrize("kind", [CIFAR10, CIFAR100], ids=["cifar10", "cifar100"])


class TestCifar:
    @KINDS
    def test_pixels_and_labels_are_in_place(self, source, kind):
        stored = kind.read(cifar(source, kind), verify=False)
        assert stored["train_images"].shape == (4 * len(kind.train), 32, 32, 3)
        assert stored["test_images"][3, 5, 7].tolist() == [5, 7, 3]
        assert stored["test_labels"].tolist() == [0, 1, 2, 3]
        assert stored["train_labels"].tolist() == [0, 1, 2, 3] * len(kind.train)
        assert stored["train_images"].flags.c_contiguous

    @KINDS
    def test_the_source_is_the_folder_the_archive_or_a_parent(self, source, kind):
        folder = cifar(source, kind) / kind.folder
        expected = kind.read(source, verify=False)
        archive = pack(folder, source / kind.archive, kind.folder)
        for place in (folder, source, archive):
            stored = kind.read(place, verify=False)
            assert all(np.array_equal(expected[name], stored[name]) for name in expected)
        shutil.rmtree(folder)
        assert np.array_equal(kind.read(source, verify=False)["test_labels"], expected["test_labels"])

    @KINDS
    def test_refuses_broken_files_by_name(self, source, kind):
        file = next(iter(kind.test))
        path = cifar(source, kind) / kind.folder / file
        content = path.read_bytes()
        with pytest.raises(DataError, match=f"{next(iter(kind.train))}: not the published content .md5 "):
            kind.read(source)
        path.write_bytes(content[:-1])
        with pytest.raises(DataError, match=f"{file}: truncated"):
            kind.read(source, verify=False)
        path.write_bytes(b"")
        with pytest.raises(DataError, match=f"{file}: truncated"):
            kind.read(source, verify=False)
        path.write_bytes(bytes([0] * (kind.label_bytes - 1) + [kind.classes]) + content[kind.label_bytes :])
        with pytest.raises(DataError, match=f"{file}: label {kind.classes} of example 0 is out of range"):
            kind.read(source, verify=False)
        path.unlink()
        with pytest.raises(DataError, match=f"{kind.folder}: contains no {file}"):
            kind.read(source, verify=False)

    def test_refuses_broken_archives_by_name(self, source):
        kind = CIFAR10
        folder = cifar(source, kind) / kind.folder
        archive = source / kind.archive
        (folder / "test_batch.bin").unlink()
        pack(folder, archive, kind.folder)
        with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: contains no test_batch\.bin"):
            CIFAR10.read(archive, verify=False)
        content = archive.read_bytes()
        archive.write_bytes(content[: len(content) // 2])
        with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: truncated"):
            CIFAR10.read(archive, verify=False)
        archive.write_bytes(b"no archive")
        with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: damaged or not a tar file \([^\n]*\)$"):
            CIFAR10.read(archive, verify=False)

    def test_refuses_a_folder_without_them(self, source):
        with pytest.raises(
            DataError, match=r"contains neither cifar-10-batches-bin/data_batch_1\.bin nor cifar-10-binary"
        ):
            get("cifar10", source)
        with pytest.raises(DataError, match="nowhere: no such file or folder"):
            get("cifar10", source / "nowhere")

    def test_real_10(self, source):
        folder = real("cifar-10")
        get("cifar10", folder)
        stored = arrays("cifar10")
        assert stored["train_images"].shape == (50_000, 32, 32, 3)
        assert stored["train_labels"][:5].tolist() == [6, 9, 9, 4, 1]
        assert stored["train_images"][0, 0, 0].tolist() == [59, 62, 63]
        assert np.bincount(stored["train_labels"]).tolist() == [5000] * 10
        assert np.bincount(stored["test_labels"]).tolist() == [1000] * 10

    def test_real_100(self):
        get("cifar100", real("cifar-100"))
        stored = arrays("cifar100")
        assert stored["train_labels"][:5].tolist() == [19, 29, 0, 11, 1]
        assert np.bincount(stored["train_labels"]).tolist() == [500] * 100
        assert np.bincount(stored["test_labels"]).tolist() == [100] * 100
