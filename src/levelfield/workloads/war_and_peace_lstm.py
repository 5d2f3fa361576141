"""The next character of War and Peace with a two-layer LSTM: DeepOBS's "char-rnn".

The text is read as 50 streams side by side, 50 characters at a time, in order; the LSTM's state goes from one
batch to the next and is zero at the start of each epoch. No gradient flows into the batch before.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from levelfield.data import Data
from levelfield.workloads.base import CLASSIFICATION, Workload
from levelfield.workloads.layers import LSTM, Dropout, classification_metrics, cross_entropy

_STREAMS = 50
_WINDOW = 50


class Net(nn.Module):
    """Embedding, two LSTM layers, a linear layer: 284,499 parameters.

    While training, each layer's input and output is kept with probability 0.8. Initial weights are DeepOBS's,
    TensorFlow's defaults: the LSTM's are uniform in ±1/√units, and the forget gate's bias is 1 (added there,
    in the parameter here: the same for every rule).
    """

    characters: int = 83
    units: int = 128
    layers: int = 2

    @nn.compact
    def __call__(self, characters: jax.Array, carry: Any, train: bool = False) -> tuple[jax.Array, Any]:
        """(batch, time) and the layers' states → logits, and the states after them."""
        glorot = nn.initializers.glorot_uniform()
        within = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        x = nn.Embed(self.characters, self.units, embedding_init=glorot)(characters)
        last = []
        for start in carry:
            lstm = LSTM(self.units, within, within, _forget_gate_open)
            x = Dropout(0.2)(x, train)
            end, x = lstm.resume(start, lstm.project(x))
            x = Dropout(0.2)(x, train)
            last.append(end)
        return nn.Dense(self.characters, kernel_init=glorot)(x), tuple(last)

    def zero(self, streams: int) -> Any:
        """The state (h, c) of each layer at the start."""
        zero = jnp.zeros((streams, self.units))
        return ((zero, zero),) * self.layers


def _forget_gate_open(key: Any, shape: tuple[int], dtype: Any = jnp.float32) -> jax.Array:
    return jnp.repeat(jnp.array([0, 1, 0, 0], dtype), shape[0] // 4)


def load() -> Data:
    """The last fifth of the text is for the test; of the rest, the first fifth for validation."""
    from levelfield.datasets import arrays

    tokens = arrays("war_and_peace")["tokens"]
    rest = len(tokens) - len(tokens) // 5
    valid, train, test = np.split(tokens, [rest // 5, rest])
    batches = windows(train)
    first = np.arange(len(batches)) == 0
    evaluation = {"valid": windows(valid), "test": windows(test)}
    return Data(train=(batches, first), evaluation={"train": batches[: len(evaluation["valid"])], **evaluation})


def windows(tokens: np.ndarray) -> np.ndarray:
    """(batches, streams, window + 1): input and target overlap by all but one; a rest at the end is left out."""
    batches = (len(tokens) - 1) // (_STREAMS * _WINDOW)
    stream, batch = np.arange(_STREAMS)[:, None], np.arange(batches)[:, None, None]
    return tokens[(stream * batches + batch) * _WINDOW + np.arange(_WINDOW + 1)]


NET = Net()


def init(key: Any) -> tuple[Any, Any]:
    start = NET.zero(_STREAMS)
    return NET.init(key, jnp.zeros((_STREAMS, _WINDOW), jnp.int32), start)["params"], start


def loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> tuple[jax.Array, Any]:
    tokens, first = batch
    start = jax.tree.map(lambda array: jnp.where(first, 0.0, array), state)
    logits, targets, end = _predict(params, start, tokens, train=True, rngs={"dropout": key})
    return cross_entropy(logits, targets), end


def evaluate(params: Any, state: Any, batches: Any) -> Any:
    """Over a whole split, in order, from zero state."""

    def step(carry: Any, tokens: jax.Array) -> tuple[Any, Any]:
        logits, targets, carry = _predict(params, carry, tokens)
        return carry, classification_metrics(logits, targets)

    return jax.lax.scan(step, NET.zero(batches.shape[1]), batches)[1]


def _predict(params: Any, carry: Any, tokens: jax.Array, **others: Any) -> tuple[jax.Array, jax.Array, Any]:
    tokens = tokens.astype(jnp.int32)
    logits, carry = NET.apply({"params": params}, tokens[:, :-1], carry, **others)
    return logits, tokens[:, 1:], carry


WORKLOAD = Workload(
    name="war_and_peace_lstm",
    summary="next character of War and Peace (2,090,000 characters to train on), two-layer LSTM",
    batch_size=_STREAMS,
    eval_interval=1672,  # two epochs
    metrics=CLASSIFICATION,
    select="valid_error",
    load=load,
    init=init,
    loss=loss,
    evaluate=evaluate,
    sequential=True,
    dataset="war_and_peace",
    slots_per_core=1,
    slots_per_gpu=256,
)
