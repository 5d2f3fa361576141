"""Data that do not fit on the device: each slot reads its own batches as they are needed, a few steps at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from levelfield.data import Stream
from levelfield.user_code import failure_details, failure_line

_BYTES = 256 * 2**20  # of batches sent to the device at once, unless a single step needs more


def stacked_shapes(example: Any, *leading: int) -> Any:
    """Return the shapes of an example's arrays with these leading axes, as they are on a device."""
    return jax.tree.map(lambda leaf: device_shape((*leading, *np.shape(leaf)), leaf.dtype), example)


def device_shape(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """Return the shape of an array on a device, where 64-bit numbers become 32-bit numbers."""
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype))


class Feeds:
    """One stream of batches per slot."""

    def __init__(self, stream: Stream, slots: int, batch_size: int, interval: int, steps: int) -> None:
        self._stream, self._batch_size, self._interval, self._trial_steps = stream, batch_size, interval, steps
        example = jax.tree.map(np.asarray, stream.example)
        step_bytes = slots * batch_size * sum(leaf.nbytes for leaf in jax.tree.leaves(example))
        fitting = max(1, _BYTES // step_bytes)
        self._steps = max(n for n in range(1, min(fitting, interval) + 1) if interval % n == 0)
        self.shapes = stacked_shapes(example, slots, self._steps, batch_size)
        # A slot without a trial, or whose trial has finished, gets the example over and over.
        idle = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (batch_size, *leaf.shape)), example)
        self._idle = itertools.repeat(idle)
        self._feeds: list[Iterator[Any]] = [self._idle] * slots
        self._kinds = jax.tree.map(_kind, idle)
        self._read = [0] * slots  # batches of the trial in the slot
        self.failures: dict[int, tuple[str, str]] = {}  # slots whose stream has failed: the reason and its details

    def open(self, slot: int, seed: int, read: int = 0) -> None:
        """Start the stream of a trial in a slot, after the batches that the trial has already read."""
        try:
            self._feeds[slot] = iter(self._stream.batches(seed, self._batch_size))
            self._read[slot] = 0
        except (Exception, SystemExit) as error:
            self._fail(slot, failure_line(error), failure_details(error))
        for _ in range(read):
            self._next(slot)

    def close(self, slot: int) -> None:
        self._feeds[slot] = self._idle
        self.failures.pop(slot, None)

    def until_evaluation(self) -> Iterator[Any]:
        """Yield the batches up to the next evaluation, as trees of arrays (slots × steps × batch × …).

        A slot whose stream fails, or ends before its trial, goes into ``failures``; the others go on.
        """
        for _ in range(self._interval // self._steps):
            batches_by_slot = [[self._next(slot) for _ in range(self._steps)] for slot in range(len(self._feeds))]
            slots = [jax.tree.map(lambda *leaves: np.stack(leaves), *batches) for batches in batches_by_slot]
            yield jax.tree.map(lambda *leaves: np.stack(leaves), *slots)

    def _next(self, slot: int) -> Any:
        feed = self._feeds[slot]
        if feed is self._idle or self._read[slot] == self._trial_steps:
            return next(self._idle)
        try:
            batch = next(feed)
        except StopIteration:
            self._fail(slot, f"the training data ended after {self._read[slot]} of {self._trial_steps} batches")
        except (Exception, SystemExit) as error:
            self._fail(slot, failure_line(error), failure_details(error))
        else:
            if (kinds := jax.tree.map(_kind, batch)) == self._kinds:
                self._read[slot] += 1
                return batch
            self._fail(slot, f"batch {self._read[slot]} has the types and shapes {kinds}; expected {self._kinds}")
        return next(self._idle)

    def _fail(self, slot: int, reason: str, details: str = "") -> None:
        self.failures[slot] = reason, details
        self._feeds[slot] = self._idle


def _kind(leaf: Any) -> str:
    """Return the type and shape of an array, such as ``uint8[32, 28, 28]``, as a device has it."""
    array = np.asarray(leaf)
    return f"{jax.dtypes.canonicalize_dtype(array.dtype)}{list(array.shape)}"
