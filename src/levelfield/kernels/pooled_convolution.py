"""Convolutions of many trials at once, followed by 2×2 max pooling, bias and ReLU, in one kernel.

The result of the convolution, which is four times as large as the pooled one, is never stored. For the gradient, four
bits per pooled output say which of its window's outputs reached the maximum; all are zero where ReLU is inactive.

Each function has a reference beside it, in XLA. For shapes, see ``convolution``; heights and widths must be even.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from levelfield.kernels import convolution, pallas
from levelfield.kernels.convolution import convolve
from levelfield.kernels.windowed_products import Layout, Tile, Tuning, gradient, output_places, product
from levelfield.kernels.windows import Axis, backward_axis, forward_axis, padded

_PIXELS = 8  # the side of a window of images with one channel
_SPREAD = 2048  # pooled outputs that a program spreads


@functools.partial(jax.jit, static_argnames="tuning")
def pooled_convolution(
    x: jax.Array, kernel: jax.Array, bias: jax.Array, *, tuning: Tuning | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return relu(maximum + bias) and, as bytes of the same shape, the bits of the outputs that are the maximum.

    Bit 2 · row + column stands for the output in this row and column of its window.
    """
    slots, images, height, width, _ = x.shape
    features = kernel.shape[-1]
    tuning = tuning or _tuning("forward", x)
    layout, x = _layout(x, kernel, tuning)
    per_row = layout.columns.group / 2  # pooling windows per row of the product

    def finish(products: jax.Array, tile: Tile, refs: Sequence[Any]) -> Sequence[jax.Array]:
        bias_ref, out_ref, winners_ref = refs
        count = int(tuning.rows * per_row)
        windows = products.reshape(count, 4, features)
        # If a group is a pooling window, its outputs are in the order row, column. If it is a column of two rows, two
        # groups make a window, and the order is column, row.
        place = jnp.arange(4, dtype=jnp.int32)
        place = place if per_row == 1 else 2 * (place & 1) + (place >> 1)
        largest = jnp.max(windows, axis=1)
        # Maxima pass over NaN, also that of ReLU, which would hide that a trial has diverged.
        largest = jnp.where(jnp.isnan(windows.sum(1)), jnp.nan, largest)
        biased = largest + bias_ref[tile.slot, :][None, :]
        bits = jnp.sum(jnp.where(windows == largest[:, None, :], (1 << place)[None, :, None], 0), axis=1)
        window = (tile.first if per_row == 1 else lax.div(tile.first, 2)) + jnp.arange(count, dtype=jnp.int32)
        total = images * height * width // 4
        feature = jnp.arange(features, dtype=jnp.int32)
        at = (tile.slot * total + window)[:, None] * features + feature[None, :]
        mask = jnp.broadcast_to((window < total)[:, None], at.shape)
        pallas.store(out_ref.at[at], jnp.where(biased <= 0, 0.0, biased), mask)
        pallas.store(winners_ref.at[at], jnp.where(biased > 0, bits, 0), mask)
        return ()

    size = slots * images * (height // 2) * (width // 2) * features
    outputs = [jax.ShapeDtypeStruct((size,), x.dtype), jax.ShapeDtypeStruct((size,), jnp.int8)]
    name = f"pooled_convolution_{layout.input[2]}_{features}"
    out, winners = product(name, x, kernel, layout, [bias], outputs, finish, 0, tuning)
    shape = (slots, images, height // 2, width // 2, features)
    return out.reshape(shape), winners.reshape(shape)


def pooled_convolution_reference(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
    out, winners = pool(convolve(x, kernel.astype(x.dtype), 1), bias)
    return out.astype(x.dtype), winners


def pool(y: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return what ``pooled_convolution`` returns, from the convolution's result. XLA fuses this into one pass."""
    slots, images, height, width, features = y.shape
    windows = y.reshape(slots, images, height // 2, 2, width // 2, 2, features)
    places = [windows[:, :, :, place // 2, :, place % 2] for place in range(4)]
    largest = functools.reduce(jnp.maximum, places)
    out = jax.nn.relu(largest + bias[:, None, None, None])
    bits = sum(jnp.where(value == largest, 1 << place, 0) for place, value in enumerate(places))
    return out, jnp.where(out > 0, bits, 0).astype(jnp.int8)


def spread(d: jax.Array, winners: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the gradients with respect to the convolution's result and to the bias.

    If several outputs of a window reach the maximum, they share the gradient equally.
    """
    slots, images, height, width, features = d.shape
    total, columns = images * height * width, 1 << (features - 1).bit_length()
    rows = max(1, _SPREAD // columns)
    programs = -(-total // rows)  # per slot

    def program(d_ref: Any, winners_ref: Any, dy_ref: Any, sums_ref: Any) -> None:
        slot, part = lax.div(pallas.number(), programs), lax.rem(pallas.number(), programs)
        place, feature = part * rows + jnp.arange(rows, dtype=jnp.int32), jnp.arange(columns, dtype=jnp.int32)
        window, mask = slot * total + place, (place < total)[:, None] & (feature < features)[None, :]
        at = window[:, None] * features + feature[None, :]
        bits = pallas.load(winners_ref.at[at], mask).astype(jnp.int32)
        passing = jnp.where(bits != 0, pallas.load(d_ref.at[at], mask).astype(jnp.float32), 0.0)
        share = passing / jnp.maximum(_ones(bits), 1).astype(jnp.float32)
        row, column = lax.div(window, width), lax.rem(window, width)  # rows are counted over all images
        for output in range(4):
            pixel = (2 * row + output // 2) * (2 * width) + 2 * column + output % 2
            won = (bits >> output) & 1 == 1
            pallas.store(dy_ref.at[pixel[:, None] * features + feature[None, :]], jnp.where(won, share, 0.0), mask)
        pallas.store(sums_ref.at[pallas.number() * features + feature], passing.sum(0), feature < features)

    dy, sums = pallas.call(
        program,
        grid=(slots * programs,),
        out_shape=[
            jax.ShapeDtypeStruct((4 * d.size,), d.dtype),
            jax.ShapeDtypeStruct((slots * programs * features,), jnp.float32),
        ],
        name="spread",
        warps=4,
    )(d.reshape(-1), winners.reshape(-1))
    return dy.reshape(slots, images, 2 * height, 2 * width, features), sums.reshape(slots, programs, features).sum(1)


def spread_reference(d: jax.Array, winners: jax.Array) -> tuple[jax.Array, jax.Array]:
    slots, images, height, width, features = d.shape
    bits = winners[:, :, :, None, :, None]
    won = (bits >> jnp.arange(4, dtype=jnp.int8).reshape(2, 1, 2, 1)) & 1
    passing = jnp.where(winners != 0, d.astype(jnp.float32), 0)
    share = passing / jnp.maximum(jax.lax.population_count(winners), 1)
    dy = jnp.where(won == 1, share[:, :, :, None, :, None], 0).astype(d.dtype)
    return dy.reshape(slots, images, 2 * height, 2 * width, features), passing.sum((1, 2, 3))


def _ones(bits: jax.Array) -> jax.Array:
    """Count the ones of four bits."""
    return (bits & 1) + ((bits >> 1) & 1) + ((bits >> 2) & 1) + ((bits >> 3) & 1)


@functools.partial(jax.jit, static_argnames="tuning")
def input_gradient(dy: jax.Array, kernel: jax.Array, *, tuning: Tuning | None = None) -> jax.Array:
    """Return the gradient with respect to a convolution's input from that with respect to its result."""
    slots, images, height, width, _ = dy.shape
    channels = kernel.shape[3]
    tuning = (tuning or _tuning("input_gradient", dy)).fitted(height, width)
    axes = (backward_axis(kernel.shape[1], 1, group) for group in tuning.group)
    layout = Layout(slots, images, dy.shape[2:], (height, width, channels), *axes)

    def finish(products: jax.Array, tile: Tile, refs: Sequence[Any]) -> Sequence[jax.Array]:
        at, mask = output_places(layout, tile)
        pallas.store(refs[0].at[at], products, mask)
        return ()

    outputs = [jax.ShapeDtypeStruct((slots * images * height * width * channels,), dy.dtype)]
    name = f"pooled_input_gradient_{channels}_{dy.shape[-1]}"
    (dx,) = product(name, dy, kernel, layout, [], outputs, finish, 0, tuning, backward=True)
    return dx.reshape(*dy.shape[:4], channels)


def input_gradient_reference(dy: jax.Array, kernel: jax.Array) -> jax.Array:
    x = jax.ShapeDtypeStruct((*dy.shape[:4], kernel.shape[3]), jnp.float32)
    transpose = jax.linear_transpose(lambda x: convolve(x, kernel.astype(dy.dtype).astype(jnp.float32), 1), x)
    return transpose(dy.astype(jnp.float32))[0].astype(dy.dtype)


def kernel_gradient(x: jax.Array, dy: jax.Array, *, size: int = 5) -> jax.Array:
    """Return the gradient with respect to the kernel from that with respect to the convolution's result."""
    return convolution.kernel_gradient(x, dy, size=size, tuning=_tuning("kernel_gradient", x))


@functools.partial(jax.jit, static_argnames=("size", "tuning"))
def first_kernel_gradient(
    x: jax.Array, d: jax.Array, winners: jax.Array, *, size: int = 5, tuning: Tuning | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return the gradients with respect to the kernel and the bias from that with respect to the pooled outputs.

    It needs no ``spread``, and is for images with one channel.
    """
    features = d.shape[-1]
    tuning = tuning or _tuning("kernel_gradient", x)
    kernel = jax.ShapeDtypeStruct((len(x), size, size, 1, features), x.dtype)
    layout, x = _layout(x, kernel, tuning)

    def load(tile: Tile, refs: Sequence[Any]) -> jax.Array:
        d_ref, winners_ref, *_ = refs
        window = tile.slot * layout.groups + tile.first + jnp.arange(tuning.rows, dtype=jnp.int32)
        at = window[:, None] * features + jnp.arange(features, dtype=jnp.int32)[None, :]
        mask = jnp.broadcast_to(tile.inside[:, None], at.shape)
        bits = pallas.load(winners_ref.at[at], mask).astype(jnp.int32)
        share = pallas.load(d_ref.at[at], mask).astype(jnp.float32) / jnp.maximum(_ones(bits), 1).astype(jnp.float32)
        won = (bits[:, None, :] >> jnp.arange(4, dtype=jnp.int32)[None, :, None]) & 1
        spread = jnp.where(won == 1, jnp.broadcast_to(share[:, None, :], won.shape), 0.0)
        return spread.reshape(tuning.rows, 4 * features).astype(x.dtype)

    operands = [d.reshape(-1), winners.reshape(-1)]
    name = f"first_kernel_gradient_{features}"
    return gradient(name, x, layout, operands, load, tuning, sums=True)  # type: ignore[return-value]


def _layout(x: jax.Array, kernel: Any, tuning: Tuning) -> tuple[Layout, jax.Array]:
    """Return the layout of a pooled convolution, and its images: padded if they have one channel.

    A row of such an image is too short for a product. Its windows are enlarged to a power of two and taken whole, so
    they must not leave the image.
    """
    slots, images, *shape = x.shape
    if tuning.group not in ((2, 2), (2, 1)):
        raise ValueError(f"group = {tuning.group}: expected a pooling window, (2, 2), or half of one, (2, 1)")
    axes: list[Axis] = [forward_axis(kernel.shape[1], 1, group) for group in tuning.group]
    output = (shape[0], shape[1], kernel.shape[-1])
    if shape[2] == 1:
        if tuning.group != (2, 2) or axes[0].window > _PIXELS:
            raise ValueError(f"images with one channel: expected group = (2, 2) and kernels below {_PIXELS} pixels")
        axes = [padded(axis, _PIXELS) for axis in axes]
        before = -axes[0].start
        x = jnp.pad(x, ((0, 0), (0, 0), *[(before, _PIXELS - 2 - before)] * 2, (0, 0)))
        axes = [axis._replace(start=0) for axis in axes]
    return Layout(slots, images, x.shape[2:], output, *axes), x


def _tuning(kind: str, x: jax.Array) -> Tuning:
    """Return the tuning of a kernel of this kind and size."""
    table = _BF16 if x.dtype == jnp.bfloat16 else _FLOAT32
    return table[kind, x.shape[-1] == 1]


# (kind, whether images have one channel) → tuning: the fastest that benchmarks/kernels.py found on an H200.
_BF16 = {
    ("forward", True): Tuning((2, 2), rows=64, tiles=4, run=64),
    ("forward", False): Tuning((2, 2), warps=8, stages=3, loop="blocks"),
    ("input_gradient", False): Tuning((2, 2), run=1, warps=8, stages=3, loop="blocks"),
    ("kernel_gradient", True): Tuning((2, 2), rows=32, run=64, stages=3, window_rows=8),
    ("kernel_gradient", False): Tuning((1, 2), rows=32, stages=3),
}
_FLOAT32 = {
    ("forward", True): Tuning((2, 2), tiles=4, run=64, warps=8),
    ("forward", False): Tuning((2, 1), run=1, warps=8, stages=3, loop="blocks", transposed=True),
    ("input_gradient", False): Tuning((1, 2), run=1, stages=3, loop="blocks", transposed=True),
    ("kernel_gradient", True): Tuning((2, 2), rows=32, run=64, stages=3, window_rows=8, parts=14),
    ("kernel_gradient", False): Tuning((1, 2), rows=32, warps=8, transposed=True, ahead=True),
}
