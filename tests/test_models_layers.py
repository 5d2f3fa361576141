"""Layers, losses and metrics against PyTorch and their equations."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_references import (
    Torch,
    close,
    model,
)

from levelfield.errors import UsageError
from levelfield.models import (
    imagenet_resnet50,
    layers,
)


@pytest.mark.parametrize("shape", [(12, 5, 4, 3), (12, 6)])
@pytest.mark.parametrize("ghost", [None, 4, 12, 32])
def test_batch_norm(torch: Any, shape: tuple[int, ...], ghost: int | None) -> None:
    """Outputs and running averages over two steps of training, then an evaluation."""
    net = layers.BatchNorm(decay=0.7, epsilon=1e-3, ghost=ghost)
    generator = np.random.default_rng(0)
    batches = [generator.normal(2, 3, shape).astype(np.float32) for _ in range(3)]
    params, _ = model(net, jnp.asarray(batches[0]), False)
    state = {"batch_stats": {"mean": jnp.zeros(shape[-1]), "variance": jnp.ones(shape[-1])}}
    step = jax.jit(lambda state, x: net.apply({"params": params, **state}, x, True, mutable=["batch_stats"]))

    t = Torch(torch)
    running = {"mean": torch.zeros(shape[-1]), "variance": torch.ones(shape[-1])}
    for batch in batches[:2]:
        actual, state = step(state, batch)
        outputs, changed = [], []
        for group in np.split(batch, 1 if ghost in (None, 32) else len(batch) // ghost):
            reference = torch.nn.BatchNorm1d(shape[-1], eps=1e-3, momentum=0.3)
            reference.load_state_dict(
                {
                    "weight": t(params["scale"]),
                    "bias": t(params["bias"]),
                    "running_mean": running["mean"],
                    "running_var": running["variance"],
                    "num_batches_tracked": torch.tensor(0),
                }
            )
            outputs.append(reference(t(group.reshape(-1, shape[-1]))).detach())
            changed.append((reference.running_mean, reference.running_var))
        running = {
            "mean": torch.stack([mean for mean, _ in changed]).mean(0),
            "variance": torch.stack([variance for _, variance in changed]).mean(0),
        }
        close(actual, torch.cat(outputs).reshape(shape), 1e-5)
        for name, expected in running.items():
            close(state["batch_stats"][name], expected, 1e-5)
    expected = t.norm(t(batches[2].reshape(-1, shape[-1])), params, running, 1e-3).reshape(shape)
    close(net.apply({"params": params, **state}, batches[2], False), expected, 1e-5)


@pytest.mark.parametrize("groups", [1, 3])
def test_batch_norm_has_the_gradient_of_its_equations(groups: int) -> None:
    """Compared with their derivatives in float64, alone and vmapped."""
    net = layers.BatchNorm(decay=0.7, epsilon=1e-3, ghost=12 // groups)
    generator = np.random.default_rng(0)
    arrays = [generator.normal(2, 3, (2, *shape)).astype(np.float32) for shape in ((12, 5, 4, 3), (3,), (3,))]

    def ours(x: Any, scale: Any, bias: Any) -> Any:
        variables = {"params": {"scale": scale, "bias": bias}}
        return jnp.sum(jnp.sin(net.apply(variables, x, True, mutable=["batch_stats"])[0]))

    def plain(x: Any, scale: Any, bias: Any) -> Any:
        parts = jnp.split(x, groups)
        normal = [(part - part.mean((0, 1, 2))) / jnp.sqrt(part.var((0, 1, 2)) + 1e-3) for part in parts]
        return jnp.sum(jnp.sin(jnp.concatenate(normal) * scale + bias))

    gradient = jax.jit(jax.grad(ours, (0, 1, 2)))
    together = jax.jit(jax.vmap(jax.grad(ours, (0, 1, 2))))(*arrays)
    for i in range(2):
        own = [array[i] for array in arrays]
        with jax.enable_x64(True):
            expected = jax.grad(plain, (0, 1, 2))(*(array.astype(np.float64) for array in own))
        for stacked, alone, exact in zip(together, gradient(*own), expected, strict=True):
            np.testing.assert_allclose(alone, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())
            np.testing.assert_allclose(stacked[i], alone, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


def test_a_batch_that_ghost_batches_do_not_fill_is_refused() -> None:
    net = layers.BatchNorm(decay=0.9, ghost=4)
    with pytest.raises(UsageError, match="batch size 10: expected a multiple of 4, the size of a ghost batch"):
        net.init(jax.random.key(0), jnp.zeros((10, 3)), True)


def test_max_pooling(torch: Any) -> None:
    x = np.random.default_rng(0).normal(size=(2, 6, 8, 3)).astype(np.float32)
    image = Torch(torch).image(x)
    np.testing.assert_array_equal(
        np.moveaxis(np.asarray(layers.max_pool(jnp.asarray(x))), -1, 1), Torch(torch).pool(image)
    )
    padded = torch.nn.functional.pad(image, (0, 1, 0, 1), value=-torch.inf)
    actual = np.moveaxis(np.asarray(imagenet_resnet50.max_pool_3x3(jnp.asarray(x))), -1, 1)
    np.testing.assert_array_equal(actual, torch.nn.functional.max_pool2d(padded, 3, 2))


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_dropout_keeps_inputs_at_random(rate: float) -> None:
    """At the given rate, independently of neighboring inputs, with the mean preserved; not at all in evaluation."""
    inputs, count = jnp.ones((51, 61, 127)), 51 * 61 * 127  # an odd number
    assert (layers.Dropout(rate).apply({}, inputs, train=False) == inputs).all()
    trained = layers.Dropout(rate).apply({}, inputs, train=True, rngs={"dropout": jax.random.key(1)})
    outputs = np.asarray(trained).ravel()
    np.testing.assert_allclose(np.unique(outputs), [0, 1 / (1 - rate)], rtol=1e-6)
    dropped = outputs == 0
    deviation = math.sqrt(rate * (1 - rate) / count)
    assert abs(dropped.mean() - rate) < 4 * deviation
    for apart in (1, 2, 127):
        assert abs(np.corrcoef(dropped[apart:], dropped[:-apart])[0, 1]) < 4 / math.sqrt(count)


def test_label_smoothing(torch: Any) -> None:
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(0, 3, (8, 5)).astype(np.float32), generator.integers(0, 5, 8)
    for smoothing in (0.0, 0.1, 0.7):
        actual = layers.cross_entropy(jnp.asarray(logits), jnp.asarray(labels), smoothing)
        expected = torch.nn.functional.cross_entropy(
            torch.from_numpy(logits), torch.from_numpy(labels), label_smoothing=smoothing
        )
        close(actual, expected)


def test_classification_error_is_that_of_the_argmax() -> None:
    logits = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    labels = np.random.default_rng(1).integers(7, size=50)
    error = layers.classification_error(jnp.asarray(logits), jnp.asarray(labels))
    np.testing.assert_array_equal(error, logits.argmax(-1) != labels)


def test_classification_error_of_ties_and_nan() -> None:
    labels = jnp.arange(10)
    np.testing.assert_allclose(layers.classification_error(jnp.zeros((10, 10)), labels), np.full(10, 0.9), rtol=1e-6)
    np.testing.assert_array_equal(layers.classification_error(jnp.full((10, 10), jnp.nan), labels), np.ones(10))


def test_cross_entropy_and_error() -> None:
    logits = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    labels = np.array([0, 2])
    actual = layers.classification_metrics(logits, labels)
    probability = [np.exp(2) / (np.exp(2) + np.e + 1), np.e / (1 + np.exp(3) + np.e)]
    np.testing.assert_allclose(actual["loss"], -np.log(probability), rtol=1e-5)
    np.testing.assert_array_equal(actual["error"], [0, 1])


def test_lstm_follows_its_equations() -> None:
    batch, time, features, units = 3, 7, 5, 4
    inputs = np.random.default_rng(0).normal(size=(batch, time, features)).astype(np.float32)
    module = layers.LSTM(units)
    variables = module.init(jax.random.key(1), inputs)
    # A bias other than zero, so that its place matters.
    variables["params"]["input"]["bias"] = jnp.linspace(-1, 1, 4 * units)
    params = jax.tree.map(np.asarray, variables["params"])

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    h, c = np.zeros((batch, units)), np.zeros((batch, units))
    expected = []
    for t in range(time):
        gates = inputs[:, t] @ params["input"]["kernel"] + params["input"]["bias"] + h @ params["recurrent"]
        i, f, g, o = (gates[:, k * units : (k + 1) * units] for k in range(4))
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        expected.append(h)
    actual = module.apply(variables, inputs)
    np.testing.assert_allclose(actual, np.stack(expected, axis=1), rtol=1e-4, atol=1e-5)


def test_lstm_has_the_gradient_of_its_equations() -> None:
    """By everything that goes in, from everything that comes out; the equations step by step, derived by JAX."""
    batch, time, units = 3, 7, 4
    keys = iter(jax.random.split(jax.random.key(0), 7))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape)

    weights, projected = normal(units, 4 * units), normal(time, batch, 4 * units)
    h, c = normal(batch, units), normal(batch, units)
    by_outputs, by_h, by_c = normal(time, batch, units), normal(batch, units), normal(batch, units)

    def weighed(outputs: Any, h: Any, c: Any) -> Any:
        return jnp.sum(outputs * by_outputs) + jnp.sum(h * by_h) + jnp.sum(c * by_c)

    def plain(weights: Any, h: Any, c: Any, projected: Any) -> Any:
        outputs = []
        for t in range(time):
            i, f, g, o = jnp.split(projected[t] + h @ weights, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            outputs.append(h)
        return weighed(jnp.stack(outputs), h, c)

    def ours(weights: Any, h: Any, c: Any, projected: Any) -> Any:
        variables = {"params": {"recurrent": weights}}
        (h, c), outputs = layers.LSTM(units).apply(variables, (h, c), projected, method="resume")
        return weighed(outputs, h, c)

    arguments = (weights, h, c, projected)
    expected, actual = (jax.jit(jax.grad(loss, (0, 1, 2, 3)))(*arguments) for loss in (plain, ours))
    for ours_by, plain_by in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours_by, plain_by, rtol=1e-4, atol=1e-5)
