"""Cautious AdamW against its equations in numpy (Liang et al. 2024)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import levelfield as lf

VALUES = {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3, "weight_decay": 0.3}


def rate(t: Any) -> Any:
    return 0.1 / (t + 1)


def by_the_paper(w: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    m, v, path = np.zeros_like(w), np.zeros_like(w), []
    for t, g in enumerate(gradients, start=1):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        u = (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + 1e-3)
        phi = np.where(u * g > 0, 1.0, 0.0)
        w = w - rate(t - 1) * (w.size / (np.count_nonzero(phi) + 1) * phi * u + 0.3 * w)
        path.append(w)
    return np.array(path)


def test_it_follows_the_paper_and_is_not_adamw() -> None:
    random = np.random.default_rng(0)
    start = {"w": random.normal(size=(3, 4)), "b": random.normal(size=5)}
    seen = {name: random.normal(size=(12, *leaf.shape)) for name, leaf in start.items()}
    with jax.enable_x64(True):
        tx, params = lf.optimizer("cautious_adamw", learning_rate=rate, **VALUES), jax.tree.map(jnp.asarray, start)
        state, path = tx.init(params), []
        for t in range(12):
            gradient = jax.tree.map(lambda leaf, t=t: jnp.asarray(leaf[t]), seen)
            updates, state = tx.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
            path.append(params)
    for name in start:  # each parameter has its own mask
        expected = by_the_paper(start[name], seen[name])
        np.testing.assert_allclose([step[name] for step in path], expected, rtol=1e-12)
