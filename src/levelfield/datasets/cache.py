"""The cache: each data set is a folder of .npy files with an about.json, which is complete or absent."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from levelfield.datasets.libraries import require
from levelfield.errors import DataError

try:
    import fcntl
except ImportError:  # on Windows, where nothing then stops two processes from getting the same data set at once
    fcntl = None  # type: ignore[assignment]

FORMAT = 1  # raise it when the arrays change: data sets in an older format are then read again
_ABOUT = "about.json"


class Damaged(DataError):
    """The cache of a data set is incomplete or unreadable."""


def root() -> Path:
    """Return ``$LEVELFIELD_DATA``, or this system's folder for caches."""
    if chosen := os.environ.get("LEVELFIELD_DATA"):
        return Path(chosen).expanduser().absolute()
    return Path(require("pooch", "a data set").os_cache("levelfield"))


def folder(name: str) -> Path:
    return root() / name


def about(name: str) -> dict[str, Any] | None:
    """Return where the arrays came from, with checksums; None if there are none that this version can read."""
    path = folder(name) / _ABOUT
    try:
        content = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise damaged(path, name) from None
    if not isinstance(content, dict):
        raise damaged(path, name)
    if content.get("format") != FORMAT:
        return None
    if not isinstance(content.get("arrays"), dict) or not content["arrays"] or "sample" not in content:
        raise damaged(path, name)
    return content


def load(name: str, content: Mapping[str, Any]) -> Mapping[str, npt.NDArray[Any]]:
    """Return the arrays that an about.json lists, mapped into memory and read-only."""
    arrays = {}
    for array_name, shape in content["arrays"].items():
        path = folder(name) / f"{array_name}.npy"
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, EOFError, ValueError):
            raise damaged(path, name) from None
        if list(array.shape) != shape:
            raise damaged(path, name)
        arrays[array_name] = array
    return MappingProxyType(arrays)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process at a time get a data set. Remove what an interrupted one left behind."""
    root().mkdir(parents=True, exist_ok=True)
    with (root() / f".{name}.lock").open("w") as file:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX)
        for partial in root().glob(f".{name}.*.partial"):
            shutil.rmtree(partial)
        yield


@contextmanager
def writing(name: str) -> Iterator[Writer]:
    """Write to a temporary folder that replaces the cached one once it is complete. Call it under the lock."""
    new, old = (root() / f".{name}.{state}.partial" for state in ("new", "old"))
    new.mkdir()
    writer = Writer(new)
    try:
        yield writer
        writer.finish()
        if folder(name).exists():
            os.replace(folder(name), old)
        os.replace(new, folder(name))
    finally:
        writer.release()
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


class Writer:
    """Where a data set is written: its arrays, other files in ``folder``, and ``about``, where it came from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = {"format": FORMAT, "sample": False, "source": {}}
        self._shapes: dict[str, list[int]] = {}
        self._growing: dict[str, Growing] = {}

    def add(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write an array."""
        with (self.folder / f"{name}.npy").open("wb") as file:
            np.save(file, array, allow_pickle=False)
            _sync(file)
        self._shapes[name] = list(array.shape)

    def growing(self, name: str, dtype: npt.DTypeLike) -> Growing:
        """Return a one-dimensional array that is written piece by piece."""
        self._growing[name] = Growing(self.folder / f"{name}.npy", dtype)
        return self._growing[name]

    def scratch(self) -> Path:
        """Return a folder for files that are needed only until the arrays are written."""
        (self.folder / "scratch").mkdir(exist_ok=True)
        return self.folder / "scratch"

    def release(self) -> None:
        for array in self._growing.values():
            array.close()

    def finish(self) -> None:
        for name, array in self._growing.items():
            array.finish()
            self._shapes[name] = [array.length]
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)
        with (self.folder / _ABOUT).open("w", encoding="utf-8") as file:
            json.dump(self.about | {"arrays": self._shapes}, file, indent=1)
            _sync(file)


class Growing:
    """A one-dimensional .npy file that grows by appending; only its header is written twice."""

    def __init__(self, path: Path, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._file = path.open("wb")
        self.length = 0
        self._write_header()

    def append(self, values: npt.ArrayLike) -> None:
        piece = np.asarray(values, self._dtype)
        self._file.write(piece.tobytes())
        self.length += len(piece)

    def finish(self) -> None:
        self._file.seek(0)
        self._write_header()
        _sync(self._file)

    def close(self) -> None:
        self._file.close()

    def _write_header(self) -> None:
        # numpy pads the header, so its size does not depend on the length.
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self.length,),
        }
        np.lib.format.write_array_header_1_0(self._file, header)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def damaged(path: Path, name: str) -> Damaged:
    return Damaged(f"{path}: missing or damaged; run 'levelfield data get {name}' to get the data again")
