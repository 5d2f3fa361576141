"""The two-layer LSTM of DeepOBS that predicts the next character and carries its state from batch to batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from levelfield.models.layers import LSTM, Dense, Dropout, Embed, classification_metrics, cross_entropy
from levelfield.workloads.war_and_peace_lstm import STREAMS, WINDOW


class Net(nn.Module):
    """Embedding, two LSTM layers, a linear layer: 284,499 parameters.

    During training, dropout keeps each layer's input and output with probability 0.8. Initial weights are those of
    DeepOBS, which are TensorFlow's defaults: the LSTM's are uniform in ±1/√units, and the forget gate's bias is 1.
    TensorFlow adds that 1 outside the parameter, here it is part of the parameter; no rule can tell the difference.
    """

    characters: int = 83
    units: int = 128
    layers: int = 2

    @nn.compact
    def __call__(self, characters: jax.Array, carry: Any, train: bool = False) -> tuple[jax.Array, Any]:
        """Map characters of (batch, time) and the layers' states to logits and the states after them."""
        glorot = nn.initializers.glorot_uniform()
        within = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        x = Embed(self.characters, self.units, embedding_init=glorot)(characters)
        final = []
        for start in carry:
            lstm = LSTM(self.units, within, within, _forget_gate_open)
            x = Dropout(0.2)(x, train)
            end, x = lstm.resume(start, lstm.project(x))
            x = Dropout(0.2)(x, train)
            final.append(end)
        return Dense(self.characters, kernel_init=glorot)(x), tuple(final)

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
    logits, targets, end = _predict(params, start, tokens, train=True, rngs={"dropout": key})
    return cross_entropy(logits, targets), end


def evaluate(params: Any, state: Any, batches: Any) -> Mapping[str, jax.Array]:
    """Evaluate a whole split in order, from zero state."""

    def step(carry: Any, tokens: jax.Array) -> tuple[Any, Mapping[str, jax.Array]]:
        logits, targets, carry = _predict(params, carry, tokens)
        return carry, classification_metrics(logits, targets)

    return jax.lax.scan(step, NET.zero(batches.shape[1]), batches)[1]


def _predict(params: Any, carry: Any, tokens: jax.Array, **options: Any) -> tuple[jax.Array, jax.Array, Any]:
    tokens = tokens.astype(jnp.int32)
    logits, carry = NET.apply({"params": params}, tokens[:, :-1], carry, **options)
    return logits, tokens[:, 1:], carry
