"""Optuna storages, written by Optuna itself."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from levelfield.errors import DataError, UnknownName, UsageError
from levelfield.imports import read_source
from levelfield.imports.infer import infer_study
from levelfield.trial import Direction, Status

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")
from optuna.storages import JournalStorage  # noqa: E402
from optuna.storages.journal import JournalFileBackend  # noqa: E402

optuna.logging.set_verbosity(optuna.logging.ERROR)


def objective(trial: Any) -> float:
    """Learn for three epochs: some trials diverge, crash or are pruned."""
    rate = trial.suggest_float("lr", 1e-3, 1e1, log=True)
    trial.suggest_categorical("optimizer", ["adam", "sgd"])
    if trial.params["optimizer"] == "sgd":
        trial.suggest_float("momentum", 0.0, 1.0)
    trial.suggest_int("width", 8, 64)
    trial.suggest_categorical("decay", [None, "linear"])
    trial.set_user_attr("seed", 7)
    trial.set_user_attr("test_error", rate / 2)
    trial.set_user_attr("host", "here")
    for epoch in range(3):
        trial.report(float("nan") if rate > 5 else rate + epoch, epoch)
        if rate < 0.01 and epoch == 1:
            raise optuna.TrialPruned
    if rate > 5:
        raise RuntimeError("loss is not finite")
    if 4 < rate <= 5:
        raise RuntimeError("out of memory")
    return rate + 2


POINTS = [
    {"lr": 0.1, "optimizer": "adam", "width": 8, "decay": None},
    {"lr": 0.2, "optimizer": "sgd", "momentum": 0.5, "width": 16, "decay": "linear"},
    {"lr": 0.005, "optimizer": "adam", "width": 8, "decay": None},  # is pruned
    {"lr": 9.0, "optimizer": "adam", "width": 8, "decay": None},  # diverges
    {"lr": 4.5, "optimizer": "adam", "width": 8, "decay": None},  # crashes
]


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'study.db'}"


def journal(folder: Path) -> Any:
    return JournalStorage(JournalFileBackend(str(folder / "study.log")))


def fill(storage: Any, name: str = "cnn", **options: Any) -> Any:
    study = optuna.create_study(study_name=name, storage=storage, **options)
    for point in POINTS:
        study.enqueue_trial(point)
    study.optimize(objective, n_trials=len(POINTS), catch=RuntimeError)
    return study


def check(source: Any) -> None:
    """Compare with what the objective did at the points."""
    assert source.name == "cnn"
    assert source.directions == {"value": Direction.MINIMIZE}
    assert source.select == "value"
    adam, sgd, pruned, diverged = source.records
    assert [record.label for record in source.records] == [f"cnn trial {number}" for number in range(4)]
    assert adam.hyperparameters == {"lr": 0.1, "width": 8, "decay": "None"}
    assert sgd.hyperparameters == {"lr": 0.2, "momentum": 0.5, "width": 16, "decay": "linear"}
    assert [record.optimizer for record in source.records] == ["adam", "sgd", "adam", "adam"]
    assert {record.seed for record in source.records} == {7}
    assert adam.curve.steps.tolist() == [0, 1, 2]
    assert adam.curve.values["value"].tolist() == [0.1, 1.1, 2.1]
    np.testing.assert_array_equal(adam.curve.values["test_error"], [np.nan, np.nan, 0.05])
    assert adam.feasible("test_error")
    assert adam.seconds > 0
    assert adam.started > 1e9
    assert [record.pruned for record in source.records] == [False, False, True, False]
    assert pruned.curve.values["value"].tolist() == [0.005, 1.005]
    assert (diverged.status, diverged.feasible("value")) == (Status.INFEASIBLE, False)
    assert source.notes == [
        "1 trial stopped early by Optuna's pruner",
        "1 trial left out that failed; Optuna counts those that returned NaN among them, so some may have diverged",
        "4 trials at points that were given by hand",
    ]


def test_sqlite(tmp_path):
    fill(sqlite_url(tmp_path))
    before = (tmp_path / "study.db").read_bytes()
    check(read_source(tmp_path / "study.db"))
    check(read_source(sqlite_url(tmp_path)))
    assert (tmp_path / "study.db").read_bytes() == before


def test_journal(tmp_path):
    fill(journal(tmp_path))
    check(read_source(tmp_path / "study.log"))
    (tmp_path / "study.log").rename(tmp_path / "study.jsonl")
    check(read_source(tmp_path / "study.jsonl"))


def test_postgresql(database):
    url = database.replace("postgresql://", "postgresql+psycopg://")
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": sa.NullPool})
    fill(storage)
    storage.remove_session()
    check(read_source(database))


def test_a_file_whose_name_looks_like_a_template(tmp_path):
    """Optuna fills in what stands between braces in a URL."""
    fill(sqlite_url(tmp_path))
    (tmp_path / "study.db").rename(tmp_path / "{study}.db")
    check(read_source(tmp_path / "{study}.db"))


def test_what_the_layout_says(tmp_path):
    fill(sqlite_url(tmp_path))
    layout = {
        "optimizer_name": "mine",
        "hyperparameters": {"learning_rate": "lr", "momentum": "momentum"},
        "metrics": {"valid_loss": "value"},
        "sampling": "adaptive",
    }
    source = read_source(tmp_path / "study.db", layout)
    assert {record.optimizer for record in source.records} == {"mine"}
    assert source.records[1].hyperparameters == {"learning_rate": 0.2, "momentum": 0.5}
    assert source.metrics == ("valid_loss",)
    assert source.directions == {"valid_loss": Direction.MINIMIZE}
    assert source.select == "valid_loss"
    assert source.sampling == "adaptive"
    with pytest.raises(UnknownName, match="no column 'nonsense'"):
        read_source(tmp_path / "study.db", {"seed": "nonsense"})


def simple(trial: Any) -> float:
    return trial.suggest_float("lr", 0.1, 1.0)


@pytest.mark.parametrize(
    ("sampler", "sampling"),
    [
        (lambda: optuna.samplers.GridSampler({"lr": [0.1, 0.5, 1.0]}), "grid"),
        (lambda: optuna.samplers.NSGAIISampler(population_size=2, seed=0), "adaptive"),
        (lambda: optuna.samplers.RandomSampler(seed=0), ""),  # Optuna stores no trace of it,
        (lambda: optuna.samplers.TPESampler(seed=0), ""),  # nor of this one
    ],
)
def test_how_points_were_sampled(tmp_path, sampler: Callable[[], Any], sampling):
    study = optuna.create_study(storage=journal(tmp_path), sampler=sampler())
    study.optimize(simple, n_trials=3)
    source = read_source(tmp_path / "study.log")
    assert source.sampling == sampling
    assert [record.curve.steps.tolist() for record in source.records] == [[1]] * 3
    assert [record.curve.final("value") for record in source.records] == [trial.value for trial in study.trials]


def test_the_ranges_of_a_study_are_those_that_optuna_searched(tmp_path):
    def objective(trial: Any) -> float:
        rate = trial.suggest_float("lr", 1e-6, 1e2, log=True)
        trial.suggest_float("one_minus_beta", 1e-3, 1.0, log=True)
        trial.suggest_float("dropout", 0.0, 0.9)
        trial.suggest_int("layers", 1, 100)
        trial.suggest_categorical("decay", [None, "linear", "cosine"])
        trial.suggest_float("clip", 0.5, 0.5)
        trial.suggest_float("moving", 0.0, 1.0 + trial.number)  # no study file can say this
        return rate

    sampler = optuna.samplers.RandomSampler(seed=0)
    optuna.create_study(storage=journal(tmp_path), sampler=sampler, study_name="adam").optimize(objective, n_trials=6)
    source = read_source(tmp_path / "study.log", {"sampling": "random"})
    study = infer_study(source, "study")
    moving = [record.hyperparameters["moving"] for record in source.records]
    assert study.optimizer("adam").space.spec() == {
        "lr": {"log": [1e-6, 1e2]},
        "one_minus_beta": {"log": [1e-3, 1.0]},
        "dropout": {"uniform": [0.0, 0.9]},
        "layers": {"integer": [1, 100]},
        "decay": {"choice": ["None", "linear", "cosine"]},
        "clip": 0.5,
        "moving": {"uniform": [min(moving), max(moving)]},
    }
    assert study.inferred
    assert not infer_study(read_source(tmp_path / "study.log", {"ignore": ["moving"]}), "study").inferred


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_quasi_random_points(tmp_path):
    sampler = optuna.samplers.QMCSampler(scramble=True, seed=0, warn_independent_sampling=False)
    optuna.create_study(storage=journal(tmp_path), sampler=sampler).optimize(simple, n_trials=3)
    assert read_source(tmp_path / "study.log").sampling == "quasirandom"


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_several_objectives(tmp_path):
    """They have no reports, so each has one value; names are Optuna's or the study's."""
    storage = journal(tmp_path)
    study = optuna.create_study(study_name="plain", storage=storage, directions=["minimize", "maximize"])
    study.optimize(lambda trial: (simple(trial), 2.0), n_trials=1)
    source = read_source(tmp_path / "study.log")
    assert source.directions == {"value_0": Direction.MINIMIZE, "value_1": Direction.MAXIMIZE}
    assert source.select == ""
    assert source.records[0].curve.values["value_1"].tolist() == [2.0]
    study.set_metric_names(["loss", "accuracy"])
    assert read_source(tmp_path / "study.log").metrics == ("loss", "accuracy")


def test_a_study_for_each_optimizer(tmp_path):
    storage = sqlite_url(tmp_path)
    for name in ("adam", "sgd", "other"):
        direction = "maximize" if name == "other" else "minimize"
        optuna.create_study(study_name=name, storage=storage, direction=direction).optimize(simple, n_trials=2)
    with pytest.raises(DataError, match="study 'adam' tries to minimize value and study 'other' to maximize it"):
        read_source(tmp_path / "study.db")
    source = read_source(tmp_path / "study.db", {"studies": ["adam", "sgd"]})
    assert source.name == "study"
    assert [record.optimizer for record in source.records] == ["adam", "adam", "sgd", "sgd"]
    assert read_source(tmp_path / "study.db", {"studies": "sgd"}).name == "sgd"
    with pytest.raises(UnknownName, match=r"unknown study 'adma' of .*study\.db; did you mean 'adam'\?"):
        read_source(tmp_path / "study.db", {"studies": ["adma"]})


def test_a_returned_value_counts_more_than_the_last_report(tmp_path):
    def best_epoch(trial: Any) -> float:
        for step, value in enumerate([0.5, 0.25, 0.75]):
            trial.report(value, step)
        return simple(trial) * 0 + 0.25

    optuna.create_study(study_name="s", storage=journal(tmp_path)).optimize(best_epoch, n_trials=1)
    source = read_source(tmp_path / "study.log")
    assert source.records[0].curve.values["value"].tolist() == [0.5, 0.25, 0.25]
    assert source.notes == [
        "the value that counts is the one that was returned, which differs from the last report in 1 trial"
    ]


def test_points_that_come_again_are_kept(tmp_path):
    """With few choices, random search returns to a point: these are draws like any other."""
    study = optuna.create_study(study_name="s", storage=journal(tmp_path))
    study.optimize(lambda trial: float(trial.suggest_categorical("lr", [1])), n_trials=3)
    source = read_source(tmp_path / "study.log")
    assert len(source.records) == 3
    assert source.notes == ["2 trials without a seed repeat the hyperparameters of another"]


def test_storages_that_are_none(tmp_path):
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE trials (id INTEGER)")
    connection.close()
    with pytest.raises(DataError, match="not an Optuna storage"):
        read_source(tmp_path / "other.db")
    with sqlite3.connect(tmp_path / "other.db") as connection:
        tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
    connection.close()
    assert tables == [("trials",)]  # nothing was added
    with pytest.raises(UsageError, match="no such file"):
        read_source(f"sqlite:///{tmp_path}/missing.db")
    assert not (tmp_path / "missing.db").exists()
    with pytest.raises(DataError) as error:
        read_source("postgresql://me:secret@localhost:1/db?password=secret")
    assert "secret" not in str(error.value)
    fill(sqlite_url(tmp_path))
    optuna.delete_study(study_name="cnn", storage=sqlite_url(tmp_path))
    with pytest.raises(DataError, match="no studies"):
        read_source(tmp_path / "study.db")


def test_without_optuna(tmp_path, monkeypatch):
    fill(sqlite_url(tmp_path))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"study.db needs Optuna; run pip install 'levelfield\[optuna\]'"):
        read_source(tmp_path / "study.db")
