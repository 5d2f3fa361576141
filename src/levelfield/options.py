"""Options of any optimizer: gradient clipping, decoupled weight decay, and an average of the weights.

They are hyperparameters like those of the rule, fixed or searched, and off unless the study sets them. A rule or a
workload with a hyperparameter of the same name has its own. ``levelfield.training.options`` applies them.
"""

from __future__ import annotations

from dataclasses import replace

from levelfield.hyperparameters import FRACTION, NOT_NEGATIVE, POSITIVE, Hyperparameter

OPTIONS: dict[str, Hyperparameter] = {
    # The gradient is scaled down to this norm, over all parameters together, if it is longer.
    "clip_norm": replace(POSITIVE, required=False, usual_range=(1e-2, 1e2)),
    # Matrices and kernels shrink by learning rate × λ in each step.
    "weight_decay": replace(NOT_NEGATIVE, required=False, default=0.0, usual_range=(0.0, 1.0)),
    # Metrics are those of the weights' moving average, which forgets by this factor in each step.
    "ema_decay": replace(FRACTION, required=False, default=0.0, usual_range=(0.9, 0.9999)),
}
