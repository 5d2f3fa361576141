"""Weight decay against its equation; that the ImageNet workload uses it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from levelfield.models.regularization import weight_decay
from levelfield.rules import get_rule
from levelfield.workloads import get_workload, workload_names

DECAY, STEPS = 0.3, 5


def rate(step: Any) -> Any:
    return 0.1 / (1 + step)


@pytest.mark.parametrize("transform", [weight_decay, get_workload("imagenet_resnet50").transform])
@pytest.mark.parametrize("learning_rate", [0.1, rate], ids=["constant", "schedule"])
def test_weight_decay_is_its_equation(transform: Any, learning_rate: Any) -> None:
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


def test_updates_stay_as_they_are_without_weight_decay() -> None:
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
