"""Convolutions of many trials at once, with what batch normalization needs fused into them.

``convolution`` also adds a residual and sums its outputs and their squares, from which the next normalization gets its
statistics. ``input_gradient`` applies the mask of the ReLU before the convolution, and sums what the gradient of the
normalization before that needs. ``kernel_gradient`` adds up over fixed parts of a batch. No result depends on the
number of slots.

Each function has a reference beside it, in XLA, with the same arguments. For shapes, see ``windows``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from levelfield.kernels import pallas
from levelfield.kernels.windows import (
    Axis,
    Layout,
    backward_axis,
    check,
    forward_axis,
    kernels,
    load_windows,
    matrices,
    runs,
)


class Tuning(NamedTuple):
    """How a kernel divides its work. This changes its speed, and its results by rounding only."""

    group: tuple[int, int] = (1, 1)  # outputs, down and across, that share a window
    rows: int = 128  # groups multiplied at once: a tile
    tiles: int = 1  # that a program computes, one after the other, with the same right factor
    run: int = 4  # neighboring places of a window multiplied at once, at most
    warps: int = 4
    stages: int = 1
    parts: int = 16  # of the batch, for the kernel's gradient
    window_rows: int = 1  # that a program of the kernel's gradient holds


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
        """The slope and offset of the same as one affine function."""
        slope = self.scale * self.inverse
        return slope, self.bias - self.mean * slope


@functools.partial(jax.jit, static_argnames=("stride", "tuning"))  # layers of the same shape share one trace
def convolution(
    x: jax.Array, kernel: jax.Array, residual: jax.Array | None = None, *, stride: int = 1, tuning: Tuning | None = None
) -> tuple[jax.Array, jax.Array]:
    """Convolve images, padded by half the kernel's size, and add the residual if there is one.

    Returns also the sums of the outputs and of their squares (slots, 2, features), of before they are rounded.
    """
    tuning = _fitting(tuning or _tuning("forward", x, kernel, stride), x.shape[2] // stride, x.shape[3] // stride, 1)
    rows, columns = (forward_axis(kernel.shape[1], stride, group) for group in tuning.group)

    def finish(products: jax.Array, load: Callable[[Any], jax.Array], slot: Any, refs: Any) -> tuple[jax.Array, ...]:
        if refs:
            products += load(refs[0])
        return products, products, products * products

    operands = [] if residual is None else [residual.reshape(-1)]
    size = x.shape[2] // stride, x.shape[3] // stride
    return _product("convolution", x, kernel, (rows, columns), size, operands, finish, tuning)


def convolution_reference(
    x: jax.Array, kernel: jax.Array, residual: jax.Array | None = None, *, stride: int = 1
) -> tuple[jax.Array, jax.Array]:
    y = _convolve(x, kernel.astype(x.dtype), stride)
    if residual is not None:
        y += residual.astype(jnp.float32)
    return y.astype(x.dtype), jnp.stack([y.sum((1, 2, 3)), jnp.square(y).sum((1, 2, 3))], 1)


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

    Returns also its sum, and the sum of its product with (x − mean) · inverse (slots, 2, channels).
    """
    height, width = x.shape[2:4]
    tuning = _fitting(tuning or _tuning("input_gradient", x, kernel, stride), height, width, stride)
    rows, columns = (backward_axis(kernel.shape[1], stride, group) for group in tuning.group)
    channels, copies = x.shape[-1], tuning.group[0] * tuning.group[1]
    statistics = jnp.stack([*normalization.affine, normalization.mean, normalization.inverse], 1)

    def finish(products: jax.Array, load: Callable[[Any], jax.Array], slot: Any, refs: Any) -> tuple[jax.Array, ...]:
        x_ref, statistics_ref = refs
        raw = load(x_ref)
        slope, offset, mean, inverse = (statistics_ref[4 * slot + i, :][None, :] for i in range(4))
        masked = jnp.where(raw * slope + offset > 0, products, 0.0)
        return masked, masked, masked * ((raw - mean) * inverse)

    operands = [x.reshape(-1), jnp.tile(statistics, (1, 1, copies)).reshape(-1, copies * channels)]
    transposed = kernel.swapaxes(3, 4)
    return _product("input_gradient", dy, transposed, (rows, columns), (height, width), operands, finish, tuning)


def input_gradient_reference(
    dy: jax.Array, kernel: jax.Array, x: jax.Array, normalization: Normalization, *, stride: int = 1
) -> tuple[jax.Array, jax.Array]:
    slope, offset, mean, inverse = (_wide(value) for value in (*normalization.affine, *normalization[:2]))
    wide = x.astype(jnp.float32)
    transpose = jax.linear_transpose(lambda z: _convolve(z, kernel.astype(x.dtype).astype(jnp.float32), stride), wide)
    masked = jnp.where(wide * slope + offset > 0, transpose(dy.astype(jnp.float32))[0], 0)
    sums = [masked.sum((1, 2, 3)), (masked * (wide - mean) * inverse).sum((1, 2, 3))]
    return masked.astype(x.dtype), jnp.stack(sums, 1)


@functools.partial(jax.jit, static_argnames=("size", "stride", "tuning"))
def kernel_gradient(
    x: jax.Array, dy: jax.Array, *, size: int = 3, stride: int = 1, tuning: Tuning | None = None
) -> jax.Array:
    """Return the gradient with respect to the kernel (slots, size, size, channels, features) in float32."""
    check(x, dy)
    slots, images, *shape = x.shape
    height, width, features = dy.shape[2:]
    kernel = jax.ShapeDtypeStruct((slots, size, size, shape[-1], features), x.dtype)
    tuning = _fitting(tuning or _tuning("kernel_gradient", x, kernel, stride), height, width, 1)
    rows, columns = (forward_axis(size, stride, group) for group in tuning.group)
    layout = Layout(images, height, width, features, rows, columns)
    held = tuning.window_rows if rows.window % tuning.window_rows == 0 else 1
    cuts, shares = runs(columns.window, tuning.run), rows.window // held
    tiles = -(-layout.groups // (tuning.rows * tuning.parts))  # per part
    programs = slots * tuning.parts * shares

    def program(x_ref: Any, dy_ref: Any, out_ref: Any) -> None:
        number = pl.program_id(0)
        share, part = lax.rem(number, shares), lax.rem(lax.div(number, shares), tuning.parts)
        slot = lax.div(number, shares * tuning.parts)

        def tile(i: Any, totals: Any) -> Any:
            groups = layout.tile(slot, part * tiles + i, tuning.rows, tuning.parts * tiles)
            at, mask = layout.outputs(groups)
            d = pallas.load(dy_ref.at[at], mask)
            windows = (
                load_windows(x_ref, shape, layout, groups, share * held + row, run)
                for row in range(held)
                for run in cuts
            )
            return tuple(total + pallas.dot(window.T, d) for total, window in zip(totals, windows, strict=True))

        zeros = [jnp.zeros((length * shape[-1], layout.group_features), jnp.float32) for _, length in cuts]
        totals = lax.fori_loop(0, tiles, tile, tuple(zeros * held))
        for i, total in enumerate(totals):
            row, (first, length) = share * held + i // len(cuts), cuts[i % len(cuts)]
            place = ((slot * tuning.parts + part) * rows.window + row) * columns.window + first
            out_ref[pallas.part(place * shape[-1], length * shape[-1]), :] = total

    lines = rows.window * columns.window * shape[-1]
    partial = pallas.call(
        program,
        grid=(programs,),
        out_shape=jax.ShapeDtypeStruct((slots * tuning.parts * lines, layout.group_features), jnp.float32),
        name=f"kernel_gradient_{shape[-1]}_{features}",
        warps=tuning.warps,
        stages=tuning.stages,
    )(x.reshape(-1), dy.reshape(-1))
    total = partial.reshape(slots, tuning.parts, lines, layout.group_features).sum(1)
    return kernels(total, rows, columns, shape[-1])


def kernel_gradient_reference(x: jax.Array, dy: jax.Array, *, size: int = 3, stride: int = 1) -> jax.Array:
    kernel = jnp.zeros((len(x), size, size, x.shape[-1], dy.shape[-1]), jnp.float32)
    transpose = jax.linear_transpose(lambda kernel: _convolve(x.astype(jnp.float32), kernel, stride), kernel)
    return transpose(dy.astype(jnp.float32))[0]


def _product(
    name: str,
    x: jax.Array,
    kernel: jax.Array,
    axes: tuple[Axis, Axis],
    size: tuple[int, int],
    operands: list[jax.Array],
    finish: Callable[..., tuple[jax.Array, ...]],
    tuning: Tuning,
) -> tuple[jax.Array, jax.Array]:
    """Multiply windows of x by the kernel; return outputs of this size and the sums of two arrays.

    ``finish(products, load, slot, refs)`` returns a tile of the output and of the two arrays. It gets references to the
    operands, and a function that loads the same tile of one of them.
    """
    slots, images, *shape = x.shape
    features, (rows, columns) = kernel.shape[-1], axes
    layout = Layout(images, *size, features, rows, columns)
    copies, cuts = rows.group * columns.group, runs(columns.window, tuning.run)
    programs = -(-layout.groups // (tuning.rows * tuning.tiles))  # per slot
    shapes = [
        jax.ShapeDtypeStruct((slots * images * size[0] * size[1] * features,), x.dtype),
        jax.ShapeDtypeStruct((slots * programs * 2, layout.group_features), jnp.float32),
    ]
    check(x, *operands, *shapes)

    def program(x_ref: Any, matrix_ref: Any, *refs: Any) -> None:
        *operand_refs, out_ref, sums_ref = refs
        number = pl.program_id(0)
        slot, part = lax.div(number, programs), lax.rem(number, programs)

        def factor(row: int, run: tuple[int, int]) -> jax.Array:
            place = (slot * rows.window + row) * columns.window + run[0]
            return matrix_ref[pallas.part(place * shape[-1], run[1] * shape[-1]), :]

        blocks = [(row, run) for row in range(rows.window) for run in cuts]
        # Several tiles share the right factor, which then stays in the processor.
        kept = [factor(*block) for block in blocks] if tuning.tiles > 1 else None

        def tile(i: Any, sums: Any) -> Any:
            groups = layout.tile(slot, part * tuning.tiles + i, tuning.rows, programs * tuning.tiles)
            products = jnp.zeros((tuning.rows, layout.group_features), jnp.float32)
            for n, (row, run) in enumerate(blocks):
                window = load_windows(x_ref, shape, layout, groups, row, run)
                products += pallas.dot(window, kept[n] if kept else factor(row, run))
            at, mask = layout.outputs(groups)

            def load(ref: Any) -> jax.Array:
                return pallas.load(ref.at[at], mask).astype(jnp.float32)

            out, one, two = finish(products, load, slot, operand_refs)
            pallas.store(out_ref.at[at], out, mask)
            return sums[0] + one.sum(0), sums[1] + two.sum(0)

        zero = jnp.zeros(layout.group_features, jnp.float32)
        sums = tile(0, (zero, zero)) if tuning.tiles == 1 else lax.fori_loop(0, tuning.tiles, tile, (zero, zero))
        for i in range(2):
            sums_ref[2 * number + i, :] = sums[i]

    out, sums = pallas.call(
        program,
        grid=(slots * programs,),
        out_shape=shapes,
        name=f"{name}_{shape[-1]}_{features}",
        warps=tuning.warps,
        stages=tuning.stages,
    )(
        x.reshape(-1),
        matrices(kernel, rows, columns).astype(x.dtype).reshape(-1, layout.group_features),
        *operands,
    )
    sums = sums.reshape(slots, programs, 2, copies, features).sum((1, 3))
    return out.reshape(slots, images, *size, features), sums


def _convolve(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
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


def _fitting(tuning: Tuning, height: int, width: int, stride: int) -> Tuning:
    """Use the smallest groups along a side that the tuned ones do not divide."""
    down, across = (
        group if group % stride == 0 and side % group == 0 else stride
        for group, side in zip(tuning.group, (height, width), strict=True)
    )
    return tuning._replace(group=(down, across))


def _tuning(kind: str, x: jax.Array, kernel: Any, stride: int) -> Tuning:
    """Return what was fastest on an H200 for a kernel of this kind and size."""
    table = _BF16 if x.dtype == jnp.bfloat16 else _FLOAT32
    channels = min(64, max(16, x.shape[-1], kernel.shape[-1] // stride**2))
    return table.get((f"{kind}/{stride}", channels)) or table[kind, channels]


# (kind, or kind/stride; channels) → what was fastest
_BF16 = {
    ("forward", 16): Tuning((2, 2), rows=64, tiles=4),
    ("forward", 32): Tuning((1, 2), rows=64, tiles=2),
    ("forward", 64): Tuning((1, 1), rows=128, run=1),
    ("forward/2", 16): Tuning(run=2),
    ("forward/2", 32): Tuning(run=1),
    ("input_gradient", 16): Tuning((2, 2), rows=64, tiles=4),
    ("input_gradient", 32): Tuning((1, 2), rows=64, tiles=2),
    ("input_gradient/2", 16): Tuning((2, 2), rows=64, run=2),
    ("input_gradient/2", 32): Tuning((2, 2), rows=64, run=1),
    ("kernel_gradient/2", 16): Tuning(rows=64, run=1, window_rows=3, stages=2),
    ("kernel_gradient/2", 32): Tuning(rows=64, run=1, stages=2),
    ("input_gradient", 64): Tuning((1, 1), rows=128, run=1),
    ("kernel_gradient", 16): Tuning((2, 2), rows=64, window_rows=4, warps=8, stages=3),
    ("kernel_gradient", 32): Tuning((1, 2), rows=64, window_rows=3, warps=8, stages=3),
    ("kernel_gradient", 64): Tuning((1, 1), rows=32, run=1, stages=4),
}
_FLOAT32 = {
    ("forward", 16): Tuning((2, 2), rows=64),
    ("forward", 32): Tuning((1, 2), rows=64),
    ("forward", 64): Tuning((1, 1), rows=128, run=1),
    ("forward/2", 16): Tuning(run=2),
    ("forward/2", 32): Tuning(run=1),
    ("input_gradient", 16): Tuning((2, 2), rows=64),
    ("input_gradient", 32): Tuning((1, 2), rows=64),
    ("input_gradient/2", 16): Tuning((2, 2), rows=64, run=2),
    ("input_gradient/2", 32): Tuning((2, 2), rows=64, run=1),
    ("kernel_gradient/2", 16): Tuning(rows=32, run=1, stages=2),
    ("kernel_gradient/2", 32): Tuning(rows=32, run=1, stages=2),
    ("input_gradient", 64): Tuning((1, 1), rows=128, run=1),
    ("kernel_gradient", 16): Tuning((2, 2), rows=32, window_rows=2, stages=2),
    ("kernel_gradient", 32): Tuning((1, 2), rows=32, window_rows=1, stages=2),
    ("kernel_gradient", 64): Tuning((1, 1), rows=32, run=1, stages=4),
}
