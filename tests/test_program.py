"""A trial is a pure function of its point: alone, in a slot, or written out as a plain loop."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training_helpers import ADAM, DIVERGES, EMBEDDED, WALK, assert_same, by_index, job_of, trained

import levelfield as lf
from levelfield.data import Data
from levelfield.store import Store
from levelfield.training import shuffle
from levelfield.trial import Point, Status, Trial
from levelfield.workload import Workload, minimized
from levelfield.workloads import get_workload

# The second point diverges, so that the next trial starts while its neighbors are at another step.
RATES = [1e-2, DIVERGES, 3e-3, 1e-3, 3e-2, 1e-4]
POINTS = [Point(i, ADAM | {"learning_rate": rate, "beta1": 0.9 - 0.1 * i}, 100 + i) for i, rate in enumerate(RATES)]


@functools.cache
def briefly_evaluated(name: str) -> Workload:
    """Return a workload that evaluates few examples: evaluation would be most of a short training run."""
    workload = get_workload(name)
    data = workload.load()
    few = jax.tree.map(lambda array: array[:100], data.evaluation["train"])
    metrics = {name: direction for name, direction in workload.metrics.items() if name.startswith("train_")}
    brief = {"load": lambda: Data(data.train, {"train": few}), "metrics": metrics, "select": "train_loss"}
    return dataclasses.replace(workload, **brief)


@functools.cache
def alone(workload: str) -> list[Trial]:
    """Return the trials of the points, trained one at a time."""
    return [trained(job_of(briefly_evaluated(workload)), 1, [point])[0] for point in POINTS]


# Three slots share a device; four are spread over two devices, if there are two.
@pytest.mark.parametrize(("workload", "slots"), [*((name, 4) for name in EMBEDDED), ("quadratic", 3), ("wilson", 3)])
def test_a_trial_in_a_slot_equals_the_same_trial_alone(workload: str, slots: int) -> None:
    expected = alone(workload)
    assert [trial.status for trial in expected] == [Status.FEASIBLE, Status.INFEASIBLE] + 4 * [Status.FEASIBLE]
    for points in (POINTS, POINTS[::-1]):  # other slots and neighbors
        trials = by_index(trained(job_of(briefly_evaluated(workload)), slots, points))
        for trial, reference in zip(trials, expected, strict=True):
            assert_same(trial, reference)


@pytest.mark.parametrize("workload", EMBEDDED)
def test_trials_of_different_hyperparameters_differ(workload: str) -> None:
    """Otherwise the test above would compare equal trials."""
    losses = [trial.curve.final("train_loss") for trial in alone(workload) if trial.feasible]
    spread = np.diff(np.sort(losses)) / np.abs(losses).max()
    assert spread.min() > 1e-3


def test_a_trial_equals_a_plain_loop() -> None:
    """Initialization, batches, linear decay, update and evaluation, written out again."""
    steps, batch_size = 6, 2500  # an epoch and a half
    job = job_of("fashion_mini", steps=steps, eval_interval=3, batch_size=batch_size, schedule="linear")
    point = Point(0, ADAM | {"learning_rate": 1e-2, "decay_steps": 0.5, "decay_factor": 0.1}, 42)
    trial = trained(job, 1, [point])[0]

    workload = get_workload("fashion_mini")
    data = workload.load()
    images, labels = data.train
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(42), 0), 0)
    params, state = workload.init(key)
    rule = lf.optimizer("adam", **ADAM | {"learning_rate": lambda t: 1e-2 * (1 - 0.9 * jnp.minimum(t / 3, 1))})
    inner = rule.init(params)

    @jax.jit
    def update(params: Any, inner: Any, batch: Any) -> Any:
        gradients = jax.grad(lambda params: workload.loss(params, state, batch, key, {})[0])(params)
        changes, inner = rule.update(gradients, inner, params)
        return optax.apply_updates(params, changes), inner

    evaluate = jax.jit(workload.evaluate)
    for step in range(steps):
        rows = np.asarray(shuffle.batch_indices(42, jnp.array([step]), len(images), batch_size))[0]
        params, inner = update(params, inner, (images[rows], labels[rows]))
        if step + 1 in (3, 6):
            for split, batch in data.evaluation.items():
                for metric, value in evaluate(params, state, batch).items():
                    recorded = trial.curve.values[f"{split}_{metric}"][(step + 1) // 3 - 1]
                    atol = 2e-3 if metric == "error" else 0
                    assert recorded == pytest.approx(float(value.mean()), rel=1e-4, abs=atol), (split, metric, step)


@pytest.mark.parametrize("workload", ["walk", "quadratic", "wilson"])
@pytest.mark.parametrize("eval_interval", [4, 7, 50])
def test_the_evaluation_interval_does_not_change_the_training(workload: str, eval_interval: int) -> None:
    """Not even if it does not divide the steps."""
    subject = WALK if workload == "walk" else workload
    points = [Point(i, {"learning_rate": 0.1 * (i + 1), "pull": 1.0}, seed=i) for i in range(3)]
    evenly = trained(job_of(subject, "sgd", steps=10, eval_interval=5), 2, points)
    unevenly = trained(job_of(subject, "sgd", steps=10, eval_interval=eval_interval), 2, points)
    for ours, theirs in zip(by_index(unevenly), by_index(evenly), strict=True):
        assert ours.curve.steps[-1] == theirs.curve.steps[-1] == 10
        for metric in ours.curve.values:
            assert ours.curve.final(metric) == pytest.approx(theirs.curve.final(metric), rel=1e-5)


def test_a_trials_randomness_depends_only_on_its_seed() -> None:
    """Initialization, the noise of the loss, and the order of the data."""
    seeds = [7, 8, 7, 9]
    points = [Point(i, {"learning_rate": 1.0, "pull": 1.0}, seed) for i, seed in enumerate(seeds)]
    trials = by_index(trained(job_of(WALK, "sgd", steps=3, eval_interval=1), 2, points))
    first, other, again, third = (trial.curve.values for trial in trials)
    for metric in WALK.metrics:
        np.testing.assert_array_equal(first[metric], again[metric])

    def normal(purpose: int, step: int) -> float:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), purpose), step)
        return float(jax.random.normal(key))

    noises = [normal(2, step) for step in range(3)]
    np.testing.assert_allclose(first["train_loss"], normal(0, 0) - np.cumsum(noises), rtol=1e-5)
    for values in (other, third):
        steps = np.diff(values["train_loss"])
        assert np.all(np.abs(steps - np.diff(first["train_loss"])) > 1e-3)

    def met(values: Any) -> list[tuple[float, ...]]:  # how often each example was drawn, step by step
        return [tuple(float(values[f"train_met{i}"][step]) for i in range(10)) for step in range(3)]

    assert [sum(row) for row in met(first)] == [5, 10, 15]
    assert set(met(first)[1]) == {1.0}  # an epoch is two batches: all ten once
    assert met(first)[0] != met(other)[0]
    assert met(first)[0] != met(third)[0]


def test_every_seed_has_its_own_order_of_the_data() -> None:
    """wilson starts every trial at zero, so that with small batches only the order differs between seeds."""
    points = [Point(i, {"learning_rate": 0.1}, seed) for i, seed in enumerate([1, 2, 1])]
    job = job_of("wilson", "sgd", steps=6, eval_interval=3, batch_size=10)
    first, second, same = by_index(trained(job, 3, points))
    np.testing.assert_allclose(first.curve.values["train_loss"], same.curve.values["train_loss"], rtol=1e-6)
    assert np.all(np.abs(first.curve.values["train_loss"] / second.curve.values["train_loss"] - 1) > 1e-3)


@pytest.mark.parametrize("free", [1, 4])
def test_one_compilation_serves_all_trials(free: int, tmp_path: Path) -> None:
    """Python runs the loss only while a program is traced."""
    traces = 0

    def loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> Any:
        nonlocal traces
        traces += 1
        return jnp.mean((batch - params) ** 2), state

    lf.register_workload(
        Workload(
            name="counted",
            summary="a mean",
            batch_size=4,
            eval_interval=2,
            metrics=minimized("train_loss"),
            select="train_loss",
            load=lambda: Data(np.arange(8.0, dtype=np.float32), {"train": np.arange(8.0, dtype=np.float32)}),
            init=lambda key: (jax.random.normal(key), ()),
            loss=loss,
            evaluate=lambda params, state, batch: {"loss": (batch - params) ** 2},
        )
    )
    ranges = {"learning_rate": {"log": [1e-3, 1e-1]}, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
    if free == 4:
        ranges |= {"beta1": {"uniform": [0, 1]}, "beta2": {"uniform": [0, 1]}, "epsilon": {"log": [1e-8, 1]}}
    study = lf.Study(workload="counted", steps=4, trials=1, pool=2, optimizers={"adam": ranges})
    with Store.open(tmp_path / "trials.db") as store:
        lf.compare(study, store, slots=2)
        after_one_wave = traces
        assert after_one_wave > 0
        assert len(lf.compare(study.replace(pool=9), store, slots=2).trials["adam"]) == 9
        lf.compare(study.replace(seed=1, pool=4), store, slots=2)
    assert traces == after_one_wave


@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize("n", [64, 100, 1000, 2000, 5000, 10_007])
def test_equal_counts_give_exactly_equal_errors(n: int, slots: int) -> None:
    """280 errors of 2,000 are 0.14 to the last bit, wherever they are: ties are ties, and a target is reached."""
    right = np.ones((3, n), np.float32)
    rng = np.random.default_rng(n)
    for row in right:
        row[rng.choice(n, n // 7, replace=False)] = 0
    evaluation = {"train": right[0], "valid": right[1], "test": right[2]}
    workload = Workload(
        name="counts",
        summary="counts",
        batch_size=1,
        eval_interval=1,
        metrics=minimized("train_loss", "valid_loss", "test_loss"),
        select="train_loss",
        load=lambda: Data(train=(), evaluation=evaluation),
        init=lambda key: (jnp.ones(()), ()),
        loss=lambda params, state, batch, key, hyperparameters: (params, state),
        evaluate=lambda params, state, batch: {"loss": batch != 1},
        draw=lambda key, batch_size: (),
    )
    trial = trained(job_of(workload, "sgd", steps=1, eval_interval=1), slots, [Point(0, {"learning_rate": 0.0}, 0)])[0]
    assert {trial.curve.final(metric) for metric in workload.metrics} == {float(np.float32((n // 7) / n))}


def test_means_over_chunks_are_means_over_all_examples() -> None:
    """For any number of examples: a whole chunk, a remainder, a prime."""
    sizes = {"train": 130, "one": 1, "whole": 64, "more": 65, "prime": 251, "even": 200}
    rng = np.random.default_rng(0)
    splits = {split: (rng.exponential(size=n).astype(np.float32), np.arange(n)) for split, n in sizes.items()}
    workload = Workload(
        name="means",
        summary="means",
        batch_size=1,
        eval_interval=1,
        metrics=minimized(*(f"{split}_{metric}" for split in splits for metric in ("loss", "place"))),
        select="train_loss",
        load=lambda: Data(train=(), evaluation=splits),
        init=lambda key: (jnp.ones(()), ()),
        loss=lambda params, state, batch, key, hyperparameters: (params, state),
        evaluate=lambda params, state, batch: {"loss": batch[0] ** 2, "place": batch[1]},
        draw=lambda key, batch_size: (),
    )
    job = job_of(workload, "sgd", steps=1, eval_interval=1)
    trial = trained(job, 1, [Point(0, {"learning_rate": 0.0}, 0)])[0]
    for split, (values, positions) in splits.items():
        assert trial.curve.final(f"{split}_loss") == pytest.approx(np.mean(values.astype(float) ** 2), rel=1e-5)
        assert trial.curve.final(f"{split}_place") == pytest.approx(np.mean(positions), rel=1e-5)


# ---------------------------------------------------------------------------- theory of the embedded workloads


def test_sgd_on_the_quadratic_follows_the_theory() -> None:
    """E θ² starts at 1 and becomes (1 − ηh)² E θ² + η² h / B in every step."""
    rate, steps, batch_size, trials = 0.5, 20, 4, 256
    points = [Point(i, {"learning_rate": rate}, seed=1000 + i) for i in range(trials)]
    job = job_of("quadratic", "sgd", steps=steps, eval_interval=5, batch_size=batch_size)
    losses = np.array([trial.curve.values["train_loss"] for trial in trained(job, 64, points)])
    curvature, square = 1 / np.arange(1, 101), np.ones(100)
    for step in range(1, steps + 1):
        square = (1 - rate * curvature) ** 2 * square + rate**2 * curvature / batch_size
        if step % 5 == 0:
            measured = losses[:, step // 5 - 1]
            standard_error = measured.std() / np.sqrt(trials)
            assert abs(measured.mean() - 0.5 * np.sum(curvature * square)) < 4 * standard_error
            assert standard_error < 0.03 * measured.mean()


def wilson_error(direction: Any, rate: float, steps: int) -> float:
    """Return the error on new examples after descent along ``direction(gradient)``, in NumPy alone."""
    labels = np.array([1, 1, 1, -1, -1] * 10)
    features = np.zeros((50, 253))
    features[:, 0], features[:, 1], features[:, 2] = labels, 1, 1
    for i, label in enumerate(labels):
        features[i, 3 + 5 * i : 3 + 5 * i + (1 if label == 1 else 5)] = 1
    weights = np.zeros(253)
    for _ in range(steps):
        weights -= rate * direction(features.T @ (features @ weights - labels) / 50)
    assert np.all(labels * (features @ weights) > 0)  # all training examples are classified correctly
    fresh = np.stack([labels, np.ones(50), np.ones(50)], axis=1)
    return float(np.mean(labels * (fresh @ weights[:3]) <= 0))


@pytest.mark.parametrize(
    ("rule", "hyperparameters", "direction", "error"),
    [
        ("sgd", {"learning_rate": 0.3}, lambda gradient: gradient, 0.0),
        ("adam", ADAM | {"learning_rate": 0.01}, np.sign, 0.4),
        # With a large ε adam is momentum: α = ε η
        ("adam", ADAM | {"learning_rate": 3e3, "epsilon": 1e4, "beta2": 0.0}, lambda gradient: gradient, 0.0),
    ],
    ids=["gradient descent", "adam", "adam with a large epsilon"],
)
def test_adaptive_methods_fail_on_wilson(rule: str, hyperparameters: Any, direction: Any, error: float) -> None:
    """Gradient descent generalizes; methods that move all weights equally call all new examples positive."""
    trial = trained(job_of("wilson", rule, steps=400, eval_interval=200), 1, [Point(0, hyperparameters, 0)])[0]
    rate = 0.3 if error == 0 else 0.01
    assert wilson_error(direction, rate, 400) == error
    assert trial.curve.final("train_error") == 0
    assert trial.curve.final("valid_error") == pytest.approx(error)
    assert trial.curve.final("test_error") == pytest.approx(error)
