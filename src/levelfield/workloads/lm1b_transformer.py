"""The One Billion Word Benchmark (LM1B) with Transformer "base" (Vaswani et al. 2017) as a language model."""

from __future__ import annotations

import numpy as np

from levelfield.data import Data
from levelfield.datasets import arrays
from levelfield.datasets.lm1b import PAD, sentences, stream_lm1b
from levelfield.workload import Workload, imported, minimized

LENGTH = 128  # tokens that the network sees of a sentence


def load() -> Data:
    """Return rows of 129 tokens: a sentence between its begin and end tokens, then padding."""
    stored = arrays("lm1b")
    sizes = {split: len(stored[f"{split}_offsets"]) - 1 for split in ("train", "valid", "test")}
    sizes["train"] = min(sizes["train"], sizes["valid"])  # the sentences are published in random order: take the first
    return Data(
        train=stream_lm1b(stored, LENGTH),
        evaluation={split: weighted(sentences(stored, split, LENGTH, range(size))) for split, size in sizes.items()},
    )


def weighted(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give each sentence the weight that turns a mean over sentences of sums over tokens into a mean over tokens."""
    targets = np.count_nonzero(rows[:, 1:] != PAD)
    return rows, np.full(len(rows), len(rows) / targets, np.float32)


WORKLOAD = Workload(
    name="lm1b_transformer",
    summary="One Billion Word Benchmark in 32,000 subwords, Transformer base",
    kind="text",
    batch_size=256,
    eval_interval=2500,
    metrics=minimized("train_loss", "valid_loss", "test_loss"),
    select="valid_loss",
    load=load,
    **imported("levelfield.models.lm1b_transformer", "init", "loss", "evaluate"),
    dataset="lm1b",
    slots_per_core=1,
    version=2,  # version 1 drew other initial weights, from the same distribution
)
