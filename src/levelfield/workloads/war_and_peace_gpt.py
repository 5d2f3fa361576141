"""Next-character prediction on War and Peace with the GPT that nanoGPT trains on characters."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from levelfield.data import Data
from levelfield.datasets import arrays
from levelfield.workload import CLASSIFICATION, Workload, imported

CHARACTERS = 83  # different ones in the novel
WINDOW = 256  # characters that the network sees at once
_STRIDE = 16  # characters between the starts of two windows to train on
_EVALUATED = 500  # windows of the training text that are evaluated


def load() -> Data:
    """Split as war_and_peace_lstm does: the last fifth tests, the first fifth of the rest validates."""
    tokens = arrays("war_and_peace")["tokens"]
    rest = len(tokens) - len(tokens) // 5
    valid, train, test = np.split(tokens, [rest // 5, rest])
    evaluation = {"train": windows(train, WINDOW)[:_EVALUATED], "valid": windows(valid, WINDOW)}
    return Data(train=windows(train, _STRIDE), evaluation=evaluation | {"test": windows(test, WINDOW)})


def windows(tokens: npt.NDArray[np.uint8], stride: int) -> npt.NDArray[np.uint8]:
    """Cut a text into windows that start every ``stride`` characters, each with the character that follows it."""
    return np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(tokens, WINDOW + 1)[::stride])


WORKLOAD = Workload(
    name="war_and_peace_gpt",
    summary="next character of War and Peace (2,090,000 characters to train on), GPT of 10.8 million parameters",
    kind="text",
    batch_size=64,
    eval_interval=500,
    metrics=CLASSIFICATION,
    select="valid_loss",  # in nats per character
    load=load,
    **imported("levelfield.models.war_and_peace_gpt", "init", "loss", "evaluate", "batched", "batched_evaluate"),
    dataset="war_and_peace",
    slots_per_core=1,
    version=3,  # version 2 rounded otherwise on GPUs, and version 1 dropped units by other random bits
)
