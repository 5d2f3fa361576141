"""The next character of War and Peace with a small LSTM, on an excerpt embedded in the package."""

from __future__ import annotations

import lzma
from collections import Counter
from importlib import resources
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from levelfield.data import Data
from levelfield.workloads.base import CLASSIFICATION, Workload
from levelfield.workloads.layers import LSTM, classification_metrics, cross_entropy

_WINDOW = 32
_EVALUATED = 300  # windows of each split; the valid and test texts are that long
_CHARACTERS = 76


class Net(nn.Module):
    """Embedding, one LSTM layer, a linear layer: 13,260 parameters."""

    units: int = 32

    @nn.compact
    def __call__(self, characters: jax.Array) -> jax.Array:
        lstm = LSTM(self.units)
        # A character's share of the gates is always the same: project the alphabet, not the text.
        gates = lstm.project(nn.Embed(_CHARACTERS, self.units)(jnp.arange(_CHARACTERS)))
        return nn.Dense(_CHARACTERS)(lstm.recur(gates[characters]))


def load() -> Data:
    file = resources.files("levelfield.workloads") / "data/tolstoi_mini.txt.xz"
    text = lzma.decompress(file.read_bytes()).decode("utf-8")
    ids = {character: i for i, (character, _) in enumerate(Counter(text).most_common())}
    tokens = np.array([ids[character] for character in text], np.int32)
    held_out = _EVALUATED * _WINDOW + 1
    train, valid, test = np.split(tokens, [len(tokens) - 2 * held_out, len(tokens) - held_out])
    return Data(
        train=_windows(train),
        evaluation={"train": _windows(train)[:_EVALUATED], "valid": _windows(valid), "test": _windows(test)},
    )


def _windows(tokens: np.ndarray) -> np.ndarray:
    """Adjoining windows, each with the character after it: input and target overlap by all but one."""
    starts = np.arange(0, len(tokens) - _WINDOW, _WINDOW)
    return tokens[starts[:, None] + np.arange(_WINDOW + 1)]


def init(key: jax.Array) -> tuple[Any, Any]:
    return Net().init(key, jnp.zeros((1, _WINDOW), jnp.int32)), ()


def loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> tuple[jax.Array, Any]:
    return cross_entropy(Net().apply(params, batch[:, :-1]), batch[:, 1:]), state


def evaluate(params: Any, state: Any, batch: Any) -> Any:
    return classification_metrics(Net().apply(params, batch[:, :-1]), batch[:, 1:])


WORKLOAD = Workload(
    name="tolstoi_mini",
    summary="next character of War and Peace (excerpt of 192,000 characters), small LSTM",
    batch_size=8,
    eval_interval=500,
    metrics=CLASSIFICATION,
    select="valid_error",
    load=load,
    init=init,
    loss=loss,
    evaluate=evaluate,
)
