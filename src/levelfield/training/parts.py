"""Which parameters are updated by which part of a rule, such as Muon's and AdamW's in optax.contrib.muon."""

from __future__ import annotations

from typing import Any

import jax
from optax.transforms import PartitionState

from levelfield.training.step import Job, started


def parts(job: Job) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shapes of the parameters by the part of the rule that updates them, and by name.

    Nothing is returned for a rule that treats all parameters alike. The parts are those of ``optax.partition``, and the
    optimizer's state shows them: each part holds moments of its own parameters.
    """
    slot = started(job)
    partitions = jax.tree.leaves(slot.optimizer, is_leaf=_is_partition)
    shapes = {path: leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(slot.params)}
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for partition in filter(_is_partition, partitions):
        for label, state in partition.inner_states.items():
            held = {_parameter(path, shapes) for path, _ in jax.tree_util.tree_leaves_with_path(state)}
            found[str(label)] = {_name(path): shape for path, shape in shapes.items() if path in held}
    return found


def _is_partition(node: Any) -> bool:
    return isinstance(node, PartitionState)


def _parameter(path: tuple[Any, ...], parameters: Any) -> tuple[Any, ...] | None:
    """Return the path of the parameter that a leaf of the state belongs to: the longest one that its path ends with."""
    endings = (path[start:] for start in range(len(path)))
    return next((ending for ending in endings if ending in parameters), None)


def _name(path: tuple[Any, ...]) -> str:
    """Return a path as text, without flax's outermost level if it is there."""
    return jax.tree_util.keystr(path, simple=True, separator="/").removeprefix("params/")
