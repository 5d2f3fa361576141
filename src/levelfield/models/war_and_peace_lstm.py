"""The two-layer LSTM of DeepOBS that predicts the next character and carries its state from batch to batch."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from levelfield.kernels import pallas
from levelfield.kernels.cross_entropy import linear_cross_entropy, linear_logits
from levelfield.kernels.dropout import dropped, random_bytes
from levelfield.kernels.lookup import lookup
from levelfield.kernels.products import batched_product
from levelfield.kernels.recurrence import evaluated, recurrence
from levelfield.models.layers import LSTM, Dense, Embed, classification_metrics, cross_entropy
from levelfield.workload import Evaluate, Gradients, Precision
from levelfield.workloads.war_and_peace_lstm import STREAMS, WINDOW

# Dropout keeps each layer's input and output with probability 0.8, as near to it as random bytes come. Between two
# layers both apply, and one byte decides: dropping 92 of 256 keeps 0.64.
_ONCE, _TWICE = 51, 92
Noise = Sequence[jax.Array]  # random bytes for the embedding and for each layer


class Net(nn.Module):
    """Embedding, two LSTM layers, a linear layer: 284,499 parameters.

    Initial weights are those of DeepOBS, which are TensorFlow's defaults: the LSTM's are uniform in ±1/√units, and the
    forget gate's bias is 1. TensorFlow adds that 1 outside the parameter, here it is part of the parameter; no rule can
    tell the difference.
    """

    characters: int = 83
    units: int = 128
    layers: int = 2

    @nn.compact
    def __call__(self, characters: jax.Array, carry: Any, noise: Noise | None = None) -> tuple[jax.Array, Any]:
        """Map characters of (batch, time) and the layers' states to logits and the states after them.

        In training, ``noise`` has what ``draw_noise`` draws.
        """
        glorot = nn.initializers.glorot_uniform()
        within = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        x = Embed(self.characters, self.units, embedding_init=glorot)(characters.T)  # the time first, as in scans
        x = x if noise is None else dropped(x, noise[0], _ONCE)
        final = []
        for layer, start in enumerate(carry):
            lstm = LSTM(self.units, within, within, _forget_gate_open)
            end, x = lstm.resume(start, lstm.project(x))
            x = x if noise is None else dropped(x, noise[layer + 1], self.drop(layer))
            final.append(end)
        return Dense(self.characters, kernel_init=glorot)(x).swapaxes(0, 1), tuple(final)

    def drop(self, layer: int) -> int:
        """Return how many of 256 outputs of a layer are dropped."""
        return _TWICE if layer + 1 < self.layers else _ONCE

    def draw_noise(self, key: jax.Array, streams: int, time: int) -> list[jax.Array]:
        """Draw a byte for each number of the embedding and of each layer's outputs, (time, batch, units)."""
        return random_bytes(key, (time, streams, self.units), self.layers + 1)

    def zero(self, streams: int) -> Any:
        """Return the initial state (h, c) of each layer."""
        zero = jnp.zeros((streams, self.units))
        return ((zero, zero),) * self.layers


def _forget_gate_open(key: Any, shape: tuple[int], dtype: Any = jnp.float32) -> jax.Array:
    return jnp.repeat(jnp.array([0, 1, 0, 0], dtype), shape[0] // 4)


NET = Net()


def init(key: jax.Array) -> tuple[Any, Any]:
    start = NET.zero(STREAMS)
    return NET.init(key, jnp.zeros((STREAMS, WINDOW), jnp.int32), start)["params"], start


def loss(
    params: Any, state: Any, batch: Any, key: jax.Array, hyperparameters: Mapping[str, Any]
) -> tuple[jax.Array, Any]:
    tokens, first = batch
    start = jax.tree.map(lambda array: jnp.where(first, 0.0, array), state)
    noise = NET.draw_noise(key, len(tokens), tokens.shape[1] - 1)
    logits, targets, end = _predict(params, start, tokens, noise)
    return cross_entropy(logits, targets), end


def batched(precision: Precision) -> Gradients | None:
    """Return the gradients of all slots at once, by the kernels of ``levelfield.kernels.recurrence``."""
    dtype = pallas.kernel_type(precision)
    return dtype and functools.partial(_gradients, dtype)


def _gradients(
    dtype: Any, params: Any, state: Any, batch: Any, keys: Any, hyperparameters: Mapping[str, Any]
) -> tuple[jax.Array, Any, Any]:
    """Compute what ``loss`` and its gradient are, for all slots; ``dtype`` is that of products and activations."""
    tokens, first = batch
    tokens = tokens.astype(jnp.int32).swapaxes(1, 2)
    start = jax.tree.map(lambda array: jnp.where(first[:, None, None], 0.0, array), state)
    noise = jax.vmap(lambda key: NET.draw_noise(key, tokens.shape[2], tokens.shape[1] - 1))(keys)

    def total(params: Any) -> tuple[jax.Array, tuple[jax.Array, Any]]:
        outputs, end = _outputs(params, tokens[:, :-1], start, noise, dtype)
        dense = params["Dense_0"]
        losses = linear_cross_entropy(outputs, dense["kernel"], dense["bias"], tokens[:, 1:])
        return losses.sum(), (losses, end)

    gradients, (losses, end) = jax.grad(total, has_aux=True)(params)
    return losses, gradients, end


def _outputs(params: Any, characters: jax.Array, carry: Any, noise: Noise | None, dtype: Any) -> tuple[jax.Array, Any]:
    """Compute what the last layer of ``Net`` gets, on characters of (slots, time, batch), for all slots."""
    x = lookup(params["Embed_0"]["embedding"], characters, dtype)
    x = x if noise is None else dropped(x, noise[0], _ONCE)
    final = []
    for layer, start in enumerate(carry):
        own = params[f"LSTM_{layer}"]
        given = batched_product(x, own["input"]["kernel"], dtype), own["recurrent"], own["input"]["bias"], start
        x, end = evaluated(*given) if noise is None else recurrence(*given, noise[layer + 1], NET.drop(layer))
        final.append(end)
    return x, tuple(final)


def evaluate(params: Any, state: Any, batches: Any) -> Mapping[str, jax.Array]:
    """Evaluate a whole split in order, from zero state."""

    def step(carry: Any, tokens: jax.Array) -> tuple[Any, Mapping[str, jax.Array]]:
        logits, targets, carry = _predict(params, carry, tokens)
        return carry, classification_metrics(logits, targets)

    return jax.lax.scan(step, NET.zero(batches.shape[1]), batches)[1]


def batched_evaluate(precision: Precision) -> Evaluate | None:
    """Return ``evaluate`` for all slots at once, in float32 with products in TF32, or None without kernels."""
    return _evaluate if pallas.kernel_type(precision) else None


def _evaluate(params: Any, state: Any, batches: Any) -> Mapping[str, jax.Array]:
    slots = len(params["Dense_0"]["bias"])

    def step(carry: Any, tokens: jax.Array) -> tuple[Any, Mapping[str, jax.Array]]:
        tokens = jnp.broadcast_to(tokens.astype(jnp.int32).T, (slots, *tokens.shape[::-1]))
        outputs, carry = _outputs(params, tokens[:, :-1], carry, None, jnp.float32)
        dense = params["Dense_0"]
        return carry, classification_metrics(linear_logits(outputs, dense["kernel"], dense["bias"]), tokens[:, 1:])

    zero = jax.tree.map(lambda array: jnp.zeros((slots, *array.shape)), NET.zero(batches.shape[1]))
    found = jax.lax.scan(step, zero, batches)[1]
    return {name: values.swapaxes(0, 1) for name, values in found.items()}


def _predict(
    params: Any, carry: Any, tokens: jax.Array, noise: Noise | None = None
) -> tuple[jax.Array, jax.Array, Any]:
    tokens = tokens.astype(jnp.int32)
    logits, carry = NET.apply({"params": params}, tokens[:, :-1], carry, noise)
    return logits, tokens[:, 1:], carry
