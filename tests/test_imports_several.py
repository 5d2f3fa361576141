"""Several sources are read as one: a file for each optimizer, or the parts of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
from helpers import make_study

import levelfield as lf
from levelfield.errors import UsageError
from levelfield.export import write_trials
from levelfield.imports import read_source, read_sources
from levelfield.imports.combine import combined
from levelfield.imports.infer import infer_study
from levelfield.imports.records import Record, Source
from levelfield.reading import read
from levelfield.trial import Curve, Direction


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(count: int = 12, seed: int = 0) -> polars.DataFrame:
    random = np.random.default_rng(seed)
    return polars.DataFrame(
        {
            "learning_rate": 10 ** random.uniform(-4, 0, count),
            "seed": range(count),
            "step": [10] * count,
            "valid_error": random.uniform(0.1, 0.9, count).round(3),
        }
    )


def finals(source: Source) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for record in source.records:
        found.setdefault(record.optimizer, []).append(record.curve.final("valid_error"))
    return found


def test_tables_that_name_no_optimizer_are_named_after_their_files(folder):
    (folder / "runs").mkdir()
    rows(seed=0).write_csv("runs/sgd.csv")
    rows(seed=1).write_parquet("adam.parquet")
    rows(4, seed=2).with_columns(optimizer=polars.lit("lion")).write_csv("mixed.csv")
    found = read_sources(["runs/sgd.csv", Path("adam.parquet"), "mixed.csv"])
    assert finals(found) == {
        "sgd": rows(seed=0)["valid_error"].to_list(),
        "adam": rows(seed=1)["valid_error"].to_list(),
        "lion": rows(4, seed=2)["valid_error"].to_list(),
    }
    assert [found.records[place].label for place in (0, 12)] == ["runs/sgd.csv: row 1", "adam.parquet: row 1"]
    with pytest.raises(UsageError, match=r"runs/sgd\.csv: no column names the optimizer.*import all files at once"):
        read_source("runs/sgd.csv")
    named = read_sources(["runs/sgd.csv", "adam.parquet"], {"optimizer_name": "mine"})
    assert finals(named).keys() == {"mine"}


def test_the_parts_of_a_sweep_are_the_whole(folder):
    """Trials that two parts have count once."""
    whole = rows(30).with_columns(optimizer=polars.lit("mine"))
    whole.write_csv("whole.csv")
    whole[:20].write_csv("a.csv")
    whole[15:].write_csv("b.csv")
    one, several = read_source("whole.csv"), read_sources(["a.csv", "b.csv"])
    assert finals(several) == finals(one)
    assert several.notes == ["5 trials of b.csv dropped, because another source has the same"]
    first, second = infer_study(one, "study"), infer_study(several, "study")
    assert (second.workload, second.pool) == ("study", 30)
    assert second.optimizer("mine").space == first.optimizer("mine").space


def test_other_results_of_a_trial_are_refused_and_name_both_files(folder):
    rows().write_csv("a.csv")
    rows().with_columns(valid_error=polars.lit(0.5)).write_csv("b.csv")
    with pytest.raises(UsageError, match=r"a\.csv: row 1 and b\.csv: row 1 have the same .* seed 0 but different res"):
        read_sources(["a.csv", "b.csv"], {"optimizer_name": "mine"})


def test_without_a_seed_each_file_is_another_repetition(folder):
    rows().drop("seed").write_csv("a.csv")
    rows().drop("seed").with_columns(polars.col("valid_error") + 0.01).write_csv("b.csv")
    found = read_sources(["a.csv", "b.csv"], {"optimizer_name": "mine"})
    assert len(found.records) == 24
    assert found.notes == ["12 trials without a seed repeat the hyperparameters of another"]


@pytest.mark.parametrize("curves", [True, False])
def test_exports_of_several_stores_are_one(made, folder, curves):
    study = make_study(steps=8, pool=4)
    curve = {"train_loss": np.array([2.0, 1.5, 0.3], np.float32)}
    stored = {name: [curve] * 4 for name in study.optimizers}
    made(study, stored, {}, store="all.db")
    with lf.Store.open("all.db") as store:
        write_trials(study, store, folder / "all.csv", curves=curves)
        for name in study.optimizers:
            write_trials(study.only([name]), store, folder / f"{name}.csv", curves=curves)
        expected = read(study, store)
    parts = read_sources([f"{name}.csv" for name in study.optimizers])
    whole = read_source("all.csv")
    assert [(each.optimizer, each.index, each.seed) for each in parts.records] == [
        (each.optimizer, each.index, each.seed) for each in whole.records
    ]
    assert len(parts.records) == sum(map(len, expected.trials.values()))
    again = read_sources(["all.csv", *(f"{name}.csv" for name in study.optimizers)])
    assert len(again.records) == len(whole.records)


def part(optimizer: str = "mine", **changes: Any) -> Source:
    curve = Curve(np.array([10]), {"valid_error": np.array([0.5])})
    record = Record("row 1", optimizer, {"learning_rate": 0.1}, curve, seed=0)
    return Source("a name", [record], **changes)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (
            {"directions": {"valid_error": Direction.MINIMIZE}},
            {"directions": {"valid_error": Direction.MAXIMIZE}},
            ["direction of valid_error: a.csv says minimize, b.csv says maximize", "--minimize valid_error"],
        ),
        ({"select": "valid_error"}, {"select": "loss"}, ["select: a.csv says valid_error, b.csv", "--select"]),
        ({"sampling": "random"}, {"sampling": "adaptive"}, ["sampling: a.csv says random, b.csv", "--sampling"]),
    ],
)
def test_what_sources_state_must_agree(one, other, words):
    with pytest.raises(UsageError) as caught:
        combined({"a.csv": part("x", **one), "b.csv": part("y", **other)})
    for word in words:
        assert word in str(caught.value)
    both = combined({"a.csv": part("x", **one), "b.csv": part("y")})
    assert both.directions == one.get("directions", {})
    assert both.select == one.get("select", "")


def test_sources_of_different_workloads_are_refused():
    lstm = part(names_workload=True)
    with pytest.raises(UsageError, match="workload: a says a name, b says another"):
        combined({"a": lstm, "b": Source("another", part("other").records, names_workload=True)})
    assert combined({"a": lstm, "b": part("other")}).name == "a name"


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [("random", "random", "random"), ("random", "", ""), ("adaptive", "", "adaptive")],
)
def test_trials_are_random_only_if_all_sources_say_so(one, other, together):
    sources = {"a": part("x", sampling=one), "b": part("y", sampling=other)}
    assert combined(sources).sampling == together


def test_a_range_is_known_only_if_all_parts_of_an_optimizer_state_it():
    rate, wide = {"learning_rate": {"log": [0.01, 1.0]}}, {"learning_rate": {"log": [0.001, 1.0]}}
    sources = {
        "a": part("x", ranges={"x": rate}),
        "b": part("y", ranges={"y": rate}),
        "c": part("y", ranges={"y": wide}),
    }
    assert combined(sources).ranges == {"x": rate, "y": {}}


def test_several_files_become_a_report(command, folder):
    rows(seed=0).write_csv("sgd_like.csv")
    rows(seed=1).write_csv("adam_like.csv")
    files = ["sgd_like.csv", "adam_like.csv"]
    code, _, err = command("import", *files, "--infer", "--sampling", "random")
    assert (code, list(folder.glob("*.toml"))) == (2, [])
    assert "sgd_like.csv and adam_like.csv: choose a name for the study" in err
    assert "-o FILE.toml" in err
    code, out, err = command("import", *files, "--infer", "--sampling", "random", "-o", "both.toml")
    assert code == 0, err
    assert "sgd_like: 12 trials" in out
    assert "adam_like: 12 trials" in out
    code, out, err = command("import", *files, "--study", "both.toml")
    assert (code, "24 trials had been imported before" in out) == (0, True), err
    code, _, err = command("report", "both.toml")
    assert code == 0, err
    assert "Imported from sgd_like.csv and adam_like.csv" in Path("levelfield-out/both/report.html").read_text()
