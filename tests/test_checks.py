"""Checks before training: a workload or rule that breaks its contract is rejected in one line."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_study
from training_helpers import ADAM, job_of

import levelfield as lf
from levelfield.data import Data
from levelfield.errors import LevelfieldError, StudyError
from levelfield.training.checks import check_rule, check_workload
from levelfield.trial import Direction
from levelfield.workload import Workload, minimized
from levelfield.workloads import get_workload

ARRAYS = (np.zeros((8, 3), np.float32), np.zeros(8, np.float32))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": {"valid_error": "minimize"}}, ["train_loss"]),
        ({"metrics": ["train_loss"]}, ["['train_loss']", "'minimize' or 'maximize'"]),
        ({"metrics": {"train_loss": ["minimize"]}}, ["['minimize']"]),
        ({"metrics": {"train_loss": "down"}}, ["train_loss", "'down'", "'minimize' or 'maximize'"]),
        ({"select": "valid_eror"}, ["'valid_eror'", "train_loss"]),
    ],
)
def test_an_invalid_workload_is_rejected(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(LevelfieldError, match="wilson") as caught:
        dataclasses.replace(get_workload("wilson"), **changes)
    for word in words:
        assert word in str(caught.value)


def test_directions_can_be_strings() -> None:
    workload = dataclasses.replace(get_workload("wilson"), metrics={"train_loss": "maximize"}, select="train_loss")
    assert workload.metrics["train_loss"] is Direction.MAXIMIZE


def test_a_declared_metric_that_is_not_evaluated_is_reported() -> None:
    declared = get_workload("wilson").metrics | {"valid_accuracy": Direction.MAXIMIZE}
    workload = lf.register_workload(dataclasses.replace(get_workload("wilson"), name="short", metrics=declared))
    with pytest.raises(LevelfieldError, match=r"'short' declares valid_accuracy, but evaluate returns .*valid_er"):
        check_workload(workload, 1)


def test_a_mean_instead_of_a_value_per_example_is_rejected() -> None:
    """The mean of a shorter last chunk would count as much as the others."""
    wilson = get_workload("wilson")

    def means(*arguments: Any) -> Any:
        return {name: values.mean() for name, values in wilson.evaluate(*arguments).items()}

    with pytest.raises(LevelfieldError, match=r"returned error of shape \(\) for 7 examples; expected one value per"):
        check_workload(dataclasses.replace(wilson, evaluate=means), 1)


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
            "loss failed (KeyError: 'l2', test_checks.py li",
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
def test_a_workload_that_breaks_its_contract_is_rejected_in_one_line(changes: dict[str, Any], words: str) -> None:
    """JAX would train on arrays of different lengths, repeating the last example."""
    valid: dict[str, Any] = {
        "load": lambda: Data(ARRAYS, {"train": ARRAYS}),
        "init": lambda key: (jnp.zeros(3), ()),
        "loss": lambda params, state, batch, *_: (jnp.mean((batch[0] @ params - batch[1]) ** 2), state),
        "evaluate": lambda params, state, batch: {"loss": (batch[0] @ params - batch[1]) ** 2},
    }
    fields = {"name": "mine", "summary": "", "batch_size": 4, "eval_interval": 1, "select": "train_loss"}
    check_workload(Workload(**fields, metrics=minimized("train_loss"), **valid), 4, precision="bfloat16")
    with pytest.raises(LevelfieldError) as caught:
        check_workload(Workload(**fields, metrics=minimized("train_loss"), **valid | changes), 4)
    assert str(caught.value).startswith("workload 'mine'")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [("optax.polyak_sgd", {"variant": "spss"}), ("optax.adam", {"mu_dtype": "float17"})],
)
def test_a_rule_that_cannot_be_trained_is_rejected_before_training(
    rule: str, wrong: dict[str, str], tmp_path: Path
) -> None:
    study = make_study({"ours": {"rule": rule, "learning_rate": 0.1, **wrong}})
    with pytest.raises(LevelfieldError, match=rf"optimizers\.ours: rule {rule} cannot be trained") as caught:
        lf.compare(study, tmp_path / "trials.db")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "trials.db").exists()


def test_an_error_in_the_loss_is_reported_before_anything_is_written(tmp_path: Path) -> None:
    def loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> Any:
        if len(batch[0]) % 32:
            raise lf.errors.UsageError(f"a batch of {len(batch[0])} is not a multiple of 32")
        return jnp.sum(params), state

    lf.register_workload(dataclasses.replace(get_workload("wilson"), name="ghosts", loss=loss, hyperparameters={}))
    study = make_study(workload="ghosts", batch_size=40)
    with pytest.raises(LevelfieldError, match="a batch of 40 is not a multiple of 32"):
        lf.compare(study, tmp_path / "trials.db")
    assert not (tmp_path / "trials.db").exists()


def test_a_batch_larger_than_the_data_is_rejected(tmp_path: Path) -> None:
    sgd = {"learning_rate": {"log": [0.1, 1]}}
    refusal = "batch_size = 51: expected at most 50, the number of training examples of wilson"

    def use() -> None:
        study = lf.Study(workload="wilson", steps=5, trials=1, batch_size=51, optimizers={"sgd": sgd})
        lf.compare(study, tmp_path / "trials.db", slots=1)

    with pytest.raises(StudyError, match=refusal) as error:
        use()
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []  # a usage error writes nothing


def test_a_workload_without_a_training_loss_is_rejected(tmp_path: Path) -> None:
    """The training loss decides whether a trial is feasible."""
    wilson = get_workload("wilson")
    metrics = {name: direction for name, direction in wilson.metrics.items() if name != "train_loss"}

    def use() -> None:
        lf.register_workload(dataclasses.replace(wilson, name="lossless", metrics=metrics))
        study = lf.Study(workload="lossless", steps=5, trials=1, optimizers={"sgd": {"learning_rate": 0.1}})
        lf.compare(study, tmp_path / "trials.db", slots=1)

    with pytest.raises(LevelfieldError, match="train_loss") as error:
        use()
    assert "\n" not in str(error.value)


def test_the_loss_is_traced_once_for_all_rules() -> None:
    """A run checks every rule before it trains, and tracing a large model takes long."""
    wilson, traced = get_workload("wilson"), []

    def loss(*arguments: Any) -> Any:
        traced.append(1)
        return wilson.loss(*arguments)

    workload = dataclasses.replace(wilson, loss=loss)
    for rule in ("sgd", "adam", "adam"):
        check_rule(job_of(workload, rule), ADAM)
    assert len(traced) == 1


def test_a_loss_that_fails_in_bfloat16_is_refused_before_training() -> None:
    """Its scan begins with the type of the parameters and goes on with that of a constant."""

    def loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> Any:
        def step(total: Any, row: Any) -> Any:
            return total + (row @ params) * jnp.ones((), jnp.float32), None

        return jax.lax.scan(step, jnp.zeros((), params.dtype), batch[0])[0], state

    workload = dataclasses.replace(get_workload("wilson"), name="summed", loss=loss)
    for precision in ("float32", "tf32"):
        check_workload(workload, 4, precision=precision)
    with pytest.raises(StudyError, match="precision = 'bfloat16': the loss of workload 'summed' fails") as caught:
        check_workload(workload, 4, precision="bfloat16")
    assert "test_checks.py line" in str(caught.value)
