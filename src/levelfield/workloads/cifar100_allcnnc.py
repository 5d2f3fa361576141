"""CIFAR-100 with All-CNN-C (Springenberg et al. 2014) as in DeepOBS, which sets l2 to 5e-4."""

from __future__ import annotations

import functools

from levelfield.datasets.splits import labeled_images
from levelfield.workload import CLASSIFICATION, L2, Workload, imported

WORKLOAD = Workload(
    name="cifar100_allcnnc",
    summary="CIFAR-100 (45,000/5,000/10,000), All-CNN-C with dropout",
    kind="images",
    batch_size=256,
    eval_interval=875,  # five epochs
    metrics=CLASSIFICATION,
    select="valid_error",
    examples={"valid": 5_000, "test": 10_000},
    load=functools.partial(labeled_images, "cifar100"),
    **imported("levelfield.models.cifar100_allcnnc", "init", "loss", "evaluate"),
    hyperparameters=L2,
    dataset="cifar100",
    slots_per_core=1,  # a network of this size fills a core
)
