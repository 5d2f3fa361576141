"""L2 and label smoothing against their equations."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from model_references import (
    Torch,
    close,
    evaluated,
    example,
    filled,
)

from levelfield.models import (
    fashion_mnist_cnn,
    regularization,
)
from levelfield.workloads import get_workload


def test_a_classifier_applies_what_the_study_names(torch: Any) -> None:
    small = dataclasses.replace(fashion_mnist_cnn.CLASSIFIER, net=fashion_mnist_cnn.Net(features=(4, 4), hidden=8))
    params, state = filled(jax.eval_shape(small.init, jax.random.key(0)))
    batch = example("fashion_mnist_cnn", 4)
    t = Torch(torch)
    logits, labels = t(evaluated(small.net, params, state, small.prepare(batch[0]))), t(batch[1]).long()
    layers_with_kernels = ("Conv_0", "Conv_1", "Dense_0", "Dense_1")
    squares = sum((np.asarray(params[layer]["kernel"]) ** 2).sum() for layer in layers_with_kernels)

    @jax.jit
    def loss(hyperparameters: Any) -> jax.Array:
        return small.loss(params, state, batch, jax.random.key(1), hyperparameters)[0]

    for hyperparameters in ({}, {"l2": 0.02}, {"label_smoothing": 0.3, "weight_decay": 0.1}):
        smoothing = hyperparameters.get("label_smoothing", 0.0)
        expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
        close(loss(hyperparameters), expected + 0.5 * hyperparameters.get("l2", 0.0) * squares)


def test_l2_excludes_biases_and_scales() -> None:
    for name, count in {"cifar10_resnet32": 1 + 30 + 2 + 1, "imagenet_resnet50": 1 + 48 + 4 + 1}.items():
        params, _ = filled(jax.eval_shape(get_workload(name).init, jax.random.key(0)))
        paths = jax.tree_util.tree_leaves_with_path(params)
        kernels = [np.asarray(leaf) for path, leaf in paths if "kernel" in str(path[-1])]
        assert len(kernels) == count  # the first; the blocks'; projections; the last
        expected = 7 + 0.01 * sum(float(np.square(kernel, dtype=np.float64).sum()) for kernel in kernels)
        close(regularization.l2_regularized(jnp.array(7.0), params, {"l2": 0.02}), expected)
