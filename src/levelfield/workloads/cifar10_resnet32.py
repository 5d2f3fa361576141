"""CIFAR-10 with ResNet-32 (He et al. 2016, with the improved block of 2016b)."""

from __future__ import annotations

import functools

from levelfield.datasets.splits import labeled_images
from levelfield.workload import CLASSIFICATION, L2, Workload, imported

WORKLOAD = Workload(
    name="cifar10_resnet32",
    summary="CIFAR-10 (45,000/5,000/10,000), ResNet-32 with batch normalization",
    kind="images",
    batch_size=256,
    eval_interval=500,
    metrics=CLASSIFICATION,
    select="valid_error",
    examples={"valid": 5_000, "test": 10_000},
    load=functools.partial(labeled_images, "cifar10"),
    **imported("levelfield.models.cifar10_resnet32", "init", "loss", "evaluate", "batched", "batched_evaluate"),
    hyperparameters=L2,
    dataset="cifar10",
    slots_per_core=1,  # a network of this size fills a core
)
