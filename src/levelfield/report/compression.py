"""Columns of many numbers, compressed for the page; outcomes.js decompresses them."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

ROUNDED_DIGITS = 5  # that ``rounded`` keeps
_DROPPED_BITS = 9  # of the 23 of a float32's fraction


def compressed(values: np.ndarray) -> dict[str, Any]:
    """Return float32 or float64 numbers as text.

    Bytes of the same significance are put side by side ("planes") if that takes less space.
    """
    numbers = values.astype(values.dtype.newbyteorder("<"))
    size = numbers.itemsize
    planes = np.frombuffer(numbers.tobytes(), np.uint8).reshape(-1, size).T
    by_number, by_plane = zlib.compress(numbers.tobytes()), zlib.compress(planes.tobytes())
    shorter = min(by_number, by_plane, key=len)
    return {"size": size, "planes": shorter is by_plane, "data": base64.b64encode(shorter).decode()}


def rounded(values: np.ndarray) -> np.ndarray:
    """Round float32 numbers to what a chart shows, in the binary system: such numbers compress well.

    >>> rounded(np.array([0.1, 3.0], np.float32)).tolist()
    [0.09999847412109375, 3.0]
    """
    bits = values.astype("<f4").view("<u4")
    half = np.uint32(1 << (_DROPPED_BITS - 1))
    return (bits + half >> _DROPPED_BITS << _DROPPED_BITS).view("<f4")
