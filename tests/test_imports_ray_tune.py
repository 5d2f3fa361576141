"""Result folders of Ray Tune, written by Ray Tune itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from levelfield.errors import DataError, UnknownName
from levelfield.imports import read_source
from levelfield.trial import Status

tune = pytest.importorskip("ray.tune", reason="Ray Tune is not installed")

RATES = [0.1, 0.2, 9.0, 0.5]


def train(config: dict[str, Any]) -> None:
    for step in range(1, 4):
        loss = float("nan") if config["lr"] > 5 and step > 1 else config["lr"] / step
        tune.report({"train_loss": loss, "valid": {"error": loss / 2}, "note": "text"})
        if config["lr"] == 0.2 and step == 2:
            return
        if config["lr"] == 0.5:
            raise RuntimeError("out of memory")


@pytest.fixture(scope="module")
def experiment(ray_cluster, tmp_path_factory) -> Path:
    """An experiment of four trials: one ends early, one diverges and one fails."""
    folder = tmp_path_factory.mktemp("ray_results")
    space = {"lr": tune.grid_search(RATES), "optimizer": "sgd", "model": {"width": 8}, "seed": 3, "betas": (0.9, 0.99)}
    tuner = tune.Tuner(
        train,
        param_space=space,
        tune_config=tune.TuneConfig(metric="train_loss", mode="min", reuse_actors=True),
        run_config=tune.RunConfig(name="sweep", storage_path=str(folder), verbose=0),
    )
    tuner.fit()
    return folder / "sweep"


def test_an_experiment(experiment):
    source = read_source(experiment)
    assert source.name == "sweep"
    assert source.metrics == ("train_loss", "valid_error")
    assert source.select == "train_loss"
    full, short, diverged = sorted(source.records, key=lambda record: record.hyperparameters["lr"])
    assert full.hyperparameters == {"lr": 0.1, "model_width": 8, "betas": "[0.9, 0.99]"}
    assert (full.optimizer, full.seed) == ("sgd", 3)
    assert full.curve.steps.tolist() == [1, 2, 3]
    assert full.curve.values["valid_error"].tolist() == [0.1 / step / 2 for step in (1, 2, 3)]
    assert full.started > 1e9
    assert short.curve.steps.tolist() == [1, 2]
    assert [full.pruned, short.pruned, diverged.pruned] == [False, True, False]
    np.testing.assert_array_equal(diverged.curve.values["train_loss"], [9.0, np.nan, np.nan])
    assert not diverged.feasible("train_loss")
    assert source.notes == [
        "1 failed trial left out",
        "1 trial ended before others, stopped by a scheduler or by themselves",
    ]


def test_several_experiments(experiment, tmp_path):
    """Each is of one optimizer unless a setting names it."""
    for name in ("adam", "sgd"):
        shutil.copytree(experiment, tmp_path / name)
    assert len(read_source(tmp_path, {"optimizer_name": "x", "studies": ["sgd"]}).records) == 3
    source = read_source(tmp_path, {"ignore": ["optimizer"]})
    assert [record.optimizer for record in source.records] == ["adam"] * 3 + ["sgd"] * 3
    with pytest.raises(UnknownName, match="unknown experiment 'x'"):
        read_source(tmp_path, {"studies": ["x"]})


def made(folder: Path, number: int, params: dict[str, Any], results: list[str], error: bool = False) -> None:
    trial = folder / f"train_{number}"
    trial.mkdir(parents=True)
    (trial / "params.json").write_text(json.dumps(params))
    (trial / "result.json").write_text("\n".join(results))
    if error:
        (trial / "error.txt").write_text("Traceback")


def test_trials_that_were_killed_or_restored(tmp_path):
    made(
        tmp_path,
        0,
        {"lr": 0.1},
        [
            '{"training_iteration": 1, "loss": 3}',
            '{"training_iteration": 2, "loss": 2, "acc": 0.5}',
            '{"training_iteration": 2, "loss": 2.5}',  # again, after it was restored
            '{"training_iteration": 3, "loss": 1}',
            '{"training_iteration": 4, "lo',  # killed while it wrote
        ],
    )
    made(tmp_path, 1, {"lr": 9}, ['{"training_iteration": 1, "loss": NaN}'], error=True)
    made(tmp_path, 2, {"lr": 1}, [])
    source = read_source(tmp_path, {"optimizer_name": "sgd"})
    restored, diverged = source.records
    assert restored.curve.steps.tolist() == [1, 2, 3]
    assert restored.curve.values["loss"].tolist() == [3, 2.5, 1]
    assert diverged.status is Status.INFEASIBLE
    assert source.notes == ["1 unfinished trial left out"]


def test_a_result_that_is_no_metric_can_be_ignored(tmp_path):
    folder = tmp_path / "sweep/train_1"
    folder.mkdir(parents=True)
    (folder / "params.json").write_text('{"optimizer": {"name": "sgd", "lr": 0.1, "momentum": null}}')
    (folder / "result.json").write_text('{"training_iteration": 1, "loss": 2.0, "timers": {"sample": 9.0}}')
    source = read_source(tmp_path / "sweep", {"ignore": ["timers/sample"]})
    assert source.metrics == ("loss",)
    (record,) = source.records
    assert (record.optimizer, record.hyperparameters) == ("sgd", {"optimizer_lr": 0.1})
    with pytest.raises(UnknownName, match="no column 'timers/smaple'; did you mean 'timers/sample'"):
        read_source(tmp_path / "sweep", {"ignore": ["timers/smaple"]})


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"training_iteration": 1, "loss": 3', '{"training_iteration": 2, "loss": 3}'], "line 1: not valid JSON"),
        (["[1]", "[2]"], "line 1: expected a JSON object"),
        (['{"training_iteration": 1.5, "loss": 3}'], "training_iteration = 1.5: expected an integer"),
        (['{"training_iteration": 1, "loss": 3}', '{"training_iteration": 2, "loss": "x"}'], "loss = 'x' at step 2"),
        (['{"loss": 3}'], "no column 'training_iteration'"),
        ([], "no trial has finished"),
    ],
)
def test_damaged_results(tmp_path, lines, said):
    made(tmp_path, 0, {"lr": 0.1}, lines)
    with pytest.raises((DataError, UnknownName), match=said) as error:
        read_source(tmp_path)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("file", "points", "sampling"),
    [
        ("basic-variant-state-x.json", [(1, 1), (1, 2), (2, 1), (2, 2)], "grid"),
        ("basic-variant-state-x.json", [(1, 1), (2, 2), (3, 3)], "random"),
        ("basic-variant-state-x.json", [(1, 1), (2, 1), (3, 1)], ""),  # one axis: either
        ("basic-variant-state-x.json", [(1, 1), (1, 2), (2, 1)], ""),  # part of a grid, or choices
        ("search_gen_state-x.json", [(1, 1), (2, 2)], "adaptive"),
        ("pbt_global.txt", [(1, 1), (2, 2)], "adaptive"),
        ("nothing", [(1, 1), (2, 2)], ""),
    ],
)
def test_how_points_were_sampled(tmp_path, file, points, sampling):
    for number, (lr, momentum) in enumerate(points):
        made(tmp_path, number, {"lr": lr, "momentum": momentum}, ['{"training_iteration": 1, "loss": 3}'])
    (tmp_path / file).touch()
    assert read_source(tmp_path).sampling == sampling


def test_each_experiment_tells_how_it_was_sampled(tmp_path):
    """One axis may be a grid's or random, whatever other experiments beside it are."""
    for name, points in (("adam", [(0.1, 0), (0.2, 0), (0.3, 0)]), ("sgd", [(1, 1), (2, 2), (3, 3)])):
        for number, (lr, momentum) in enumerate(points):
            made(tmp_path / name, number, {"lr": lr, "momentum": momentum}, ['{"training_iteration": 1, "loss": 3}'])
        (tmp_path / name / "basic-variant-state-x.json").touch()
    assert read_source(tmp_path, {"studies": ["sgd"]}).sampling == "random"
    assert read_source(tmp_path).sampling == ""
