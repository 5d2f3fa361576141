"""Fashion-MNIST from its idx files, CIFAR-10 and CIFAR-100 from their binary versions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from levelfield.datasets.cache import Writer
from levelfield.datasets.sources import Dataset, Remote, Say, check, find, opened, places, read
from levelfield.errors import DataError

Arrays = dict[str, npt.NDArray[Any]]

# The same files are handed out packed in more than one way: the unpacked content is checked.
_FASHION_MNIST = {
    "train_images": ("train-images-idx3-ubyte", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    "train_labels": ("train-labels-idx1-ubyte", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    "test_images": ("t10k-images-idx3-ubyte", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    "test_labels": ("t10k-labels-idx1-ubyte", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
}


def read_fashion_mnist(source: Path, *, verify: bool = True) -> Arrays:
    """The four idx files, packed or not. Without ``verify``, any images of that form."""
    arrays = {}
    for name, (file, checksum) in _FASHION_MNIST.items():
        path = find(source, (f"{file}.gz", file), ("fashion-mnist", "FashionMNIST/raw"))
        content = read(path)
        arrays[name] = read_idx(path, content, (28, 28) if "images" in name else ())
        if "labels" in name:
            _check_labels(path, arrays[name], 10)
        if verify:
            check(path, content, f"sha256:{checksum}")
    for part in ("train", "test"):
        images, labels = len(arrays[f"{part}_images"]), len(arrays[f"{part}_labels"])
        if images != labels:
            raise DataError(f"{source}: {images} {part} images, but {labels} labels")
    return arrays


def read_idx(path: Path, content: bytes, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """An idx file of bytes whose examples have the given shape."""
    magic = bytes([0, 0, 8, 1 + len(shape)])  # 8: unsigned bytes; then the number of dimensions
    if not content:
        raise DataError(f"{path}: empty")
    if content[:4] != magic:
        raise DataError(f"{path}: begins with {content[:4].hex()}, an idx file of this kind with {magic.hex()}")
    header = 4 + 4 * (1 + len(shape))
    if len(content) < header:
        raise DataError(f"{path}: truncated in its header")
    dimensions = tuple(int(size) for size in np.frombuffer(content[4:header], ">u4"))
    if dimensions[1:] != shape:
        raise DataError(f"{path}: examples of shape {dimensions[1:]}, expected {shape}")
    expected = header + math.prod(dimensions)
    if len(content) != expected:
        problem = "truncated" if len(content) < expected else "too long"
        raise DataError(f"{path}: {problem} ({len(content)} bytes, its header says {expected})")
    return np.frombuffer(content, np.uint8, offset=header).reshape(dimensions)


class Cifar(NamedTuple):
    """A binary version: records of labels and 32×32 pixels, plane after plane."""

    archive: str
    folder: str
    labels: int  # bytes before the pixels; the last one is the label
    classes: int
    train: Mapping[str, str]  # file → md5
    test: Mapping[str, str]


_CIFAR10 = Cifar(
    archive="cifar-10-binary.tar.gz",
    folder="cifar-10-batches-bin",
    labels=1,
    classes=10,
    train={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    },
    test={"test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d"},
)
_CIFAR100 = Cifar(
    archive="cifar-100-binary.tar.gz",
    folder="cifar-100-binary",
    labels=2,  # coarse, fine
    classes=100,
    train={"train.bin": "6172c7755cfe09b2fe270c85cebc1b15"},
    test={"test.bin": "4499cfba6c016c1be1438163640a0898"},
)


def read_cifar10(source: Path, *, verify: bool = True) -> Arrays:
    return _read_cifar(source, _CIFAR10, verify)


def read_cifar100(source: Path, *, verify: bool = True) -> Arrays:
    """The labels are the fine ones."""
    return _read_cifar(source, _CIFAR100, verify)


def _read_cifar(source: Path, kind: Cifar, verify: bool) -> Arrays:
    checksums = {**kind.train, **kind.test}
    records = {}
    for path, content in _contents(source, kind, list(checksums)):
        records[path.name] = _records(path, content, kind)
        if verify:
            check(path, content, f"md5:{checksums[path.name]}")
    arrays = {}
    for part, files in (("train", kind.train), ("test", kind.test)):
        rows = np.concatenate([records[file] for file in files])
        planes = rows[:, kind.labels :].reshape(-1, 3, 32, 32)
        arrays[f"{part}_images"] = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        arrays[f"{part}_labels"] = rows[:, kind.labels - 1].copy()
    return arrays


def _contents(source: Path, kind: Cifar, files: list[str]) -> Iterator[tuple[Path, bytes]]:
    """Each file with its content, from the unpacked folder or from the archive."""
    short = kind.folder.removesuffix("-batches-bin").removesuffix("-binary")
    for place in places(source, (kind.folder, f"{short}/{kind.folder}")) if source.is_dir() else ():
        if any((place / file).is_file() for file in files):
            for file in files:
                path = find(place, [file])
                yield path, path.read_bytes()
            return
    try:
        archive = find(source, [kind.archive], [short])
    except DataError:
        if not source.exists():
            raise
        raise DataError(f"{source}: holds neither {kind.folder}/{files[0]} nor {kind.archive}") from None
    with opened(archive) as tar:
        members = {Path(member.name).name: member for member in tar if member.isfile()}
        for file in files:
            stream = tar.extractfile(members[file]) if file in members else None
            if stream is None:
                raise DataError(f"{archive}: holds no {file}")
            yield archive / file, stream.read()


def _records(path: Path, content: bytes, kind: Cifar) -> npt.NDArray[np.uint8]:
    size = kind.labels + 3 * 32 * 32
    if not content or len(content) % size:
        raise DataError(f"{path}: truncated ({len(content)} bytes are no whole number of records of {size})")
    rows = np.frombuffer(content, np.uint8).reshape(-1, size)
    _check_labels(path, rows[:, kind.labels - 1], kind.classes)
    return rows


def _check_labels(path: Path, labels: npt.NDArray[np.uint8], classes: int) -> None:
    if wrong := np.flatnonzero(labels >= classes).tolist():
        raise DataError(f"{path}: label {labels[wrong[0]]} of example {wrong[0]} is out of range 0 to {classes - 1}")


def _writing(reader: Callable[[Path], Arrays], checksums: Mapping[str, str]) -> Callable[..., None]:
    def write(source: Path, writer: Writer, sample: bool, say: Say) -> None:
        say(f"reading {source}")
        writer.about["source"] = dict(checksums)
        for name, array in reader(source).items():
            writer.add(name, array)

    return write


_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_TORONTO = "https://www.cs.toronto.edu/~kriz"

FASHION_MNIST = Dataset(
    summary="grey images of clothing, 28×28, 10 classes: 60,000 and 10,000 for testing",
    write=_writing(read_fashion_mnist, dict(_FASHION_MNIST.values())),
    remotes=(
        Remote(f"{_ZALANDO}/train-images-idx3-ubyte.gz", "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Remote(f"{_ZALANDO}/train-labels-idx1-ubyte.gz", "md5:25c81989df183df01b3e8a0aad5dffbe"),
        Remote(f"{_ZALANDO}/t10k-images-idx3-ubyte.gz", "md5:bef4ecab320f06d8554ea6380940ec79"),
        Remote(f"{_ZALANDO}/t10k-labels-idx1-ubyte.gz", "md5:bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    installed=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's dataset-fashion-mnist
)
CIFAR10 = Dataset(
    summary="colour photographs, 32×32, 10 classes: 50,000 and 10,000 for testing",
    write=_writing(read_cifar10, {**_CIFAR10.train, **_CIFAR10.test}),
    remotes=(Remote(f"{_TORONTO}/{_CIFAR10.archive}", "md5:c32a1d4ab5d03f1284b67883e8d87530"),),
)
CIFAR100 = Dataset(
    summary="colour photographs, 32×32, 100 classes: 50,000 and 10,000 for testing",
    write=_writing(read_cifar100, {**_CIFAR100.train, **_CIFAR100.test}),
    remotes=(Remote(f"{_TORONTO}/{_CIFAR100.archive}", "md5:03b5dce01913d631647c71ecec9e9cb8"),),
)
