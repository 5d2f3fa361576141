"""Products of windows and kernels, which all convolutions are made of: see ``windows``.

``product`` multiplies windows by right factors and hands tiles of the product to a function that finishes and stores
them. ``gradient`` multiplies transposed windows by gradients of the product, for the gradients of kernels.

Each program works on a part of one slot, so the results of a slot depend neither on the others nor, beyond rounding, on
their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from levelfield.kernels import pallas
from levelfield.kernels.factors import collected, right_factors
from levelfield.kernels.windows import Axis

_MANY_SLOTS = 64  # these keep a large GPU busy with few parts of a sum
_MORE_PARTS = 4  # times as many, at most, with fewer slots


class Tuning(NamedTuple):
    """How a kernel divides its work. This changes its speed, and its results by rounding only."""

    group: tuple[int, int] = (1, 1)  # outputs, down and across, that share a window
    rows: int = 128  # groups multiplied at once: a tile
    tiles: int = 1  # that a program computes, one after the other, with the same right factor
    run: int = 4  # the most neighboring places of a window multiplied at once; if more than a row, whole rows
    warps: int = 4
    stages: int = 1
    loop: str = ""  # over the "rows" or the "blocks" of a window, to save registers; if empty, all is unrolled
    transposed: bool = False  # whether the right factor is stored transposed, as tensor cores want it in TF32
    ahead: bool = False  # whether a kernel's gradient loads the next tile before it multiplies one
    parts: int = 4  # of the batch, for a kernel's gradient with many slots; with fewer, it has more
    window_rows: int = 1  # that a program of a kernel's gradient holds

    def fitted(self, height: int, width: int, stride: int = 1) -> Tuning:
        """Use the smallest groups along a side that the tuned ones do not divide."""
        down, across = (
            group if group % stride == 0 and side % group == 0 else stride
            for group, side in zip(self.group, (height, width), strict=True)
        )
        return self._replace(group=(down, across))


class Layout(NamedTuple):
    """The outputs of a convolution, in groups, and the images whose windows they come from."""

    slots: int
    images: int  # per slot
    input: tuple[int, int, int]  # height, width and channels of an image
    output: tuple[int, int, int]
    rows: Axis
    columns: Axis

    @property
    def across(self) -> int:
        """Groups in a row of an image."""
        return self.output[1] // self.columns.group

    @property
    def groups(self) -> int:
        """Groups in a slot."""
        return self.images * self.output[0] // self.rows.group * self.across

    @property
    def copies(self) -> int:
        """Outputs in a group."""
        return self.rows.group * self.columns.group

    @property
    def features(self) -> int:
        """Features of a group."""
        return self.copies * self.output[2]

    @property
    def size(self) -> int:
        """Numbers in all outputs."""
        return self.slots * self.groups * self.features

    @property
    def window(self) -> int:
        """Numbers in a window."""
        return self.rows.window * self.columns.window * self.input[2]


class Tile(NamedTuple):
    """Some groups of one slot, one after the other: the rows of a tile of a product."""

    slot: Any
    first: Any  # group
    image: jax.Array  # of each group, counted over all slots
    row: jax.Array  # in groups
    column: jax.Array
    inside: jax.Array  # whether the slot has this group


class Block(NamedTuple):
    """A part of all windows, contiguous in the right factor."""

    row: int
    column: int
    height: int
    width: int


def blocks(rows: int, columns: int, run: int) -> list[Block]:
    """Cut windows into blocks with powers of two as sides: parts of a row, or whole rows if these fit into a run."""
    if run >= 2 * columns:
        return [Block(row, 0, height, columns) for row, height in _powers(rows, run // columns)]
    return [Block(row, column, 1, width) for row in range(rows) for column, width in _powers(columns, run)]


def _powers(length: int, longest: int) -> list[tuple[int, int]]:
    """Cut a length into powers of two, each with the place where it starts."""
    found, first = [], 0
    while first < length:
        found.append((first, min(1 << (longest.bit_length() - 1), 1 << ((length - first).bit_length() - 1))))
        first += found[-1][1]
    return found


def tile_at(layout: Layout, slot: Any, number: Any, size: int, numbers: int) -> Tile:
    """Return the tile with this number, of ``size`` groups; a slot has ``numbers`` tiles."""
    first = number * size
    group = first + jnp.arange(size, dtype=jnp.int32)
    per_image = layout.groups // layout.images
    image, place = lax.div(group, per_image), lax.rem(group, per_image)
    inside = jnp.ones(size, bool) if size * numbers == layout.groups else group < layout.groups
    row, column = lax.div(place, layout.across), lax.rem(place, layout.across)
    return Tile(slot, first, slot * layout.images + image, row, column, inside)


def output_places(layout: Layout, tile: Tile) -> tuple[jax.Array, jax.Array]:
    """Return where a tile's outputs are in memory (groups × features of a group), and which of them exist."""
    (height, width, features), down, across = layout.output, layout.rows.group, layout.columns.group
    first = ((tile.image * height + tile.row * down) * width + tile.column * across) * features
    feature = jnp.arange(layout.features, dtype=jnp.int32)
    line = across * features  # a group's outputs in one row of the image are contiguous
    within = lax.div(feature, line) * (width * features) + lax.rem(feature, line)
    at = first[:, None] + within[None, :]
    return at, jnp.broadcast_to(tile.inside[:, None], at.shape)


def load_windows(ref: Any, layout: Layout, tile: Tile, block: Block, row: Any = 0, column: Any = 0) -> jax.Array:
    """Load a block of each group's window, moved down and right, with zeros outside the image."""
    height, width, channels = layout.input
    y = tile.row * layout.rows.step + layout.rows.start + block.row + row
    x = tile.column * layout.columns.step + layout.columns.start + block.column + column
    element = jnp.arange(block.height * block.width * channels, dtype=jnp.int32)
    line = block.width * channels
    down, along = lax.div(element, line), lax.rem(element, line)
    mask = jnp.broadcast_to(tile.inside[:, None], (len(y), len(element)))
    if _leaves(layout.rows, height, layout.output[0]):
        rows = y[:, None] + down[None, :] if block.height > 1 else y[:, None]
        mask &= (rows >= 0) & (rows < height)
    if _leaves(layout.columns, width, layout.output[1]):
        columns = x[:, None] + lax.div(along, channels)[None, :] if block.width > 1 else x[:, None]
        mask &= (columns >= 0) & (columns < width)
    first = ((tile.image * height + y) * width + x) * channels
    return pallas.load(ref.at[first[:, None] + (down * (width * channels) + along)[None, :]], mask)


def _leaves(axis: Axis, length: int, outputs: int) -> bool:
    """Whether some windows leave the image."""
    last = axis.start + (outputs // axis.group - 1) * axis.step
    return axis.start < 0 or last + axis.window > length


Finish = Callable[[jax.Array, Tile, Sequence[Any]], Sequence[jax.Array]]


def product(
    name: str,
    x: jax.Array,
    kernel: jax.Array,
    layout: Layout,
    operands: Sequence[jax.Array],
    outputs: Sequence[Any],
    finish: Finish,
    sums: int,
    tuning: Tuning,
    backward: bool = False,
) -> list[jax.Array]:
    """Return what ``finish(products, tile, references)`` stores, and the sums of what it returns.

    The references are those of the operands and of the outputs, whose shapes are given. The sums are over all groups of
    a slot and the outputs in each (slots, sums, features). ``backward`` swaps the kernel's channels and features.
    """
    programs = -(-layout.groups // (tuning.rows * tuning.tiles))  # per slot
    columns = layout.columns.window
    if tuning.loop == "blocks":
        cut = [Block(0, 0, 1, math.gcd(columns, tuning.run))]
        repeats = layout.rows.window * (columns // cut[0].width)
    elif tuning.loop == "rows":
        cut, repeats = blocks(1, columns, tuning.run), layout.rows.window
    else:
        cut, repeats = blocks(layout.rows.window, columns, tuning.run), 1
    channels, stored = layout.input[2], sums
    shapes = [*outputs]
    if sums:
        shapes.append(jax.ShapeDtypeStruct((layout.slots * programs * sums, layout.output[2]), jnp.float32))

    def program(x_ref: Any, matrix_ref: Any, *refs: Any) -> None:
        number = pallas.number()
        slot, part = lax.div(number, programs), lax.rem(number, programs)

        def factor(block: Block, row: Any = 0, column: Any = 0) -> jax.Array:
            place = ((row + block.row) * columns + column + block.column) * channels
            length = block.height * block.width * channels
            if tuning.transposed:
                return matrix_ref[pallas.part(slot * layout.features, layout.features), pallas.part(place, length)]
            return matrix_ref[pallas.part(slot * layout.window + place, length), :]

        # Several tiles share the right factor, which then stays in the processor.
        kept = [factor(block) for block in cut] if tuning.tiles > 1 and not tuning.loop else None

        def compute(i: Any, totals: Any) -> Any:
            tile = tile_at(layout, slot, part * tuning.tiles + i, tuning.rows, programs * tuning.tiles)

            def add(step: Any, products: jax.Array) -> jax.Array:
                across = columns // cut[0].width if tuning.loop == "blocks" else 1  # steps per row
                row, column = (lax.div(step, across), lax.rem(step, across) * cut[0].width) if across > 1 else (step, 0)
                for n, block in enumerate(cut):
                    left = load_windows(x_ref, layout, tile, block, row, column)
                    right = kept[n] if kept else factor(block, row, column)
                    products += pallas.dot(left, right, transposed=tuning.transposed)
                return products

            zeros = jnp.zeros((tuning.rows, layout.features), jnp.float32)
            products = lax.fori_loop(0, repeats, add, zeros) if tuning.loop else add(0, zeros)
            return tuple(a + b.sum(0) for a, b in zip(totals, finish(products, tile, refs), strict=True))

        totals = (jnp.zeros(layout.features, jnp.float32),) * stored
        totals = compute(0, totals) if tuning.tiles == 1 else lax.fori_loop(0, tuning.tiles, compute, totals)
        for i, total in enumerate(totals):
            refs[-1][stored * number + i, :] = total.reshape(layout.copies, layout.output[2]).sum(0)

    matrix = right_factors(
        kernel, layout.rows, layout.columns, x.dtype, backward=backward, transposed=tuning.transposed
    )
    results: list[jax.Array] = pallas.call(
        program, grid=(layout.slots * programs,), out_shape=shapes, name=name, warps=tuning.warps, stages=tuning.stages
    )(x.reshape(-1), matrix, *operands)
    if sums:
        results = [*results[:-1], results[-1].reshape(layout.slots, programs, sums, layout.output[2]).sum(1)]
    return results


def gradient(
    name: str,
    x: jax.Array,
    layout: Layout,
    operands: Sequence[jax.Array],
    load: Callable[[Tile, Sequence[Any]], jax.Array],
    tuning: Tuning,
    sums: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Return the kernels' gradients from those of the products, a tile of which ``load(tile, references)`` loads.

    Also return the sums of what is loaded, over all groups of a slot and the outputs in each (slots, features), or
    None.
    """
    held = tuning.window_rows if layout.rows.window % tuning.window_rows == 0 else 1
    cut, shares = blocks(held, layout.columns.window, tuning.run), layout.rows.window // held
    parts = tuning.parts * max(1, min(_MORE_PARTS, _MANY_SLOTS // layout.slots))
    tiles = -(-layout.groups // (tuning.rows * parts))  # per part
    channels, columns = layout.input[2], layout.columns.window
    lengths = [block.height * block.width * channels for block in cut]

    def program(x_ref: Any, *refs: Any) -> None:
        number = pallas.number()
        row = lax.rem(number, shares) * held
        part, slot = lax.rem(lax.div(number, shares), parts), lax.div(number, shares * parts)

        def factors(i: Any) -> tuple[jax.Array, Iterator[jax.Array]]:
            tile = tile_at(layout, slot, part * tiles + i, tuning.rows, parts * tiles)
            return load(tile, refs), (load_windows(x_ref, layout, tile, block, row) for block in cut)

        def add(totals: Any, d: jax.Array, windows: Iterable[jax.Array]) -> Any:
            products, sum_of_d = totals
            products = tuple(
                total + pallas.dot(window.T, d, transposed=tuning.transposed)
                for total, window in zip(products, windows, strict=True)
            )
            return products, sum_of_d + d.astype(jnp.float32) if sums else None

        def load_both(i: Any) -> tuple[jax.Array, tuple[jax.Array, ...]]:
            d, windows = factors(i)
            return d, tuple(windows)

        def add_and_load_next(i: Any, carry: Any) -> Any:
            totals, (d, windows) = carry
            following = load_both(jnp.minimum(i + 1, tiles - 1))
            return add(totals, d, windows), following

        zeros = tuple(jnp.zeros((length, layout.features), jnp.float32) for length in lengths)
        start = zeros, jnp.zeros((tuning.rows, layout.features), jnp.float32) if sums else None
        if tuning.ahead:
            (products, sum_of_d), _ = lax.fori_loop(0, tiles, add_and_load_next, (start, load_both(0)))
        else:
            products, sum_of_d = lax.fori_loop(0, tiles, lambda i, totals: add(totals, *factors(i)), start)
        first = (slot * parts + part) * layout.window
        for product, block, length in zip(products, cut, lengths, strict=True):
            place = ((row + block.row) * columns + block.column) * channels
            refs[len(operands)][pallas.part(first + place, length), :] = product
        if sums:
            refs[-1][number, :] = sum_of_d.sum(0)

    programs = layout.slots * parts * shares
    shapes = [jax.ShapeDtypeStruct((layout.slots * parts * layout.window, layout.features), jnp.float32)]
    shapes += [jax.ShapeDtypeStruct((programs, layout.features), jnp.float32)] * sums
    partial, *sums_of_d = pallas.call(
        program, grid=(programs,), out_shape=shapes, name=name, warps=tuning.warps, stages=tuning.stages
    )(x.reshape(-1), *operands)
    partial = partial.reshape(layout.slots, parts, layout.window, layout.features)
    kernels = collected(partial, layout.rows, layout.columns, channels)
    if not sums:
        return kernels, None
    # Programs that share a part have loaded the same numbers.
    sum_of_d = sums_of_d[0].reshape(layout.slots, parts, shares, layout.copies, layout.output[2])[:, :, 0]
    return kernels, sum_of_d.sum((1, 2))
