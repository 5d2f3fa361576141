"""Folders and files in the layouts of DeepOBS, AlgoPerf and TaskSet: parts of what they published."""

from __future__ import annotations

import json
import lzma
import shutil

import numpy as np
import pytest
from helpers import FIXTURES

from levelfield.errors import DataError, UnknownName, UsageError
from levelfield.imports import read_source
from levelfield.trial import Direction, Target

POOLS = FIXTURES / "imports"
TASK = POOLS / "taskset/FixedTextRNNClassification_imdb_patch32_LSTM128_bs128.json"


def test_deepobs():
    source = read_source(POOLS / "deepobs/quadratic_deep")
    assert source.name == "quadratic_deep"
    assert source.directions == {"train_loss": Direction.MINIMIZE, "test_loss": Direction.MINIMIZE}
    assert source.sampling == "grid"
    assert source.notes == ["steps are epochs"]
    by_name = {
        (record.optimizer, record.hyperparameters["learning_rate"], record.seed): record for record in source.records
    }
    rate = 0.039810717055349734
    assert set(by_name) == {
        ("adam", 0.001, 42),
        ("adam", rate, 42),
        ("adam", rate, 43),  # whose file has 0.039810717055
        ("sgd", 0.001, 42),
        ("momentum", 100.0, 42),
        ("momentum", 0.002511886431509582, 42),
    }
    adam = by_name["adam", rate, 43]
    assert adam.hyperparameters == {"learning_rate": rate, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
    content = json.loads((POOLS / "deepobs/quadratic_deep" / adam.label).read_text())
    assert adam.curve.steps.tolist() == list(range(6))
    assert adam.curve.values["test_loss"].tolist() == content["test_losses"]
    momentum = by_name["momentum", 100.0, 42]
    assert momentum.hyperparameters == {"learning_rate": 100.0, "momentum": 0.99}
    assert not momentum.feasible("train_loss")
    assert all(record.feasible("train_loss") for record in source.records if record is not momentum)


def test_deepobs_of_several_problems(tmp_path):
    for name in ("one", "two"):
        shutil.copytree(POOLS / "deepobs/quadratic_deep", tmp_path / name)
    with pytest.raises(UsageError, match="has several test problems: one, two; choose one with --map workload=NAME"):
        read_source(tmp_path)
    assert read_source(tmp_path, {"workload": "two"}).name == "two"
    with pytest.raises(UnknownName, match="unknown test problem 'tow'"):
        read_source(tmp_path, {"workload": "tow"})


def test_deepobs_1_2_continues_aborted_runs_with_their_first_values(tmp_path):
    """That is how it writes runs whose loss was not finite; they would look as if they had never learned."""
    folder = tmp_path / "mnist/SGD/num_epochs__4__lr__1"
    folder.mkdir(parents=True)
    common = {"testproblem": "mnist", "optimizer_name": "SGD", "optimizer_hyperparams": {"lr": 1.0, "nesterov": True}}
    for seed, losses in [(1, [2.5, 1.5, 2.5, 2.5]), (2, [2.5, 1.5, 1.0, 0.5]), (3, [2.5, 2.5, 2.5, 2.5])]:
        run = {**common, "random_seed": seed, "train_losses": losses, "valid_losses": losses, "training_params": {}}
        (folder / f"random_seed__{seed}__x.json").write_text(json.dumps(run))
    source = read_source(tmp_path / "mnist")
    aborted, fine, at_once = source.records
    assert aborted.hyperparameters == {"lr": 1.0, "nesterov": True}
    np.testing.assert_array_equal(aborted.curve.values["train_loss"], [2.5, 1.5, np.nan, np.nan])
    np.testing.assert_array_equal(at_once.curve.values["valid_loss"], [2.5, np.nan, np.nan, np.nan])
    assert [record.feasible("train_loss") for record in source.records] == [False, True, False]
    assert fine.curve.values["train_loss"].tolist() == [2.5, 1.5, 1.0, 0.5]
    assert source.notes[-1].startswith("2 runs diverged")


def test_algoperf():
    source = read_source(POOLS / "algoperf")
    assert source.name == "ogbg"
    assert source.select == "valid_mean_average_precision"
    assert source.target == Target("valid_mean_average_precision", 0.28098)
    assert source.directions["valid_mean_average_precision"] is Direction.MAXIMIZE
    assert source.directions["train_loss"] is Direction.MINIMIZE
    assert set(source.directions) == set(source.metrics)
    assert source.sampling == "manual"  # the studies repeat the same points
    assert [(record.optimizer, record.seed) for record in source.records] == [
        (name, study) for name in ("baseline", "nadamp") for study in (0, 1) for _ in range(2)
    ]
    record = source.records[0]
    assert record.label == "baseline/study_0/ogbg_jax/trial_1"
    settings = json.loads((POOLS / "algoperf" / record.label / "hparams.json").read_text())
    assert record.hyperparameters["beta1"] == 1 - settings["one_minus_beta1"]
    assert record.hyperparameters["learning_rate"] == settings["learning_rate"]
    header, *rows = (POOLS / "algoperf" / record.label / "eval_measurements.csv").read_text().splitlines()
    rows = [dict(zip(header.split(","), row.split(","), strict=True)) for row in rows]
    assert record.curve.steps.tolist() == [int(row["global_step"]) for row in rows]
    assert record.curve.values["test_loss"].tolist() == [float(row["test/loss"]) for row in rows]
    assert record.seconds == float(rows[-1]["accumulated_submission_time"])
    assert source.notes == [
        "trials end by time, at different steps",
        "1 trial reached valid_mean_average_precision 0.28098 and ended before the time limit of 18,477 s: AlgoPerf "
        "ends trials that have reached its targets",
    ]
    (early,) = [record for record in source.records if record.pruned]
    assert early.label == "nadamp/study_1/ogbg_jax/trial_2"
    assert early.curve.values["valid_mean_average_precision"].max() >= 0.28098
    assert early.seconds < 18_000


def test_algoperf_with_several_workloads(tmp_path):
    shutil.copytree(POOLS / "algoperf", tmp_path / "logs")
    shutil.copytree(tmp_path / "logs/nadamp/study_1/ogbg_jax", tmp_path / "logs/nadamp/study_1/wmt_jax")
    with pytest.raises(UsageError, match="has several workloads: ogbg, wmt; choose one"):
        read_source(tmp_path)
    assert len(read_source(tmp_path / "logs", {"workload": "wmt"}).records) == 2
    shutil.copytree(POOLS / "algoperf/nadamp", tmp_path / "self_tuning/nadamp")
    with pytest.raises(UsageError, match="two submissions have the same name"):
        read_source(tmp_path, {"workload": "ogbg"})


def test_algoperf_steps_that_go_backward(tmp_path):
    shutil.copytree(POOLS / "algoperf", tmp_path / "logs")
    file = tmp_path / "logs/baseline/study_0/ogbg_jax/trial_1/eval_measurements.csv"
    header, first, *rest = file.read_text().splitlines()
    file.write_text("\n".join([header, *rest, first]))
    with pytest.raises(DataError, match=r"eval_measurements.csv, row 3: step 1 comes after step"):
        read_source(tmp_path / "logs")


@pytest.mark.parametrize("compressed", [False, True])
def test_taskset(tmp_path, compressed):
    path = TASK
    if compressed:
        path = tmp_path / f"{TASK.name}.xz"
        path.write_bytes(lzma.compress(TASK.read_bytes()))
    source = read_source(path)
    content = json.loads(TASK.read_text())
    assert source.name == "FixedTextRNNClassification_imdb_patch32_LSTM128_bs128"
    assert (source.sampling, source.select) == ("random", "valid_loss")
    assert source.directions == dict.fromkeys(("train_loss", "valid_loss", "test_loss"), Direction.MINIMIZE)
    assert [record.optimizer for record in source.records] == ["adam8p", "adam8p"]
    for record, trial in zip(source.records, content, strict=True):
        assert record.hyperparameters == trial["hp"]
        assert record.curve.steps.tolist() == list(range(0, 10_001, 200))
        np.testing.assert_array_equal(record.curve.values["valid_loss"], trial["valid"]["loss"])
    assert [record.feasible("train_loss") for record in source.records] == [True, False]
