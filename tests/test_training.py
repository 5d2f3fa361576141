"""The vectorized training loop, its checks, and the embedded workloads it trains."""

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

import levelfield as lf
from levelfield.data import Data
from levelfield.errors import LevelfieldError, StudyError
from levelfield.hyperparameters import Hyperparameter
from levelfield.rules import get_rule
from levelfield.schedules import SCHEDULES
from levelfield.store import Store
from levelfield.training import shuffle
from levelfield.training.checks import check_workload
from levelfield.training.program import Job, program
from levelfield.training.slots import train
from levelfield.trial import Direction, Point, Progress, Status, Trial
from levelfield.workload import Workload, minimized
from levelfield.workloads import get_workload

EMBEDDED = ("fashion_mini", "tolstoi_mini", "quadratic", "wilson")
ADAM = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
DIVERGES = 1e38  # a learning rate at which every workload's loss overflows at once

# ---------------------------------------------------------------------------- the vectorized loop


def job_of(
    workload: str | Workload,
    rule: str = "adam",
    *,
    steps: int = 20,
    eval_interval: int = 10,
    batch_size: int | None = None,
    schedule: str = "constant",
) -> Job:
    workload = get_workload(workload) if isinstance(workload, str) else workload
    traced = (*get_rule(rule).hyperparameters, *SCHEDULES[schedule], *workload.hyperparameters)
    batch_size = batch_size or workload.batch_size
    return Job(workload, get_rule(rule), schedule, steps, batch_size, eval_interval, traced)


def segments(job: Job, slots: int, points: list[Point]) -> list[Progress]:
    queue = iter(points)
    return list(train(program(job, slots), lambda: next(queue, None)))


def trained(job: Job, slots: int, points: list[Point]) -> list[Trial]:
    """In the order in which they finish."""
    return [trial for segment in segments(job, slots, points) for trial in segment.finished]


def by_index(trials: list[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: trial.point.index)


def assert_same(ours: Trial, theirs: Trial, *, rtol: float = 1e-4) -> None:
    """Equal but for float32's rounding, which may also tip an example or two near a tie."""
    assert ours.point == theirs.point
    assert ours.status is theirs.status
    np.testing.assert_array_equal(ours.curve.steps, theirs.curve.steps)
    assert list(ours.curve.values) == list(theirs.curve.values)
    for metric, values in ours.curve.values.items():
        atol = 2e-3 if metric.endswith("error") else 1e-6
        np.testing.assert_allclose(values, theirs.curve.values[metric], rtol=rtol, atol=atol, err_msg=metric)


# The second point diverges, so that the trial after it enters while its neighbours are at another step.
RATES = [1e-2, DIVERGES, 3e-3, 1e-3, 3e-2, 1e-4]
POINTS = [Point(i, ADAM | {"learning_rate": rate, "beta1": 0.9 - 0.1 * i}, 100 + i) for i, rate in enumerate(RATES)]


@functools.cache
def briefly_evaluated(name: str) -> Workload:
    """A workload that looks at some training examples only: evaluation would be most of a short training."""
    workload = get_workload(name)
    data = workload.load()
    few = jax.tree.map(lambda array: array[:100], data.evaluation["train"])
    metrics = {name: way for name, way in workload.metrics.items() if name.startswith("train_")}
    brief = {"load": lambda: Data(data.train, {"train": few}), "metrics": metrics, "select": "train_loss"}
    return dataclasses.replace(workload, **brief)


@functools.cache
def alone(workload: str) -> list[Trial]:
    """The trials of the points, one at a time."""
    return [trained(job_of(briefly_evaluated(workload)), 1, [point])[0] for point in POINTS]


# Three slots share a device; four are spread over two, where there are two.
@pytest.mark.parametrize(("workload", "slots"), [*((name, 4) for name in EMBEDDED), ("quadratic", 3), ("wilson", 3)])
def test_a_trial_in_a_slot_equals_the_same_trial_alone(workload: str, slots: int) -> None:
    expected = alone(workload)
    assert [trial.status for trial in expected] == [Status.FEASIBLE, Status.INFEASIBLE] + 4 * [Status.FEASIBLE]
    for points in (POINTS, POINTS[::-1]):  # other slots, other neighbours
        found = by_index(trained(job_of(briefly_evaluated(workload)), slots, points))
        for one, reference in zip(found, expected, strict=True):
            assert_same(one, reference)


@pytest.mark.parametrize("workload", EMBEDDED)
def test_trials_of_different_hyperparameters_differ(workload: str) -> None:
    """Lest the test above compare like with like."""
    losses = [trial.curve.final("train_loss") for trial in alone(workload) if trial.feasible]
    spread = np.diff(np.sort(losses)) / np.abs(losses).max()
    assert spread.min() > 1e-3


def test_a_trial_equals_a_plain_loop() -> None:
    """Init, batches, linear decay, update and evaluation, each written out again."""
    steps, batch_size = 6, 2500  # an epoch and a half
    job = job_of("fashion_mini", steps=steps, eval_interval=3, batch_size=batch_size, schedule="linear")
    point = Point(0, ADAM | {"learning_rate": 1e-2, "decay_steps": 0.5, "decay_factor": 0.1}, 42)
    found = trained(job, 1, [point])[0]

    workload = get_workload("fashion_mini")
    data = workload.load()
    images, labels = data.train
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(42), 0), 0)
    params, state = workload.init(key)
    rule = lf.optimizer("adam", **ADAM | {"learning_rate": lambda t: 1e-2 * (1 - 0.9 * jnp.minimum(t / 3, 1))})
    inner = rule.init(params)

    @jax.jit
    def update(params: Any, inner: Any, batch: Any) -> Any:
        gradients = jax.grad(lambda params: workload.loss(params, state, batch, None, {})[0])(params)
        changes, inner = rule.update(gradients, inner, params)
        return optax.apply_updates(params, changes), inner

    evaluate = jax.jit(workload.evaluate)
    for step in range(steps):
        rows = np.asarray(shuffle.batch_indices(42, jnp.array([step]), len(images), batch_size))[0]
        params, inner = update(params, inner, (images[rows], labels[rows]))
        if step + 1 in (3, 6):
            for split, batch in data.evaluation.items():
                for metric, value in evaluate(params, state, batch).items():
                    recorded = found.curve.values[f"{split}_{metric}"][(step + 1) // 3 - 1]
                    atol = 2e-3 if metric == "error" else 0
                    assert recorded == pytest.approx(float(value.mean()), rel=1e-4, abs=atol), (split, metric, step)


# A workload made to be looked into: a parameter that walks by its loss's randomness, a state that counts steps,
# and data that tell which examples were drawn.
def _walk_loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> Any:
    (examples,) = batch
    walked = params["walk"] * hyperparameters["pull"] * jax.random.normal(key)
    met = params["met"] @ jax.nn.one_hot(examples, 10).sum(0)
    return walked + met, state + 1


def _walk_evaluate(params: Any, state: Any, batch: Any) -> Any:
    return {"loss": params["walk"], "steps": state, **{f"met{i}": -params["met"][i] for i in range(10)}}


WALK = Workload(
    name="walk",
    summary="a random walk",
    batch_size=5,
    eval_interval=4,
    metrics=minimized("train_loss", "train_steps", *(f"train_met{i}" for i in range(10))),
    select="train_loss",
    load=lambda: Data(train=(np.arange(10),), evaluation={"train": (np.arange(10),)}),
    init=lambda key: ({"walk": jax.random.normal(key), "met": jnp.zeros(10)}, jnp.zeros((), jnp.int32)),
    loss=_walk_loss,
    evaluate=_walk_evaluate,
    hyperparameters={"pull": Hyperparameter()},
)


def walkers(count: int) -> list[Point]:
    return [Point(i, {"learning_rate": 1.0, "pull": 1.0}, seed=i) for i in range(count)]


@pytest.mark.parametrize(
    ("steps", "eval_interval", "expected"),
    [(12, 4, [4, 8, 12]), (10, 4, [4, 8, 10]), (9, 4, [4, 8, 9]), (3, 4, [3]), (3, 50, [3]), (1, 1, [1])],
)
@pytest.mark.parametrize("slots", [1, 2])
def test_the_last_record_is_at_the_last_step(steps: int, eval_interval: int, expected: list[int], slots: int) -> None:
    """And the trial stands still after it, whatever its slot goes on to do."""
    job = job_of(WALK, "sgd", steps=steps, eval_interval=eval_interval)
    for trial in trained(job, slots, walkers(3)):
        assert list(trial.curve.steps) == expected
        assert list(trial.curve.values["train_steps"]) == expected


@pytest.mark.parametrize("workload", ["walk", "quadratic", "wilson"])
@pytest.mark.parametrize("eval_interval", [4, 7, 50])
def test_the_interval_of_evaluation_does_not_change_the_training(workload: str, eval_interval: int) -> None:
    """An interval that leaves a rest ends where one that divides the steps does."""
    subject = WALK if workload == "walk" else workload
    points = [Point(i, {"learning_rate": 0.1 * (i + 1), "pull": 1.0}, seed=i) for i in range(3)]
    evenly = trained(job_of(subject, "sgd", steps=10, eval_interval=5), 2, points)
    unevenly = trained(job_of(subject, "sgd", steps=10, eval_interval=eval_interval), 2, points)
    for ours, theirs in zip(by_index(unevenly), by_index(evenly), strict=True):
        assert ours.curve.steps[-1] == theirs.curve.steps[-1] == 10
        for metric in ours.curve.values:
            assert ours.curve.final(metric) == pytest.approx(theirs.curve.final(metric), rel=1e-5)


def test_a_trial_s_randomness_is_its_seed_s() -> None:
    """Initialisation, the loss's noise and the data's order follow from the seed, and from nothing else."""
    seeds = [7, 8, 7, 9]
    points = [Point(i, {"learning_rate": 1.0, "pull": 1.0}, seed) for i, seed in enumerate(seeds)]
    found = by_index(trained(job_of(WALK, "sgd", steps=3, eval_interval=1), 2, points))
    first, other, again, third = (trial.curve.values for trial in found)
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


def test_the_order_of_the_data_is_the_trial_s_own() -> None:
    """wilson starts every trial at zero: with small batches only the order tells two seeds apart."""
    points = [Point(i, {"learning_rate": 0.1}, seed) for i, seed in enumerate([1, 2, 1])]
    job = job_of("wilson", "sgd", steps=6, eval_interval=3, batch_size=10)
    one, two, same = by_index(trained(job, 3, points))
    np.testing.assert_allclose(one.curve.values["train_loss"], same.curve.values["train_loss"], rtol=1e-6)
    assert np.all(np.abs(one.curve.values["train_loss"] / two.curve.values["train_loss"] - 1) > 1e-3)


def test_diverged_trials_leave_early_and_the_next_points_enter() -> None:
    """Slots at different steps: each trial has its own steps, curve and end."""
    # On the quadratic a rate of 100 overflows after some 10 steps, 1e38 at once.
    rates = [0.1, DIVERGES, 100.0, 0.2, DIVERGES, 0.3, 0.4]
    points = [Point(i, {"learning_rate": rate}, seed=i) for i, rate in enumerate(rates)]
    job = job_of("quadratic", "sgd", steps=20, eval_interval=4)
    alone = [trained(job, 1, [point])[0] for point in points]
    stretches = segments(job, 2, points)
    finished = [trial for stretch in stretches for trial in stretch.finished]

    for one, reference in zip(by_index(finished), alone, strict=True):
        assert_same(one, reference)
    for trial in finished:
        steps, losses = list(trial.curve.steps), trial.curve.values["train_loss"]
        assert steps == list(range(4, steps[-1] + 1, 4))
        assert np.isfinite(losses[:-1]).all()
        assert trial.feasible == np.isfinite(losses[-1])
        assert steps[-1] == 20 or not trial.feasible
    lengths = {trial.point.index: len(trial.curve.steps) for trial in finished}
    assert lengths[1] == lengths[4] == 1
    assert 1 < lengths[2] < 5

    # Trial 0 holds one slot for five stretches; 1, 2 and 3 pass through the other meanwhile.
    assert [trial.point.index for trial in finished] != sorted(lengths)
    assert sum(len(stretch.finished) for stretch in stretches[:1]) == 1
    assert len(stretches) < sum(lengths.values())
    assert sum(stretch.trial_steps for stretch in stretches) == 4 * sum(lengths.values())
    assert stretches[-1].running == 0


def test_finished_trials_are_seen_before_the_next_point_is_taken() -> None:
    """The runner decides what to hand out by what has finished."""
    job = job_of("quadratic", "sgd", steps=20, eval_interval=4)
    log: list[str] = []
    queue = iter([Point(i, {"learning_rate": DIVERGES if i == 0 else 0.1}, i) for i in range(2)])

    def take() -> Point | None:
        point = next(queue, None)
        log.append(f"take {point.index if point else None}")
        return point

    for stretch in train(program(job, 1), take):
        log += [f"finished {trial.point.index}" for trial in stretch.finished]
    assert log == ["take 0", "finished 0", "take 1", "finished 1", "take None"]


def test_nothing_to_train_trains_nothing() -> None:
    assert segments(job_of("quadratic", "sgd", steps=20, eval_interval=4), 2, []) == []


@pytest.mark.parametrize("free", [1, 4])
def test_one_compilation_serves_all_trials(free: int, tmp_path: Path) -> None:
    """Python sees the loss while a program is traced, and never again."""
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": {"valid_loss": "minimize"}}, ["train_loss"]),
        ({"metrics": ["train_loss"]}, ["['train_loss']", "'minimize' or 'maximize'"]),
        ({"metrics": {"train_loss": ["minimize"]}}, ["['minimize']"]),
        ({"metrics": {"train_loss": "down"}}, ["train_loss", "'down'", "'minimize' or 'maximize'"]),
        ({"select": "valid_eror"}, ["'valid_eror'", "train_loss"]),
    ],
)
def test_a_workload_that_cannot_be_used_is_refused(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(LevelfieldError, match="wilson") as caught:
        dataclasses.replace(get_workload("wilson"), **changes)
    for word in words:
        assert word in str(caught.value)


def test_a_workloads_metrics_may_be_declared_in_words() -> None:
    way = dataclasses.replace(get_workload("wilson"), metrics={"train_loss": "maximize"}, select="train_loss").metrics[
        "train_loss"
    ]
    assert way is Direction.MAXIMIZE


@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize("n", [64, 100, 1000, 2000, 5000, 10_007])
def test_equal_counts_are_equal_errors_wherever_the_wrong_ones_stand(n: int, slots: int) -> None:
    """280 wrong of 2,000 is 0.14, to the last bit: ties are ties, and a target that is met is reached."""
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
    found = trained(job_of(workload, "sgd", steps=1, eval_interval=1), slots, [Point(0, {"learning_rate": 0.0}, 0)])[0]
    assert {found.curve.final(metric) for metric in workload.metrics} == {float(np.float32((n // 7) / n))}


def test_a_metric_that_is_declared_but_not_evaluated_is_named() -> None:
    declared = get_workload("wilson").metrics | {"valid_accuracy": Direction.MAXIMIZE}
    workload = lf.register_workload(dataclasses.replace(get_workload("wilson"), name="short", metrics=declared))
    with pytest.raises(LevelfieldError, match=r"'short' declares valid_accuracy, but evaluate returns .*valid_er"):
        check_workload(workload, 1)


def test_a_mean_where_each_example_has_its_value_is_refused() -> None:
    """The mean of a last, shorter chunk would count as much as the others'."""
    wilson = get_workload("wilson")

    def means(*arguments: Any) -> Any:
        return {name: values.mean() for name, values in wilson.evaluate(*arguments).items()}

    with pytest.raises(LevelfieldError, match=r"returned error of shape \(\) for 7 examples; expected one value per"):
        check_workload(dataclasses.replace(wilson, evaluate=means), 1)


ARRAYS = (np.zeros((8, 3), np.float32), np.zeros(8, np.float32))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"load": lambda: None}, "load returned None; expected a levelfield.Data"),
        ({"load": lambda: Data((ARRAYS[0], ARRAYS[1][:5]), {"train": ARRAYS})}, "training data have arrays of 5 and 8"),
        ({"load": lambda: Data(ARRAYS, {"train": (ARRAYS[0], ARRAYS[1][:5])})}, "data 'train' have arrays of 5 and 8"),
        ({"load": lambda: Data(ARRAYS, {"train": tuple(a[:0] for a in ARRAYS)})}, "data 'train' are empty"),
        ({"load": lambda: Data([0.0, 1.0], {"train": ARRAYS})}, "training data contain a float; expected arrays"),
        (
            {"load": lambda: Data((np.full((8, 3), np.nan, np.float32), ARRAYS[1]), {"train": ARRAYS})},
            "the training data contain 24 values that are NaN or infinite; remove or replace them in load",
        ),
        (
            {"load": lambda: Data(ARRAYS, {"train": (ARRAYS[0], np.array([0] * 7 + [np.inf]))})},
            "the evaluation data 'train' contain 1 value that is NaN or infinite",
        ),
        ({"init": lambda key: jnp.zeros(3)}, "expected a pair (params, state)"),
        ({"loss": lambda params, *_: jnp.sum(params)}, "an array of shape (); expected a pair (loss, state)"),
        (
            {"loss": lambda params, state, batch, key, given: given["l2"]},
            "loss failed (KeyError: 'l2', test_training.py li",
        ),
        ({"evaluate": lambda *_: 1}, "evaluate returned"),
        (
            {"evaluate": lambda *_: ({"loss": jnp.ones(8)},)},
            "evaluate returned a tuple; expected a mapping from metrics to values",
        ),
        (
            {"evaluate": lambda params, state, batch: {"loss": (batch[0] @ params)[:, None] - batch[1]}},
            "evaluate returned loss of shape (7, 7) for 7 examples",
        ),
        ({"loss": lambda params, state, *_: (params, state)}, "a loss of shape (3,); expected a single number"),
        ({"loss": lambda params, state, *_: (jnp.sum(params), params)}, "a state whose shapes or types differ"),
    ],
)
def test_a_workload_that_breaks_its_contract_is_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    """JAX would train on arrays of unequal length: it takes the last example for those that are missing."""
    whole: dict[str, Any] = {
        "load": lambda: Data(ARRAYS, {"train": ARRAYS}),
        "init": lambda key: (jnp.zeros(3), ()),
        "loss": lambda params, state, batch, *_: (jnp.mean((batch[0] @ params - batch[1]) ** 2), state),
        "evaluate": lambda params, state, batch: {"loss": (batch[0] @ params - batch[1]) ** 2},
    }
    about = {"name": "mine", "summary": "", "batch_size": 4, "eval_interval": 1, "select": "train_loss"}
    check_workload(Workload(**about, metrics=minimized("train_loss"), **whole), 4)
    with pytest.raises(LevelfieldError) as caught:
        check_workload(Workload(**about, metrics=minimized("train_loss"), **whole | changes), 4)
    assert str(caught.value).startswith("workload 'mine'")
    assert words in str(caught.value)


@pytest.mark.parametrize("rule", ["optax.lbfgs", "optax.noisy_sgd"])
def test_a_rule_that_cannot_be_trained_with_is_refused_before_training(rule: str, tmp_path: Path) -> None:
    table = {"rule": rule, "learning_rate": 0.1} | ({"seed": 0} if rule == "optax.noisy_sgd" else {})
    study = lf.Study(workload="quadratic", steps=4, trials=1, pool=2, optimizers={"ours": table})
    with pytest.raises(LevelfieldError, match=rf"optimizers\.ours: rule {rule} cannot be trained") as caught:
        lf.compare(study, tmp_path / "trials.db")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "trials.db").exists()


def test_what_a_loss_objects_to_is_said_before_anything_is_written(tmp_path: Path) -> None:
    def loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> Any:
        if len(batch[0]) % 32:
            raise lf.errors.UsageError(f"a batch of {len(batch[0])} is no multiple of 32")
        return jnp.sum(params), state

    lf.register_workload(dataclasses.replace(get_workload("wilson"), name="ghosts", loss=loss, hyperparameters={}))
    table = {"sgd": {"learning_rate": {"log": [1e-3, 1e-1]}}}
    study = lf.Study(workload="ghosts", batch_size=40, steps=4, trials=1, pool=2, optimizers=table)
    with pytest.raises(LevelfieldError, match="a batch of 40 is no multiple of 32"):
        lf.compare(study, tmp_path / "trials.db")
    assert not (tmp_path / "trials.db").exists()


def test_means_over_chunks_are_means_over_all_examples() -> None:
    """Whatever the number of examples: a chunk's worth, a rest, a prime."""
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
    found = trained(job, 1, [Point(0, {"learning_rate": 0.0}, 0)])[0]
    for split, (values, positions) in splits.items():
        assert found.curve.final(f"{split}_loss") == pytest.approx(np.mean(values.astype(float) ** 2), rel=1e-5)
        assert found.curve.final(f"{split}_place") == pytest.approx(np.mean(positions), rel=1e-5)


def test_a_batch_larger_than_the_data_is_refused(tmp_path: Path) -> None:
    sgd = {"learning_rate": {"log": [0.1, 1]}}
    refusal = "batch_size = 51: expected at most 50, the number of training examples of wilson"

    def use() -> None:
        study = lf.Study(workload="wilson", steps=5, trials=1, batch_size=51, optimizers={"sgd": sgd})
        lf.compare(study, tmp_path / "trials.db", slots=1)

    with pytest.raises(StudyError, match=refusal) as error:
        use()
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []  # a usage error writes nothing


def test_a_workload_without_a_training_loss_is_refused(tmp_path: Path) -> None:
    """A trial is feasible by its training loss: without one that cannot be told."""
    wilson = get_workload("wilson")
    metrics = {name: way for name, way in wilson.metrics.items() if name != "train_loss"}

    def use() -> None:
        lf.register_workload(dataclasses.replace(wilson, name="lossless", metrics=metrics))
        study = lf.Study(workload="lossless", steps=5, trials=1, optimizers={"sgd": {"learning_rate": 0.1}})
        lf.compare(study, tmp_path / "trials.db", slots=1)

    with pytest.raises(LevelfieldError, match="train_loss") as error:
        use()
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------- the embedded workloads


def test_sgd_on_the_quadratic_follows_the_theory() -> None:
    """E θ² is known at every step: (1 − ηh)² E θ² + η² h / B, from 1."""
    rate, steps, batch_size, trials = 0.5, 20, 4, 256
    points = [Point(i, {"learning_rate": rate}, seed=1000 + i) for i in range(trials)]
    job = job_of("quadratic", "sgd", steps=steps, eval_interval=5, batch_size=batch_size)
    losses = np.array([trial.curve.values["train_loss"] for trial in trained(job, 64, points)])
    curvature, square = 1 / np.arange(1, 101), np.ones(100)
    for step in range(1, steps + 1):
        square = (1 - rate * curvature) ** 2 * square + rate**2 * curvature / batch_size
        if step % 5 == 0:
            found = losses[:, step // 5 - 1]
            standard_error = found.std() / np.sqrt(trials)
            assert abs(found.mean() - 0.5 * np.sum(curvature * square)) < 4 * standard_error
            assert standard_error < 0.03 * found.mean()


def wilson_error(direction: Any, rate: float, steps: int) -> float:
    """The error on new examples of plain descent along ``direction(gradient)``, in numpy alone."""
    labels = np.array([1, 1, 1, -1, -1] * 10)
    features = np.zeros((50, 253))
    features[:, 0], features[:, 1], features[:, 2] = labels, 1, 1
    for i, label in enumerate(labels):
        features[i, 3 + 5 * i : 3 + 5 * i + (1 if label == 1 else 5)] = 1
    weights = np.zeros(253)
    for _ in range(steps):
        weights -= rate * direction(features.T @ (features @ weights - labels) / 50)
    assert np.all(labels * (features @ weights) > 0)  # all training examples are right
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
    """Gradient descent generalises; methods that move every weight alike call all new examples positive."""
    trial = trained(job_of("wilson", rule, steps=400, eval_interval=200), 1, [Point(0, hyperparameters, 0)])[0]
    rate = 0.3 if error == 0 else 0.01
    assert wilson_error(direction, rate, 400) == error
    assert trial.curve.final("train_error") == 0
    assert trial.curve.final("valid_error") == pytest.approx(error)
    assert trial.curve.final("test_error") == pytest.approx(error)
