"""Make the built-in data sets from the publishers' files (see src/levelfield/datasets/embedded/README.md).

python tools/make_embedded_data.py FASHION_MNIST_DIR WAR_AND_PEACE_TXT
"""

from __future__ import annotations

import gzip
import io
import lzma
import sys
import zipfile
from pathlib import Path

import numpy as np

OUT = Path(__file__).resolve().parent.parent / "src/levelfield/datasets/embedded"
TRAIN, VALID, TEST = 10_000, 2_000, 2_000
EXCERPT = 192_000


def read_idx(path: Path) -> np.ndarray:
    """Read a gzipped IDX file, the format of MNIST."""
    content = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(content, ">u4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def halve(images: np.ndarray) -> np.ndarray:
    """Reduce 28×28 images to 14×14 by averaging each 2×2 block, rounded."""
    return np.round(images.reshape(-1, 14, 2, 14, 2).mean((2, 4))).astype(np.uint8)


def fashion_mini(folder: Path) -> None:
    images = read_idx(folder / "train-images-idx3-ubyte.gz")[: TRAIN + VALID]
    labels = read_idx(folder / "train-labels-idx1-ubyte.gz")[: TRAIN + VALID]
    test_images = read_idx(folder / "t10k-images-idx3-ubyte.gz")[:TEST]
    test_labels = read_idx(folder / "t10k-labels-idx1-ubyte.gz")[:TEST]
    arrays = {
        "images": halve(np.concatenate([images, test_images])),
        "labels": np.concatenate([labels, test_labels]),
    }
    # Like np.savez_compressed, but with a fixed timestamp, so that the bytes are the same every time.
    with zipfile.ZipFile(OUT / "fashion_mini.npz", "w") as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            entry = zipfile.ZipInfo(f"{name}.npy", (2017, 8, 25, 0, 0, 0))
            archive.writestr(entry, buffer.getvalue(), zipfile.ZIP_DEFLATED, 9)


def tolstoi_mini(path: Path) -> None:
    text = path.read_bytes().decode("utf-8").replace("\r\n", "\n")
    start = text.index("CHAPTER I")  # skip the publisher's preamble
    (OUT / "tolstoi_mini.txt.xz").write_bytes(
        lzma.compress(text[start : start + EXCERPT].encode(), preset=9 | lzma.PRESET_EXTREME)
    )


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    fashion_mini(Path(sys.argv[1]))
    tolstoi_mini(Path(sys.argv[2]))
    for file in sorted(OUT.iterdir()):
        print(f"{file.name}: {file.stat().st_size:,} bytes")
