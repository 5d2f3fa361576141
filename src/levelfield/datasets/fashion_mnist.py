"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017) from its idx files."""

from __future__ import annotations

from pathlib import Path

from levelfield.datasets.idx import read_idx
from levelfield.datasets.sources import Arrays, Dataset, Remote, array_writer, check_labels, find, read, verify_checksum
from levelfield.errors import DataError

# The files are published in more than one compressed form, so the unpacked content is verified.
_FILES = {
    "train_images": ("train-images-idx3-ubyte", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    "train_labels": ("train-labels-idx1-ubyte", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    "test_images": ("t10k-images-idx3-ubyte", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    "test_labels": ("t10k-labels-idx1-ubyte", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
}
_LARGEST = 16 + 60_000 * 28 * 28  # bytes of an unpacked file
_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"


def read_fashion_mnist(source: Path, *, verify: bool = True) -> Arrays:
    """Read the four idx files, compressed or not. Without ``verify``, accept any images of that form."""
    arrays: Arrays = {}
    for name, (file, checksum) in _FILES.items():
        path = find(source, (f"{file}.gz", file), ("fashion-mnist", "FashionMNIST/raw"))
        content = read(path, _LARGEST)
        arrays[name] = read_idx(path, content, (28, 28) if "images" in name else ())
        if "labels" in name:
            check_labels(path, arrays[name], 10)
        if verify:
            verify_checksum(path, content, f"sha256:{checksum}")
    for part in ("train", "test"):
        images, labels = len(arrays[f"{part}_images"]), len(arrays[f"{part}_labels"])
        if images != labels:
            raise DataError(f"{source}: {images} {part} images, but {labels} labels")
    return arrays


DATASET = Dataset(
    summary="grayscale images of clothing, 28×28, 10 classes: 60,000 for training and 10,000 for testing",
    write=array_writer(read_fashion_mnist, dict(_FILES.values())),
    remotes=(
        Remote(f"{_URL}/train-images-idx3-ubyte.gz", "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Remote(f"{_URL}/train-labels-idx1-ubyte.gz", "md5:25c81989df183df01b3e8a0aad5dffbe"),
        Remote(f"{_URL}/t10k-images-idx3-ubyte.gz", "md5:bef4ecab320f06d8554ea6380940ec79"),
        Remote(f"{_URL}/t10k-labels-idx1-ubyte.gz", "md5:bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    installed=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's package dataset-fashion-mnist
)
