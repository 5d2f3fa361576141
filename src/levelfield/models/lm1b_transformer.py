"""Transformer "base" (Vaswani et al. 2017) as a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from levelfield.datasets.lm1b import PAD, VOCABULARY
from levelfield.models.layers import Dense, Embed
from levelfield.models.transformer import Block, LayerNorm
from levelfield.workloads.lm1b_transformer import LENGTH


class Net(nn.Module):
    """Six blocks between separate input and output embeddings, without dropout: 51,671,040 parameters.

    What Vaswani et al. leave open follows transformer_base of tensor2tensor: layer normalization before each part and
    once at the end, no biases in the attention, embeddings scaled by √width, and the initialization.
    """

    vocabulary: int = VOCABULARY
    layers: int = 6
    width: int = 512
    heads: int = 8
    hidden: int = 2048

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Map tokens of (batch, length) to logits of the token after each position."""
        normal = nn.initializers.normal(self.width**-0.5)
        x = Embed(self.vocabulary, self.width, embedding_init=normal)(tokens) * self.width**0.5
        x = x + positions(x.shape[1], self.width).astype(x.dtype)
        for _ in range(self.layers):
            x = Block(self.heads, self.hidden, nn.relu, bias=True, epsilon=1e-6)(x)
        return Dense(self.vocabulary, use_bias=False, kernel_init=normal)(LayerNorm(1e-6, bias=True)(x))


def positions(length: int, width: int) -> np.ndarray:
    """Return the positional encoding: sines, then cosines, of wavelengths from 2π to 10,000 · 2π."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(width // 2) / (width // 2))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


NET = Net()


def init(key: jax.Array) -> tuple[Any, Any]:
    return NET.init(key, jnp.zeros((1, LENGTH), jnp.int32))["params"], ()


def losses(params: Any, rows: jax.Array) -> jax.Array:
    """Return the cross-entropy of each token given those before it; zero at padding."""
    inputs, targets = rows[:, :-1], rows[:, 1:]
    logits = jnp.asarray(NET.apply({"params": params}, inputs), jnp.float32)
    entropies = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return jnp.where(targets == PAD, 0.0, entropies)


def loss(
    params: Any, state: Any, batch: Any, key: jax.Array, hyperparameters: Mapping[str, Any]
) -> tuple[jax.Array, Any]:
    return losses(params, batch).sum() / jnp.sum(batch[:, 1:] != PAD), state


def evaluate(params: Any, state: Any, batch: Any) -> Mapping[str, jax.Array]:
    rows, weights = batch
    # A few sentences at a time: the logits of many would take gigabytes.
    sums = jax.lax.map(lambda row: losses(params, row[None]).sum(), rows, batch_size=64)
    return {"loss": sums * weights}
