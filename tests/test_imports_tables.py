"""Tables of trials become records: what `levelfield export` writes, W&B's exports, and any other table."""

from __future__ import annotations

import dataclasses
import json
import lzma
import math
from pathlib import Path

import numpy as np
import polars
import pytest
from helpers import make_study
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield.errors import DataError
from levelfield.export import write_trials
from levelfield.imports import Record, load_layout, read_source
from levelfield.imports.records import Source
from levelfield.trial import Direction, Status


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def curve(record: Record) -> dict[str, list[float]]:
    return {"step": record.curve.steps.tolist(), **{name: v.tolist() for name, v in record.curve.values.items()}}


@pytest.mark.parametrize("name", ["trials.csv", "trials.parquet"])
@pytest.mark.parametrize("curves", [False, True])
def test_an_export_comes_back_the_same(made, tmp_path, name, curves):
    """Optimizers have different hyperparameters and metrics, and trials end early or with NaN."""
    study = make_study(steps=8, pool=3)
    generator = np.random.default_rng(0)
    pools = {
        name: [{"train_loss": generator.random(1 + (i % 4)).astype(np.float32)} for i in range(4)]
        for name in study.optimizers
    }
    pools["sgd"][1]["train_loss"][-1] = np.nan
    made(study, pools, {"sgd": [1]}, store=tmp_path / "trials.db")
    with lf.Store.open(tmp_path / "trials.db") as store:
        write_trials(study, store, tmp_path / name, curves=curves)
        stored = {key: store.trials(study.identity(key)) for key in study.optimizers}
    source = read_source(tmp_path / name)
    assert len(source.records) == 8
    for record, (optimizer, trial) in zip(
        source.records, ((key, trial) for key, trials in stored.items() for trial in trials), strict=True
    ):
        shown = slice(None) if curves else slice(-1, None)
        assert (record.optimizer, record.index, record.seed) == (optimizer, trial.point.index, trial.point.seed)
        assert record.hyperparameters == trial.point.hyperparameters
        assert (record.status, record.seconds) == (trial.status, trial.seconds)
        np.testing.assert_array_equal(record.curve.steps, trial.curve.steps[shown])
        for metric in record.curve.values:
            np.testing.assert_array_equal(record.curve.values[metric], trial.curve.values[metric][shown])
        assert record.curve.values.keys() == trial.curve.values.keys()
    assert [record.diverged for record in source.records][:2] == [frozenset(), {"train_loss"}]
    assert source.notes == ["5 trials stopped early"]  # of six that are shorter than others, one diverged


def test_metrics_that_an_optimizer_does_not_have_stay_away(tmp_path):
    path = written(
        tmp_path / "trials.csv",
        "optimizer,index,status,in_pool,seed,seconds,hp_learning_rate,step,train_loss,hp_momentum,test_error\n"
        "sgd,0,feasible,true,5,1.5,0.1,10,1.0,,\n"
        "momentum,0,feasible,true,5,1.5,0.1,10,1.0,0.9,0.25\n",
    )
    sgd, momentum = read_source(path).records
    assert sgd.hyperparameters == {"learning_rate": 0.1}
    assert list(sgd.curve.values) == ["train_loss"]
    assert momentum.hyperparameters == {"learning_rate": 0.1, "momentum": 0.9}
    assert list(momentum.curve.values) == ["train_loss", "test_error"]


def test_one_row_a_trial(tmp_path):
    path = written(
        tmp_path / "sweep.csv",
        "optimizer,lr,momentum,nesterov,seed,valid_error\n"
        "SGD,0.1,0.9,True,1,0.25\nSGD,0.1,0.9,True,2,0.5\nAdam,1e-3,,,1,0.125\n",
    )
    source = read_source(path)
    assert source.name == "sweep"
    assert [record.label for record in source.records] == ["row 1", "row 2", "row 3"]
    first, second, adam = source.records
    assert first.hyperparameters == {"lr": 0.1, "momentum": 0.9, "nesterov": True} == second.hyperparameters
    assert adam.hyperparameters == {"lr": 0.001}
    assert (first.seed, second.seed) == (1, 2)
    assert curve(adam) == {"step": [1], "valid_error": [0.125]}
    assert source.directions == {}  # never guessed from a name
    assert source.sampling == source.select == ""
    assert source.notes == ["no column has steps: the trials have one evaluation each, at step 1"]


@pytest.mark.parametrize("trial", ["", "run_id"])
def test_one_row_a_step_in_any_order_of_trials(tmp_path, trial):
    """Trials that run side by side write rows in turn. Without a column for them, their settings tell them apart."""
    names = iter("ab" * 3)
    rows = [f"{lr},{step},{lr * step}" for step in (10, 20, 30) for lr in (0.1, 0.2)]
    header = "lr,step,train_loss"
    if trial:
        header, rows = f"{trial},{header}", [f"{next(names)},{row}" for row in rows]
    path = written(tmp_path / "log.csv", "\n".join([header, *rows]))
    source = read_source(path, {"optimizer_name": "sgd"})
    assert [record.hyperparameters["lr"] for record in source.records] == [0.1, 0.2]
    assert curve(source.records[1]) == {"step": [10, 20, 30], "train_loss": [0.2 * step for step in (10, 20, 30)]}
    assert [record.label for record in source.records] == (["trial a", "trial b"] if trial else ["row 1", "row 2"])


def test_a_layout_says_which_column_is_what(tmp_path):
    table = polars.DataFrame(
        {
            "rule": ["A", "A", "B"],
            "knobs.lr": [0.1, 0.2, 0.3],
            "knobs.wd": [0, 0, 1],
            "at": [100, 200, 100],
            "val": [0.5, 0.75, 0.25],
            "replica": [7, 7, 8],
            "mark": [1.0, 2.0, 3.0],
        }
    )
    table.write_parquet(tmp_path / "table.parquet")
    layout = tmp_path / "layout.toml"
    layout.write_text(
        'optimizer = "rule"\nstep = "at"\nseed = "replica"\nhyperparameters = ["knobs.*"]\nworkload = "cnn"\n'
        'sampling = "random"\nselect = "valid_accuracy"\ndirections = { valid_accuracy = "maximize" }\n'
        '[metrics]\nvalid_accuracy = "val"\n'
    )
    only_the_rate = load_layout(layout, ["hyperparameters.learning_rate=knobs.lr"])
    with pytest.raises(DataError, match=r"look like hyperparameters, but are not named as such: knobs\.wd; name all"):
        read_source(tmp_path / "table.parquet", only_the_rate)  # trials would seem to be repetitions of others
    source = read_source(tmp_path / "table.parquet", dataclasses.replace(only_the_rate, ignore=("knobs.wd",)))
    assert [record.hyperparameters for record in source.records] == [{"learning_rate": lr} for lr in (0.1, 0.2, 0.3)]
    source = read_source(tmp_path / "table.parquet", load_layout(layout))
    assert (source.name, source.sampling, source.select) == ("cnn", "random", "valid_accuracy")
    assert source.directions == {"valid_accuracy": Direction.MAXIMIZE}
    assert [(record.optimizer, record.seed) for record in source.records] == [("A", 7), ("A", 7), ("B", 8)]
    assert source.records[2].hyperparameters == {"lr": 0.3, "wd": 1}
    assert curve(source.records[2]) == {"step": [100], "valid_accuracy": [0.25]}
    assert source.notes == ["unused columns: mark"]


def test_runs_that_wandb_exports(tmp_path):
    """W&B's table of runs has settings and results side by side; runs that crashed are no results."""
    path = written(
        tmp_path / "wandb_export.csv",
        '"Name","State","Notes","User","Tags","Created","Runtime","Sweep","batch_size","lr","optimizer","val/acc","loss"\n'
        '"calm-sun-1","finished","-","me","","2026-01-01T10:00:00.000Z","62","s1","128","0.1","sgd","0.5","1.5"\n'
        '"dry-moon-2","finished","-","me","","2026-01-01T10:01:00.000Z","61","s1","128","9","sgd","0.1","NaN"\n'
        '"odd-lake-3","crashed","-","me","","2026-01-01T10:02:00.000Z","3","s1","128","0.2","sgd","",""\n'
        '"raw-hill-4","running","-","me","","2026-01-01T10:03:00.000Z","3","s1","128","0.3","sgd","",""\n',
    )
    source = read_source(path)
    calm, dry = source.records
    assert calm.label == "trial calm-sun-1"
    assert calm.hyperparameters == {"batch_size": 128, "lr": 0.1}
    assert (calm.optimizer, calm.seconds) == ("sgd", 62.0)
    assert curve(calm) == {"step": [1], "val_acc": [0.5], "loss": [1.5]}
    assert calm.feasible("loss")
    assert dry.diverged == {"loss"}
    assert not dry.feasible("loss")
    assert dry.feasible("val_acc")
    assert "1 failed trial left out" in source.notes
    assert "1 unfinished trial left out" in source.notes


def test_a_history_in_which_metrics_are_logged_at_different_steps(tmp_path):
    """A metric keeps its last value where others were logged, and is unknown before its first."""
    path = written(
        tmp_path / "history.csv",
        "run,_step,config/lr,config/optimizer,train_loss,val_acc\n"
        "a,1,0.1,sgd,4.0,\na,2,0.1,sgd,3.0,\na,3,0.1,sgd,,0.5\na,4,0.1,sgd,2.0,\n",
    )
    (record,) = read_source(path).records
    assert record.hyperparameters == {"lr": 0.1}
    assert record.curve.values["train_loss"].tolist() == [4.0, 3.0, 3.0, 2.0]
    np.testing.assert_array_equal(record.curve.values["val_acc"], [np.nan, np.nan, 0.5, 0.5])
    assert record.diverged == frozenset()
    assert record.feasible("val_acc")


def test_an_empty_end_of_a_curve_was_nan(tmp_path):
    """pandas writes NaN as nothing: where other trials have a value, a trial without one has diverged."""
    path = written(
        tmp_path / "log.csv",
        "optimizer,lr,step,train_loss,valid_error\n"
        "sgd,0.1,1,2.0,0.5\nsgd,0.1,2,1.0,0.25\nsgd,9,1,2.0,0.75\nsgd,9,2,,0.9\nsgd,99,1,,0.9\nsgd,99,2,,0.9\n"
        "adam,0.1,1,,0.5\nadam,0.1,2,,0.5\n",
    )
    good, bad, worse, other = read_source(path).records
    assert good.diverged == frozenset()
    assert bad.diverged == worse.diverged == {"train_loss"}
    np.testing.assert_array_equal(bad.curve.values["train_loss"], [2.0, np.nan])
    np.testing.assert_array_equal(worse.curve.values["train_loss"], [np.nan, np.nan])
    assert list(other.curve.values) == ["valid_error"]  # its optimizer was never measured so
    assert other.feasible("train_loss")


def test_an_optimizer_of_which_every_trial_diverged(tmp_path):
    """Its metrics are all empty, and those of other optimizers tell that they were measured. Or all trials diverged."""
    header = "optimizer,lr,train_loss,valid_loss\n"
    path = written(tmp_path / "one.csv", header + "adam,0.1,0.5,\nadam,0.2,0.5,\nsgd,9,,\nsgd,99,,\n")
    source = read_source(path)
    assert [record.feasible("train_loss") for record in source.records] == [True, True, False, False]
    assert source.metrics == ("train_loss",)  # nobody measured the other
    assert "2 trials with empty metrics at the end: they are taken as NaN" in source.notes
    source = read_source(written(tmp_path / "all.csv", header + "adam,0.1,,\nsgd,9,,\n"))
    assert [record.diverged for record in source.records] == [{"train_loss", "valid_loss"}] * 2


def test_settings_that_do_not_apply_may_be_nan(tmp_path):
    path = written(
        tmp_path / "t.csv",
        "optimizer,lr,momentum,nesterov,train_loss\nsgd,0.1,0.9,True,1\nadam,0.1,nan,nan,1\nadam,0.2,NaN,,1\n",
    )
    expected = [{"lr": 0.1, "momentum": 0.9, "nesterov": True}, {"lr": 0.1}, {"lr": 0.2}]
    layout = {"hyperparameters": ["lr", "momentum", "nesterov"]}
    assert [record.hyperparameters for record in read_source(path, layout).records] == expected
    frame = polars.DataFrame(
        {"optimizer": ["sgd", "adam", "adam"], "lr": [0.1, 0.1, 0.2], "momentum": [0.9, math.nan, math.nan]}
    )
    frame.with_columns(train_loss=1.0).write_parquet(tmp_path / "t.parquet")
    got = [record.hyperparameters for record in read_source(tmp_path / "t.parquet").records]
    assert got == [{"lr": 0.1, "momentum": 0.9}, {"lr": 0.1}, {"lr": 0.2}]


def test_decimal_commas_and_percent(tmp_path):
    path = written(
        tmp_path / "t.csv", "optimizer;lr;step;val_acc\nsgd;1e-03;10;45,5%\nsgd;0,02;10;0,5\nsgd; 0,1 ;10;\n"
    )
    source = read_source(path)
    assert [record.hyperparameters["lr"] for record in source.records] == [0.001, 0.02, 0.1]
    assert [record.curve.values["val_acc"].tolist() for record in source.records][:2] == [[0.455], [0.5]]
    path = written(tmp_path / "points.csv", "optimizer;lr;widths;loss\nsgd;0.1;64,32;1\nsgd;0.2;64,16;1\n")
    source = read_source(path, {"hyperparameters": ["lr", "widths"]})
    assert [record.hyperparameters["widths"] for record in source.records] == ["64,32", "64,16"]


def test_names_with_spaces_and_nested_ones(tmp_path):
    path = written(
        tmp_path / "t.csv", "Trial ID,Optimizer,Learning Rate,Weight-Decay,Val Loss\n7,sgd,0.1,0,1\n8,sgd,0.2,0,1\n"
    )
    source = read_source(path)
    assert [record.label for record in source.records] == ["trial 7", "trial 8"]
    assert source.records[0].hyperparameters == {"Learning_Rate": 0.1, "Weight_Decay": 0}
    assert source.metrics == ("Val_Loss",)
    row = {"config": {"optimizer": {"name": "sgd", "lr": 0.1}}, "val_loss": 1.0}
    polars.DataFrame([row]).write_parquet(tmp_path / "nested.parquet")
    (record,) = read_source(tmp_path / "nested.parquet").records
    assert (record.optimizer, record.hyperparameters) == ("sgd", {"optimizer_lr": 0.1})


def test_values_of_step_0_alone(tmp_path):
    """W&B counts from 0, so runs that log once have no other step."""
    path = written(tmp_path / "t.csv", "Name,optimizer,lr,_step,val_loss\na,sgd,0.1,0,1\nb,sgd,0.2,0,2\n")
    source = read_source(path)
    assert [curve(record) for record in source.records] == [
        {"step": [1], "val_loss": [1]},
        {"step": [1], "val_loss": [2]},
    ]
    assert source.notes == ["all values are of step 0, which is read as step 1"]


def test_results_of_a_search_in_scikit_learn(tmp_path):
    """Its ranks and standard deviations are no metrics."""
    path = written(
        tmp_path / "cv.csv",
        ",mean_fit_time,param_alpha,params,mean_test_score,std_test_score,rank_test_score\n"
        "0,0.1,0.01,{'alpha': 0.01},0.5,0.1,2\n1,0.1,0.1,{'alpha': 0.1},0.75,0.1,1\n",
    )
    source = read_source(path, {"optimizer_name": "sgd"})
    assert source.metrics == ("mean_test_score",)
    assert [record.hyperparameters for record in source.records] == [{"alpha": 0.01}, {"alpha": 0.1}]


def test_curves_in_json_lines(tmp_path):
    """Lists of [step, value] pairs, as in the DeBERTa results of opda, compressed; and plain lists."""
    lines = [
        '{"iteration": 1, "lr": 0.1, "curves": {"matched": [[1000, 0.5], [1200, 0.75]], '
        '"other": [[1000, 1], [1200, 2]]}}',
        '{"iteration": 2, "lr": 0.2, "curves": {"matched": [[1000, NaN]], "other": [[1000, 3]]}}',
    ]
    with lzma.open(tmp_path / "results.jsonl.xz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    layout = {
        "optimizer_name": "adamw",
        "trial": "iteration",
        "metrics": {"valid_accuracy": "curves.matched", "test_accuracy": "curves.other"},
    }
    source = read_source(tmp_path / "results.jsonl.xz", layout)
    assert source.name == "results"
    assert curve(source.records[0]) == {
        "step": [1000, 1200],
        "valid_accuracy": [0.5, 0.75],
        "test_accuracy": [1.0, 2.0],
    }
    assert source.records[1].hyperparameters == {"lr": 0.2}
    assert source.records[1].diverged == {"valid_accuracy"}
    path = written(
        tmp_path / "plain.jsonl", '{"lr": 0.1, "train_loss": [3, 2, 1]}\n\n{"lr": 0.2, "train_loss": [4, 3]}\n'
    )
    source = read_source(path, {"optimizer_name": "sgd"})
    assert [curve(record) for record in source.records] == [
        {"step": [1, 2, 3], "train_loss": [3, 2, 1]},
        {"step": [1, 2], "train_loss": [4, 3]},
    ]
    path = written(tmp_path / "steps.jsonl", '{"lr": 0.1, "step": [5, 9], "train_loss": [3, 2]}\n')
    (record,) = read_source(path, {"optimizer_name": "sgd"}).records
    assert curve(record) == {"step": [5, 9], "train_loss": [3, 2]}


def test_curves_that_only_some_trials_have(tmp_path):
    """A single value beside curves was measured at the end; a trial without any value is not lost."""
    lines = [
        '{"optimizer": "sgd", "lr": 0.1, "betas": [0.9, 0.99], "val_loss": [[5, 4], [9, 3]], "test_acc": 0.5}',
        '{"optimizer": "sgd", "lr": 0.2, "betas": [0.8, 0.99], "val_loss": [], "test_acc": null}',
        '{"optimizer": "adam", "lr": 0.2, "val_loss": [[5, 2], [9, 1]], "train_loss": [[5, 7], [9, 6]]}',
    ]
    full, none, other = read_source(written(tmp_path / "t.jsonl", "\n".join(lines))).records
    assert full.hyperparameters == {"lr": 0.1, "betas": "[0.9, 0.99]"}
    assert full.curve.steps.tolist() == [5, 9]
    np.testing.assert_array_equal(full.curve.values["val_loss"], [4, 3])
    np.testing.assert_array_equal(full.curve.values["test_acc"], [np.nan, 0.5])
    assert full.diverged == frozenset()
    assert none.diverged == {"val_loss"}
    assert other.curve.values["train_loss"].tolist() == [7, 6]
    frame = polars.DataFrame({"optimizer": ["a", "b"], "lr": [1, 2], "train_loss": np.array([[2.0, 1.0], [4.0, 3.0]])})
    frame.write_parquet(tmp_path / "arrays.parquet")
    records = read_source(tmp_path / "arrays.parquet").records
    assert [record.curve.values["train_loss"].tolist() for record in records] == [[2, 1], [4, 3]]


@pytest.mark.parametrize("write", [str, lambda row: json.dumps(row)])
def test_what_the_api_of_wandb_returns(write, tmp_path):
    """The table that W&B's documentation makes of it, with dictionaries as text."""
    rows = [
        ({"lr": 0.1, "optimizer": "sgd", "model": {"width": 8}, "betas": [0.9, 0.99]}, 0.5),
        ({"lr": 0.2, "optimizer": "sgd", "model": {"width": 16}, "betas": [0.9, 0.99]}, math.nan),
        ({"lr": 0.3, "optimizer": "sgd", "model": {"width": 16}, "betas": [0.9, 0.99]}, -math.inf),
    ]
    table = [
        {
            "summary": write({"_step": 99, "epoch": 3, "_runtime": 7.5, "_wandb": {"runtime": 7}, "val_loss": loss}),
            "config": write(config),
            "name": f"run-{number}",
        }
        for number, (config, loss) in enumerate(rows)
    ]
    polars.DataFrame(table).write_csv(tmp_path / "project.csv")
    source = read_source(tmp_path / "project.csv")
    assert source.metrics == ("val_loss",)
    assert [record.label for record in source.records] == ["trial run-0", "trial run-1", "trial run-2"]
    expected = [
        {"lr": 0.1 * n, "model_width": width, "betas": "[0.9, 0.99]"} for n, width in ((1, 8), (2, 16), (3, 16))
    ]
    assert [record.hyperparameters for record in source.records] == [pytest.approx(each) for each in expected]
    assert [record.curve.steps.tolist() for record in source.records] == [[99]] * 3
    np.testing.assert_array_equal(
        [record.curve.values["val_loss"][0] for record in source.records], [0.5, np.nan, -np.inf]
    )
    assert [record.seconds for record in source.records] == [7.5] * 3


def test_what_a_status_means(tmp_path):
    words = ["finished", "COMPLETE", "pruned", "infeasible", "failed", "running", ""]
    rows = [f"sgd,{0.1 * (i + 1)},{word},0.5" for i, word in enumerate(words)]
    source = read_source(written(tmp_path / "t.csv", "\n".join(["optimizer,lr,state,valid_error", *rows])))
    assert [record.label for record in source.records] == ["row 1", "row 2", "row 3", "row 4", "row 7"]
    assert [record.pruned for record in source.records] == [False, False, True, False, False]
    assert [record.status for record in source.records] == [None, None, None, Status.INFEASIBLE, None]
    assert source.notes[1:] == ["1 failed trial left out", "1 unfinished trial left out", "1 trial stopped early"]


def test_identical_rows_are_dropped(tmp_path):
    text = "optimizer,lr,seed,step,train_loss\nsgd,0.1,1,1,2.0\nsgd,0.1,1,2,1.0\nsgd,0.1,1,1,2.0\nsgd,0.1,1,2,1.0\n"
    source = read_source(written(tmp_path / "steps.csv", text))
    assert [curve(record) for record in source.records] == [{"step": [1, 2], "train_loss": [2.0, 1.0]}]
    assert source.notes == ["2 identical rows dropped"]
    text = "optimizer,lr,train_loss\nsgd,0.1,2.0\nsgd,0.2,2.0\nsgd,0.1,2.0\n"
    source = read_source(written(tmp_path / "trials.csv", text))
    assert [record.label for record in source.records] == ["row 1", "row 2"]
    assert source.notes[-1] == "1 duplicated trial dropped, the first row 3"


def test_repetitions_with_other_seeds_or_names_are_kept(tmp_path):
    text = "run_id,optimizer,lr,train_loss\na,sgd,0.1,2.0\nb,sgd,0.1,3.0\nc,sgd,0.1,2.0\n"
    source = read_source(written(tmp_path / "named.csv", text))
    assert [record.label for record in source.records] == ["trial a", "trial b", "trial c"]
    assert source.notes[-1] == "2 trials without a seed repeat the hyperparameters of another"


def test_one_minus_a_hyperparameter_names_it(tmp_path):
    text = "optimizer,hp_learning_rate,hp_one_minus_beta1,train_loss\nadam,0.1,0.25,1.0\n"
    (record,) = read_source(written(tmp_path / "t.csv", text)).records
    assert record.hyperparameters == {"learning_rate": 0.1, "beta1": 0.75}


def test_a_compressed_parquet_file(tmp_path):
    polars.DataFrame({"optimizer": ["sgd"], "lr": [0.1], "train_loss": [1.0]}).write_parquet(tmp_path / "t.parquet")
    with lzma.open(tmp_path / "t.parquet.xz", "wb") as file:
        file.write((tmp_path / "t.parquet").read_bytes())
    (record,) = read_source(tmp_path / "t.parquet.xz").records
    assert record.hyperparameters == {"lr": 0.1}


def test_separators_compression_and_a_byte_order_mark(tmp_path):
    expected = [{"lr": 0.1}, {"lr": 0.2}]
    for name, text in {
        "semicolon.csv": "optimizer; lr; train_loss\nsgd; 0.1; 1\nsgd; 0.2; 2\n",
        "tab.tsv": "optimizer\tlr\ttrain_loss\nsgd\t0.1\t1\nsgd\t0.2\t2\n",
        "mark.csv": "\ufeffoptimizer,lr,train_loss\nsgd,0.1,1\n\nsgd,0.2,2\n",
    }.items():
        source = read_source(written(tmp_path / name, text))
        assert [record.hyperparameters for record in source.records] == expected, name
    (tmp_path / "packed.csv.xz").write_bytes(lzma.compress(b"optimizer,lr,train_loss\nsgd,0.1,1\nsgd,0.2,2\n"))
    assert [record.hyperparameters for record in read_source(tmp_path / "packed.csv.xz").records] == expected


# Values that survive a text file; whole numbers that are written as such come back as integers, which are equal.
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=64)
SETTINGS = st.fixed_dictionaries(
    {"lr": NUMBERS}, optional={"momentum": NUMBERS, "layers": st.integers(-(2**62), 2**62), "nesterov": st.booleans()}
)
VALUES = st.floats(width=64)
TRIALS = st.lists(
    st.tuples(
        st.sampled_from(["adam", "sgd"]), SETTINGS, st.integers(0, 2**32), st.lists(VALUES, min_size=1, max_size=4)
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda trial: (trial[0], tuple(sorted(trial[1].items())), trial[2]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trials=TRIALS, ending=st.sampled_from([".csv", ".parquet"]), by_step=st.booleans())
def test_random_tables_come_back(tmp_path, trials, ending, by_step):
    """Rows of all trials step by step, or trial by trial; polars writes NaN as such."""
    rows = [
        {"optimizer": name, "seed": seed, **{f"hp_{key}": value for key, value in point.items()}}
        | {"step": 10 * (at + 1), "train_loss": value}
        for name, point, seed, values in trials
        for at, value in enumerate(values)
    ]
    rows = sorted(rows, key=lambda row: row["step"]) if by_step else rows
    columns = dict.fromkeys(key for row in rows for key in row)
    table = polars.DataFrame({key: [row.get(key) for row in rows] for key in columns}, strict=False)
    path = tmp_path / f"table{ending}"
    table.write_csv(path) if ending == ".csv" else table.write_parquet(path)
    source: Source = read_source(path)
    assert len(source.records) == len(trials)
    for record, (name, point, seed, values) in zip(source.records, trials, strict=True):
        assert (record.optimizer, record.hyperparameters, record.seed) == (name, point, seed)
        assert record.curve.steps.tolist() == [10 * (at + 1) for at in range(len(values))]
        np.testing.assert_array_equal(record.curve.values["train_loss"], values)
        with np.errstate(over="ignore"):
            stored = np.array(values).astype(np.float32)
        assert ("train_loss" in record.diverged) == (not np.isfinite(stored).all())
