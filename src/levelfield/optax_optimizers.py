"""Which of optax's optimizers can be trained, and what they need beyond their own signature."""

from __future__ import annotations

import functools
import importlib
import re
from dataclasses import replace
from typing import Any

from levelfield.hyperparameters import CLOSEST_TO_1, NOT_NEGATIVE, Hyperparameter
from levelfield.optax_signatures import (
    arguments,
    known_optimizers,
    names_from_source,
    optimizer_function,
)
from levelfield.optax_signatures import optimizer_hyperparameters as signature

_WRAPS = "it wraps another optimizer"
_REGISTER = "register the combination as a rule (docs/optimizers.md)"
_PER_EXAMPLE = "it needs the gradient of each example, but workloads give the gradient of a batch"
_REFUSED = {
    "lookahead": f"{_WRAPS} and trains pairs of weights; {_REGISTER}",
    "contrib.sam": f"{_WRAPS} and takes gradients at two points in turn; {_REGISTER}",
    "contrib.mechanize": f"{_WRAPS}; {_REGISTER}",
    "contrib.schedule_free": f"{_WRAPS}; use optax.contrib.schedule_free_adamw or schedule_free_sgd, or {_REGISTER}",
    "contrib.reduce_on_plateau": "it scales the updates of another optimizer; choose a schedule instead",
    "contrib.split_real_and_imaginary": f"{_WRAPS}, for complex parameters, which no workload has",
    "contrib.dpsgd": _PER_EXAMPLE,
    "contrib.differentially_private_aggregate": _PER_EXAMPLE,
    "dpsgd": _PER_EXAMPLE,  # deprecated names, which dir(optax) does not list
    "differentially_private_aggregate": _PER_EXAMPLE,
}

# A schedule's own warmup_steps do the same, for every optimizer and as a fraction of the steps. Trials have seeds.
_LEFT_OUT = {"warmup_steps", "seed"}

# What optax's optimizers can take, by the names that they share; optax itself checks nothing. A moving average that
# forgets nothing never moves, and zero steps between updates, or a rank of zero, mean that nothing is trained.
_AVERAGE, _COUNT = Hyperparameter(low=0.0, high=1 - CLOSEST_TO_1), Hyperparameter(low=1)
_DOMAINS = {
    **dict.fromkeys(("b1", "b2", "b3", "betas_1", "betas_2", "adam_b1", "adam_b2"), _AVERAGE),
    **dict.fromkeys(("beta", "beta3", "rho", "decay"), _AVERAGE),
    **dict.fromkeys(("eps", "eps_root", "adam_eps_root", "ns_steps"), NOT_NEGATIVE),
    **dict.fromkeys(("memory_size", "rank", "update_interval", "update_proj_gap"), _COUNT),
}

_MUON = "contrib.muon"
_OUTER = re.compile(r"\b(\w+_)?(embedding|head)\b")  # parameters, or layers, of these names
_SWITCH = Hyperparameter(required=False, traced=False, kind="switch", default=False)
_OF_MUON = {"reshape": _SWITCH, "hidden_only": _SWITCH}  # see _matrices


def optax_optimizers() -> list[str]:
    """Return the names of all of optax's optimizers, those that cannot be trained included. This imports optax."""
    return sorted({*known_optimizers(), *_REFUSED}, key=lambda name: (name.startswith("contrib."), name))


def by_short_name() -> dict[str, str]:
    """Return the names within optax of all of its optimizers, by their names without the module."""
    return {name.rpartition(".")[2]: name for name in [*_REFUSED, *names_from_source()]}


def is_part(name: str) -> bool:
    """Return whether this is a transformation of optax but no optimizer, such as clip. This imports optax."""
    try:
        function = optimizer_function(name)
    except AttributeError:
        return False
    return "GradientTransformation" in str(getattr(function, "__annotations__", {}).get("return"))


def refusal(name: str) -> str:
    """Return why an optimizer cannot be trained; "" if it can, or does not exist."""
    return _REFUSED.get(name, "")


def optimizer_hyperparameters(name: str) -> dict[str, Hyperparameter] | None:
    """Return the hyperparameters of an optimizer, or None if optax has no such optimizer."""
    hyperparameters = signature(name)
    if hyperparameters is None:
        return None
    kept = {key: _within_domain(key, about) for key, about in hyperparameters.items() if key not in _LEFT_OUT}
    return kept | (_OF_MUON if name == _MUON else {})


def _within_domain(name: str, hyperparameter: Hyperparameter) -> Hyperparameter:
    """Give a hyperparameter the domain of its name, unless its default shows that it is something else.

    For example, the beta of optimistic gradient descent is 1 by default: it does not belong to a moving average.
    """
    domain, default = _DOMAINS.get(name), hyperparameter.default
    if domain is None or not (default is None or domain.allows(default)):
        return hyperparameter
    return replace(hyperparameter, low=domain.low, high=domain.high)


def build_optimizer(name: str, **values: Any) -> Any:
    """Return optax's transformation. This imports optax."""
    if name == _MUON:
        reshape, hidden_only = (values.pop(name, False) for name in _OF_MUON)
        if reshape or hidden_only:
            values["muon_weight_dimension_numbers"] = functools.partial(_matrices, reshape, hidden_only)
    return optimizer_function(name)(**arguments(name, values))


def _matrices(reshape: bool, hidden_only: bool, params: Any) -> Any:
    """Return which parameters Muon updates, and as which matrices; it leaves the others to AdamW.

    By default these are all matrices, as in optax. With ``reshape``, kernels count as matrices, too: from all other
    axes to the last one. With ``hidden_only``, embeddings and heads, recognized by their names, are left to AdamW, as
    Muon's author advises.
    """
    jax, contrib = importlib.import_module("jax"), importlib.import_module("optax.contrib")

    def dimensions(path: Any, leaf: Any) -> Any:
        outer = hidden_only and any(_OUTER.search(str(key)) for key in path)
        if outer or leaf.ndim < 2 or (leaf.ndim > 2 and not reshape):
            return None
        *reduced, output = range(leaf.ndim)
        return contrib.MuonDimensionNumbers(tuple(reduced), output)

    return jax.tree_util.tree_map_with_path(dimensions, params)
