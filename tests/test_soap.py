"""SOAP against its algorithm in numpy (Vyas et al. 2024, Algorithms 3 and 4), and its place in training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from regression import job, train

import levelfield as lf
from levelfield.eigenbasis import eigenvectors, left_singular_vectors, orthonormal, power_iteration
from levelfield.rules import get_rule

SHAPES = {"square": (5, 5), "wide": (3, 6), "bias": (4,), "column": (4, 1), "kernel": (2, 3, 4)}
STEPS, EVERY = 11, 3
VALUES = {"learning_rate": 0.1, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-4, "weight_decay": 0.3}


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def gradients(shape: tuple[int, ...], steps: int = STEPS) -> np.ndarray:
    gradients = np.random.default_rng(sum(shape)).normal(size=(steps, *shape))
    if len(shape) > 1:
        # The null space of the first gradient has no unique basis. That of this one is spanned by some of the axes, in
        # any implementation.
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


def by_the_paper(start: np.ndarray, gradients: np.ndarray, rate: Any = lambda t: VALUES["learning_rate"]) -> np.ndarray:
    """SOAP in numpy, with a basis for each axis of the tensor. The first gradient only sets the bases."""
    beta1, beta2, epsilon = VALUES["beta1"], VALUES["beta2"], VALUES["epsilon"]
    weights, path = start.copy(), [start]
    unfolded = [[np.moveaxis(g, axis, 0).reshape(g.shape[axis], -1) for axis in range(g.ndim)] for g in gradients]
    factors = [(1 - beta2) * side @ side.T for side in unfolded[0]]
    q = [np.linalg.eigh(factor)[1][:, ::-1] for factor in factors]
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


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["bias", "column"])
def test_without_a_second_axis_it_is_adam_with_decay(name: str) -> None:
    """A column has one axis to rotate; with a limit of 1 it has none."""
    start, seen = np.random.default_rng(1).normal(size=SHAPES[name]), gradients(SHAPES[name])
    actual = taken({**VALUES, "max_precondition_dim": 1}, start, seen)
    np.testing.assert_allclose(actual, by_adam(start, seen), rtol=1e-10)


@pytest.mark.usefixtures("float64")
def test_the_rate_may_be_a_function_of_the_step() -> None:
    start, seen = np.random.default_rng(1).normal(size=(5, 5)), gradients((5, 5))

    def rate(t: Any) -> Any:
        return 0.1 / (t + 1)

    actual = taken({**VALUES, "precondition_frequency": EVERY, "learning_rate": rate}, start, seen)
    np.testing.assert_allclose(actual, by_the_paper(start, seen, rate), rtol=1e-8)


@pytest.mark.usefixtures("float64")
def test_a_long_axis_keeps_its_own_coordinates() -> None:
    """The other axis is rotated, so a matrix with orthogonal columns everywhere moves as Adam moves it, but later."""
    start = np.zeros((3, 6))
    seen = np.stack([np.eye(3, 6) * (1 + t % 3) for t in range(STEPS)])
    actual = taken({**VALUES, "max_precondition_dim": 3, "precondition_frequency": EVERY}, start, seen)
    assert np.all(actual[0] == 0)
    np.testing.assert_allclose(actual[1:], by_adam(start, seen[1:]), rtol=1e-10)


def test_weights_can_be_in_bfloat16() -> None:
    start = jnp.ones((3, 4), jnp.bfloat16)
    tx = lf.optimizer("soap", learning_rate=0.1, precondition_frequency=2)
    params, state = start, tx.init(start)
    for seed in range(5):
        gradient = jax.random.normal(jax.random.key(seed), start.shape, jnp.bfloat16)
        updates, state = tx.update(gradient, state, params)
        params += updates
    assert params.dtype == jnp.bfloat16
    assert np.all(np.isfinite(params.astype(np.float32)))


def test_a_step_needs_the_weights() -> None:
    tx = lf.optimizer("soap", learning_rate=0.1)
    with pytest.raises(ValueError, match=r"pass them, as in update\(gradients, state, params\)"):
        tx.update(jnp.ones((2, 2)), tx.init(jnp.ones((2, 2))))


# In training: slots at different steps, several devices


def test_a_trial_does_not_depend_on_its_neighbors() -> None:
    """Bases are updated at every second step, evaluations are at every third: the slots' updates do not coincide."""
    points = [{"learning_rate": rate, "beta2": 0.9} for rate in (0.01, 0.03, 0.1)]
    rule = job(get_rule("soap"), "beta2", precondition_frequency=2)
    together = train(rule, *points, slots=2)
    # With as many trials as this, another one is half way when the third one starts.
    for index, point in enumerate(points):
        alone = train(rule, *points[: index + 1], slots=1)[-1]
        assert alone.point.hyperparameters == point
        np.testing.assert_allclose(
            alone.curve.values["train_loss"], together[index].curve.values["train_loss"], rtol=1e-6
        )


@pytest.mark.parametrize("name", ["precondition_frequency", "max_precondition_dim"])
def test_whole_numbers_cannot_be_searched_over(name: str) -> None:
    optimizers = {"soap": {"learning_rate": 0.1, name: {"integer": [1, 9]}}}
    with pytest.raises(lf.LevelfieldError, match=f"{name} cannot be searched over"):
        lf.Study(workload="quadratic", steps=2, trials=1, optimizers=optimizers)


# The linear algebra


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("n", [1, 2, 7, 33, 64])
def test_bases_are_those_of_lapack(n: int) -> None:
    matrix = np.random.default_rng(n).normal(size=(n, n))
    q, expected = np.asarray(orthonormal(jnp.asarray(matrix))), np.linalg.qr(matrix)[0]
    np.testing.assert_allclose(np.abs(np.diag(q.T @ expected)), 1, rtol=1e-12)
    vectors, values = np.asarray(eigenvectors(jnp.asarray(matrix @ matrix.T))), np.linalg.eigvalsh(matrix @ matrix.T)
    np.testing.assert_allclose(vectors.T @ matrix @ matrix.T @ vectors, np.diag(values[::-1]), atol=1e-10 * values[-1])
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(n), atol=1e-12)


@pytest.mark.parametrize("scale", [0.0, 1e-15, 1.0])
@pytest.mark.parametrize("shape", [(40, 3), (3, 40)])
def test_any_gradient_has_an_orthonormal_basis(shape: tuple[int, int], scale: float) -> None:
    """In float32: with a null space, tiny, and zero."""
    gradient = jnp.asarray(scale * np.random.default_rng(0).normal(size=shape), jnp.float32)
    basis = left_singular_vectors(gradient)
    np.testing.assert_allclose(basis.T @ basis, np.eye(shape[0]), atol=1e-5)
    basis, _ = power_iteration(gradient @ gradient.T, basis)
    np.testing.assert_allclose(basis.T @ basis, np.eye(shape[0]), atol=1e-5)
