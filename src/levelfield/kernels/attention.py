"""Causal self-attention for many sequences at once, which never stores its scores.

Queries, keys, and values come from one product with three matrices, as an array (slots, sequences, length, 3 width)
with the queries first. The kernels read them from there and write their gradients to an array of the same shape, so
that none of them is copied. Along the width, the numbers of each head are contiguous.

A program holds a block of one head's queries, or of its keys and values, and loops over the blocks of the others. The
gradient computes the scores again, with the logarithm of the sum of the exponentials in each row.

The derivative of a score is a difference: the product of the output's derivative with a value, minus its product with
the mean of the values. It is small if a position attends to almost only one value. Then little is left but rounding,
unless both products round alike: so the derivative is rounded before both of them, and the shares of which the mean is
made add up to 1 after rounding.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from levelfield.kernels import pallas

_NEVER = -1e30  # the score of a later position
_LOG2_E = 1.4426950408889634  # GPUs have an instruction for powers of two


class Tuning(NamedTuple):
    """How a kernel divides its work. This changes its speed, and its results by rounding only."""

    own: int = 64  # positions that a program handles
    others: int = 64  # positions that it loops over at a time
    warps: int = 4
    stages: int = 2


# The fastest that benchmarks/kernels.py found on an H200.
_FORWARD = {"bfloat16": Tuning(stages=3), "float32": Tuning(own=128, stages=3)}
_BACKWARD = {"bfloat16": Tuning(stages=3), "float32": Tuning(stages=1)}


def reference(projected: jax.Array, heads: int) -> jax.Array:
    """Return what ``attention`` returns, as XLA computes it."""
    *outer, length, _ = projected.shape
    query, key, value = jnp.moveaxis(projected.reshape(*outer, length, 3, heads, -1), (-3, -2), (0, -3))
    scores = jnp.einsum("...qc,...kc->...qk", query, key, preferred_element_type=jnp.float32)
    later = jnp.arange(length)[:, None] < jnp.arange(length)
    shares = jax.nn.softmax(jnp.where(later, -jnp.inf, scores * query.shape[-1] ** -0.5), axis=-1)
    attended = jnp.einsum("...qk,...kc->...qc", shares.astype(value.dtype), value, preferred_element_type=jnp.float32)
    return attended.swapaxes(-3, -2).reshape(*outer, length, -1).astype(projected.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def attention(projected: jax.Array, heads: int) -> jax.Array:
    """Return the weighted mean of the values that each position attends to, (slots, sequences, length, width).

    The width of a head must be a power of two, at least 16.
    """
    return _forward(projected, heads)[0]


def _forward(projected: jax.Array, heads: int) -> tuple[jax.Array, Any]:
    attended, logarithms = forward(projected, heads)
    return attended, (projected, attended, logarithms)


def _backward(heads: int, residuals: Any, derivative: jax.Array) -> tuple[jax.Array]:
    projected, attended, logarithms = residuals
    return (backward(derivative, projected, attended, logarithms, heads),)


attention.defvjp(_forward, _backward)


class _Shape(NamedTuple):
    length: int
    heads: int
    size: int  # of a head

    @property
    def width(self) -> int:
        return self.heads * self.size

    def blocks(self, positions: int) -> int:
        return -(-self.length // positions)


def _shape(length: int, width: int, heads: int) -> _Shape:
    size = width // heads
    if size * heads != width or size < 16 or size & (size - 1):
        raise ValueError(f"{heads} heads in a width of {width}: expected heads of a power of two, at least 16")
    return _Shape(length, heads, size)


@functools.partial(jax.jit, static_argnames=("heads", "tuning"))  # layers of the same shape share one trace
def forward(projected: jax.Array, heads: int, tuning: Tuning | None = None) -> tuple[jax.Array, jax.Array]:
    """Return the attended values, and the logarithms (slots, sequences, heads, length) that the gradient needs."""
    tuning = tuning or _FORWARD[projected.dtype.name]
    *outer, length, triple = projected.shape
    shape, sequences = _shape(length, triple // 3, heads), projected.size // (length * triple)
    attended, logarithms = pallas.call(
        functools.partial(_forward_kernel, shape, tuning),
        grid=(sequences * heads * shape.blocks(tuning.own),),
        out_shape=[
            jax.ShapeDtypeStruct((sequences * length * shape.width,), projected.dtype),
            jax.ShapeDtypeStruct((sequences * heads * length,), jnp.float32),
        ],
        name="attention_forward",
        warps=tuning.warps,
        stages=tuning.stages,
    )(projected.reshape(-1))
    return attended.reshape(*outer, length, shape.width), logarithms.reshape(*outer, heads, length)


def _forward_kernel(shape: _Shape, tuning: Tuning, projected: Any, attended: Any, logarithms: Any) -> None:
    part = _Part(shape, tuning)
    query = part.load(projected, part.first, tuning.own, 0)

    def add(number: Any, carry: Any) -> Any:
        sums, largest, total = carry
        first = number * tuning.others
        key, value = (part.load(projected, first, tuning.others, which) for which in (1, 2))
        scores = part.masked(pallas.dot(query, key, transposed=True), part.first, first)
        new = jnp.maximum(largest, scores.max(1))
        powers, kept = pallas.factor(jnp.exp2(scores - new[:, None]), value.dtype), jnp.exp2(largest - new)
        sums = sums * kept[:, None] + pallas.dot(powers, value)
        return sums, new, total * kept + powers.astype(jnp.float32).sum(1)

    empty = jnp.zeros((tuning.own, shape.size), jnp.float32)
    lowest, zero = jnp.full(tuning.own, _NEVER, jnp.float32), jnp.zeros(tuning.own, jnp.float32)
    values, largest, total = lax.fori_loop(0, part.before(tuning.others), add, (empty, lowest, zero))
    part.store(attended, values / total[:, None])
    part.store_number(logarithms, largest + jnp.log2(total))


@functools.partial(jax.jit, static_argnames=("heads", "tuning"))
def backward(
    derivative: jax.Array,
    projected: jax.Array,
    attended: jax.Array,
    logarithms: jax.Array,
    heads: int,
    tuning: Tuning | None = None,
) -> jax.Array:
    """Return the loss's derivatives with respect to ``projected``."""
    tuning = tuning or _BACKWARD[projected.dtype.name]
    length, width = derivative.shape[-2:]
    shape, sequences = _shape(length, width, heads), derivative.size // (length * width)
    dprojected = pallas.call(
        functools.partial(_backward_kernel, shape, tuning),
        grid=(sequences * heads * shape.blocks(tuning.own),),
        out_shape=jax.ShapeDtypeStruct((projected.size,), projected.dtype),
        name="attention_backward",
        warps=tuning.warps,
        stages=tuning.stages,
    )(projected.reshape(-1), derivative.reshape(-1), logarithms.reshape(-1), attended.reshape(-1))
    return dprojected.reshape(projected.shape)


def _backward_kernel(
    shape: _Shape, tuning: Tuning, projected: Any, derivative: Any, logarithms: Any, attended: Any, dprojected: Any
) -> None:
    """Compute the gradients of a block's keys and values, and then of its queries."""
    part = _Part(shape, tuning)
    own, others, scale = tuning.own, tuning.others, shape.size**-0.5
    zeros = jnp.zeros((own, shape.size), jnp.float32)

    def derivatives(first: Any, positions: int) -> tuple[jax.Array, jax.Array]:
        """Return the derivatives of the output, and what the softmax subtracts from the derivative of each score."""
        d = pallas.factor(part.load(derivative, first, positions), derivative.dtype)
        return d, (d.astype(jnp.float32) * part.load(attended, first, positions).astype(jnp.float32)).sum(1)

    key, value = (part.load(projected, part.first, own, which) for which in (1, 2))

    def add_queries(number: Any, carry: Any) -> Any:
        dkey, dvalue = carry
        first = number * others
        query, (d, mean) = part.load(projected, first, others, 0), derivatives(first, others)
        # Transposed, so that the products below take it from registers.
        scores = part.masked(pallas.dot(key, query, transposed=True), part.first, first, transposed=True)
        shares = jnp.exp2(scores - part.load_number(logarithms, first, others)[None, :])
        dvalue += pallas.dot(shares.astype(d.dtype), d)
        dscores = pallas.dot(value, d, transposed=True) - mean[None, :]
        return dkey + pallas.dot((shares * dscores).astype(query.dtype), query), dvalue

    dkey, dvalue = lax.fori_loop(lax.div(part.first, others), shape.blocks(others), add_queries, (zeros, zeros))
    part.store(dprojected, dkey * scale, 1)
    part.store(dprojected, dvalue, 2)

    query, (d, mean) = part.load(projected, part.first, own, 0), derivatives(part.first, own)
    logarithm = part.load_number(logarithms, part.first, own)[:, None]

    def add_keys(number: Any, dquery: jax.Array) -> jax.Array:
        first = number * others
        key, value = (part.load(projected, first, others, which) for which in (1, 2))
        scores = part.masked(pallas.dot(query, key, transposed=True), part.first, first)
        dscores = jnp.exp2(scores - logarithm) * (pallas.dot(d, value, transposed=True) - mean[:, None])
        return dquery + pallas.dot(dscores.astype(key.dtype), key)

    part.store(dprojected, lax.fori_loop(0, part.before(others), add_keys, zeros) * scale, 0)


class _Part:
    """A program's positions in one head of one sequence. Programs with the most positions before them start first."""

    def __init__(self, shape: _Shape, tuning: Tuning) -> None:
        blocks, number = shape.blocks(tuning.own), pallas.number()
        self._shape, self._own = shape, tuning.own
        self.first = (blocks - 1 - lax.rem(number, blocks)) * tuning.own
        self._row = lax.div(number, blocks)  # counted over the heads of all sequences
        self._sequence, self._head = lax.div(self._row, shape.heads), lax.rem(self._row, shape.heads)

    def before(self, positions: int) -> Any:
        """Return how many blocks of this many positions cover the program's own positions and all before them."""
        last = jnp.minimum(self.first + self._own, self._shape.length)
        return lax.div(last + positions - 1, positions)

    def load(self, ref: Any, first: Any, positions: int, which: int | None = None) -> jax.Array:
        """Load some positions of the queries (0), keys (1), or values (2), or of an array without these parts."""
        at, mask = self._places(first, positions, which)
        return pallas.load(ref.at[at], mask)

    def store(self, ref: Any, values: jax.Array, which: int | None = None) -> None:
        at, mask = self._places(self.first, self._own, which)
        pallas.store(ref.at[at], values, mask)

    def _places(self, first: Any, positions: int, which: int | None) -> tuple[jax.Array, jax.Array]:
        length, width, size = self._shape.length, self._shape.width, self._shape.size
        position = first + jnp.arange(positions, dtype=jnp.int32)
        stride, start = (width, 0) if which is None else (3 * width, which * width)
        column = start + self._head * size + jnp.arange(size, dtype=jnp.int32)
        at = (self._sequence * length + position)[:, None] * stride + column[None, :]
        return at, jnp.broadcast_to(self._exist(position)[:, None], at.shape)

    def load_number(self, ref: Any, first: Any, positions: int) -> jax.Array:
        """Load a number per position."""
        position = first + jnp.arange(positions, dtype=jnp.int32)
        return pallas.load(ref.at[self._row * self._shape.length + position], self._exist(position))

    def store_number(self, ref: Any, values: jax.Array) -> None:
        position = self.first + jnp.arange(self._own, dtype=jnp.int32)
        pallas.store(ref.at[self._row * self._shape.length + position], values, self._exist(position))

    def _exist(self, position: jax.Array) -> jax.Array:
        length = self._shape.length
        return jnp.ones(position.shape, bool) if length % len(position) == 0 else position < length

    def masked(self, scores: jax.Array, own: Any, others: Any, *, transposed: bool = False) -> jax.Array:
        """Scale the scores of the program's own positions with others, for use with powers of two, and mask later keys.

        Rows are queries, or keys if ``transposed``. Keys after the end are masked, too.
        """
        rows = own + jnp.arange(scores.shape[0], dtype=jnp.int32)[:, None]
        columns = others + jnp.arange(scores.shape[1], dtype=jnp.int32)[None, :]
        query, key = (columns, rows) if transposed else (rows, columns)
        seen = key <= query
        if self._shape.length % scores.shape[1 - transposed]:
            seen &= (key < self._shape.length) & (query < self._shape.length)
        return jnp.where(seen, scores * (self._shape.size**-0.5 * _LOG2_E), _NEVER)
