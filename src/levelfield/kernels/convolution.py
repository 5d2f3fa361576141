"""Convolutions of many trials at once, with what batch normalization needs fused into them.

``convolution`` also adds a residual and sums its outputs and their squares, from which the next normalization gets its
statistics. If these are known, as in an evaluation, ``activated_convolution`` normalizes its outputs itself.
``input_gradient`` applies the mask of the ReLU before the convolution, and sums what the gradient of the normalization
before that needs.

Each function has a reference beside it, in XLA, with the same arguments. Images are (slots, images, height, width,
channels), kernels are (slots, size, size, channels, features). An image is padded by half the kernel's size. A
stride must divide the height and the width.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from levelfield.kernels import pallas
from levelfield.kernels.windowed_products import Layout, Tile, Tuning, gradient, output_places, product
from levelfield.kernels.windows import backward_axis, forward_axis


class Normalization(NamedTuple):
    """Batch normalization as scale · (x − mean) · inverse + bias, with inverse = 1 / standard deviation.

    All are (slots, channels).
    """

    mean: jax.Array
    inverse: jax.Array
    scale: jax.Array
    bias: jax.Array

    @property
    def affine(self) -> tuple[jax.Array, jax.Array]:
        """The slope and offset of the normalization as one affine function."""
        slope = self.scale * self.inverse
        return slope, self.bias - self.mean * slope


@functools.partial(jax.jit, static_argnames=("stride", "tuning"))  # layers of the same shape share one trace
def convolution(
    x: jax.Array, kernel: jax.Array, residual: jax.Array | None = None, *, stride: int = 1, tuning: Tuning | None = None
) -> tuple[jax.Array, jax.Array]:
    """Convolve images, and add the residual if there is one.

    Also returns the sums of the outputs and of their squares (slots, 2, features), taken before rounding.
    """
    layout, tuning = _forward(x, kernel, stride, tuning)

    def finish(products: jax.Array, tile: Tile, refs: Sequence[Any]) -> Sequence[jax.Array]:
        at, mask = output_places(layout, tile)
        if residual is not None:
            products += pallas.load(refs[0].at[at], mask).astype(jnp.float32)
        pallas.store(refs[len(operands)].at[at], products, mask)
        return products, products * products

    operands = [] if residual is None else [residual.reshape(-1)]
    outputs = [jax.ShapeDtypeStruct((layout.size,), x.dtype)]
    name = f"convolution_{x.shape[-1]}_{kernel.shape[-1]}"
    y, sums = product(name, x, kernel, layout, operands, outputs, finish, 2, tuning)
    return y.reshape(*x.shape[:2], *layout.output), sums


def convolution_reference(
    x: jax.Array, kernel: jax.Array, residual: jax.Array | None = None, *, stride: int = 1
) -> tuple[jax.Array, jax.Array]:
    y = convolve(x, kernel.astype(x.dtype), stride)
    if residual is not None:
        y += residual.astype(jnp.float32)
    return y.astype(x.dtype), jnp.stack([y.sum((1, 2, 3)), jnp.square(y).sum((1, 2, 3))], 1)


@functools.partial(jax.jit, static_argnames=("keep", "stride", "tuning"))
def activated_convolution(
    x: jax.Array,
    kernel: jax.Array,
    normalization: Normalization,
    residual: jax.Array | None = None,
    *,
    keep: bool = False,
    stride: int = 1,
    tuning: Tuning | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """Convolve images, add the residual if there is one, normalize, and apply ReLU.

    Also returns what is normalized if it is to be kept.
    """
    layout, tuning = _forward(x, kernel, stride, tuning)
    affine = jnp.stack(normalization.affine, 1)

    def finish(products: jax.Array, tile: Tile, refs: Sequence[Any]) -> Sequence[jax.Array]:
        at, mask = output_places(layout, tile)
        if residual is not None:
            products += pallas.load(refs[1].at[at], mask).astype(jnp.float32)
        slope, offset = (refs[0][2 * tile.slot + i, :][None, :] for i in range(2))
        normalized = products * slope + offset
        # A maximum would pass over NaN on a GPU, and hide that a trial has diverged.
        stored = [jnp.where(normalized <= 0, 0.0, normalized), products]
        for ref, values in zip(refs[len(operands) :], stored, strict=False):
            pallas.store(ref.at[at], values, mask)
        return ()

    operands = [jnp.tile(affine, (1, 1, layout.copies)).reshape(-1, layout.features)]
    operands += [] if residual is None else [residual.reshape(-1)]
    outputs = [jax.ShapeDtypeStruct((layout.size,), x.dtype)] * (2 if keep else 1)
    name = f"activated_convolution_{x.shape[-1]}_{kernel.shape[-1]}"
    found = product(name, x, kernel, layout, operands, outputs, finish, 0, tuning)
    activated, *kept = (array.reshape(*x.shape[:2], *layout.output) for array in found)
    return activated, kept[0] if keep else None


def activated_convolution_reference(
    x: jax.Array,
    kernel: jax.Array,
    normalization: Normalization,
    residual: jax.Array | None = None,
    *,
    keep: bool = False,
    stride: int = 1,
) -> tuple[jax.Array, jax.Array | None]:
    y = convolve(x, kernel.astype(x.dtype), stride)
    if residual is not None:
        y += residual.astype(jnp.float32)
    slope, offset = map(_wide, normalization.affine)
    return jax.nn.relu(y * slope + offset).astype(x.dtype), y.astype(x.dtype) if keep else None


def _forward(x: jax.Array, kernel: jax.Array, stride: int, tuning: Tuning | None) -> tuple[Layout, Tuning]:
    """Return how the products of a convolution are laid out, and tuned."""
    if kernel.shape[1] != kernel.shape[2] or kernel.shape[1] % 2 == 0:
        raise ValueError(f"kernels of {kernel.shape[1]}×{kernel.shape[2]} pixels: expected squares with odd sides")
    slots, images, *shape, features = *x.shape, kernel.shape[-1]
    height, width = shape[0] // stride, shape[1] // stride
    tuning = (tuning or _tuning("forward", x, kernel, stride)).fitted(height, width)
    axes = (forward_axis(kernel.shape[1], stride, group) for group in tuning.group)
    return Layout(slots, images, tuple(shape), (height, width, features), *axes), tuning


@functools.partial(jax.jit, static_argnames=("stride", "tuning"))
def input_gradient(
    dy: jax.Array,
    kernel: jax.Array,
    x: jax.Array,
    normalization: Normalization,
    *,
    stride: int = 1,
    tuning: Tuning | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the gradient with respect to the normalized x, where y = convolution(relu(normalized x), kernel).

    Also returns its sum, and the sum of its product with (x − mean) · inverse (slots, 2, channels).
    """
    slots, images, height, width, channels = x.shape
    tuning = (tuning or _tuning("input_gradient", x, kernel, stride)).fitted(height, width, stride)
    axes = (backward_axis(kernel.shape[1], stride, group) for group in tuning.group)
    layout = Layout(slots, images, dy.shape[2:], (height, width, channels), *axes)
    statistics = jnp.stack([*normalization.affine, normalization.mean, normalization.inverse], 1)

    def finish(products: jax.Array, tile: Tile, refs: Sequence[Any]) -> Sequence[jax.Array]:
        x_ref, statistics_ref, out_ref, _ = refs
        at, mask = output_places(layout, tile)
        raw = pallas.load(x_ref.at[at], mask).astype(jnp.float32)
        slope, offset, mean, inverse = (statistics_ref[4 * tile.slot + i, :][None, :] for i in range(4))
        masked = jnp.where(raw * slope + offset > 0, products, 0.0)
        pallas.store(out_ref.at[at], masked, mask)
        return masked, masked * ((raw - mean) * inverse)

    operands = [x.reshape(-1), jnp.tile(statistics, (1, 1, layout.copies)).reshape(-1, layout.features)]
    outputs = [jax.ShapeDtypeStruct((x.size,), x.dtype)]
    name = f"input_gradient_{channels}_{dy.shape[-1]}"
    dz, sums = product(name, dy, kernel, layout, operands, outputs, finish, 2, tuning, backward=True)
    return dz.reshape(x.shape), sums


def input_gradient_reference(
    dy: jax.Array, kernel: jax.Array, x: jax.Array, normalization: Normalization, *, stride: int = 1
) -> tuple[jax.Array, jax.Array]:
    slope, offset, mean, inverse = (_wide(value) for value in (*normalization.affine, *normalization[:2]))
    wide = x.astype(jnp.float32)
    transpose = jax.linear_transpose(lambda z: convolve(z, kernel.astype(x.dtype).astype(jnp.float32), stride), wide)
    masked = jnp.where(wide * slope + offset > 0, transpose(dy.astype(jnp.float32))[0], 0)
    sums = [masked.sum((1, 2, 3)), (masked * (wide - mean) * inverse).sum((1, 2, 3))]
    return masked.astype(x.dtype), jnp.stack(sums, 1)


@functools.partial(jax.jit, static_argnames=("size", "stride", "tuning"))
def kernel_gradient(
    x: jax.Array, dy: jax.Array, *, size: int = 3, stride: int = 1, tuning: Tuning | None = None
) -> jax.Array:
    """Return the gradient with respect to the kernel in float32."""
    slots, images, *shape = x.shape
    output = dy.shape[2:]
    kernel = jax.ShapeDtypeStruct((slots, size, size, shape[-1], output[-1]), x.dtype)
    tuning = (tuning or _tuning("kernel_gradient", x, kernel, stride)).fitted(*output[:2])
    axes = (forward_axis(size, stride, group) for group in tuning.group)
    layout = Layout(slots, images, tuple(shape), output, *axes)

    def load(tile: Tile, refs: Sequence[Any]) -> jax.Array:
        if not tuning.transposed:
            at, mask = output_places(layout, tile)
            return pallas.load(refs[0].at[at], mask)
        feature = tile.slot * layout.features + jnp.arange(layout.features, dtype=jnp.int32)
        group = tile.first + jnp.arange(tuning.rows, dtype=jnp.int32)
        at = feature[:, None] * layout.groups + group[None, :]
        return pallas.load(refs[0].at[at], jnp.broadcast_to(tile.inside[None, :], at.shape))

    if tuning.transposed:
        down, across = tuning.group
        dy = dy.reshape(slots, images, output[0] // down, down, output[1] // across, across, output[2])
        dy = dy.transpose(0, 3, 5, 6, 1, 2, 4)
    return gradient(f"kernel_gradient_{shape[-1]}_{output[-1]}", x, layout, [dy.reshape(-1)], load, tuning)[0]


def kernel_gradient_reference(x: jax.Array, dy: jax.Array, *, size: int = 3, stride: int = 1) -> jax.Array:
    kernel = jnp.zeros((len(x), size, size, x.shape[-1], dy.shape[-1]), jnp.float32)
    transpose = jax.linear_transpose(lambda kernel: convolve(x.astype(jnp.float32), kernel, stride), kernel)
    return transpose(dy.astype(jnp.float32))[0]


def convolve(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Convolve each slot's images, padded by half the kernel's size, into float32."""

    def one(x: jax.Array, kernel: jax.Array) -> jax.Array:
        padding = [(side // 2, side // 2) for side in kernel.shape[:2]]
        names = ("NHWC", "HWIO", "NHWC")
        wide = jnp.float32
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=names, preferred_element_type=wide
        )

    return jax.vmap(one)(x, kernel)


def _wide(value: jax.Array) -> jax.Array:
    """Give (slots, channels) the axes of images."""
    return value[:, None, None, None, :]


def _tuning(kind: str, x: jax.Array, kernel: Any, stride: int) -> Tuning:
    """Return the tuning of a kernel of this kind and size."""
    table = _BF16 if x.dtype == jnp.bfloat16 else _FLOAT32
    channels = min(64, max(16, x.shape[-1], kernel.shape[-1] // stride**2))
    return table.get((f"{kind}/{stride}", channels)) or table[kind, channels]


# (kind, or kind/stride; channels) → tuning: the fastest that benchmarks/kernels.py found on an H200.
_BF16 = {
    ("forward", 16): Tuning((2, 2), stages=3, loop="rows"),
    ("forward", 32): Tuning((2, 2), run=1, stages=3, loop="blocks"),
    ("forward", 64): Tuning((1, 2), run=1, stages=3, loop="blocks"),
    ("forward/2", 16): Tuning(run=2, stages=3, loop="rows"),
    ("forward/2", 32): Tuning(run=2, stages=3, loop="blocks"),
    ("input_gradient", 16): Tuning((2, 2), stages=3, loop="rows"),
    ("input_gradient", 32): Tuning(run=2, stages=3, loop="blocks"),
    ("input_gradient", 64): Tuning(run=1, stages=3, loop="blocks"),
    ("input_gradient/2", 16): Tuning((2, 2), tiles=4, run=2),
    ("input_gradient/2", 32): Tuning((2, 2), run=1, warps=8, stages=3, loop="blocks"),
    ("kernel_gradient", 16): Tuning((2, 2), rows=32, stages=3, window_rows=4),
    ("kernel_gradient", 32): Tuning((1, 2), rows=32, warps=8, stages=3, window_rows=3),
    ("kernel_gradient", 64): Tuning(rows=32, run=2, warps=8, stages=3, window_rows=3),
    ("kernel_gradient/2", 16): Tuning(rows=64, run=1, stages=2, window_rows=3),
    ("kernel_gradient/2", 32): Tuning(rows=64, run=2, stages=3),
}
_FLOAT32 = {
    ("forward", 16): Tuning((2, 2), run=2, stages=2, loop="blocks", transposed=True),
    ("forward", 32): Tuning(run=1, stages=3, loop="blocks", transposed=True),
    ("forward", 64): Tuning(run=1, stages=3, loop="blocks", transposed=True),
    ("forward/2", 16): Tuning(run=1, stages=3, loop="blocks", transposed=True),
    ("forward/2", 32): Tuning(run=1, warps=8, stages=3, loop="blocks", transposed=True),
    ("input_gradient", 16): Tuning((1, 2), run=1, stages=3, loop="blocks", transposed=True),
    ("input_gradient", 32): Tuning(run=1, stages=3, loop="blocks"),
    ("input_gradient", 64): Tuning(run=1, stages=3, loop="blocks", transposed=True),
    ("input_gradient/2", 16): Tuning((2, 2), run=1, stages=3, loop="blocks", transposed=True),
    ("input_gradient/2", 32): Tuning((2, 2), run=1, warps=8, transposed=True),
    ("kernel_gradient", 16): Tuning((2, 2), rows=64, window_rows=4),
    ("kernel_gradient", 32): Tuning((1, 2), rows=32, stages=3, window_rows=3),
    ("kernel_gradient", 64): Tuning(rows=64, run=2),
    ("kernel_gradient/2", 16): Tuning(rows=64, run=2),
    ("kernel_gradient/2", 32): Tuning(rows=32, run=2, stages=3),
}
