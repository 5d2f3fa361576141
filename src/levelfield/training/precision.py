"""The precision in which a study trains. Weights, the rule's state, and the gradients it gets are always in float32.

``tf32`` leaves products to the device: on recent GPUs they are in TF32, on a CPU in float32. ``float32`` asks for true
float32. ``bfloat16`` computes the loss and its gradients from weights and inputs that are rounded to bfloat16; random
numbers, the state, and the loss itself stay in float32.

Evaluation always uses the weights in float32: it measures what training has found, and is a small part of the work.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp

from levelfield.workload import Precision


def products(precision: Precision) -> AbstractContextManager[Any]:
    """Return a context for tracing functions whose products are to be computed in this precision."""
    return jax.default_matmul_precision("highest") if precision == "float32" else nullcontext()


def in_precision(loss: Any, precision: Precision) -> Any:
    """Return a workload's loss as this precision computes it: a function of the same float32 arrays."""
    if precision != "bfloat16":
        return loss

    def rounded(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> tuple[Any, Any]:
        value, new = loss(_rounded(params), state, _rounded(batch), key, hyperparameters)
        return value.astype(jnp.float32), jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), new, state)

    return rounded


def _rounded(tree: Any) -> Any:
    """Return a tree with its float32 arrays in bfloat16."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if leaf.dtype == jnp.float32 else leaf, tree)
