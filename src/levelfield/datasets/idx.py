"""The idx format, in which MNIST and its relatives are published."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from levelfield.errors import DataError


def read_idx(path: Path, content: bytes, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Decode an idx file of bytes whose examples have the given shape. ``path`` is named in errors."""
    magic = bytes([0, 0, 8, 1 + len(shape)])  # 8: unsigned bytes; then the number of dimensions
    if not content:
        raise DataError(f"{path}: empty")
    if content[:4] != magic:
        raise DataError(
            f"{path}: starts with {content[:4].hex()}; expected {magic.hex()}, the start of such an idx file"
        )
    header = 4 + 4 * (1 + len(shape))
    if len(content) < header:
        raise DataError(f"{path}: truncated in its header")
    dimensions = tuple(int(size) for size in np.frombuffer(content[4:header], ">u4"))
    if dimensions[1:] != shape:
        raise DataError(f"{path}: examples of shape {dimensions[1:]}; expected {shape}")
    expected = header + math.prod(dimensions)
    if len(content) != expected:
        problem = "truncated" if len(content) < expected else "too long"
        raise DataError(f"{path}: {problem} ({len(content)} bytes; expected {expected} by its header)")
    return np.frombuffer(content, np.uint8, offset=header).reshape(dimensions)
