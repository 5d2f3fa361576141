"""The parts of transformers: attention, blocks, and networks that predict the next character.

The type of the activations is that of the parameters. Whatever it is, layer normalization computes its statistics, and
attention its softmax, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from levelfield.kernels.dropout import dropped, random_bytes
from levelfield.models.layers import Dense, classification_metrics, cross_entropy


class LayerNorm(nn.Module):
    """Layer normalization in float32 or better. On a CPU, it trains faster than flax's."""

    epsilon: float = 1e-5
    bias: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        wide = wide - wide.mean(-1, keepdims=True)
        normalized = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + self.epsilon)
        normalized *= self.param("scale", nn.initializers.ones, x.shape[-1:])
        if self.bias:
            normalized += self.param("bias", nn.initializers.zeros, x.shape[-1:])
        return normalized.astype(x.dtype)


class Attention(nn.Module):
    """Self-attention without biases. If it is causal, a position attends only to itself and to those before it.

    Queries, keys, and values have a matrix each, for optimizers that treat matrices as a whole, such as Muon. They are
    computed in one product.
    """

    heads: int
    causal: bool = True
    kernel_init: Any = nn.initializers.glorot_uniform()
    output_init: Any = None  # by default, like the other kernels

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        *outer, width = x.shape
        tokens = x.reshape(-1, width)  # XLA multiplies two axes faster than three on a CPU
        kernels = [self.param(name, self.kernel_init, (width, width)) for name in ("query", "key", "value")]
        projected = tokens @ jnp.concatenate(kernels, axis=1)
        query, key, value = (
            part.reshape(*outer, self.heads, width // self.heads) for part in jnp.split(projected, 3, axis=-1)
        )
        attended = jax.nn.dot_product_attention(
            query, key, value, is_causal=self.causal, implementation=attention_kernel(x.dtype)
        )
        output = self.param("output", self.output_init or self.kernel_init, (width, width))
        return (attended.reshape(tokens.shape) @ output).reshape(x.shape)


def attention_kernel(dtype: Any) -> Literal["cudnn", "xla"]:
    """Return which of JAX's implementations to use: cuDNN's never stores the scores, but has only 16-bit types."""
    half = dtype in (jnp.bfloat16, jnp.float16)
    return "cudnn" if half and jax.default_backend() == "gpu" else "xla"


class Block(nn.Module):
    """Attention and a hidden layer, each with a residual connection and layer normalization before it."""

    heads: int
    hidden: int
    activation: Callable[[jax.Array], jax.Array] = nn.gelu  # the tanh approximation, as in GPT-2
    bias: bool = False  # in the hidden layer and the normalizations
    epsilon: float = 1e-5
    causal: bool = True
    drop: int = 0  # of 256 numbers that are added to the residual stream
    kernel_init: Any = nn.initializers.glorot_uniform()
    output_init: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, noise: Sequence[jax.Array] | None = None) -> jax.Array:
        """Map (batch, length, width) to the same; ``noise`` has random bytes for each of the two additions."""
        attention = Attention(self.heads, self.causal, self.kernel_init, self.output_init)
        tokens = x.reshape(-1, x.shape[-1])
        attended = attention(self._norm()(tokens).reshape(x.shape)).reshape(tokens.shape)
        tokens = tokens + self._kept(attended, noise, 0)
        hidden = self.activation(self._dense(self.hidden, self.kernel_init)(self._norm()(tokens)))
        back = self._dense(x.shape[-1], self.output_init or self.kernel_init)(hidden)
        return (tokens + self._kept(back, noise, 1)).reshape(x.shape)

    def _kept(self, tokens: jax.Array, noise: Sequence[jax.Array] | None, place: int) -> jax.Array:
        return tokens if noise is None else dropped(tokens, noise[place].reshape(tokens.shape), self.drop)

    def _norm(self) -> LayerNorm:
        return LayerNorm(self.epsilon, self.bias)

    def _dense(self, features: int, init: Any) -> Dense:
        return Dense(features, use_bias=self.bias, kernel_init=init)


class GPT(nn.Module):
    """A decoder of GPT-2's kind that predicts the next character, as in nanoGPT without biases.

    The embedding of the characters is also the matrix of the logits. Dropout acts on the embedding and on what is added
    to the residual stream, not on the attention weights. It is as near to its probability as random bytes come.
    """

    characters: int
    length: int  # the most characters that it sees
    layers: int
    width: int
    heads: int
    dropout: float = 0.0
    spread: float = 0.02  # standard deviation of the initial weights

    @nn.compact
    def __call__(self, characters: jax.Array, noise: Sequence[jax.Array] | None = None) -> jax.Array:
        """Map characters of (batch, length) to logits of the character after each position, in float32.

        In training, ``noise`` has what ``draw_noise`` draws.
        """
        normal, smaller = (nn.initializers.normal(self.spread / scale) for scale in (1, (2 * self.layers) ** 0.5))
        table = self.param("embedding", normal, (self.characters, self.width))
        positions = self.param("position_embedding", normal, (self.length, self.width))
        # A product, because the gradient of a lookup adds up the rows one by one.
        x = jax.nn.one_hot(characters, self.characters, dtype=table.dtype) @ table
        x = x + positions[: x.shape[1]]
        x = x if noise is None else dropped(x, noise[0], self.drop)
        for layer in range(self.layers):
            block = Block(self.heads, 4 * self.width, drop=self.drop, kernel_init=normal, output_init=smaller)
            x = block(x, noise and noise[1 + 2 * layer : 3 + 2 * layer])
        logits = LayerNorm()(x) @ table.T
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

    @property
    def drop(self) -> int:
        """How many of 256 numbers are dropped."""
        return round(256 * self.dropout)

    def draw_noise(self, key: jax.Array, batch: int, length: int) -> list[jax.Array] | None:
        """Draw a byte for each number that may be dropped: of the embedding, and two arrays per block."""
        return random_bytes(key, (batch, length, self.width), 1 + 2 * self.layers) if self.drop else None


@dataclass(frozen=True)
class LanguageModel:
    """A workload's ``init``, ``loss`` and ``evaluate``. An example has one character more than the net sees."""

    net: GPT

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        return self.net.init(key, jnp.zeros((1, self.net.length), jnp.int32))["params"], ()

    def loss(
        self, params: Any, state: Any, batch: Any, key: jax.Array, hyperparameters: Mapping[str, Any]
    ) -> tuple[jax.Array, Any]:
        inputs = batch[:, :-1]
        logits = self.net.apply({"params": params}, inputs, self.net.draw_noise(key, *inputs.shape))
        return cross_entropy(logits, batch[:, 1:].astype(jnp.int32)), state

    def evaluate(self, params: Any, state: Any, batch: Any) -> Mapping[str, jax.Array]:
        def metrics(window: jax.Array) -> Mapping[str, jax.Array]:
            logits = self.net.apply({"params": params}, window[None, :-1])
            return classification_metrics(logits[0], window[1:].astype(jnp.int32))

        # Some windows at a time: the hidden layer of many would take gigabytes.
        found: Mapping[str, jax.Array] = jax.lax.map(metrics, batch, batch_size=256)
        return found
