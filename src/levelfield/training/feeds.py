"""Data that do not fit on the device: each slot reads its own batches as they are needed, a few steps at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from levelfield.data import Stream

_BYTES = 256 * 2**20  # of batches sent to the device at once, unless a single step needs more


class Feeds:
    """One stream of batches per slot."""

    def __init__(self, stream: Stream, slots: int, batch_size: int, interval: int, steps: int) -> None:
        self._stream, self._batch_size, self._interval, self._trial_steps = stream, batch_size, interval, steps
        example = jax.tree.map(np.asarray, stream.example)
        step_bytes = slots * batch_size * sum(leaf.nbytes for leaf in jax.tree.leaves(example))
        fitting = max(1, _BYTES // step_bytes)
        self._steps = max(n for n in range(1, min(fitting, interval) + 1) if interval % n == 0)
        leading = (slots, self._steps, batch_size)
        self.shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*leading, *leaf.shape), leaf.dtype), example)
        # A slot without a trial, or whose trial has finished, gets the example over and over.
        idle = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (batch_size, *leaf.shape)), example)
        self._idle = itertools.repeat(idle)
        self._feeds: list[Iterator[Any]] = [self._idle] * slots

    def open(self, fresh: np.ndarray, seeds: np.ndarray) -> None:
        """Start a new stream in each slot where a trial starts."""
        for slot in np.flatnonzero(fresh):
            batches = self._stream.batches(int(seeds[slot]), self._batch_size)
            self._feeds[slot] = itertools.chain(itertools.islice(batches, self._trial_steps), self._idle)

    def close(self, slot: int) -> None:
        self._feeds[slot] = self._idle

    def until_evaluation(self) -> Iterator[Any]:
        """Yield the batches up to the next evaluation, as trees of arrays (slots × steps × batch × …)."""
        for _ in range(self._interval // self._steps):
            batches_by_slot = [[next(feed) for _ in range(self._steps)] for feed in self._feeds]
            slots = [jax.tree.map(lambda *leaves: np.stack(leaves), *batches) for batches in batches_by_slot]
            yield jax.tree.map(lambda *leaves: np.stack(leaves), *slots)
