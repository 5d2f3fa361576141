"""Dropout, a residual connection, and the layer normalization after it, in one pass over memory.

Arrays are (slots, …, width), and the scale of the normalization is (slots, width). A program works on some rows of one
slot at a time; in the gradient, it adds up what these rows contribute to the gradient of the scale.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from levelfield.kernels import pallas
from levelfield.kernels.dropout import dropped

EPSILON = 1e-5  # added to variances


class Tuning(NamedTuple):
    """How a kernel divides its work. This changes its speed, and its results by rounding only."""

    rows: int = 1  # at a time
    tiles: int = 1  # of rows that a program computes, one after the other
    warps: int = 1


# Among the fastest that benchmarks/kernels.py found on an H200, in both precisions. With many more tiles, a single slot
# would have too few programs to fill the GPU.
_FORWARD = Tuning(tiles=2)
_BACKWARD = Tuning(tiles=16)
_PIECE = 128  # a row is cut into powers of two of at least this many columns, and a rest, which alone is padded


def reference(
    stream: jax.Array | None, branch: jax.Array, noise: jax.Array | None, scale: jax.Array, drop: int
) -> tuple[jax.Array, jax.Array]:
    """Return what ``added_and_normalized`` returns, as XLA computes it."""
    total = _kept(branch.astype(jnp.float32), noise, drop)
    total = (total if stream is None else stream.astype(jnp.float32) + total).astype(branch.dtype)
    return total, normalized(total, scale)


def normalized(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Normalize each row of each slot, in float32."""
    wide = x.astype(jnp.float32)
    wide -= wide.mean(-1, keepdims=True)
    wide *= lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + EPSILON)
    return (wide * scale.reshape(len(x), *[1] * (x.ndim - 2), -1)).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def added_and_normalized(
    stream: jax.Array | None, branch: jax.Array, noise: jax.Array | None, scale: jax.Array, drop: int
) -> tuple[jax.Array, jax.Array]:
    """Add a branch to the residual stream; return the sum, and the sum normalized.

    Without a stream, the branch begins it. Numbers of the branch whose random byte is below ``drop`` are dropped first;
    without noise, none are.
    """
    return _forward(stream, branch, noise, scale, drop)[0]


def _forward(
    stream: jax.Array | None, branch: jax.Array, noise: jax.Array | None, scale: jax.Array, drop: int
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    total, result, statistics = forward(stream, branch, noise, scale, drop)
    return (total, result), (stream, total, statistics, noise, scale)


def _backward(drop: int, residuals: Any, derivatives: tuple[jax.Array, jax.Array]) -> tuple[Any, ...]:
    stream, total, statistics, noise, scale = residuals
    dstream, dbranch, dscale = backward(*derivatives, total, statistics, noise, scale, drop, begins=stream is None)
    return dstream, dbranch, None, dscale


added_and_normalized.defvjp(_forward, _backward)


@functools.partial(jax.jit, static_argnames=("drop", "tuning"))  # layers of the same shape share one trace
def forward(
    stream: jax.Array | None,
    branch: jax.Array,
    noise: jax.Array | None,
    scale: jax.Array,
    drop: int,
    tuning: Tuning = _FORWARD,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the sum, the sum normalized, and each row's mean and one over its standard deviation (2, slots · rows)."""
    shape = _Shape.of(branch, tuning)
    given = [array for array in (branch, noise, stream) if array is not None]

    def total_of(added: jax.Array, *others: jax.Array) -> jax.Array:
        kept = _kept(added.astype(jnp.float32), None if noise is None else others[0], drop)
        return (kept if stream is None else others[-1].astype(jnp.float32) + kept).astype(branch.dtype)

    def kernel(*refs: Any) -> None:
        *inputs, scale_ref, total_ref, normalized_ref, statistics_ref = refs

        def compute(tile: _Tile, _: None) -> None:
            totals = [total_of(*(piece.load(ref) for ref in inputs)) for piece in tile.pieces]
            mean, inverse = tile.statistics(totals)
            for piece, total in zip(tile.pieces, totals, strict=True):
                piece.store(total_ref, total)
                normal = (total.astype(jnp.float32) - mean[:, None]) * inverse[:, None]
                piece.store(normalized_ref, normal * piece.load_columns(scale_ref))
            for number, values in enumerate((mean, inverse)):
                tile.store_rows(statistics_ref, number, values)

        shape.for_tiles(compute)

    output = jax.ShapeDtypeStruct((branch.size,), branch.dtype)
    saved = jax.ShapeDtypeStruct((2 * shape.slots * shape.rows,), jnp.float32)
    total, result, statistics = shape.call(kernel, "residual_forward", [*given, scale], [output, output, saved])
    return total.reshape(branch.shape), result.reshape(branch.shape), statistics.reshape(2, -1)


@functools.partial(jax.jit, static_argnames=("drop", "tuning", "begins"))
def backward(
    dtotal: jax.Array,
    dnormalized: jax.Array,
    total: jax.Array,
    statistics: jax.Array,
    noise: jax.Array | None,
    scale: jax.Array,
    drop: int,
    tuning: Tuning = _BACKWARD,
    begins: bool = False,
) -> tuple[jax.Array | None, jax.Array, jax.Array]:
    """Return the gradients of the stream, if the branch does not begin it, of the branch, and of the scale."""
    shape = _Shape.of(total, tuning)
    given = [dtotal, dnormalized, total] if noise is None else [dtotal, dnormalized, total, noise]
    whole = noise is None or not begins  # whether the gradient is stored without dropout

    def kernel(*refs: Any) -> None:
        inputs, (statistics_ref, scale_ref, *output_refs, sums_ref) = refs[: len(given)], refs[len(given) :]
        columns = shape.tile(pallas.number(), 0).pieces  # those of all tiles of this program
        scales = [piece.load_columns(scale_ref) for piece in columns]

        def compute(tile: _Tile, sums: list[jax.Array]) -> list[jax.Array]:
            mean, inverse = (tile.load_rows(statistics_ref, number)[:, None] for number in range(2))
            loaded = [[piece.load(ref) for ref in inputs] for piece in tile.pieces]
            # Columns beyond the width need no mask: their derivatives and scales are zeros.
            normal = [(x.astype(jnp.float32) - mean) * inverse for _, _, x, *_ in loaded]
            d = [each.astype(jnp.float32) for _, each, *_ in loaded]
            scaled = [each * scale for each, scale in zip(d, scales, strict=True)]
            along = [each * number for each, number in zip(scaled, normal, strict=True)]
            shift, slope = (_sum_of_rows(each)[:, None] / shape.width for each in (scaled, along))
            for i, (piece, (passing, _, _, *random)) in enumerate(zip(tile.pieces, loaded, strict=True)):
                found = (scaled[i] - shift - normal[i] * slope) * inverse + passing.astype(jnp.float32)
                stored = [found] * whole + [_kept(found, each, drop) for each in random]
                for ref, values in zip(output_refs, stored, strict=True):
                    piece.store(ref, values)
            return [total + (a * b).sum(0) for total, a, b in zip(sums, d, normal, strict=True)]

        sums = shape.for_tiles(compute, [jnp.zeros(size, jnp.float32) for _, size in shape.pieces])
        for piece, total in zip(columns, sums, strict=True):
            pallas.store(sums_ref.at[pallas.number() * shape.width + piece.column], total, piece.in_width)

    outputs = [jax.ShapeDtypeStruct((total.size,), total.dtype)] * (whole + (noise is not None))
    parts = jax.ShapeDtypeStruct((shape.slots * shape.programs * shape.width,), jnp.float32)
    *found, sums = shape.call(kernel, "residual_backward", [*given, statistics, scale], [*outputs, parts])
    dstream, dbranch = found[0].reshape(total.shape), found[-1].reshape(total.shape)
    return None if begins else dstream, dbranch, sums.reshape(shape.slots, shape.programs, shape.width).sum(1)


def _kept(values: jax.Array, noise: jax.Array | None, drop: int) -> jax.Array:
    return values if noise is None else dropped(values, noise, drop)


def _sum_of_rows(pieces: Sequence[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.add, [piece.sum(1) for piece in pieces])


class _Shape(NamedTuple):
    slots: int
    rows: int  # per slot
    width: int
    tuning: Tuning

    @classmethod
    def of(cls, array: jax.Array, tuning: Tuning) -> _Shape:
        slots, *outer, width = array.shape
        return cls(slots, math.prod(outer), width, tuning)

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """Where the pieces of a row begin, and their sizes: powers of two."""
        found, first = [], 0
        while first < self.width:
            left = self.width - first
            size = 1 << (left.bit_length() - 1) if left >= _PIECE else 1 << (left - 1).bit_length()
            found.append((first, size))
            first += size
        return found

    @property
    def programs(self) -> int:
        """Programs per slot."""
        return -(-self.rows // (self.tuning.rows * self.tuning.tiles))

    def tile(self, program: Any, number: Any) -> _Tile:
        """Return one of the tiles of a program."""
        slot, part = lax.div(program, self.programs), lax.rem(program, self.programs)
        row = (part * self.tuning.tiles + number) * self.tuning.rows + jnp.arange(self.tuning.rows, dtype=jnp.int32)
        return _Tile(self, slot, row)

    def for_tiles(self, compute: Callable[[_Tile, Any], Any], carry: Any = None) -> Any:
        """Compute the tiles of this program, one after the other, and pass what each one returns to the next."""
        program = pallas.number()
        if self.tuning.tiles == 1:
            return compute(self.tile(program, 0), carry)
        return lax.fori_loop(0, self.tuning.tiles, lambda i, carry: compute(self.tile(program, i), carry), carry)

    def call(self, kernel: Any, name: str, arrays: Sequence[jax.Array], outputs: Sequence[Any]) -> list[jax.Array]:
        results: list[jax.Array] = pallas.call(
            kernel, grid=(self.slots * self.programs,), out_shape=[*outputs], name=name, warps=self.tuning.warps
        )(*(array.reshape(-1) for array in arrays))
        return results


class _Tile(NamedTuple):
    """Some rows of a slot."""

    shape: _Shape
    slot: Any
    row: jax.Array

    @property
    def pieces(self) -> list[_Piece]:
        return [_Piece(self, *piece) for piece in self.shape.pieces]

    @property
    def exists(self) -> jax.Array | None:
        """Which rows exist; None if all do."""
        rows, (height, tiles, _) = self.shape.rows, self.shape.tuning
        return None if rows % (height * tiles) == 0 else self.row < rows

    def statistics(self, totals: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Return the mean of each row, given in pieces, and one over its standard deviation."""
        wide = [total.astype(jnp.float32) for total in totals]
        mean = _sum_of_rows(wide) / self.shape.width
        squares = []
        for piece, values in zip(self.pieces, wide, strict=True):
            centered = values - mean[:, None]
            inside = piece.in_width
            squares.append(jnp.square(centered if inside is None else jnp.where(inside[None, :], centered, 0.0)))
        return mean, lax.rsqrt(_sum_of_rows(squares) / self.shape.width + EPSILON)

    def load_rows(self, ref: Any, number: int) -> jax.Array:
        """Load a number for each row, from one of several such arrays."""
        return pallas.load(ref.at[self._place(number)], self.exists)

    def store_rows(self, ref: Any, number: int, values: jax.Array) -> None:
        pallas.store(ref.at[self._place(number)], values, self.exists)

    def _place(self, number: int) -> jax.Array:
        return (number * self.shape.slots + self.slot) * self.shape.rows + self.row


class _Piece(NamedTuple):
    """Some columns of a tile."""

    tile: _Tile
    first: int
    size: int

    @property
    def column(self) -> jax.Array:
        return self.first + jnp.arange(self.size, dtype=jnp.int32)

    @property
    def in_width(self) -> jax.Array | None:
        """Which columns exist; None if all do."""
        width = self.tile.shape.width
        return None if self.first + self.size <= width else self.column < width

    def load(self, ref: Any) -> jax.Array:
        at, mask = self._places()
        return pallas.load(ref.at[at], mask)

    def store(self, ref: Any, values: jax.Array) -> None:
        at, mask = self._places()
        pallas.store(ref.at[at], values, mask)

    def load_columns(self, ref: Any) -> jax.Array:
        """Load a number for each column, (1, columns)."""
        at = self.tile.slot * self.tile.shape.width + self.column
        return pallas.load(ref.at[at], self.in_width)[None, :]

    def _places(self) -> tuple[jax.Array, jax.Array | None]:
        """Return where the numbers are in memory, and which of them exist; None if all do."""
        tile, rows, columns = self.tile, self.tile.exists, self.in_width
        at = (tile.slot * tile.shape.rows + tile.row)[:, None] * tile.shape.width + self.column[None, :]
        masks = [] if rows is None else [rows[:, None]]
        masks += [] if columns is None else [columns[None, :]]
        return at, jnp.broadcast_to(functools.reduce(jnp.logical_and, masks), at.shape) if masks else None
