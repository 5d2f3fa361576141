"""The One Billion Word benchmark (LM1B) with Transformer "base" (Vaswani et al. 2017) as a language model."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from levelfield.data import Data
from levelfield.workloads.base import Workload, minimized

_LENGTH = 128
_VOCABULARY = 32_000
_PADDING = 0


class Attention(nn.Module):
    """Each position attends to itself and those before it."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        *outer, width = x.shape

        def dense(name: str) -> nn.Dense:
            return nn.Dense(width, use_bias=False, kernel_init=nn.initializers.glorot_uniform(), name=name)

        query, key, value = (
            dense(name)(x).reshape(*outer, self.heads, width // self.heads) for name in ("query", "key", "value")
        )
        found = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return dense("output")(found.reshape(x.shape))


class Block(nn.Module):
    """Attention and a hidden layer of ReLUs, both added to their input and with layer normalisation before them."""

    heads: int
    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + Attention(self.heads)(_normal(x))
        glorot = nn.initializers.glorot_uniform()
        hidden = nn.relu(nn.Dense(self.hidden, kernel_init=glorot)(_normal(x)))
        return x + nn.Dense(x.shape[-1], kernel_init=glorot)(hidden)


class Net(nn.Module):
    """Six blocks between embeddings of their own for input and output, no dropout: 51,671,040 parameters.

    What Vaswani et al. leave open is as in tensor2tensor's transformer_base: normalisation before each part and
    once at the end, no biases in the attention, embeddings times √width, all weights' initial spread.
    """

    vocabulary: int = _VOCABULARY
    layers: int = 6
    width: int = 512
    heads: int = 8
    hidden: int = 2048

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """(batch, length) → logits of the token after each position."""
        spread = nn.initializers.normal(self.width**-0.5)
        x = nn.Embed(self.vocabulary, self.width, embedding_init=spread)(tokens) * self.width**0.5
        x = x + positions(x.shape[1], self.width)
        for _ in range(self.layers):
            x = Block(self.heads, self.hidden)(x)
        return nn.Dense(self.vocabulary, use_bias=False, kernel_init=spread)(_normal(x))


def _normal(x: jax.Array) -> jax.Array:
    return nn.LayerNorm(epsilon=1e-6)(x)


def positions(length: int, width: int) -> np.ndarray:
    """Sines, then cosines, of wavelengths from 2π to 10,000 · 2π."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(width // 2) / (width // 2))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def load() -> Data:
    """Rows of 129 tokens: a sentence between marks of its beginning and end, then padding."""
    from levelfield.datasets import arrays
    from levelfield.datasets.lm1b import sentences, stream_lm1b

    stored = arrays("lm1b")
    sizes = {split: len(stored[f"{split}_offsets"]) - 1 for split in ("train", "valid", "test")}
    sizes["train"] = min(sizes["train"], sizes["valid"])  # the sentences come shuffled: the first will do
    return Data(
        train=stream_lm1b(stored, _LENGTH),
        evaluation={split: weighed(sentences(stored, split, _LENGTH, range(size))) for split, size in sizes.items()},
    )


def weighed(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sentences, each with the weight that makes a mean over sentences of sums the mean over all tokens."""
    targets = np.count_nonzero(rows[:, 1:] != _PADDING)
    return rows, np.full(len(rows), len(rows) / targets, np.float32)


NET = Net()


def init(key: Any) -> tuple[Any, Any]:
    return NET.init(key, jnp.zeros((1, _LENGTH), jnp.int32))["params"], ()


def losses(params: Any, rows: jax.Array) -> jax.Array:
    """The cross-entropy of each token given those before it; zero at padding."""
    inputs, targets = rows[:, :-1], rows[:, 1:]
    found = optax.softmax_cross_entropy_with_integer_labels(NET.apply({"params": params}, inputs), targets)
    return jnp.where(targets == _PADDING, 0.0, found)


def loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> tuple[jax.Array, Any]:
    return losses(params, batch).sum() / jnp.sum(batch[:, 1:] != _PADDING), state


def evaluate(params: Any, state: Any, batch: Any) -> Any:
    rows, weights = batch
    # A few sentences at a time: the logits of many are gigabytes.
    sums = jax.lax.map(lambda row: losses(params, row[None]).sum(), rows, batch_size=64)
    return {"loss": sums * weights}


WORKLOAD = Workload(
    name="lm1b_transformer",
    summary="One Billion Word benchmark in 32,000 subwords, Transformer base",
    batch_size=256,
    eval_interval=2500,
    metrics=minimized("train_loss", "valid_loss", "test_loss"),
    select="valid_loss",
    load=load,
    init=init,
    loss=loss,
    evaluate=evaluate,
    dataset="lm1b",
    slots_per_core=1,
    slots_per_gpu=1,
)
