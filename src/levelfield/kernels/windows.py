"""Convolutions as matrix products over windows.

A row of the left factor is a window of an image, and a row of the product is a group of adjacent outputs, all of which
the window covers. Neighbors need mostly the same pixels, so a larger group loads each pixel fewer times. In return, the
right factor holds the kernel once per output of the group, with zeros where the window reaches beyond it.

All arrays have a leading axis of slots: images are (slots, images, height, width, channels) and kernels are
(slots, height, width, channels, features). The numbers of channels and features must be powers of two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Axis(NamedTuple):
    """How the windows of a convolution lie along the height or the width."""

    group: int  # outputs that a window covers
    step: int  # pixels from one window to the next
    start: int  # the first pixel of the first window; negative in the padding
    taps: tuple[tuple[int, ...], ...]  # place in the window → output of the group → place in the kernel, or −1

    @property
    def window(self) -> int:
        return len(self.taps)

    @property
    def places(self) -> np.ndarray:
        """Place in the kernel → output of the group → place in the window."""
        taps = np.array(self.taps)
        return np.stack([np.argmax(taps == tap, axis=0) for tap in range(taps.max() + 1)])


def forward_axis(size: int, stride: int, group: int) -> Axis:
    """Return the windows of a convolution with an odd kernel size, padded by half of it."""
    taps = [
        [_tap(place - stride * output, size) for output in range(group)] for place in range(stride * (group - 1) + size)
    ]
    return Axis(group, stride * group, -(size // 2), tuple(map(tuple, taps)))


def padded(axis: Axis, window: int) -> Axis:
    """Enlarge the windows to this size; the kernel does not use what is added."""
    unused = (-1,) * axis.group
    return axis._replace(taps=axis.taps + (unused,) * (window - axis.window))


def backward_axis(size: int, stride: int, group: int) -> Axis:
    """Return the windows of the same convolution's transpose, which maps its outputs' gradients to its inputs'."""
    if group % stride:
        raise ValueError(f"group = {group}: expected a multiple of the stride, {stride}")
    padding = size // 2
    # Output i of the convolution reads input stride · i + tap − padding.
    first, last = -((size - 1 - padding) // stride), (group - 1 + padding) // stride
    taps = [[_tap(output + padding - stride * i, size) for output in range(group)] for i in range(first, last + 1)]
    return Axis(group, group // stride, first, tuple(map(tuple, taps)))


def _tap(place: int, size: int) -> int:
    return place if 0 <= place < size else -1
