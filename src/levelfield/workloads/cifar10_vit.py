"""CIFAR-10 with a small vision transformer (Dosovitskiy et al. 2021)."""

from __future__ import annotations

import functools

from levelfield.datasets.splits import labeled_images
from levelfield.workload import CLASSIFICATION, L2, LABEL_SMOOTHING, Workload, imported

WORKLOAD = Workload(
    name="cifar10_vit",
    summary="CIFAR-10 (45,000/5,000/10,000), ViT with patches of 4×4 pixels and 2.7 million parameters",
    kind="images",
    batch_size=256,
    eval_interval=500,
    metrics=CLASSIFICATION,
    select="valid_error",
    examples={"valid": 5_000, "test": 10_000},
    load=functools.partial(labeled_images, "cifar10"),
    **imported("levelfield.models.cifar10_vit", "init", "loss", "evaluate"),
    hyperparameters=L2 | LABEL_SMOOTHING,
    dataset="cifar10",
    slots_per_core=1,
)
