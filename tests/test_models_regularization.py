"""L2, label smoothing and weight decay against their equations."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
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
from levelfield.models.regularization import weight_decay
from levelfield.rules import get_rule
from levelfield.workloads import get_workload, workload_names

DECAY, STEPS = 0.3, 5


def rate(step: Any) -> Any:
    return 0.1 / (1 + step)


@pytest.mark.parametrize("transform", [weight_decay, get_workload("imagenet_resnet50").transform])
@pytest.mark.parametrize("learning_rate", [0.1, rate], ids=["constant", "schedule"])
def test_weight_decay_follows_its_equation(transform: Any, learning_rate: Any) -> None:
    """Momentum and w ← w + Δ − rate · λ · w, in float64; vectors do not decay."""
    generator = np.random.default_rng(0)
    weights = {"kernel": generator.normal(size=(3, 4)), "bias": generator.normal(size=4)}
    gradients = [{name: generator.normal(size=array.shape) for name, array in weights.items()} for _ in range(STEPS)]

    @jax.jit
    def train(decay: Any) -> Any:
        rule = get_rule("momentum")(learning_rate=learning_rate, momentum=0.9)
        both = optax.chain(rule, transform({"weight_decay": decay}, learning_rate))
        params = jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), weights)
        state = both.init(params)
        for gradient in gradients:
            gradient = jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), gradient)
            updates, state = both.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        return params

    trained = train(DECAY)
    for name, w in weights.items():
        v = np.zeros_like(w)
        for step, gradient in enumerate(gradients):
            now = rate(step) if callable(learning_rate) else learning_rate
            v = 0.9 * v + gradient[name]
            w = w - now * v - now * (DECAY if name == "kernel" else 0.0) * w
        np.testing.assert_allclose(trained[name], w, rtol=1e-5, atol=1e-6)


def test_updates_do_not_change_without_weight_decay() -> None:
    updates = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    transform = weight_decay({"label_smoothing": 0.1}, 0.5)
    changed, _ = transform.update(updates, transform.init(updates), updates)
    jax.tree.map(np.testing.assert_array_equal, changed, updates)


def test_workloads_that_offer_weight_decay_apply_it() -> None:
    workloads = [get_workload(name) for name in workload_names()]
    offering = [workload for workload in workloads if "weight_decay" in workload.hyperparameters]
    assert [workload.name for workload in offering] == ["imagenet_resnet50"]
    assert all(workload.transform for workload in offering)
    assert offering[0].version == 2  # decay rounds differently than in version 1


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
