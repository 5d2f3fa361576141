"""What the tests of models share: random parameters, batches, and PyTorch's layers with our weights."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from levelfield.models import (
    lm1b_transformer,
)


def filled(tree: Any, seed: int = 0) -> Any:
    """Fill parameters or state with random numbers, so that no zero or one hides a mistake; variances are positive."""
    generator = np.random.default_rng(seed)

    def fill(path: Any, leaf: Any) -> jax.Array:
        fan_in = max(1, int(np.prod(leaf.shape[:-1]))) if len(leaf.shape) > 1 else 16
        values = generator.normal(size=leaf.shape) * fan_in**-0.5
        positive = jax.tree_util.keystr(path[-1:]) in ("['variance']", "['scale']")
        return jnp.asarray(np.abs(values) + 0.5 if positive else values, jnp.float32)

    return jax.tree_util.tree_map_with_path(fill, tree)


def model(net: nn.Module, *arguments: Any) -> tuple[Any, Any]:
    """Return a network's parameters and its other variables, filled with random numbers."""
    variables = filled(jax.eval_shape(lambda key: net.init(key, *arguments), jax.random.key(0)))
    return variables.pop("params"), variables


def close(actual: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Assert equality up to a fraction of the largest value."""
    expected = np.asarray(expected)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=tolerance * np.abs(expected).max())


class Torch(NamedTuple):
    """Layers of PyTorch that take the parameters of ours."""

    torch: Any

    def __call__(self, array: Any) -> Any:
        return array if isinstance(array, self.torch.Tensor) else self.torch.from_numpy(np.array(array))

    def image(self, array: Any) -> Any:
        return self(np.moveaxis(np.asarray(array), -1, 1))

    def conv(self, x: Any, params: Any, stride: int = 1, padding: int = 0) -> Any:
        kernel = self(np.transpose(params["kernel"], (3, 2, 0, 1)))
        bias = self(params["bias"]) if "bias" in params else None
        return self.torch.nn.functional.conv2d(x, kernel, bias, stride, padding)

    def dense(self, x: Any, params: Any) -> Any:
        return self.torch.nn.functional.linear(x, self(params["kernel"]).T, self(params["bias"]))

    def norm(self, x: Any, params: Any, state: Any, epsilon: float = 1e-5, train: bool = False) -> Any:
        mean, variance = self(state["mean"]), self(state["variance"])
        return self.torch.nn.functional.batch_norm(
            x, mean, variance, self(params["scale"]), self(params["bias"]), train, 0.0, epsilon
        )

    def pool(self, x: Any) -> Any:
        return self.torch.nn.functional.max_pool2d(x, 2)

    def flat(self, x: Any) -> Any:
        return x.permute(0, 2, 3, 1).flatten(1)  # ours are flattened with the channels last


def bytes_of(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def with_gradient(apply: Any, x: Any) -> tuple[jax.Array, jax.Array]:
    """Return the outputs, and the gradient of a weighted sum of them with respect to the inputs."""

    @jax.jit
    def both(x: Any) -> Any:
        outputs, pull = jax.vjp(apply, x)
        return outputs, pull(weights(outputs.shape))[0]

    outputs, gradient = both(x)
    return outputs, gradient


def weights(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(9).normal(size=shape).astype(np.float32)


def evaluated(net: nn.Module, params: Any, state: Any, x: Any) -> jax.Array:
    return jax.jit(lambda params, state, x: net.apply({"params": params, **state}, x))(params, state, x)


def example(name: str, count: int) -> Any:
    """Return a batch with the shapes of the full model."""
    generator = np.random.default_rng(0)
    if name == "war_and_peace_lstm":
        return generator.integers(0, 83, (50, 51), dtype=np.uint8), np.bool_(True)
    if name == "lm1b_transformer":
        return generator.integers(1, 32_000, (count, 129), dtype=np.int32)
    shape = importlib.import_module(f"levelfield.models.{name}").CLASSIFIER.shape
    return bytes_of((count, *shape)), np.arange(count, dtype=np.int32) % 10


def sentences(count: int, length: int = 12) -> np.ndarray:
    """Make rows like those of the data: 1, tokens, 2, padding."""
    generator, rows = np.random.default_rng(0), np.zeros((count, length + 1), np.int32)
    for row, size in zip(rows, generator.integers(1, length - 1, count), strict=True):
        row[: size + 2] = [1, *generator.integers(3, 40, size), 2]
    return rows


SMALL_TRANSFORMER = lm1b_transformer.Net(vocabulary=40, layers=2, width=16, heads=2, hidden=24)
