"""Which of optax's optimizers can be trained, and what they need beyond their own signature."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Container
from typing import Any

from levelfield.hyperparameters import Hyperparameter
from levelfield.optax_signatures import arguments, optimizer_function
from levelfield.optax_signatures import optimizer_hyperparameters as signature

_WRAPS = "it wraps another optimizer"
_REGISTER = "register the combination as a rule (docs/studies.md)"
_PER_EXAMPLE = "it needs the gradient of each example, and workloads give that of a batch"
_REFUSED = {
    "contrib.sam": f"{_WRAPS} and takes gradients at two points in turn; {_REGISTER}",
    "contrib.mechanize": f"{_WRAPS}; {_REGISTER}",
    "contrib.schedule_free": f"{_WRAPS}; use optax.contrib.schedule_free_adamw or schedule_free_sgd, or {_REGISTER}",
    "contrib.reduce_on_plateau": "it scales the updates of another optimizer; choose a schedule instead",
    "contrib.split_real_and_imaginary": f"{_WRAPS}, for complex parameters, which no workload has",
    "contrib.dpsgd": _PER_EXAMPLE,
    "contrib.differentially_private_aggregate": _PER_EXAMPLE,
}

# A schedule's own warmup_steps do the same, for every optimizer and as a fraction of the steps.
_LEFT_OUT = {"warmup_steps"}

_MUON = "contrib.muon"
_OUTER = re.compile(r"\b(\w+_)?(embedding|head)\b")  # parameters, or layers, of these names
_RESHAPE = {"reshape": Hyperparameter(required=False, traced=False, kind="switch", default=False)}


def refusal(name: str) -> str:
    """Return why an optimizer cannot be trained; "" if it can, or does not exist."""
    return _REFUSED.get(name, "")


def optimizer_hyperparameters(name: str) -> dict[str, Hyperparameter] | None:
    """Return the hyperparameters of an optimizer, or None if optax has no such optimizer."""
    hyperparameters = signature(name)
    if hyperparameters is None:
        return None
    kept = {key: about for key, about in hyperparameters.items() if key not in _LEFT_OUT}
    return kept | (_RESHAPE if name == _MUON else {})


def build_optimizer(name: str, **values: Any) -> Any:
    """Return optax's transformation. This imports optax."""
    if name == _MUON:
        axes = range(2, sys.maxsize) if values.pop("reshape", False) else (2,)
        values["muon_weight_dimension_numbers"] = functools.partial(_matrices, axes)
    return optimizer_function(name)(**arguments(name, values))


def _matrices(axes: Container[int], params: Any) -> Any:
    """Tell Muon the matrices: hidden layers' parameters with one of these numbers of axes. It leaves others to AdamW.

    More than two axes form a matrix from all others to the last one. Embeddings and the last layer are no hidden
    layers; Muon's author leaves them to AdamW, optax does not. They are recognized by their names.
    """
    jax, contrib = importlib.import_module("jax"), importlib.import_module("optax.contrib")

    def dimensions(path: Any, leaf: Any) -> Any:
        if leaf.ndim not in axes or any(_OUTER.search(str(key)) for key in path):
            return None
        *reduced, output = range(leaf.ndim)
        return contrib.MuonDimensionNumbers(tuple(reduced), output)

    return jax.tree_util.tree_map_with_path(dimensions, params)
