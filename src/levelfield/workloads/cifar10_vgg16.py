"""CIFAR-10 with VGG-16 as in Wilson et al. 2017: vgg_bn_drop of Zagoruyko's cifar.torch."""

from __future__ import annotations

import functools

from levelfield.datasets.splits import labeled_images
from levelfield.workload import CLASSIFICATION, L2, Workload, imported

WORKLOAD = Workload(
    name="cifar10_vgg16",
    summary="CIFAR-10 (45,000/5,000/10,000), VGG-16 with batch normalization and dropout",
    kind="images",
    batch_size=128,
    eval_interval=1755,  # five epochs
    metrics=CLASSIFICATION,
    select="valid_error",
    examples={"valid": 5_000, "test": 10_000},
    load=functools.partial(labeled_images, "cifar10"),
    **imported("levelfield.models.cifar10_vgg16", "init", "loss", "evaluate"),
    hyperparameters=L2,
    dataset="cifar10",
    slots_per_core=1,  # a network of this size fills a core
)
