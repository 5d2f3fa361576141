"""Next-character prediction on War and Peace with a small LSTM, on an excerpt embedded in the package."""

from __future__ import annotations

import lzma
from collections import Counter
from importlib import resources

import numpy as np
import numpy.typing as npt

from levelfield.data import Data
from levelfield.workload import CLASSIFICATION, Workload, imported

CHARACTERS = 76  # different ones in the excerpt
WINDOW = 32  # characters that the network sees at once
EVALUATED = 300  # windows in each split that is evaluated; the validation and test texts have just as many


def load() -> Data:
    file = resources.files("levelfield.datasets") / "embedded/tolstoi_mini.txt.xz"
    text = lzma.decompress(file.read_bytes()).decode("utf-8")
    ids = {character: i for i, (character, _) in enumerate(Counter(text).most_common())}
    tokens = np.array([ids[character] for character in text], np.int32)
    held_out = EVALUATED * WINDOW + 1
    train, valid, test = np.split(tokens, [len(tokens) - 2 * held_out, len(tokens) - held_out])
    return Data(
        train=_windows(train),
        evaluation={"train": _windows(train)[:EVALUATED], "valid": _windows(valid), "test": _windows(test)},
    )


def _windows(tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Cut a text into adjacent windows, each with the character that follows it as the last target."""
    starts = np.arange(0, len(tokens) - WINDOW, WINDOW)
    windows: npt.NDArray[np.int32] = tokens[starts[:, None] + np.arange(WINDOW + 1)]
    return windows


WORKLOAD = Workload(
    name="tolstoi_mini",
    summary="next character of War and Peace (excerpt of 192,000 characters), small LSTM",
    kind="text",
    batch_size=8,
    eval_interval=500,
    metrics=CLASSIFICATION,
    select="valid_error",
    examples={"valid": EVALUATED * WINDOW, "test": EVALUATED * WINDOW},
    load=load,
    **imported("levelfield.models.tolstoi_mini", "init", "loss", "evaluate"),
)
