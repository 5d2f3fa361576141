"""Data that do not fit on the device: each slot's own batches, read as they are needed, a few steps at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from levelfield.data import Stream

_BYTES = 256 * 2**20  # of batches sent to the device at once, at most, unless one step needs more


class Feeds:
    """One stream of batches for each slot."""

    def __init__(self, stream: Stream, slots: int, batch_size: int, interval: int, steps: int) -> None:
        self._stream, self._batch_size, self._interval, self._most = stream, batch_size, interval, steps
        example = jax.tree.map(np.asarray, stream.example)
        step_bytes = slots * batch_size * sum(leaf.nbytes for leaf in jax.tree.leaves(example))
        most = max(1, _BYTES // step_bytes)
        self._steps = max(n for n in range(1, min(most, interval) + 1) if interval % n == 0)
        leading = (slots, self._steps, batch_size)
        self.shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*leading, *leaf.shape), leaf.dtype), example)
        # A slot that holds no trial, or has trained it to its end, gets the example over and over.
        idle = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (batch_size, *leaf.shape)), example)
        self._idle = itertools.repeat(idle)
        self._open: list[Iterator[Any]] = [self._idle] * slots

    def open(self, fresh: np.ndarray, seeds: np.ndarray) -> None:
        """Start anew in the slots where a trial starts."""
        for slot in np.flatnonzero(fresh):
            batches = self._stream.batches(int(seeds[slot]), self._batch_size)
            self._open[slot] = itertools.chain(itertools.islice(batches, self._most), self._idle)

    def close(self, slot: int) -> None:
        self._open[slot] = self._idle

    def stretch(self) -> Iterator[Any]:
        """The batches up to the next evaluation: trees of arrays (slots × steps × batch × …)."""
        for _ in range(self._interval // self._steps):
            steps = [[next(feed) for _ in range(self._steps)] for feed in self._open]
            rows = [jax.tree.map(lambda *leaves: np.stack(leaves), *batches) for batches in steps]
            yield jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
