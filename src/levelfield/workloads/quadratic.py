"""The noisy quadratic model (Zhang et al. 2019): a convex problem whose loss is known exactly.

The loss is ½ Σ hᵢ θᵢ² with curvatures hᵢ = 1/i. A gradient over a batch of size B is hᵢ θᵢ plus Gaussian noise of
variance hᵢ / B. Trials start at θ ~ N(0, 1).
"""

from __future__ import annotations

from levelfield.data import Data
from levelfield.workload import Workload, imported, minimized

WORKLOAD = Workload(
    name="quadratic",
    summary="noisy quadratic model in 100 dimensions, exact loss",
    batch_size=16,
    eval_interval=500,
    metrics=minimized("train_loss"),
    select="train_loss",
    load=lambda: Data(train=(), evaluation={"train": ()}),
    **imported("levelfield.models.quadratic", "init", "loss", "evaluate", "draw"),
    slots_per_core=8,
)
