"""A small LSTM that predicts the next character."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from levelfield.models.layers import LSTM, Dense, Embed, classification_metrics, cross_entropy, lookup
from levelfield.workloads.tolstoi_mini import CHARACTERS, WINDOW


class Net(nn.Module):
    """Embedding, one LSTM layer, a linear layer: 13,260 parameters."""

    units: int = 32

    @nn.compact
    def __call__(self, characters: jax.Array) -> jax.Array:
        lstm = LSTM(self.units)
        # A character contributes the same to the gates wherever it occurs: project the alphabet, not the text.
        gates = lstm.project(Embed(CHARACTERS, self.units)(jnp.arange(CHARACTERS)))
        return Dense(CHARACTERS)(lstm.recur(lookup(gates, characters)))


def init(key: jax.Array) -> tuple[Any, Any]:
    return Net().init(key, jnp.zeros((1, WINDOW), jnp.int32)), ()


def loss(
    params: Any, state: Any, batch: Any, key: jax.Array, hyperparameters: Mapping[str, Any]
) -> tuple[jax.Array, Any]:
    return cross_entropy(Net().apply(params, batch[:, :-1]), batch[:, 1:]), state


def evaluate(params: Any, state: Any, batch: Any) -> Mapping[str, jax.Array]:
    return classification_metrics(Net().apply(params, batch[:, :-1]), batch[:, 1:])
