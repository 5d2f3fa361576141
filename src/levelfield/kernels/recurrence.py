"""The recurrence of an LSTM layer, with dropout on its outputs, for all slots at once.

XLA runs a scan as several kernels per time step and writes the state to memory between them. Here, one program runs all
time steps of a trial: the state stays in registers, and as many recurrent weights as fit stay in shared memory.

Gates are in the order i, f, g, o. Arrays are in time order: (slots, time, batch, …). ``noise`` and ``drop`` say which
outputs are dropped, as in ``levelfield.kernels.dropout``; without noise, none is.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from levelfield.kernels import pallas
from levelfield.kernels.dropout import dropped
from levelfield.kernels.products import weight_gradient

State = tuple[jax.Array, jax.Array]  # h and c, (slots, batch, units), in float32


class Tuning(NamedTuple):
    """How a kernel is compiled."""

    warps: int = 8
    resident: int = 4  # gates whose recurrent weights stay in shared memory; the others' are loaded in every step
    early: bool = False  # load what a step needs before its products, which takes more registers


# What was fastest on an H200.
_FORWARD = {"bfloat16": Tuning(warps=16, early=True), "float32": Tuning(resident=2)}
_BACKWARD = {"bfloat16": Tuning(), "float32": Tuning(resident=2)}


def reference(
    projected: jax.Array, recurrent: jax.Array, bias: jax.Array, start: State, noise: jax.Array, drop: int
) -> tuple[jax.Array, State]:
    """Return what ``recurrence`` returns, as plain JAX computes it."""

    def one(projected: Any, recurrent: Any, bias: Any, start: Any, noise: Any) -> Any:
        def cell(state: State, x: jax.Array) -> tuple[State, jax.Array]:
            h, c = state
            i, f, g, o = jnp.split(x + h @ recurrent + bias, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        end, outputs = jax.lax.scan(cell, start, projected)
        return dropped(outputs, noise, drop), end

    return jax.vmap(one)(projected, recurrent, bias, start, noise)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def recurrence(
    projected: jax.Array, recurrent: jax.Array, bias: jax.Array, start: State, noise: jax.Array, drop: int
) -> tuple[jax.Array, State]:
    """Return the outputs after dropout, (slots, time, batch, units), and the state after the last step.

    ``projected`` is the inputs' share of the gates, (slots, time, batch, 4 units); its type, float32 or bfloat16, is
    that of the products and of the outputs. ``recurrent`` is (slots, units, 4 units), ``bias`` (slots, 4 units); they
    and their gradients are in float32. The number of units must be a power of two, at least 16. States pass no
    gradient: the initial state gets none, and that of the final state is ignored.
    """
    return _forward(projected, recurrent, bias, start, noise, drop)[0]


def _forward(
    projected: jax.Array, recurrent: jax.Array, bias: jax.Array, start: State, noise: jax.Array, drop: int
) -> tuple[Any, Any]:
    outputs, end, kept = forward(projected, recurrent, bias, start, noise, drop)
    return (outputs, end), (recurrent, noise, *kept)


def _backward(drop: int, residuals: Any, derivatives: Any) -> tuple[Any, ...]:
    recurrent, noise, hidden, gates, cells = residuals
    dprojected, dbias = backward(derivatives[0], recurrent, noise, gates, cells, drop)
    return dprojected, weight_gradient(hidden, dprojected), dbias, None, None


recurrence.defvjp(_forward, _backward)


def evaluated(projected: jax.Array, recurrent: jax.Array, bias: jax.Array, start: State) -> tuple[jax.Array, State]:
    """Return what ``recurrence`` returns without dropout, and store nothing for a gradient."""
    return forward(projected, recurrent, bias, start, None, 0, kept=False)[:2]


def forward(
    projected: jax.Array,
    recurrent: jax.Array,
    bias: jax.Array,
    start: State,
    noise: jax.Array | None,
    drop: int,
    tuning: Tuning | None = None,
    kept: bool = True,
) -> tuple[jax.Array, State, list[jax.Array]]:
    """Return the outputs, the state at the end, and what the gradient needs, if it is to be kept.

    That is h before each step, the gates, and c before each step and after the last one.
    """
    tuning = tuning or _FORWARD[projected.dtype.name]
    slots, time, batch, width = projected.shape
    units, dtype = width // 4, projected.dtype
    if units < 16 or units & (units - 1):
        raise ValueError(f"{units} units: expected a power of two, at least 16")
    per_step, state = (time, batch, units), (batch, units)
    weights = recurrent.astype(dtype)
    by_rows = dtype == jnp.float32  # the layout that a product in TF32 wants for its second factor
    if by_rows:
        weights = weights.swapaxes(1, 2)
    arguments = [projected, weights, bias, *start, *([] if noise is None else [noise])]
    results = [(per_step, dtype), (state, jnp.float32), (state, jnp.float32)]
    if kept:
        results += [(per_step, dtype), ((time, batch, width), dtype), ((time + 1, batch, units), dtype)]

    def kernel(*refs: Any) -> None:
        own, (outputs_ref, *others) = refs[: len(arguments)], refs[len(arguments) :]
        _forward_kernel(own[:5], own[5:], outputs_ref, others[:2], others[2:], drop, tuning, by_rows)

    outputs, h, c, *needed = pallas.call(
        kernel,
        grid=(slots,),
        in_specs=[pallas.slot_of(*array.shape[1:]) for array in arguments],
        out_specs=[pallas.slot_of(*shape) for shape, _ in results],
        out_shape=[jax.ShapeDtypeStruct((slots, *shape), dtype) for shape, dtype in results],
        name="lstm_forward",
        warps=tuning.warps,
    )(*arguments)
    return outputs, (h, c), needed


def _forward_kernel(
    given: Sequence[Any],
    noise: Sequence[Any],
    outputs: Any,
    end: Sequence[Any],
    kept: Sequence[Any],
    drop: int,
    tuning: Tuning,
    by_rows: bool,
) -> None:
    projected, recurrent, bias, *start = given
    time, _, units = outputs.shape
    weights = _Weights(recurrent, units, by_rows=by_rows, resident=tuning.resident)

    def step(t: jax.Array, state: State) -> State:
        h, c = state
        early = [_load(projected, t, gate=k) for k in range(4)] if tuning.early else []

        def activation(k: int) -> jax.Array:
            own = early[k] if early else _load(projected, t, gate=k)
            offset = bias[pallas.part(k * units, units)][None, :]
            return own.astype(jnp.float32) + offset + pallas.dot(h, weights[k], transposed=by_rows)

        if kept:
            hidden, gates, cells = kept
            _store(hidden, t, h)
            _store(cells, t, c)
        i, f = pallas.sigmoid(activation(0)), pallas.sigmoid(activation(1))
        g, o = pallas.tanh(activation(2)), pallas.sigmoid(activation(3))
        c = f * c + i * g
        output = o * pallas.tanh(c)
        if kept:
            for k, value in enumerate((i, f, g, o)):
                _store(gates, t, value, gate=k)
        _store(outputs, t, dropped(output, _load(noise[0], t).astype(jnp.int32), drop) if noise else output)
        return output.astype(h.dtype), c

    h, c = jax.lax.fori_loop(0, time, step, (_load(start[0]).astype(projected.dtype), _load(start[1])))
    if kept:
        _store(kept[2], time, c)
    _store(end[0], None, h)
    _store(end[1], None, c)


def backward(
    doutputs: jax.Array,
    recurrent: jax.Array,
    noise: jax.Array,
    gates: jax.Array,
    cells: jax.Array,
    drop: int,
    tuning: Tuning | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the loss's derivatives with respect to the projected inputs and the bias."""
    tuning = tuning or _BACKWARD[doutputs.dtype.name]
    slots, time, batch, units = doutputs.shape
    arguments = (doutputs, recurrent.astype(doutputs.dtype), gates, cells, noise)
    shape = (time, batch, 4 * units)
    dprojected = pallas.call(
        functools.partial(_backward_kernel, drop, tuning),
        grid=(slots,),
        in_specs=[pallas.slot_of(*array.shape[1:]) for array in arguments],
        out_specs=pallas.slot_of(*shape),
        out_shape=jax.ShapeDtypeStruct((slots, *shape), doutputs.dtype),
        name="lstm_backward",
        warps=tuning.warps,
    )(*arguments)
    return dprojected, dprojected.sum((1, 2), dtype=jnp.float32)


def _backward_kernel(
    drop: int,
    tuning: Tuning,
    doutputs: Any,
    recurrent: Any,
    gates: Any,
    cells: Any,
    noise: Any,
    dprojected: Any,
) -> None:
    time, batch, units = doutputs.shape
    weights = _Weights(recurrent, units, by_rows=False, resident=tuning.resident)

    def step(number: jax.Array, carry: Any) -> Any:
        dh, dc = carry
        t = time - 1 - number
        own, random, after = _load(doutputs, t), _load(noise, t), _load(cells, t + 1)
        early = [_load(gates, t, gate=k) for k in range(4)] + [_load(cells, t)] if tuning.early else []
        product = jnp.zeros_like(dh)

        def gate(k: int) -> jax.Array:
            return (early[k] if early else _load(gates, t, gate=k)).astype(jnp.float32)

        def finish(k: int, derivative: jax.Array) -> jax.Array:
            """Store a gate's derivative; return what it contributes to the derivative of the previous state."""
            rounded = derivative.astype(doutputs.dtype)
            _store(dprojected, t, rounded, gate=k)
            return pallas.dot(rounded, weights[k], transposed=True)

        # One gate after the other, so that few numbers are live at a time.
        dh = dh + dropped(own.astype(jnp.float32), random.astype(jnp.int32), drop)
        squashed = pallas.tanh(after.astype(jnp.float32))
        o = gate(3)
        dc = dc + dh * o * (1 - squashed * squashed)
        product += finish(3, dh * squashed * o * (1 - o))
        i, g = gate(0), gate(2)
        product += finish(2, dc * i * (1 - g * g))
        product += finish(0, dc * g * i * (1 - i))
        f, before = gate(1), early[4] if early else _load(cells, t)
        product += finish(1, dc * before.astype(jnp.float32) * f * (1 - f))
        return product, dc * f

    zero = jnp.zeros((_rows(batch), units), jnp.float32)
    jax.lax.fori_loop(0, time, step, (zero, zero))


class _Weights:
    """The recurrent weights of each gate, of which the first ``resident`` are loaded once."""

    def __init__(self, reference: Any, units: int, *, by_rows: bool, resident: int) -> None:
        self._reference, self._units, self._by_rows = reference, units, by_rows
        self._held = [self._load(gate) for gate in range(resident)]

    def _load(self, gate: int) -> jax.Array:
        these = pallas.part(gate * self._units, self._units)
        return self._reference[these, :] if self._by_rows else self._reference[:, these]

    def __getitem__(self, gate: int) -> jax.Array:
        return self._held[gate] if gate < len(self._held) else self._load(gate)


def _rows(batch: int) -> int:
    """Return the rows of a tile that holds a batch: a power of two, and at least 16, as products need."""
    return max(16, 1 << (batch - 1).bit_length())


def _tile(reference: Any, t: Any, gate: int) -> tuple[Any, jax.Array]:
    """Return where one time step's numbers (of one gate) are, (rows, units), and which of the rows exist."""
    batch, width = reference.shape[-2:]
    units = width // 4 if gate >= 0 else width
    shape = (_rows(batch), units)
    row = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    column = jax.lax.broadcasted_iota(jnp.int32, shape, 1) + max(gate, 0) * units
    return reference.at[(row, column) if t is None else (t, row, column)], row < batch


def _load(reference: Any, t: Any = None, *, gate: int = -1) -> jax.Array:
    return pallas.load(*_tile(reference, t, gate))


def _store(reference: Any, t: Any, values: jax.Array, *, gate: int = -1) -> None:
    place, exists = _tile(reference, t, gate)
    pallas.store(place, values, exists)
