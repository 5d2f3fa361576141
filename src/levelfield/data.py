"""What training reads: arrays in memory, or streams of batches, as trees of numpy arrays. This module loads no JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

Tree = Any  # nested tuples, lists and dictionaries of arrays


class Stream(NamedTuple):
    """Training data that are read as they are needed; each trial reads its batches in its own order.

    ``batches(seed, batch_size)`` yields batches from the first step on, without end. ``example`` is one example, which
    shows shapes and types.
    """

    examples: int
    example: Tree
    batches: Callable[[int, int], Iterator[Tree]]


class Pass(NamedTuple):
    """A split for evaluation that is read as it is needed: ``batches(batch_size)`` yields all of it once."""

    example: Tree
    batches: Callable[[int], Iterator[Tree]]


class Data(NamedTuple):
    """Arrays whose leading axis counts examples; an empty tree if the workload draws its own batches."""

    train: Tree | Stream
    evaluation: Mapping[str, Tree | Pass]  # by split
