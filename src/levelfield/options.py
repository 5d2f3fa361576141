"""Options of any optimizer: gradient clipping, decoupled weight decay, and an average of the weights.

They are hyperparameters like those of the rule, fixed or searched, and off unless the study sets them. A rule or a
workload with a hyperparameter of the same name has its own. ``levelfield.training.options`` applies them.
"""

from __future__ import annotations

from dataclasses import replace

from levelfield.errors import SpaceError
from levelfield.hyperparameters import CLOSEST_TO_1, NOT_NEGATIVE, POSITIVE, Hyperparameter

OPTIONS: dict[str, Hyperparameter] = {
    # The gradient is scaled down to this norm, over all parameters together, if it is longer.
    "clip_norm": replace(POSITIVE, required=False, usual_range=(1e-2, 1e2)),
    # Matrices and kernels shrink by learning rate × λ in each step.
    "weight_decay": replace(NOT_NEGATIVE, required=False, default=0.0, usual_range=(0.0, 1.0)),
    # Metrics are those of the weights' moving average, which forgets by this factor in each step.
    "ema_decay": replace(NOT_NEGATIVE, high=1 - CLOSEST_TO_1, required=False, default=0.0, usual_range=(0.9, 0.9999)),
}

_BY_HAND = {
    "clip_norm": "optax.clip_by_global_norm or torch.nn.utils.clip_grad_norm_",
    "weight_decay": "optax.add_decayed_weights",
    "ema_decay": "optax.incremental_update or torch.optim.swa_utils",
}


def check_no_option(name: str, rule: str) -> None:
    """Raise if this is an option, where only the hyperparameters of a rule can be given."""
    if name in OPTIONS:
        raise SpaceError(
            f"{name} is not a hyperparameter of {rule} but an option, which only studies of JAX workloads apply; "
            f"in code of your own, use {_BY_HAND[name]}"
        )
