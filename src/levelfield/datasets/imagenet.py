"""ImageNet (ILSVRC 2012). The cache contains an index of the images, which stay in place and are read as needed."""

from __future__ import annotations

import os
import re
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from levelfield.data import Stream
from levelfield.datasets.cache import Writer
from levelfield.datasets.libraries import require
from levelfield.datasets.sources import Dataset, Report, find, folders_at, too_large
from levelfield.environment import available_cores
from levelfield.errors import DataError

SIDE, CROP = 256, 224
_COUNTS = {"classes": 1000, "train images": 1_281_167, "valid images": 50_000}
_WNID = re.compile(r"n\d{8}")
_SUFFIXES = (".jpeg", ".jpg")
_TRUTH, _SYNSETS = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
_DEVKIT = ("val", "data", "ILSVRC2012_devkit_t12/data")
_LARGEST_LIST = 16_000_000  # bytes of the unpacked list of classes
_COMPRESSED = 15  # the type of a compressed element of a MATLAB file
_ATTEMPTS = 10  # images in a row that may fail to decode before the data are refused

Arrays = Mapping[str, npt.NDArray[Any]]
Example = tuple[npt.NDArray[np.uint8], Any]


def stream_imagenet(arrays: Arrays, *, threads: int | None = None) -> Stream:
    """Stream training images of 256×256 with their labels, in an order that depends on seed and epoch.

    The shorter side is scaled to 256, and a square is cut at a random position along the longer one. Random crops of
    224×224 are left to the device. Together this approximates a random crop of the scaled image: every part can occur,
    parts near the middle a little more often; size and aspect ratio do not vary. An image that cannot be decoded is
    named in a warning and replaced by the next one in the index.
    """
    images = _Images(arrays, "train")

    def batches(seed: int, batch_size: int) -> Iterator[Example]:
        grain = require("grain", "imagenet")
        read = grain.ReadOptions(num_threads=threads or available_cores(), prefetch_buffer_size=2 * batch_size)
        order = grain.MapDataset.range(len(images)).seed(seed).shuffle().repeat()
        examples = order.random_map(lambda index, generator: images.read(index, generator.random()))
        return iter(examples.to_iter_dataset(read).batch(batch_size))

    return Stream(len(images), (np.zeros((SIDE, SIDE, 3), np.uint8), np.int32(0)), batches)


def evaluation_images(
    arrays: Arrays, split: str, indices: Iterable[int]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return images for evaluation (shorter side scaled to 256, central crop of 224×224) with their labels."""
    chosen = np.asarray(indices)
    folder = os.fsdecode(arrays["root"][0])
    paths = [Path(folder, os.fsdecode(path)) for path in arrays[f"{split}_paths"][chosen]]
    decoded = np.stack([decode(path, CROP) for path in paths])
    return decoded, arrays[f"{split}_labels"][chosen].astype(np.int32)


def decode(path: Path, crop: int, position: float = 0.5) -> npt.NDArray[np.uint8]:
    """Return a square of ``crop`` in RGB at ``position`` along the longer side, the shorter side scaled to 256."""
    pillow = require("PIL.Image", "imagenet")
    try:
        with pillow.open(path) as file:
            file.draft("RGB", (2 * SIDE, 2 * SIDE))  # decodes a much larger JPEG at a fraction of its size
            image = file.convert("RGB")
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file; if it moved, import its folder with 'levelfield data get imagenet'"
        ) from None
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise Undecodable(f"{path}: cannot be decoded ({error or type(error).__name__})") from None
    square = crop * min(image.size) / SIDE  # in pixels of the image
    left, top = ((size - square) * (position if size > min(image.size) else 0.5) for size in image.size)
    box = (left, top, left + square, top + square)
    return np.asarray(image.resize((crop, crop), pillow.Resampling.BILINEAR, box))


class Undecodable(DataError):
    """An image that is damaged or not an image."""


class _Images:
    """The images of a split. Those that cannot be decoded are skipped, with one warning each."""

    def __init__(self, arrays: Arrays, split: str) -> None:
        self._root = os.fsdecode(arrays["root"][0])
        self._paths, self._labels = arrays[f"{split}_paths"], arrays[f"{split}_labels"]
        self._skipped: set[int] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, index: int, position: float) -> Example:
        for i in range(index, index + _ATTEMPTS):
            i %= len(self)
            try:
                return decode(Path(self._root, os.fsdecode(self._paths[i])), SIDE, position), np.int32(self._labels[i])
            except Undecodable as error:
                self._skip(i, error)
                last = error
        raise DataError(f"{last}, and neither can the {_ATTEMPTS - 1} images before it")

    def _skip(self, index: int, error: Undecodable) -> None:
        with self._lock:
            if index in self._skipped:
                return
            self._skipped.add(index)
            count = len(self._skipped)
        warnings.warn(f"{error}: skipped ({count} so far)", stacklevel=2)


def index_imagenet(source: Path, *, sample: bool = False) -> dict[str, npt.NDArray[Any]]:
    """Return the paths below the root and the labels of both splits. Labels number the sorted wnids."""
    root = next((folder for folder in folders_at(source, ("imagenet",)) if (folder / "train").is_dir()), None)
    if root is None:
        raise DataError(f"{source}: contains no folder train")
    train = _by_class(root, "train")
    if not train:
        raise DataError(f"{root / 'train'}: contains no folder named by a wnid (n########)")
    labels = {wnid: label for label, wnid in enumerate(train)}
    if not (root / "val").is_dir():
        raise DataError(f"{root}: contains no folder val")
    by_class = _by_class(root, "val")
    if unknown := [wnid for wnid in by_class if wnid not in labels]:
        raise DataError(f"{root / 'val' / unknown[0]}: no such class in {root / 'train'}")
    index = {
        "train": [(path, labels[wnid]) for wnid, paths in train.items() for path in paths],
        "valid": [(path, labels[wnid]) for wnid, paths in by_class.items() for path in paths] or _flat(root, labels),
    }
    counts = {"classes": len(train)} | {f"{split} images": len(examples) for split, examples in index.items()}
    for what, count in counts.items():
        if count != _COUNTS[what] and not sample:
            raise DataError(f"{root}: {count} {what}; expected {_COUNTS[what]}")
    arrays: dict[str, npt.NDArray[Any]] = {"root": np.array([os.fsencode(root.absolute())])}
    for split, examples in index.items():
        arrays[f"{split}_paths"] = np.array([os.fsencode(path) for path, _ in examples])
        arrays[f"{split}_labels"] = np.array([label for _, label in examples], np.uint16)
    return arrays | {"wnids": np.array([os.fsencode(wnid) for wnid in train])}


def _by_class(root: Path, split: str) -> dict[str, list[str]]:
    """Return the images in the folder of each wnid, sorted."""
    wnids = sorted(entry.name for entry in os.scandir(root / split) if entry.is_dir() and _WNID.fullmatch(entry.name))
    images = {wnid: _images_in(root, f"{split}/{wnid}") for wnid in wnids}
    if empty := [wnid for wnid, paths in images.items() if not paths]:
        raise DataError(f"{root / split / empty[0]}: contains no image")
    return images


def _images_in(root: Path, folder: str) -> list[str]:
    names = (entry.name for entry in os.scandir(root / folder))
    return sorted(f"{folder}/{name}" for name in names if name.lower().endswith(_SUFFIXES))


def _flat(root: Path, labels: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the validation images as published: numbered files, each with a line in the development kit."""
    paths = _images_in(root, "val")
    if not paths:
        raise DataError(f"{root / 'val'}: contains no image")
    truth = find(root, [_TRUTH], _DEVKIT)
    to_label = _classes(find(root, [_SYNSETS], _DEVKIT), labels)
    lines = truth.read_text("ascii", "replace").split()
    examples = []
    for path in paths:
        number = re.fullmatch(r"val/ILSVRC2012_val_(\d{8})\.\w+", path)
        if not number:
            raise DataError(f"{root / path}: not named ILSVRC2012_val_########.JPEG")
        line = int(number[1])
        if not 0 < line <= len(lines):
            raise DataError(f"{truth}: {len(lines)} lines, none for {path}")
        if lines[line - 1] not in to_label:
            raise DataError(f"{truth}: line {line}: no class has the number {lines[line - 1]!r}")
        examples.append((path, to_label[lines[line - 1]]))
    return examples


def _classes(path: Path, labels: Mapping[str, int]) -> dict[str, int]:
    """Map the development kit's class numbers, which are not in the order of the wnids, to labels."""
    _check_unpacked_size(path)
    loadmat: Callable[..., Any] = require("scipy.io", "imagenet").loadmat
    try:
        synsets = np.atleast_1d(loadmat(path, squeeze_me=True)["synsets"])
        numbers = dict(zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True))
    except Exception as error:  # a damaged file makes scipy raise almost anything
        raise DataError(f"{path}: not the development kit's list of classes ({error})") from None
    return {str(int(number)): labels[wnid] for number, wnid in numbers.items() if wnid in labels}


def _check_unpacked_size(path: Path) -> None:
    """Raise if a MATLAB file is too large: 128 bytes, then elements, each with its type and size, often compressed."""
    content = path.read_bytes()
    order = ">" if content[126:128] == b"MI" else "<"
    position, left = 128, _LARGEST_LIST
    while position + 8 <= len(content) and left > 0:
        kind, size = struct.unpack_from(f"{order}II", content, position)
        position += 8
        if kind == _COMPRESSED:
            element = content[position : position + size]
            with suppress(zlib.error):  # scipy will say so
                size = len(zlib.decompressobj().decompress(element, left))
            position += len(element)
        else:
            position += size
        left -= size
    if left <= 0:
        raise too_large(path, _LARGEST_LIST)


def _write(source: Path, writer: Writer, sample: bool, report: Report) -> None:
    report(f"listing the images of {source}")
    index = index_imagenet(source, sample=sample)
    for name, array in index.items():
        writer.add(name, array)
    writer.about |= {"sample": sample, "source": {"root": os.fsdecode(index["root"][0])}}


DATASET = Dataset(
    summary="photographs, 1000 classes (ILSVRC 2012); its license requires that you download it yourself",
    write=_write,
    indexed=True,
)
