"""Fashion-MNIST with the "Simple CNN" of Shallue et al. 2019."""

from __future__ import annotations

import functools

from levelfield.datasets.splits import labeled_images
from levelfield.workload import CLASSIFICATION, L2, Workload, imported

WORKLOAD = Workload(
    name="fashion_mnist_cnn",
    summary="Fashion-MNIST (55,000/5,000/10,000), Simple CNN",
    kind="images",
    batch_size=256,
    eval_interval=500,
    metrics=CLASSIFICATION,
    select="valid_error",
    examples={"valid": 5_000, "test": 10_000},
    load=functools.partial(labeled_images, "fashion_mnist"),
    **imported("levelfield.models.fashion_mnist_cnn", "init", "loss", "evaluate", "batched", "batched_evaluate"),
    hyperparameters=L2,
    dataset="fashion_mnist",
    slots_per_core=1,  # a network of this size fills a core
    version=2,  # version 1 used Glorot initialization
)
