"""The Dataset record, and publishers' files: how they are downloaded, found in a folder, unpacked and verified."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from levelfield.datasets.cache import Writer
from levelfield.datasets.libraries import require
from levelfield.errors import DataError

Arrays = dict[str, npt.NDArray[Any]]
Report = Callable[[str], None]  # is called with lines about the progress
_TAR_MEMBERS = 1_000  # the most that are read from an archive
_TAR_HEADER = 1_000_000  # bytes; an extended header can claim any size


class NotDownloaded(DataError):
    """The publisher's files cannot be downloaded, or not now; the user may have them in a folder."""


class Remote(NamedTuple):
    """A file at its publisher, with the published checksum ("md5:…" or "sha256:…")."""

    url: str
    checksum: str | None

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[-1]


class Dataset(NamedTuple):
    """A data set: ``write(source, writer, sample, report)`` reads the publisher's files at ``source``.

    It writes arrays with ``writer.add(name, array)`` and where they came from into ``writer.about["source"]``. If
    ``sample`` is true it may accept an incomplete source. ``report`` takes lines about the progress.
    """

    summary: str
    write: Callable[[Path, Writer, bool, Report], None]
    remotes: tuple[Remote, ...] = ()  # empty if the files cannot be downloaded
    installed: tuple[Path, ...] = ()  # folders in which a distribution's package installs the files
    indexed: bool = False  # whether the cache only points to the source; a source is then read even if cached
    check: Callable[[Path, Mapping[str, Any]], None] | None = None  # (folder in the cache, about.json), before use


def array_writer(
    read: Callable[[Path], Arrays], checksums: Mapping[str, str]
) -> Callable[[Path, Writer, bool, Report], None]:
    """Return a Dataset's ``write`` that stores the arrays that ``read`` returns."""

    def write(source: Path, writer: Writer, sample: bool, report: Report) -> None:
        report(f"reading {source}")
        writer.about["source"] = dict(checksums)
        for name, array in read(source).items():
            writer.add(name, array)

    return write


def download(name: str, remotes: Iterable[Remote], folder: Path, report: Report) -> None:
    """Download a publisher's files to a folder, except those that are there with the right checksum."""
    pooch = require("pooch", name)
    pooch.get_logger().setLevel("WARNING")  # ``report`` says the rest
    for remote in remotes:
        store = pooch.create(
            folder, "", registry={remote.file: remote.checksum}, urls={remote.file: remote.url}, retry_if_failed=2
        )
        if remote.checksum is None:
            (folder / remote.file).unlink(missing_ok=True)  # it may be a wrong one
        report(f"downloading {remote.url}")
        progress = _Progress(remote.file, report)
        try:
            store.fetch(
                remote.file, downloader=pooch.HTTPDownloader(progressbar=progress, chunk_size=1 << 20, timeout=60)
            )
        except (OSError, ValueError) as error:
            # Errors of requests are OSErrors; pooch raises ValueError for a wrong checksum and deletes the file.
            reason = "its checksum is not the published one" if type(error) is ValueError else _short(error)
            raise NotDownloaded(
                f"{remote.url}: download failed ({reason}); "
                f"download it yourself and import its folder with 'levelfield data get {name}'"
            ) from None


class _Progress:
    """A progress bar for pooch that reports each tenth of a large file."""

    def __init__(self, file: str, report: Report) -> None:
        self.total = 0
        self._file, self._report, self._bytes, self._tenths = file, report, 0, 0

    def update(self, size: int) -> None:
        self._bytes += size
        tenths = 10 * self._bytes // self.total if self.total >= 100_000_000 else 0
        if tenths > self._tenths:
            self._tenths = tenths
            self._report(f"{self._file}: {10 * tenths}%")

    def reset(self) -> None:
        """The file is complete."""

    def close(self) -> None:
        """Nothing to close."""


def _short(error: Exception) -> str:
    response = getattr(error, "response", None)
    return f"HTTP status {response.status_code}" if response is not None else type(error).__name__


def folders_at(source: Path, folders: Sequence[str]) -> list[Path]:
    """Return the source and those of the named folders that it contains."""
    if not source.exists():
        raise DataError(f"{source}: no such file or folder")
    return [folder for folder in (source, *(source / folder for folder in folders)) if folder.is_dir()]


def find(source: Path, files: Sequence[str], folders: Sequence[str] = ()) -> Path:
    """Return the first of the files that exists at the source or in one of its folders. The source may be the file."""
    if source.is_file() and source.name in files:
        return source
    for folder in folders_at(source, folders):
        for file in files:
            if (folder / file).is_file():
                return folder / file
    raise DataError(f"{source}: contains no {' or '.join(files)}")


def verify_checksum(path: Path, content: bytes, checksum: str) -> None:
    """Raise if the content is not what was published."""
    algorithm, expected = checksum.split(":")
    actual = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if actual != expected:
        raise DataError(f"{path}: not the published content ({algorithm} {actual}, expected {expected})")


def check_labels(path: Path, labels: npt.NDArray[np.uint8], classes: int) -> None:
    """Raise if a label is out of range."""
    if invalid := np.flatnonzero(labels >= classes).tolist():
        first = invalid[0]
        raise DataError(f"{path}: label {labels[first]} of example {first} is out of range 0 to {classes - 1}")


class _Gzip(gzip.GzipFile):
    """A .gz file from which only as many bytes can be read as ``allow`` allows, because it may unpack to gigabytes."""

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__(path)
        self._path = path
        self.allow(limit)

    def allow(self, limit: int) -> None:
        """Allow the next ``limit`` bytes to be read."""
        self._limit = self._left = limit

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= self._left:
            raise too_large(self._path, self._limit)
        self._left -= size
        return super().read(size)


def too_large(path: Path, limit: int) -> DataError:
    return DataError(f"{path}: unpacks to more than {limit:,} bytes; expected less, as published")


def read(path: Path, limit: int) -> bytes:
    """Return the content of a file; a .gz file is unpacked, to at most ``limit`` bytes."""
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with _Gzip(path, limit + 1) as file:
            content = file.read(limit + 1)
    except EOFError:
        raise DataError(f"{path}: truncated") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged or not a gzip file ({error})") from None
    if len(content) > limit:
        raise too_large(path, limit)
    return content


def decode_utf8(path: Path, content: bytes, start: int = 0) -> str:
    """Decode content of a file that begins at byte ``start`` of it."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: invalid UTF-8 at byte {start + error.start}") from None


@contextmanager
def tar_files(
    path: Path, wanted: Callable[[str], object], *, largest: int, total: int
) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """Open a .tar.gz file and iterate over the wanted files: the name of each, without folders, and its content.

    ``largest`` limits the size of each file and ``total`` that of the archive, in bytes. Any problem with the archive
    is a DataError.
    """
    try:
        with _Gzip(path, _TAR_HEADER) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            yield _files(path, stream, tar, wanted, largest, total)
    except EOFError:
        raise DataError(f"{path}: truncated") from None
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, RecursionError) as error:
        raise DataError(f"{path}: damaged or not a tar file ({error})") from None


def _files(
    path: Path, stream: _Gzip, tar: tarfile.TarFile, wanted: Callable[[str], object], largest: int, total: int
) -> Iterator[tuple[str, IO[bytes]]]:
    for count, member in enumerate(tar):
        if count == _TAR_MEMBERS:
            raise DataError(f"{path}: contains more than {_TAR_MEMBERS:,} files; expected fewer, as published")
        if member.offset_data + member.size > total:
            raise too_large(path, total)
        name = Path(member.name).name
        if wanted(name):
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                raise DataError(f"{path}: {member.name} is a link or a folder; expected a regular file")
            if member.size > largest:
                raise too_large(path / name, largest)
            stream.allow(member.size)
            yield name, content
        stream.allow(_TAR_HEADER)
