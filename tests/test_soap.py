"""SOAP against its algorithm in numpy (Vyas et al. 2024, Algorithms 3 and 4), and its place in training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import levelfield as lf

SHAPES = {"square": (5, 5), "wide": (3, 6), "bias": (4,), "column": (4, 1), "kernel": (2, 3, 4)}
STEPS, EVERY = 11, 3
VALUES = {"learning_rate": 0.1, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-4, "weight_decay": 0.3}


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def gradients(shape: tuple[int, ...], steps: int = STEPS) -> np.ndarray:
    random = np.random.default_rng(sum(shape))
    gradients = random.normal(size=(steps, *shape))
    if len(shape) > 1:
        # The first gradient of a matrix that is not square has no unique basis; with this, no sum of outer products
        # has eigenvalues that are the same.
        gradients[0] = 0
        gradients[0][tuple(np.arange(min(shape)) for _ in shape)] = 1 + np.arange(min(shape))
    return gradients


def taken(values: dict[str, Any], start: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """The parameters after each step of levelfield's rule."""
    tx = lf.optimizer("soap", **values)
    params, state = jnp.asarray(start), tx.init(jnp.asarray(start))
    update = jax.jit(tx.update)
    path = []
    for gradient in gradients:
        change, state = update(jnp.asarray(gradient), state, params)
        params = params + change
        path.append(np.asarray(params))
    return np.array(path)


def rotated(tensor: np.ndarray, bases: list[np.ndarray]) -> np.ndarray:
    for axis, basis in enumerate(bases):
        tensor = np.moveaxis(np.moveaxis(tensor, axis, -1) @ basis, -1, axis)
    return tensor


def by_the_paper(
    start: np.ndarray,
    gradients: np.ndarray,
    rate: Any = lambda t: VALUES["learning_rate"],
    bases: Any = lambda factors: [np.linalg.eigh(factor)[1][:, ::-1] for factor in factors],
) -> np.ndarray:
    """SOAP in numpy, with a basis for each axis of the tensor. The first gradient only sets the bases."""
    beta1, beta2, epsilon = VALUES["beta1"], VALUES["beta2"], VALUES["epsilon"]
    weights, path = start.copy(), [start]
    unfolded = [[np.moveaxis(g, axis, 0).reshape(g.shape[axis], -1) for axis in range(g.ndim)] for g in gradients]
    factors = [(1 - beta2) * side @ side.T for side in unfolded[0]]
    q = bases(factors)
    m, v = np.zeros_like(start), np.zeros_like(start)
    for t in range(1, len(gradients)):
        m = beta1 * m + (1 - beta1) * gradients[t]
        v = beta2 * v + (1 - beta2) * rotated(gradients[t], q) ** 2
        corrected = np.sqrt(1 - beta2**t) / (1 - beta1**t)
        n = corrected * rotated(m, q) / (np.sqrt(v) + epsilon)
        weights = weights - rate(t) * (rotated(n, [b.T for b in q]) + VALUES["weight_decay"] * weights)
        path.append(weights)
        factors = [
            beta2 * factor + (1 - beta2) * side @ side.T for factor, side in zip(factors, unfolded[t], strict=True)
        ]
        if t % EVERY == 0:
            for axis, factor in enumerate(factors):
                largest_first = np.argsort(-np.diag(q[axis].T @ factor @ q[axis]))
                v = np.take(v, largest_first, axis)
                q[axis] = np.linalg.qr(factor @ q[axis][:, largest_first])[0]
    return np.array(path)


def by_adam(start: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    beta1, beta2, epsilon = VALUES["beta1"], VALUES["beta2"], VALUES["epsilon"]
    weights, m, v, path = start, 0.0, 0.0, []
    for t, g in enumerate(gradients, start=1):
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        step = np.sqrt(1 - beta2**t) / (1 - beta1**t) * m / (np.sqrt(v) + epsilon)
        weights = weights - VALUES["learning_rate"] * (step + VALUES["weight_decay"] * weights)
        path.append(weights)
    return np.array(path)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["square", "wide", "kernel"])
def test_a_matrix_follows_the_paper(name: str) -> None:
    start, seen = np.random.default_rng(1).normal(size=SHAPES[name]), gradients(SHAPES[name])
    actual = taken({**VALUES, "precondition_frequency": EVERY}, start, seen)
    np.testing.assert_allclose(actual, by_the_paper(start, seen), rtol=1e-8)
    assert not np.allclose(actual, by_adam(start, seen), rtol=1e-2)
