"""Publishers' files: what they are, how they are downloaded, found in a folder, unpacked and checked."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from levelfield.errors import DataError

if TYPE_CHECKING:
    from levelfield.datasets.cache import Writer

Say = Callable[[str], None]


class Remote(NamedTuple):
    """A file at its publisher's, with the published checksum ("md5:…" or "sha256:…")."""

    url: str
    checksum: str | None

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[-1]


class Dataset(NamedTuple):
    """``write(source, writer, sample, say)`` reads the publisher's files at ``source`` and writes the arrays."""

    summary: str
    write: Callable[[Path, Writer, bool, Say], None]
    remotes: tuple[Remote, ...] = ()  # none: nobody may hand it out, or nobody does
    installed: tuple[Path, ...] = ()  # where a distribution's package puts the files
    indexed: bool = False  # the cache only points at the source: a source that is given is always read
    check: Callable[[Path, dict[str, Any]], None] | None = None  # the cache's folder and about.json, before use


def need(module: str, what: str) -> Any:
    """A library that is imported only where it is used."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = "pillow" if error.name == "PIL" else error.name
        raise DataError(f"{what} needs {package}: pip install 'levelfield[data]'") from None


def download(name: str, remotes: Iterable[Remote], folder: Path, say: Say) -> None:
    """Bring a publisher's files into a folder. A file that is there with the right checksum is not fetched again."""
    pooch = need("pooch", name)
    pooch.get_logger().setLevel("WARNING")  # ``say`` tells it
    for remote in remotes:
        store = pooch.create(
            folder, "", registry={remote.file: remote.checksum}, urls={remote.file: remote.url}, retry_if_failed=2
        )
        if remote.checksum is None:
            (folder / remote.file).unlink(missing_ok=True)  # nothing tells whether it is the right one
        say(f"downloading {remote.url}")
        progress = _Progress(remote.file, say)
        try:
            store.fetch(
                remote.file, downloader=pooch.HTTPDownloader(progressbar=progress, chunk_size=1 << 20, timeout=60)
            )
        except (OSError, ValueError) as error:
            # requests' errors are OSErrors; pooch raises ValueError for a wrong checksum and deletes the file.
            reason = "its checksum is not the published one" if type(error) is ValueError else _short(error)
            raise DataError(
                f"{remote.url}: cannot be downloaded ({reason}); "
                f"fetch it another way and run 'levelfield data get {name} --from DIR'"
            ) from None


class _Progress:
    """What pooch takes for a progress bar: a line for each tenth of a large file."""

    def __init__(self, file: str, say: Say) -> None:
        self.total = 0
        self._file, self._say, self._done, self._said = file, say, 0, 0

    def update(self, size: int) -> None:
        self._done += size
        tenth = 10 * self._done // self.total if self.total >= 100_000_000 else 0
        if tenth > self._said:
            self._said = tenth
            self._say(f"{self._file}: {10 * tenth}%")

    def reset(self) -> None:
        """The file is complete."""

    def close(self) -> None:
        """Nothing to close."""


def _short(error: Exception) -> str:
    response = getattr(error, "response", None)
    return f"HTTP status {response.status_code}" if response is not None else type(error).__name__


def places(source: Path, folders: Sequence[str]) -> list[Path]:
    """The source itself and those of the named folders that it holds."""
    if not source.exists():
        raise DataError(f"{source}: no such file or folder")
    return [folder for folder in (source, *(source / folder for folder in folders)) if folder.is_dir()]


def find(source: Path, files: Sequence[str], folders: Sequence[str] = ()) -> Path:
    """The first of the files that lies at the source, or in one of the folders there; or the source is that file."""
    if source.is_file() and source.name in files:
        return source
    for place in places(source, folders):
        for file in files:
            if (place / file).is_file():
                return place / file
    raise DataError(f"{source}: holds no {' nor '.join(files)}")


def check(path: str | Path, content: bytes, checksum: str) -> None:
    """Refuse content that is not what was published."""
    algorithm, expected = checksum.split(":")
    got = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if got != expected:
        raise DataError(f"{path}: not the published content ({algorithm} {got}, expected {expected})")


def read(path: Path) -> bytes:
    """The content of a file; of a .gz file, unpacked."""
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except EOFError:
        raise DataError(f"{path}: truncated") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged, or no gzip file ({error})") from None


@contextmanager
def opened(path: Path) -> Iterator[tarfile.TarFile]:
    """A .tar.gz file to read from; whatever is wrong with it is a DataError."""
    try:
        with tarfile.open(path) as tar:
            yield tar
    except EOFError:
        raise DataError(f"{path}: truncated") from None
    except (tarfile.TarError, zlib.error) as error:
        reason = str(error).partition(":\n")[0]  # tarfile goes on to say what each way to unpack it objects to
        raise DataError(f"{path}: damaged, or no tar file ({reason})") from None
