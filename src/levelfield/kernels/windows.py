"""Convolutions as matrix products over windows.

A row of the left factor is a window of an image, and a row of the product is a group of adjacent outputs, all of which
the window covers. Neighbors need mostly the same pixels, so a larger group loads each pixel fewer times. In return, the
right factor holds the kernel once per output of the group, with zeros where the window reaches beyond it.

All arrays have a leading axis of slots: images are (slots, images, height, width, channels) and kernels are
(slots, height, width, channels, features). The numbers of channels and features must be powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from levelfield.kernels import pallas


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
    """Cut a convolution with an odd kernel size, padded by half of it."""
    taps = [
        [_tap(place - stride * output, size) for output in range(group)] for place in range(stride * (group - 1) + size)
    ]
    return Axis(group, stride * group, -(size // 2), tuple(map(tuple, taps)))


def backward_axis(size: int, stride: int, group: int) -> Axis:
    """Cut the same convolution's transpose, which maps its outputs' gradients to its inputs'."""
    if group % stride:
        raise ValueError(f"group = {group}: expected a multiple of the stride, {stride}")
    padding = size // 2
    # Output i of the convolution reads input stride · i + tap − padding.
    first, last = -((size - 1 - padding) // stride), (group - 1 + padding) // stride
    taps = [[_tap(output + padding - stride * i, size) for output in range(group)] for i in range(first, last + 1)]
    return Axis(group, group // stride, first, tuple(map(tuple, taps)))


def _tap(place: int, size: int) -> int:
    return place if 0 <= place < size else -1


def matrices(kernel: jax.Array, rows: Axis, columns: Axis) -> jax.Array:
    """Arrange kernels as right factors: (slots, window height · window width · channels, group · features)."""
    slots, *_, channels, features = kernel.shape
    extended = jnp.pad(kernel, ((0, 0), (0, 1), (0, 1), (0, 0), (0, 0)))  # a tap of −1 is the last one: zero
    down, across = np.array(rows.taps), np.array(columns.taps)
    taps = extended[:, down[:, None, :, None], across[None, :, None, :]]
    size = rows.window * columns.window * channels
    return taps.transpose(0, 1, 2, 5, 3, 4, 6).reshape(slots, size, rows.group * columns.group * features)


def kernels(gradients: jax.Array, rows: Axis, columns: Axis, channels: int) -> jax.Array:
    """Return the kernels' gradients from those of the right factors: the sum over the places of each tap."""
    shape = (len(gradients), rows.window, columns.window, channels, rows.group, columns.group, -1)
    gradients = gradients.reshape(shape).transpose(0, 1, 2, 4, 5, 3, 6)
    down, across = rows.places, columns.places
    copies = gradients[
        :,
        down[:, None, :, None],
        across[None, :, None, :],
        np.arange(rows.group)[:, None],
        np.arange(columns.group),
    ]
    return copies.sum((3, 4))


def runs(window: int, longest: int) -> list[tuple[int, int]]:
    """Cut a window's width into runs of a power of two, each a first place and a length."""
    cut, first = [], 0
    while first < window:
        length = min(longest, 1 << ((window - first).bit_length() - 1))
        cut.append((first, length))
        first += length
    return cut


class Tile(NamedTuple):
    """Some groups of outputs of one slot: the rows of a tile of the product."""

    image: jax.Array  # counted over all slots
    row: jax.Array  # of the group, in groups
    column: jax.Array
    inside: jax.Array  # false after a slot's last group


class Layout(NamedTuple):
    """How the groups of outputs of each slot's images are numbered."""

    images: int
    height: int  # of the output
    width: int
    features: int
    rows: Axis
    columns: Axis

    @property
    def groups(self) -> int:
        """Groups per slot."""
        return self.images * self.height * self.width // (self.rows.group * self.columns.group)

    @property
    def group_features(self) -> int:
        return self.rows.group * self.columns.group * self.features

    def tile(self, slot: Any, number: Any, size: int, numbers: int) -> Tile:
        """Return the groups of one of a slot's numbered tiles of this size."""
        down, across = self.height // self.rows.group, self.width // self.columns.group
        group = number * size + jnp.arange(size, dtype=jnp.int32)
        image, place = lax.div(group, down * across), lax.rem(group, down * across)
        inside = jnp.ones(size, bool) if size * numbers == self.groups else group < self.groups
        return Tile(slot * self.images + image, lax.div(place, across), lax.rem(place, across), inside)

    def outputs(self, tile: Tile) -> tuple[jax.Array, jax.Array]:
        """Return where the outputs of a tile's groups are in memory (groups × group features), and a mask."""
        down, across = self.rows.group, self.columns.group
        first = ((tile.image * self.height + tile.row * down) * self.width + tile.column * across) * self.features
        feature = jnp.arange(self.group_features, dtype=jnp.int32)
        line = across * self.features  # a group's outputs in one row of the image are contiguous
        within = lax.div(feature, line) * (self.width * self.features) + lax.rem(feature, line)
        at = first[:, None] + within[None, :]
        return at, jnp.broadcast_to(tile.inside[:, None], at.shape)


def load_windows(
    ref: Any, shape: Sequence[int], layout: Layout, tile: Tile, row: Any, run: tuple[int, int]
) -> jax.Array:
    """Load a run of a row of each group's window (groups × run · channels), with zeros outside the image."""
    height, width, channels = shape
    first, length = run
    y = tile.row * layout.rows.step + layout.rows.start + row
    x = tile.column * layout.columns.step + layout.columns.start + first
    element = jnp.arange(length * channels, dtype=jnp.int32)
    columns = x[:, None] + lax.div(element, channels)[None, :]
    mask = (tile.inside & (y >= 0) & (y < height))[:, None] & (columns >= 0) & (columns < width)
    at = ((tile.image * height + y) * width + x) * channels
    return pallas.load(ref.at[at[:, None] + element[None, :]], mask)


def check(*arrays: Any) -> None:
    """Raise if arrays are too large for 32-bit positions."""
    for array in arrays:
        if math.prod(array.shape) >= 2**31:
            raise ValueError(f"array of shape {array.shape}: expected fewer than 2**31 numbers; use fewer slots")
