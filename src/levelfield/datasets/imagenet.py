"""ImageNet (ILSVRC 2012): the cache holds an index of the images, which stay where they are and are read as needed."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from levelfield.data import Stream
from levelfield.datasets.cache import Writer
from levelfield.datasets.sources import Dataset, Say, find, need, places
from levelfield.errors import DataError

SIDE, CROP = 256, 224
_COUNTS = {"classes": 1000, "train": 1_281_167, "valid": 50_000}
_WNID = re.compile(r"n\d{8}")
_SUFFIXES = (".jpeg", ".jpg")
_TRUTH, _SYNSETS = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
_DEVKIT = ("val", "data", "ILSVRC2012_devkit_t12/data")
_IN_A_ROW = 10  # images that may fail to decode, one after the other, before the data are given up

Arrays = Mapping[str, npt.NDArray[Any]]
Example = tuple[npt.NDArray[np.uint8], Any]


def stream_imagenet(arrays: Arrays, *, threads: int | None = None) -> Stream:
    """Training images of 256×256 with their labels, in an order of the seed's own, each epoch in another.

    The shorter side is scaled to 256 and a square taken at a random place along the longer one; a random crop of
    224×224 from it is left to the device. Together that approximates a random crop from the scaled image: every
    part can be seen, places near the middle a little more often; sizes and proportions are not varied.
    An image that does not decode is named in a warning and replaced by the one that follows it in the index.
    """
    images = _Images(arrays, "train")

    def batches(seed: int, batch_size: int) -> Iterator[Example]:
        grain = need("grain", "imagenet")
        read = grain.ReadOptions(num_threads=threads or os.cpu_count() or 1, prefetch_buffer_size=2 * batch_size)
        order = grain.MapDataset.range(len(images)).seed(seed).shuffle().repeat()
        examples = order.random_map(lambda index, generator: images.read(index, generator.random()))
        return iter(examples.to_iter_dataset(read).batch(batch_size))

    return Stream(len(images), (np.zeros((SIDE, SIDE, 3), np.uint8), np.int32(0)), batches)


def evaluation_images(
    arrays: Arrays, split: str, indices: Iterable[int]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Images as they are evaluated: the shorter side scaled to 256, the central 224×224; with their labels."""
    chosen = np.asarray(indices)
    folder = os.fsdecode(arrays["root"][0])
    paths = [Path(folder, os.fsdecode(path)) for path in arrays[f"{split}_paths"][chosen]]
    decoded = np.stack([decode(path, CROP) for path in paths])
    return decoded, arrays[f"{split}_labels"][chosen].astype(np.int32)


def decode(path: Path, crop: int, place: float = 0.5) -> npt.NDArray[np.uint8]:
    """An image as RGB, its shorter side scaled to 256: a square of ``crop`` at ``place`` of the longer side."""
    pillow = need("PIL.Image", "imagenet")
    try:
        with pillow.open(path) as file:
            file.draft("RGB", (2 * SIDE, 2 * SIDE))  # a JPEG that is larger by far is decoded at a fraction
            image = file.convert("RGB")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; run 'levelfield data get imagenet --from DIR' if it moved") from None
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise Undecodable(f"{path}: does not decode ({error or type(error).__name__})") from None
    square = crop * min(image.size) / SIDE  # in pixels of the image
    left, top = ((size - square) * (place if size > min(image.size) else 0.5) for size in image.size)
    box = (left, top, left + square, top + square)
    return np.asarray(image.resize((crop, crop), pillow.Resampling.BILINEAR, box))


class Undecodable(DataError):
    pass


class _Images:
    """The images of a split; what does not decode is skipped, and said once."""

    def __init__(self, arrays: Arrays, split: str) -> None:
        self._root = os.fsdecode(arrays["root"][0])
        self._paths, self._labels = arrays[f"{split}_paths"], arrays[f"{split}_labels"]
        self._skipped: set[int] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, index: int, place: float) -> Example:
        for i in range(index, index + _IN_A_ROW):
            i %= len(self)
            try:
                return decode(Path(self._root, os.fsdecode(self._paths[i])), SIDE, place), np.int32(self._labels[i])
            except Undecodable as error:
                self._skip(i, error)
                last = error
        raise DataError(f"{last}, nor do the {_IN_A_ROW - 1} before it")

    def _skip(self, index: int, error: Undecodable) -> None:
        with self._lock:
            if index in self._skipped:
                return
            self._skipped.add(index)
            count = len(self._skipped)
        warnings.warn(f"{error}: skipped, {count} so far", stacklevel=2)


def index_imagenet(source: Path, *, sample: bool = False) -> dict[str, npt.NDArray[Any]]:
    """Paths below the root and labels of both splits; a label is the place of its wnid among the sorted ones."""
    root = next((place for place in places(source, ("imagenet",)) if (place / "train").is_dir()), None)
    if root is None:
        raise DataError(f"{source}: holds no folder train")
    train = _by_class(root, "train")
    if not train:
        raise DataError(f"{root / 'train'}: holds no folder named by a wnid (n########)")
    labels = {wnid: label for label, wnid in enumerate(train)}
    if not (root / "val").is_dir():
        raise DataError(f"{root}: holds no folder val")
    by_class = _by_class(root, "val")
    if unknown := [wnid for wnid in by_class if wnid not in labels]:
        raise DataError(f"{root / 'val' / unknown[0]}: no such class in {root / 'train'}")
    index = {
        "train": [(path, labels[wnid]) for wnid, paths in train.items() for path in paths],
        "valid": [(path, labels[wnid]) for wnid, paths in by_class.items() for path in paths] or _flat(root, labels),
    }
    for what, got in {"classes": len(train), **{split: len(found) for split, found in index.items()}}.items():
        if got != _COUNTS[what] and not sample:
            raise DataError(
                f"{root}: {got} {what if what == 'classes' else what + ' images'}, expected {_COUNTS[what]}"
            )
    arrays: dict[str, npt.NDArray[Any]] = {"root": np.array([os.fsencode(root.absolute())])}
    for split, found in index.items():
        arrays[f"{split}_paths"] = np.array([os.fsencode(path) for path, _ in found])
        arrays[f"{split}_labels"] = np.array([label for _, label in found], np.uint16)
    return arrays | {"wnids": np.array([os.fsencode(wnid) for wnid in train])}


def _by_class(root: Path, split: str) -> dict[str, list[str]]:
    """wnid → the images in its folder, all sorted."""
    wnids = sorted(entry.name for entry in os.scandir(root / split) if entry.is_dir() and _WNID.fullmatch(entry.name))
    found = {wnid: _images_in(root, f"{split}/{wnid}") for wnid in wnids}
    if empty := [wnid for wnid, paths in found.items() if not paths]:
        raise DataError(f"{root / split / empty[0]}: holds no image")
    return found


def _images_in(root: Path, folder: str) -> list[str]:
    names = (entry.name for entry in os.scandir(root / folder))
    return sorted(f"{folder}/{name}" for name in names if name.lower().endswith(_SUFFIXES))


def _flat(root: Path, labels: Mapping[str, int]) -> list[tuple[str, int]]:
    """Validation images as published: numbered files, and a line for each in the development kit."""
    paths = _images_in(root, "val")
    if not paths:
        raise DataError(f"{root / 'val'}: holds no image")
    truth = find(root, [_TRUTH], _DEVKIT)
    to_label = _classes(find(root, [_SYNSETS], _DEVKIT), labels)
    lines = truth.read_text("ascii", "replace").split()
    found = []
    for path in paths:
        number = re.fullmatch(r"val/ILSVRC2012_val_(\d{8})\.\w+", path)
        if not number:
            raise DataError(f"{root / path}: not named ILSVRC2012_val_########.JPEG")
        line = int(number[1])
        if not 0 < line <= len(lines):
            raise DataError(f"{truth}: {len(lines)} lines, none for {path}")
        if lines[line - 1] not in to_label:
            raise DataError(f"{truth}: line {line}: no class has the number {lines[line - 1]!r}")
        found.append((path, to_label[lines[line - 1]]))
    return found


def _classes(path: Path, labels: Mapping[str, int]) -> dict[str, int]:
    """The development kit's number of a class → label. Its numbers are not in the order of the wnids."""
    loadmat: Callable[..., Any] = need("scipy.io", "imagenet").loadmat
    try:
        synsets = np.atleast_1d(loadmat(path, squeeze_me=True)["synsets"])
        numbers = dict(zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True))
    except Exception as error:  # a damaged file makes scipy raise almost anything
        raise DataError(f"{path}: not the development kit's list of classes ({error})") from None
    return {str(int(number)): labels[wnid] for number, wnid in numbers.items() if wnid in labels}


def _write(source: Path, writer: Writer, sample: bool, say: Say) -> None:
    say(f"listing the images of {source}")
    index = index_imagenet(source, sample=sample)
    for name, array in index.items():
        writer.add(name, array)
    writer.about |= {"sample": sample, "source": {"root": os.fsdecode(index["root"][0])}}


IMAGENET = Dataset(
    summary="photographs, 1000 classes (ILSVRC 2012); its licence asks for a download by yourself",
    write=_write,
    indexed=True,
)
