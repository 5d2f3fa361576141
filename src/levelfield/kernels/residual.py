"""Dropout, a residual connection, and the layer normalization after it, in one pass over memory.

Arrays are (slots, …, width), and the scale of the normalization is (slots, width). A program works on some rows of one
slot at a time; in the gradient, it adds up what these rows contribute to the gradient of the scale.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from levelfield.kernels import pallas
from levelfield.kernels.dropout import dropped

EPSILON = 1e-5  # added to variances


class Tuning(NamedTuple):
    """How a kernel divides its work. This changes its speed, and its results by rounding only."""

    rows: int = 4  # at a time
    tiles: int = 1  # of rows that a program computes, one after the other
    warps: int = 4


# Among the fastest that benchmarks/kernels.py found on an H200. With 16 slots, tiles=16 is as fast, but a single slot
# would then have too few programs to fill the GPU.
_FORWARD = Tuning(tiles=2)
_BACKWARD = {"bfloat16": Tuning(rows=2, tiles=4, warps=1), "float32": Tuning(rows=1, tiles=8, warps=1)}


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
    total, result = forward(stream, branch, noise, scale, drop)
    return (total, result), (stream, total, noise, scale)


def _backward(drop: int, residuals: Any, derivatives: tuple[jax.Array, jax.Array]) -> tuple[Any, ...]:
    stream, total, noise, scale = residuals
    dstream, dbranch, dscale = backward(*derivatives, total, noise, scale, drop, begins=stream is None)
    return dstream, dbranch, None, dscale


added_and_normalized.defvjp(_forward, _backward)


def forward(
    stream: jax.Array | None,
    branch: jax.Array,
    noise: jax.Array | None,
    scale: jax.Array,
    drop: int,
    tuning: Tuning = _FORWARD,
) -> tuple[jax.Array, jax.Array]:
    shape = _Shape.of(branch, tuning)
    given = [array for array in (branch, noise, stream) if array is not None]

    def kernel(*refs: Any) -> None:
        *inputs, scale_ref, total_ref, normalized_ref = refs

        def compute(tile: _Tile, _: None) -> None:
            added, *others = (tile.load(ref) for ref in inputs)
            sums = _kept(added.astype(jnp.float32), None if noise is None else others[0], drop)
            total = (sums if stream is None else others[-1].astype(jnp.float32) + sums).astype(branch.dtype)
            centered, inverse = tile.statistics(total)
            tile.store(total_ref, total)
            tile.store(normalized_ref, centered * inverse * tile.load_columns(scale_ref))

        shape.for_tiles(compute)

    output = jax.ShapeDtypeStruct((branch.size,), branch.dtype)
    total, result = shape.call(kernel, "residual_forward", [*given, scale], [output, output])
    return total.reshape(branch.shape), result.reshape(branch.shape)


def backward(
    dtotal: jax.Array,
    dnormalized: jax.Array,
    total: jax.Array,
    noise: jax.Array | None,
    scale: jax.Array,
    drop: int,
    tuning: Tuning | None = None,
    begins: bool = False,
) -> tuple[jax.Array | None, jax.Array, jax.Array]:
    """Return the gradients of the stream, if the branch does not begin it, of the branch, and of the scale."""
    shape = _Shape.of(total, tuning or _BACKWARD[total.dtype.name])
    given = [dtotal, dnormalized, total] if noise is None else [dtotal, dnormalized, total, noise]
    whole = noise is None or not begins  # whether the gradient is stored without dropout

    def kernel(*refs: Any) -> None:
        inputs, (scale_ref, *output_refs, sums_ref) = refs[: len(given)], refs[len(given) :]
        scales = shape.tile(pallas.number(), 0).load_columns(scale_ref)

        def compute(tile: _Tile, sums: jax.Array) -> jax.Array:
            passing, d, x, *random = (tile.load(ref) for ref in inputs)
            centered, inverse = tile.statistics(x)
            normal, d = centered * inverse, d.astype(jnp.float32)
            scaled = d * scales
            means = (scaled.sum(1, keepdims=True) / shape.width, (scaled * normal).sum(1, keepdims=True) / shape.width)
            found = (scaled - means[0] - normal * means[1]) * inverse + passing.astype(jnp.float32)
            stored = [found] * whole + [_kept(found, each, drop) for each in random]
            for ref, values in zip(output_refs, stored, strict=True):
                tile.store(ref, values)
            return sums + (d * normal).sum(0)

        sums = shape.for_tiles(compute, jnp.zeros(shape.columns, jnp.float32))
        column = jnp.arange(shape.columns, dtype=jnp.int32)
        pallas.store(sums_ref.at[pallas.number() * shape.width + column], sums, column < shape.width)

    outputs = [jax.ShapeDtypeStruct((total.size,), total.dtype)] * (whole + (noise is not None))
    parts = jax.ShapeDtypeStruct((shape.slots * shape.programs * shape.width,), jnp.float32)
    *found, sums = shape.call(kernel, "residual_backward", [*given, scale], [*outputs, parts])
    dstream, dbranch = found[0].reshape(total.shape), found[-1].reshape(total.shape)
    return None if begins else dstream, dbranch, sums.reshape(shape.slots, shape.programs, shape.width).sum(1)


def _kept(values: jax.Array, noise: jax.Array | None, drop: int) -> jax.Array:
    return values if noise is None else dropped(values, noise, drop)


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
    def columns(self) -> int:
        """Columns of a tile: a power of two."""
        return 1 << (self.width - 1).bit_length()

    @property
    def programs(self) -> int:
        """Programs per slot."""
        return -(-self.rows // (self.tuning.rows * self.tuning.tiles))

    def tile(self, program: Any, number: Any) -> _Tile:
        """Return one of the tiles of a program."""
        slot, part = lax.div(program, self.programs), lax.rem(program, self.programs)
        row = (part * self.tuning.tiles + number) * self.tuning.rows + jnp.arange(self.tuning.rows, dtype=jnp.int32)
        return _Tile(self, slot, row, jnp.arange(self.columns, dtype=jnp.int32))

    def for_tiles(self, compute: Any, carry: Any = None) -> Any:
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
    column: jax.Array

    @property
    def places(self) -> tuple[jax.Array, jax.Array]:
        """Where the tile is in memory, and which of it exists."""
        at = (self.slot * self.shape.rows + self.row)[:, None] * self.shape.width + self.column[None, :]
        return at, (self.row < self.shape.rows)[:, None] & (self.column < self.shape.width)[None, :]

    def load(self, ref: Any) -> jax.Array:
        at, mask = self.places
        return pallas.load(ref.at[at], mask)

    def store(self, ref: Any, values: jax.Array) -> None:
        at, mask = self.places
        pallas.store(ref.at[at], values, mask)

    def load_columns(self, ref: Any) -> jax.Array:
        """Load a number for each column, (1, columns)."""
        at = self.slot * self.shape.width + self.column
        return pallas.load(ref.at[at], self.column < self.shape.width)[None, :]

    def statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return each row minus its mean, and one over its standard deviation."""
        wide = x.astype(jnp.float32)
        mean = wide.sum(1, keepdims=True) / self.shape.width
        centered = jnp.where((self.column < self.shape.width)[None, :], wide - mean, 0.0)
        return centered, lax.rsqrt(jnp.square(centered).sum(1, keepdims=True) / self.shape.width + EPSILON)
