"""The cache: each data set is a folder of .npy files with an about.json, there as a whole or not at all."""

from __future__ import annotations

import fcntl
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

from levelfield.datasets.sources import need
from levelfield.errors import DataError

FORMAT = 1  # raise it when the arrays change: what an older version wrote is then read anew
_ABOUT = "about.json"


class Damaged(DataError):
    pass


def root() -> Path:
    """``$LEVELFIELD_DATA``, or the folder for caches of this system."""
    if chosen := os.environ.get("LEVELFIELD_DATA"):
        return Path(chosen).expanduser().absolute()
    return Path(need("pooch", "a data set").os_cache("levelfield"))


def folder(name: str) -> Path:
    return root() / name


def about(name: str) -> dict[str, Any] | None:
    """Where the arrays came from, with checksums; None where there are none that this version can read."""
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
    """The arrays that an about.json tells of, mapped into memory and read-only."""
    found = {}
    for array, shape in content["arrays"].items():
        path = folder(name) / f"{array}.npy"
        try:
            found[array] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, EOFError, ValueError):
            found[array] = np.empty(0)
        if list(found[array].shape) != shape:
            raise damaged(path, name)
    return MappingProxyType(found)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time gets a data set. What a killed one left behind is removed."""
    root().mkdir(parents=True, exist_ok=True)
    with (root() / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for left in root().glob(f".{name}.*.partial"):
            shutil.rmtree(left)
        yield


@contextmanager
def writing(name: str) -> Iterator[Writer]:
    """A folder beside the cache's own that takes its place once everything is written. Call it under the lock."""
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
    """What a data set's reader fills: arrays, other files in ``folder``, and ``about``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = {"format": FORMAT, "sample": False, "source": {}}
        self._shapes: dict[str, list[int]] = {}
        self._growing: dict[str, Growing] = {}

    def add(self, name: str, array: npt.NDArray[Any]) -> None:
        with (self.folder / f"{name}.npy").open("wb") as file:
            np.save(file, array, allow_pickle=False)
            _sync(file)
        self._shapes[name] = list(array.shape)

    def growing(self, name: str, dtype: npt.DTypeLike) -> Growing:
        """An array of one dimension that is written piece by piece."""
        self._growing[name] = Growing(self.folder / f"{name}.npy", dtype)
        return self._growing[name]

    def scratch(self) -> Path:
        """A folder for what is needed only until the arrays are written."""
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
    """A .npy file of one dimension that grows by appending; only its header is written twice."""

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
        # numpy pads the header so that its size does not depend on the length.
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
    return Damaged(f"{path}: missing or damaged; 'levelfield data get {name}' gets the data anew")
