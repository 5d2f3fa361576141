"""The embedded workloads: data, metrics, sizes and gradient noise."""

from __future__ import annotations

from importlib import resources
from typing import Any

import jax
import numpy as np
import pytest

from levelfield.workloads import get_workload

EMBEDDED = ("fashion_mini", "tolstoi_mini", "tolstoi_gpt", "quadratic", "wilson")


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_workload_evaluates_what_it_declares(name: str) -> None:
    workload = get_workload(name)
    data = workload.load()
    shapes = jax.eval_shape(workload.init, jax.random.key(0))
    actual = {
        f"{split}_{metric}"
        for split, arrays in data.evaluation.items()
        for metric in jax.eval_shape(workload.evaluate, *shapes, arrays)
    }
    assert actual == set(workload.metrics)
    assert workload.select in workload.metrics
    assert "train_loss" in workload.metrics


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # 3×3 convolutions 1 → 16 → 32 at stride 2 (14 → 7 → 4), then 4·4·32 → 10, each with biases
        ("fashion_mini", (9 * 1 * 16 + 16) + (9 * 16 * 32 + 32) + (4 * 4 * 32 * 10 + 10)),
        # 76 characters → 32; four gates of 32 from the input (with biases) and from the state; 32 → 76
        ("tolstoi_mini", 76 * 32 + (32 * 4 * 32 + 4 * 32) + 32 * 4 * 32 + (32 * 76 + 76)),
        ("quadratic", 100),
        ("wilson", 3 + 5 * 50),
    ],
)
def test_parameter_counts(name: str, count: int) -> None:
    params, _ = jax.eval_shape(get_workload(name).init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count
    assert count == {"fashion_mini": 9_930, "tolstoi_mini": 13_260}.get(name, count)


def test_splits_of_fashion_mini() -> None:
    data = get_workload("fashion_mini").load()
    parts = {"train": data.train, "valid": data.evaluation["valid"], "test": data.evaluation["test"]}
    assert [len(images) for images, _ in parts.values()] == [10_000, 2_000, 2_000]
    for images, labels in parts.values():
        assert images.shape[1:] == (14, 14)
        assert images.dtype == np.uint8
        assert len(labels) == len(images)
        assert np.bincount(labels, minlength=10).min() > 0.08 * len(labels)
        assert np.bincount(labels).size == 10
        assert 0 < images.mean() < 255
    for split in ("valid", "test"):
        assert not {image.tobytes() for image in parts[split][0]} & {image.tobytes() for image in data.train[0]}
    # The training metrics are those of a part of the training set.
    images, labels = data.evaluation["train"]
    np.testing.assert_array_equal(images, data.train[0][: len(images)])
    np.testing.assert_array_equal(labels, data.train[1][: len(images)])


def test_splits_of_tolstoi_mini() -> None:
    data = get_workload("tolstoi_mini").load()
    parts = [data.train, data.evaluation["valid"], data.evaluation["test"]]
    assert [part.shape for part in parts] == [(5_399, 33), (300, 33), (300, 33)]
    for part in parts:
        assert part.min() >= 0
        assert part.max() < 76
        # The last character of a window is the first of the next: targets are the inputs shifted by one.
        np.testing.assert_array_equal(part[:-1, -1], part[1:, 0])
    np.testing.assert_array_equal(data.evaluation["train"], data.train[:300])
    # Ids follow decreasing counts; no window of the held-out texts occurs in the training text.
    assert len(np.unique(np.concatenate([part.ravel() for part in parts]))) == 76
    counts = np.bincount(np.concatenate([part[:, :-1].ravel() for part in parts]))
    assert np.all(np.diff(counts) <= 2)  # but for the few characters that no window covers
    for held_out in parts[1:]:
        assert not {window.tobytes() for window in held_out} & {window.tobytes() for window in data.train}


@pytest.mark.parametrize(("file", "megabytes"), [("fashion_mini.npz", 2.5), ("tolstoi_mini.txt.xz", 0.1)])
def test_embedded_data_are_small(file: str, megabytes: float) -> None:
    size = len((resources.files("levelfield.datasets") / "embedded" / file).read_bytes())
    assert 0 < size <= megabytes * 1e6


@pytest.mark.parametrize("batch_size", [1, 16])
def test_the_gradient_of_the_quadratic_has_the_declared_noise(batch_size: int) -> None:
    workload, draws = get_workload("quadratic"), 20_000
    curvature = 1 / np.arange(1, 101)
    params = np.linspace(-2, 2, 100).astype(np.float32)

    @jax.jit
    @jax.vmap
    def gradient(key: Any) -> Any:
        batch = workload.draw(key, batch_size)
        return jax.grad(lambda params: workload.loss(params, (), batch, None, {})[0])(params)

    actual = np.asarray(gradient(jax.random.split(jax.random.key(0), draws)), float)
    variance = curvature / batch_size
    # Five standard errors, of the mean and of the variance.
    np.testing.assert_array_less(np.abs(actual.mean(0) - curvature * params), 5 * np.sqrt(variance / draws))
    np.testing.assert_array_less(np.abs(actual.var(0) / variance - 1), 5 * np.sqrt(2 / draws))
    exact = 0.5 * np.sum(curvature * params.astype(float) ** 2)
    assert float(workload.evaluate(params, (), ())["loss"]) == pytest.approx(exact, rel=1e-6)
