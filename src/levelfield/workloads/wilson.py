"""The separable problem of Wilson et al. 2017 (section 3.3): least squares on which adaptive methods fail.

Example i has label yᵢ = ±1 and features (yᵢ, 1, 1, 0, …): the first predicts the label, the next two carry no
information. Each example also has features that no other example has, set to 1: one if yᵢ = 1, five if yᵢ = −1.
Gradient descent from zero finds the minimum-norm solution, which relies on the first feature and generalizes perfectly.
Adaptive methods move every weight by the same amount, so the two uninformative features get as much weight as the
first, and every new example is classified as positive, unless ε is large enough to damp the adaptation.
"""

from __future__ import annotations

import numpy as np

from levelfield.data import Data
from levelfield.workload import CLASSIFICATION, Workload, imported

_EXAMPLES = 50
FEATURES = 3 + 5 * _EXAMPLES


def _examples(n: int, own_features: bool) -> tuple[np.ndarray, np.ndarray]:
    """Make n examples, three in five of them positive."""
    labels = np.where(np.arange(n) % 5 < 3, 1.0, -1.0).astype(np.float32)
    features = np.zeros((n, FEATURES), np.float32)
    features[:, 0], features[:, 1:3] = labels, 1.0
    if own_features:  # those of new examples have zero weight, so they can be left out
        for i, label in enumerate(labels):
            features[i, 3 + 5 * i : 3 + 5 * i + (1 if label > 0 else 5)] = 1.0
    return features, labels


def load() -> Data:
    train, fresh = _examples(_EXAMPLES, own_features=True), _examples(_EXAMPLES, own_features=False)
    return Data(train=train, evaluation={"train": train, "valid": fresh, "test": fresh})


WORKLOAD = Workload(
    name="wilson",
    summary="separable least squares on which adaptive methods with the default ε fail (Wilson et al. 2017)",
    batch_size=_EXAMPLES,  # the full training set, as in the analysis
    eval_interval=100,
    metrics=CLASSIFICATION,
    select="valid_error",
    load=load,
    **imported("levelfield.models.wilson", "init", "loss", "evaluate"),
    slots_per_core=8,
)
