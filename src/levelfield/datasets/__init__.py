"""Data sets: downloaded from their publishers or read from a folder, and decoded once into a cache.

The cache is ``$LEVELFIELD_DATA`` or the system's folder for caches. Each built-in data set is one file here that ends
in ``DATASET = Dataset(...)``. Importing this package loads no JAX.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from levelfield.datasets import cache
from levelfield.datasets.sources import Dataset, NotDownloaded, Report, download
from levelfield.errors import DataError, UnknownName, UsageError
from levelfield.registry import Packaged, Registry


@functools.cache
def _built_in() -> dict[str, Dataset]:
    """Return the modules here that define a DATASET; the others are shared between them."""
    modules = {
        module.name: importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
    }
    return {name: module.DATASET for name, module in modules.items() if hasattr(module, "DATASET")}


_registered: Registry[Dataset] = Registry(
    "data set",
    lambda name: name in _built_in(),
    Packaged("levelfield.datasets", "an lf.Dataset", lambda name, item: item if isinstance(item, Dataset) else None),
)


def register_dataset(name: str, dataset: Dataset) -> Dataset:
    """Make a data set available by this name. An earlier one of the same name is replaced, but not what is cached."""
    if not isinstance(dataset, Dataset):
        raise UsageError(f"register_dataset({name!r}, {dataset!r}): expected an lf.Dataset")
    return _registered.add(name, dataset)


def get_dataset(name: str) -> Dataset:
    if name in _registered:
        return _registered[name]
    if name not in _built_in():
        raise UnknownName.of("data set", name, names())
    return _built_in()[name]


def names() -> list[str]:
    """Return the built-in data sets in alphabetical order, then the registered ones, then those of packages."""
    return [*_built_in(), *_registered]


def summary(name: str) -> str:
    """Return what a data set is. A package's data set is not imported for it."""
    declared_by = _registered.declared_by(name)
    return f"a data set of {declared_by}" if declared_by else get_dataset(name).summary


def about(name: str) -> dict[str, Any] | None:
    """Return where a cached data set came from; None if it is not on this machine."""
    if not _registered.declared_by(name):
        get_dataset(name)
    return cache.about(name)


def dataset_packages(name: str) -> dict[str, str]:
    """Return the installed packages that have a data set, with their versions; none if it is built in or registered."""
    return _registered.versions_of(name)


def arrays(name: str) -> Mapping[str, npt.NDArray[Any]]:
    """Return a data set's arrays from the cache, mapped into memory and read-only."""
    dataset, content = get_dataset(name), cache.about(name)
    if content is None:
        remedy = f"run 'levelfield data get {name}'" if dataset.remotes or dataset.installed else _by_hand(name)
        raise DataError(f"{name} is not on this machine: {remedy}")
    loaded = cache.load(name, content)
    if dataset.check:
        dataset.check(cache.folder(name), content)
    return loaded


def get(name: str, source: Path | None = None, *, sample: bool = False, report: Report = lambda line: None) -> Path:
    """Bring a data set into the cache and return its folder there. A data set that is already there stays as it is.

    ``source`` is a folder with the publisher's files; without it they are downloaded. ``sample`` accepts a part of
    lm1b or imagenet for tests, which no study should be run on. ``report`` is called with lines about the progress.
    """
    dataset = get_dataset(name)
    always_read = dataset.indexed and source is not None
    try:
        if source and not source.exists():
            raise DataError(f"{source}: no such file or folder")
        if not always_read and _is_cached(name, sample):  # without the lock: a shared cache may not be writable
            if source:
                report(f"{name} is already in the cache; {source} is not read")
            return cache.folder(name)
        with cache.locked(name):
            if not always_read and _is_cached(name, sample):
                return cache.folder(name)
            with cache.writing(name) as writer:
                dataset.write(source or _published_files(name, dataset, report), writer, sample, report)
            shutil.rmtree(_downloads(name), ignore_errors=True)
    except OSError as error:
        raise DataError(f"{error.filename or cache.root()}: {error.strerror or error}") from None
    return cache.folder(name)


def _is_cached(name: str, sample: bool) -> bool:
    """Whether the cache has the data set. The whole also serves as a sample, but not the other way round."""
    try:
        content = cache.about(name)
        if content is None or (content["sample"] and not sample):
            return False
        arrays(name)
    except cache.Damaged:
        return False
    return True


def _downloads(name: str) -> Path:
    return cache.root() / "downloads" / name


def _published_files(name: str, dataset: Dataset, report: Report) -> Path:
    """Return a folder with the publisher's files: one that a package installed, or one to which they are downloaded."""
    for folder in dataset.installed:
        if folder.is_dir():
            return folder
    if not dataset.remotes:
        raise NotDownloaded(f"{name} cannot be downloaded automatically: {_by_hand(name)}")
    download(name, dataset.remotes, _downloads(name), report)
    return _downloads(name)


def _by_hand(name: str) -> str:
    return f"download its files yourself and import their folder with 'levelfield data get {name}'"
