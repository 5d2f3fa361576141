"""The paper's data sets: fetched from their publishers or read from a folder, decoded once into a cache.

    levelfield data get cifar10 [--from DIR]

The cache is ``$LEVELFIELD_DATA`` or the system's folder for caches. Importing this loads no JAX.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from levelfield.datasets import cache, imagenet, images, lm1b, text
from levelfield.datasets.imagenet import stream_imagenet
from levelfield.datasets.lm1b import stream_lm1b
from levelfield.datasets.sources import Dataset, Say, download
from levelfield.errors import DataError, UnknownName

__all__ = ["about", "arrays", "get", "names", "stream_imagenet", "stream_lm1b", "summary"]

_DATASETS = {
    "fashion_mnist": images.FASHION_MNIST,
    "cifar10": images.CIFAR10,
    "cifar100": images.CIFAR100,
    "war_and_peace": text.WAR_AND_PEACE,
    "lm1b": lm1b.LM1B,
    "imagenet": imagenet.IMAGENET,
}


def names() -> list[str]:
    return list(_DATASETS)


def summary(name: str) -> str:
    return _dataset(name).summary


def about(name: str) -> dict[str, Any] | None:
    """Where a data set in the cache came from; None where it is not on this machine."""
    _dataset(name)
    return cache.about(name)


def arrays(name: str) -> Mapping[str, npt.NDArray[Any]]:
    """A data set's arrays from the cache: mapped into memory, read-only."""
    dataset, content = _dataset(name), cache.about(name)
    if content is None:
        way = "', or with --from DIR if its files are" if dataset.remotes else " --from DIR' on its files"
        raise DataError(f"{name} is not on this machine: run 'levelfield data get {name}{way}")
    found = cache.load(name, content)
    if dataset.check:
        dataset.check(cache.folder(name), content)
    return found


def get(name: str, source: Path | None = None, *, sample: bool = False, say: Say = lambda line: None) -> Path:
    """Bring a data set into the cache and return its folder there; what is there already stays as it is.

    ``source`` is a folder with the publisher's files; without it they are downloaded. ``sample`` accepts a part of
    lm1b or imagenet, for tests: no study should be run on it. ``say`` is given lines that tell the progress.
    """
    dataset = _dataset(name)
    anew = dataset.indexed and source is not None
    try:
        if source and not source.exists():
            raise DataError(f"{source}: no such file or folder")
        if not anew and _cached(name, sample):  # a cache that is somebody else's need not be writable
            if source:
                say(f"{name} is in the cache: {source} is not read")
            return cache.folder(name)
        with cache.locked(name):
            if not anew and _cached(name, sample):
                return cache.folder(name)
            with cache.writing(name) as writer:
                dataset.write(source or _publisher(name, dataset, say), writer, sample, say)
            shutil.rmtree(_downloads(name), ignore_errors=True)
    except OSError as error:
        raise DataError(f"{error.filename or cache.root()}: {error.strerror or error}") from None
    return cache.folder(name)


def _dataset(name: str) -> Dataset:
    if name not in _DATASETS:
        raise UnknownName.of("data set", name, _DATASETS)
    return _DATASETS[name]


def _cached(name: str, sample: bool) -> bool:
    """A whole data set also serves who would be content with a sample; not the other way round."""
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


def _publisher(name: str, dataset: Dataset, say: Say) -> Path:
    """A folder with the publisher's files: where a package installed them, or downloaded."""
    for folder in dataset.installed:
        if folder.is_dir():
            return folder
    if not dataset.remotes:
        raise DataError(f"{name} cannot be downloaded: run 'levelfield data get {name} --from DIR' on its files")
    download(name, dataset.remotes, _downloads(name), say)
    return _downloads(name)
