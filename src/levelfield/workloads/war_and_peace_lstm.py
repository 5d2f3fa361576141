"""Next-character prediction on War and Peace with a two-layer LSTM: the "char-rnn" of DeepOBS.

The text is read in order as 50 parallel streams, 50 characters at a time. The LSTM's state carries over from one batch
to the next and is reset to zero at the start of each epoch. No gradient flows into the previous batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from levelfield.data import Data
from levelfield.datasets import arrays
from levelfield.workload import CLASSIFICATION, Workload, imported

STREAMS = 50
WINDOW = 50


def load() -> Data:
    """Use the last fifth of the text for testing and the first fifth of the rest for validation."""
    tokens = arrays("war_and_peace")["tokens"]
    rest = len(tokens) - len(tokens) // 5
    valid, train, test = np.split(tokens, [rest // 5, rest])
    batches = windows(train)
    first = np.arange(len(batches)) == 0
    evaluation = {"valid": windows(valid), "test": windows(test)}
    return Data(train=(batches, first), evaluation={"train": batches[: len(evaluation["valid"])], **evaluation})


def windows(tokens: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Cut a text into an array of (batches, streams, window + 1), where targets are inputs shifted by one.

    Characters at the end that fill no batch are dropped.
    """
    batches = (len(tokens) - 1) // (STREAMS * WINDOW)
    stream, batch = np.arange(STREAMS)[:, None], np.arange(batches)[:, None, None]
    windows: npt.NDArray[np.uint8] = tokens[(stream * batches + batch) * WINDOW + np.arange(WINDOW + 1)]
    return windows


WORKLOAD = Workload(
    name="war_and_peace_lstm",
    summary="next character of War and Peace (2,090,000 characters to train on), two-layer LSTM",
    kind="text",
    batch_size=STREAMS,
    eval_interval=1672,  # two epochs
    metrics=CLASSIFICATION,
    select="valid_error",
    load=load,
    **imported("levelfield.models.war_and_peace_lstm", "init", "loss", "evaluate", "batched", "batched_evaluate"),
    sequential=True,
    dataset="war_and_peace",
    slots_per_core=1,
    version=3,  # versions 1 and 2 dropped units by other random bits, version 1 also twice between the layers
)
