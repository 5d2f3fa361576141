"""What training reads: arrays in memory, or streams of batches. Trees of numpy arrays; no JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

Tree = Any  # nested tuples, lists and dictionaries of arrays


class Stream(NamedTuple):
    """Training data that are read as they are needed: each trial's own batches, in its own order.

    ``batches(seed, batch_size)`` yields them from the first step on, without end. ``example`` is one example, for
    shapes and types.
    """

    examples: int
    example: Tree
    batches: Callable[[int, int], Iterator[Tree]]


class Pass(NamedTuple):
    """A split for evaluation that is read as it is needed: ``batches(batch_size)`` yields all of it once."""

    example: Tree
    batches: Callable[[int], Iterator[Tree]]


class Data(NamedTuple):
    """Arrays whose leading axis counts examples; an empty tree where a workload draws its own."""

    train: Tree | Stream
    evaluation: Mapping[str, Tree | Pass]  # by split
