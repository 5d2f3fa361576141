"""The binary format in which CIFAR-10 and CIFAR-100 are published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from levelfield.datasets.sources import (
    Arrays,
    Dataset,
    Remote,
    array_writer,
    check_labels,
    find,
    folders_at,
    tar_files,
    verify_checksum,
)
from levelfield.errors import DataError

_MOST_RECORDS = 50_000  # in a file
_URL = "https://www.cs.toronto.edu/~kriz"


class Cifar(NamedTuple):
    """A data set of records: some label bytes, then 32×32 pixels, one color plane after the other."""

    archive: str
    folder: str
    label_bytes: int  # before the pixels; the last one is the label
    classes: int
    train: Mapping[str, str]  # file → md5
    test: Mapping[str, str]

    @property
    def _record_bytes(self) -> int:
        return self.label_bytes + 3 * 32 * 32

    def read(self, source: Path, *, verify: bool = True) -> Arrays:
        """Read the files at a folder or in the archive. Without ``verify``, accept any images of that form."""
        checksums = {**self.train, **self.test}
        records = {}
        for path, content in self._contents(source, list(checksums)):
            records[path.name] = self._records(path, content)
            if verify:
                verify_checksum(path, content, f"md5:{checksums[path.name]}")
        arrays = {}
        for part, files in (("train", self.train), ("test", self.test)):
            rows = np.concatenate([records[file] for file in files])
            planes = rows[:, self.label_bytes :].reshape(-1, 3, 32, 32)
            arrays[f"{part}_images"] = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
            arrays[f"{part}_labels"] = rows[:, self.label_bytes - 1].copy()
        return arrays

    def dataset(self, summary: str, archive_checksum: str) -> Dataset:
        return Dataset(
            summary=summary,
            write=array_writer(self.read, {**self.train, **self.test}),
            remotes=(Remote(f"{_URL}/{self.archive}", archive_checksum),),
        )

    def _contents(self, source: Path, files: list[str]) -> Iterator[tuple[Path, bytes]]:
        """Yield each file with its content, from the unpacked folder or from the archive."""
        short = self.folder.removesuffix("-batches-bin").removesuffix("-binary")
        for folder in folders_at(source, (self.folder, f"{short}/{self.folder}")) if source.is_dir() else ():
            if any((folder / file).is_file() for file in files):
                for file in files:
                    path = find(folder, [file])
                    yield path, path.read_bytes()
                return
        try:
            archive = find(source, [self.archive], [short])
        except DataError:
            if not source.exists():
                raise
            raise DataError(f"{source}: contains neither {self.folder}/{files[0]} nor {self.archive}") from None
        missing = set(files)
        largest = _MOST_RECORDS * self._record_bytes
        with tar_files(archive, files.__contains__, largest=largest, total=2 * largest) as found:
            for file, content in found:
                missing.discard(file)
                yield archive / file, content.read()
        if missing:
            raise DataError(f"{archive}: contains no {min(missing)}")

    def _records(self, path: Path, content: bytes) -> npt.NDArray[np.uint8]:
        size = self._record_bytes
        if not content or len(content) % size:
            raise DataError(f"{path}: truncated ({len(content)} bytes; expected a multiple of {size}, a record's size)")
        rows = np.frombuffer(content, np.uint8).reshape(-1, size)
        check_labels(path, rows[:, self.label_bytes - 1], self.classes)
        return rows
