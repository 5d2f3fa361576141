"""The separable problem of Wilson et al. 2017 (section 3.3): least squares on which adaptive methods fail.

Example i has label yᵢ = ±1 and features (yᵢ, 1, 1, 0, …): the first tells the label, the next two tell
nothing. Besides, it alone has one feature (yᵢ = 1) or five (yᵢ = −1) at 1. Gradient descent from zero finds
the solution of least norm, which weighs the first feature and generalises perfectly. Adaptive methods move
every weight by the same amount, give the two idle features as much weight as the telling one, and call
every new example positive, unless ε is large enough to damp the adaptation.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from levelfield.data import Data
from levelfield.workloads.base import CLASSIFICATION, Workload

_EXAMPLES = 50


def _labels(n: int) -> np.ndarray:
    """Three of five are positive."""
    return np.where(np.arange(n) % 5 < 3, 1.0, -1.0).astype(np.float32)


def _examples(n: int, own_features: bool) -> tuple[np.ndarray, np.ndarray]:
    labels = _labels(n)
    features = np.zeros((n, 3 + 5 * _EXAMPLES), np.float32)
    features[:, 0], features[:, 1:3] = labels, 1.0
    if own_features:  # a new example's own features have no weight yet, so they can be left out
        for i, label in enumerate(labels):
            features[i, 3 + 5 * i : 3 + 5 * i + (1 if label > 0 else 5)] = 1.0
    return features, labels


def load() -> Data:
    train, fresh = _examples(_EXAMPLES, own_features=True), _examples(_EXAMPLES, own_features=False)
    return Data(train=train, evaluation={"train": train, "valid": fresh, "test": fresh})


def init(key: jax.Array) -> tuple[Any, Any]:
    return jnp.zeros(3 + 5 * _EXAMPLES), ()


def loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> tuple[jax.Array, Any]:
    return _squares(params, batch).mean(), state


def evaluate(params: Any, state: Any, batch: Any) -> Any:
    features, labels = batch
    return {"loss": _squares(params, batch), "error": labels * (features @ params) <= 0}


def _squares(params: Any, batch: Any) -> jax.Array:
    features, labels = batch
    return 0.5 * (features @ params - labels) ** 2


WORKLOAD = Workload(
    name="wilson",
    summary="separable least squares on which adaptive methods with the default ε fail (Wilson et al. 2017)",
    batch_size=_EXAMPLES,  # the whole set, as in the analysis
    eval_interval=100,
    metrics=CLASSIFICATION,
    select="valid_error",
    load=load,
    init=init,
    loss=loss,
    evaluate=evaluate,
    slots_per_core=8,
)
