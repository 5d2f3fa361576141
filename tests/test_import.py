"""Trials from elsewhere in a study: inferred search spaces, what is refused, and what comes back the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
from fakes import FormulaExecutor
from helpers import FIXTURES

import levelfield as lf
from levelfield import run
from levelfield.errors import UsageError
from levelfield.export import write_trials
from levelfield.imports import Record, Source, read_source
from levelfield.imports.infer import infer_dimension, infer_study
from levelfield.imports.load import Imported, fit_trials, import_trials
from levelfield.reading import read, read_states
from levelfield.report.caveats import caveats, pool_caveats
from levelfield.report.methods import methods
from levelfield.store import Store
from levelfield.trial import Curve, Direction

# Inferred search spaces

DRAWS = {
    "log": lambda random, n: 10 ** random.uniform(-5, -1, n),
    "uniform": lambda random, n: random.uniform(0.0, 0.5, n),
    "one_minus": lambda random, n: 1 - 10 ** random.uniform(-4, 0, n),
    "integer": lambda random, n: random.integers(1, 1000, n),
    "choice": lambda random, n: random.choice([16, 32, 64, 128], n),
}


def kind_of(key: str, spec: Any) -> str:
    return "one_minus" if key.startswith("one_minus_") else next(iter(spec))


@pytest.mark.parametrize("kind", DRAWS)
def test_the_kind_of_a_range_is_inferred_from_random_values(kind):
    """With 30 values, in at least 97% of 300 random samples."""
    found = [
        kind_of(*infer_dimension("x", DRAWS[kind](np.random.default_rng(seed), 30).tolist())) for seed in range(300)
    ]
    assert found.count(kind) >= 0.97 * len(found)


@pytest.mark.parametrize("kind", ["log", "uniform", "one_minus"])
def test_an_inferred_range_holds_every_value(kind):
    for seed in range(20):
        values = DRAWS[kind](np.random.default_rng(seed), 25).tolist()
        key, spec = infer_dimension("x", values)
        study = inferred([record(learning_rate=0.1, x=value) for value in values])
        (axis,) = study.optimizer("mine").space.free
        assert (axis.key, axis.dimension.spec()) == (key, spec)
        assert all(axis.holds({"x": value}) for value in values)


def record(optimizer: str = "mine", final: float = 0.5, steps: int = 10, **changes: Any) -> Record:
    """Return a trial with three evaluations; unknown keywords are hyperparameters."""
    own = {key: changes.pop(key) for key in list(changes) if key in Record.__dataclass_fields__}
    at = np.array([0, steps // 2, steps])
    values = {"train_loss": np.array([9.0, 5.0, final]), "valid_error": np.array([1.0, 0.9, final])}
    return replace(Record("row 1", optimizer, changes, Curve(at, values)), **own)


def source(records: list[Record], **changes: Any) -> Source:
    return replace(Source("somewhere", records, sampling="random"), **changes)


def inferred(records: list[Record], **changes: Any) -> lf.Study:
    return infer_study(source(records, **changes), "study")


def random_records(count: int = 12, optimizer: str = "mine", seed: int = 0) -> list[Record]:
    random = np.random.default_rng(seed)
    rates = 10 ** random.uniform(-4, 0, count)
    finals = random.uniform(0.1, 0.9, count)
    return [
        record(optimizer, float(final), seed=number, learning_rate=float(rate))
        for number, (rate, final) in enumerate(zip(rates, finals, strict=True))
    ]


def test_further_seeds_of_a_point_are_no_evidence_of_a_list():
    """Ten random points with four seeds each have ten values of each hyperparameter, as a list would."""
    records = [
        record(learning_rate=each.hyperparameters["learning_rate"], seed=seed)
        for each in random_records(10)
        for seed in range(4)
    ]
    spec = inferred(records).optimizer("mine").space.spec()
    assert spec["learning_rate"].keys() == {"log"}
    assert spec == inferred(random_records(10)).optimizer("mine").space.spec()


def test_an_inferred_study_says_so_and_can_be_written_and_read(tmp_path):
    study = inferred([*random_records(12), *random_records(20, "other", 1)])
    (tmp_path / "study.toml").write_text(study.to_toml(tmp_path))
    again = lf.load_study(tmp_path / "study.toml")
    assert again.inferred
    assert again.sampling == "random"
    assert (again.trials, again.pool, again.steps, again.eval_interval) == (2, 20, 10, 5)
    assert {name: again.identity(name) for name in again.optimizers} == {
        name: study.identity(name) for name in study.optimizers
    }


def test_a_rule_of_levelfield_must_have_its_hyperparameters():
    known = inferred([replace(each, optimizer="sgd") for each in random_records()])
    other = inferred([record("sgd", learning_rate=0.1 * n, flavor="mild") for n in range(1, 9)])
    assert known.optimizer("sgd").rule.name == "sgd"
    assert other.optimizer("sgd").rule.name == "imported.sgd"


def test_a_full_grid_is_searched_as_a_grid():
    records = [record(learning_rate=10.0**a, momentum=b) for a in range(-3, 0) for b in (0.5, 0.9)]
    study = inferred(records, sampling="grid")
    assert (study.search, study.sampling, study.points("mine")) == ("grid", "grid", 6)
    assert inferred(records[:-1], sampling="grid").search == "imported"


def test_of_unequal_grids_all_points_count(store):
    large = [record(learning_rate=rate, momentum=b, final=0.1 / rate) for rate in (0.2, 0.3, 0.5) for b in (0.5, 0.9)]
    small = [record("other", learning_rate=rate) for rate in (0.1, 0.2)]
    study = inferred([*large, *small], sampling="grid")
    assert (study.search, study.sampling, study.pool) == ("imported", "grid", 6)
    imported(study, source([*large, *small], sampling="grid"), store)
    results = read(study, store)
    assert [len(results.trials[name]) for name in ("mine", "other")] == [6, 2]


@pytest.mark.parametrize(
    ("records", "changes", "words"),
    [
        ([record(steps=10, x=1.0), record(steps=20, x=2.0)], {}, ["different budgets", "step 10", "--steps 10"]),
        ([record(x=1.0), record(y=1.0)], {}, ["mine: x is missing in 1 of 2 trials", "row 1"]),
        ([record(x=1.0)], {"select": "valid_eror"}, ["'valid_eror'"]),
    ],
)
def test_what_cannot_be_inferred_is_asked_for(records, changes, words):
    with pytest.raises(lf.LevelfieldError) as caught:
        inferred(records, **changes)
    for word in words:
        assert word in str(caught.value)


def test_a_metric_without_a_telling_name_needs_a_direction():
    at = Curve(np.array([10]), {"quux": np.array([1.0])})
    records = [replace(record(x=float(n)), curve=at) for n in range(3)]
    with pytest.raises(UsageError, match=r"metric quux: which way is better\? .*--minimize quux"):
        inferred(records)
    study = inferred(records, directions={"quux": Direction.MAXIMIZE})
    assert study.metrics == {"quux": Direction.MAXIMIZE}


def test_several_metrics_need_a_choice():
    values = {name: np.array([1.0]) for name in ("train_loss", "test_loss")}
    with pytest.raises(UsageError, match="--select: train_loss, test_loss"):
        inferred([replace(record(x=1.0), curve=Curve(np.array([10]), values))])


# Trials in a store


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "trials.db") as opened:
        yield opened


def imported(study: lf.Study, source: Source, store: Store) -> Imported:
    return import_trials(study, fit_trials(study, source), store, "a test")


def finals(study: lf.Study, store: Store, name: str = "mine") -> list[float]:
    return [trial.curve.final(study.select) for trial in store.trials(study.identity(name))]


def test_trials_are_stored_in_the_order_of_their_source(store):
    records = random_records()
    study = inferred(records)
    result = imported(study, source(records), store)
    assert dict(result.trials) == {"mine": 12}
    assert finals(study, store) == pytest.approx([each.curve.final("valid_error") for each in records])
    stored = store.trials(study.identity("mine"))
    assert [trial.point.hyperparameters for trial in stored] == [each.hyperparameters for each in records]
    assert [trial.point.seed for trial in stored] == list(range(12))
    assert store.provenance(study.identity("mine")) == [{"imported": "a test"}]


def test_importing_again_adds_only_what_is_new(store):
    records = random_records(12)
    study = inferred(records)
    imported(study, source(records[:8]), store)
    again = imported(study, source(records[4:]), store)
    assert (dict(again.trials), again.known) == ({"mine": 4}, 4)
    assert finals(study, store) == pytest.approx([each.curve.final("valid_error") for each in records])


@pytest.mark.parametrize("seed", [3, None])
def test_other_results_of_a_stored_trial_are_refused(seed, store):
    records = [record(learning_rate=rate, seed=seed) for rate in (0.1, 0.2)]
    study = inferred(records)
    imported(study, source(records), store)
    other = replace(records[1], curve=record(final=0.6).curve)
    with pytest.raises(UsageError, match=r"other results of the point learning_rate 0.2 and seed \d; .* --out DIR"):
        imported(study, source([other]), store)
    assert store.count() == 2
    assert imported(study, source(records), store).known == 2


def test_trials_beyond_the_pool_are_told(store):
    records = random_records(12)
    study = inferred(records).replace(pool=8, trials=2)
    (told,) = imported(study, source(records), store).notes
    assert "has 12 feasible trials of mine, of which the study counts the first 8; raise its pool" in told
    assert store.provenance(study.identity("mine")) == [{"imported": "a test"}]


def test_other_seeds_of_a_point_are_its_reruns(store):
    records = [record(final=0.2 + 0.01 * seed, seed=seed, learning_rate=0.1) for seed in range(5)]
    records += [record(final=0.7, seed=0, learning_rate=0.9)]
    study = inferred(records)
    result = imported(study, source(records), store)
    assert (dict(result.trials), dict(result.reruns)) == ({"mine": 2}, {"mine": 4})
    reruns = read(study, store).reruns["mine"]
    assert sorted(reruns.values()) == pytest.approx([0.21, 0.22, 0.23, 0.24])
    assert imported(study, source(records), store).known == 6


def test_repetitions_without_seeds_are_reruns_as_well(store):
    records = [record(final=0.2 + 0.01 * n, learning_rate=0.1) for n in range(3)] + [record(learning_rate=0.9)]
    study = inferred(records)
    result = imported(study, source(records), store)
    assert (dict(result.trials), dict(result.reruns)) == ({"mine": 2}, {"mine": 2})
    assert imported(study, source(records), store).known == 4


def test_a_trial_that_diverged_is_infeasible(store):
    bad = record(final=np.nan, learning_rate=0.5, diverged=frozenset({"train_loss", "valid_error"}))
    records = [*random_records(4), bad]
    study = inferred(records)
    imported(study, source(records), store)
    assert [trial.feasible for trial in store.trials(study.identity("mine"))] == [True] * 4 + [False]


@pytest.mark.parametrize(("steps", "feasible"), [(10, False), (6, True)])
def test_a_trial_that_diverges_after_the_last_step_of_the_study_is_feasible(steps, feasible, store):
    late = record(learning_rate=0.5, diverged=frozenset({"train_loss", "valid_error"}))
    for values in late.curve.values.values():
        values[late.curve.steps > 6] = np.nan
    records = [*random_records(4), late]
    study = infer_study(source(records), "study", steps=steps)
    imported(study, source(records), store)
    assert [trial.feasible for trial in store.trials(study.identity("mine"))] == [True] * 4 + [feasible]


def test_a_loss_too_large_for_32_bits_has_diverged(store, tmp_path):
    (tmp_path / "t.csv").write_text("optimizer,lr,train_loss\nmine,0.1,1\nmine,0.2,1e38\nmine,0.3,1e39\n")
    found = read_source(tmp_path / "t.csv")
    study = infer_study(found, "study")
    imported(study, found, store)
    assert [trial.feasible for trial in store.trials(study.identity("mine"))] == [True, True, False]


def test_pruned_trials_count_with_their_last_values(store):
    short = record(final=0.8, steps=4, learning_rate=0.5, pruned=True)
    records = [*random_records(4), short]
    study = inferred(records)
    result = imported(study, source(records), store)
    assert any("stopped early count with their last values" in note for note in result.notes)
    assert finals(study, store)[-1] == pytest.approx(0.8)
    assert result.notes == store.provenance(study.identity("mine"))[0]["notes"]


def test_a_reader_is_told_first_how_many_trials_were_stopped_early(store):
    """A trial that ends shortly before the others was not; neither was one that diverged."""
    ends = {"mine": [100, 40, 100, 20, 92, 100], "other": [100] * 6}
    records = [
        record(name, 0.1 * (n + 1), end, learning_rate=0.1 * (n + 1), pruned=end < 100)
        for name in ends
        for n, end in enumerate(ends[name])
    ]
    diverged = frozenset({"train_loss", "valid_error"})
    records.append(record("other", np.nan, 10, learning_rate=0.7, diverged=diverged))
    study = inferred(records)
    imported(study, source(records), store)
    results = read(study, store)
    sampled, _, told = caveats(results)
    assert "were drawn at random" in sampled
    assert told.startswith("However, 2 of 6 feasible trials of mine ended early, before the others, and count with")
    assert pool_caveats(study, read_states(study, store)) == caveats(results)
    assert told in " ".join(methods(results)["methods.md"].split())


def test_nothing_is_said_about_early_stops_if_there_are_none(store):
    study = inferred(random_records())
    imported(study, source(random_records()), store)
    assert not any("ended early" in line for line in caveats(read(study, store)))


def changed(study: lf.Study, **changes: Any) -> lf.Study:
    return study.replace(**changes)


@pytest.mark.parametrize(
    ("extra", "changes", "words"),
    [
        (record("adma", learning_rate=0.1), {}, ["unknown optimizer 'adma'"]),
        (record(learning_rate=0.1, momentum=0.9), {}, ["row 1: mine", "'momentum'"]),
        (record(), {}, ["row 1: mine has no learning_rate"]),
        (record(learning_rate=50.0), {}, ["row 1: mine has learning_rate = 50.0", "outside", "extend that range"]),
        (record(steps=4, learning_rate=0.1), {}, ["1 trial of 5 end before step 10", "row 1 at 4"]),
        (record(learning_rate="high"), {}, ["row 1: mine has learning_rate = 'high'", "expected a number"]),
        (None, {"directions": {"valid_error": Direction.MAXIMIZE}}, ["valid_error: the study says minimize"]),
        (None, {"sampling": "adaptive"}, ["sampling: the study says random, the source adaptive"]),
    ],
)
def test_trials_that_do_not_fit_are_refused_before_anything_is_written(extra, changes, words, store):
    records = random_records(4)
    study = inferred(records)
    offered = source([*records, *([extra] if extra else [])], **changes)
    with pytest.raises(lf.LevelfieldError) as caught:
        imported(study, offered, store)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert store.count() == 0


def test_a_missing_metric_is_named(store):
    records = random_records(4)
    study = inferred(records).replace(metrics={"valid_error": "minimize", "test_error": "minimize"})
    with pytest.raises(UsageError, match="no test_error, a metric of somewhere; they have train_loss and valid_error"):
        imported(study, source(records), store)


# What levelfield itself writes


STUDY = {
    "steps": 6,
    "eval_interval": 2,
    "trials": 2,
    "pool": 6,
    "optimizers": {
        "sgd": {"learning_rate": {"log": [1e-3, 1e1]}},
        "momentum": {"learning_rate": {"log": [1e-3, 1e-1]}, "one_minus_momentum": {"log": [1e-2, 1.0]}},
    },
}


def trained(store: Store) -> lf.Study:
    study = lf.Study(workload="quadratic", **STUDY)
    executor = FormulaExecutor(lambda name, point: float(point.hyperparameters["learning_rate"]))
    run.run(study, store, executor)
    return study


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_export_comes_back_the_same(suffix, store, tmp_path):
    study = trained(store)
    write_trials(study, store, tmp_path / f"one{suffix}", curves=True)
    with Store.open(tmp_path / "again.db") as again:
        imported(study, read_source(tmp_path / f"one{suffix}"), again)
        write_trials(study, again, tmp_path / f"two{suffix}", curves=True)
        for name in study.optimizers:
            first, second = store.trials(study.identity(name)), again.trials(study.identity(name))
            assert [trial.point for trial in first] == [trial.point for trial in second]
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_export_of_imported_trials_comes_back_the_same(suffix, store, tmp_path):
    """Some were stopped early, and a choice looks like a missing value."""
    records = [record(learning_rate=0.1 * (n + 1), clip="None" if n % 2 else "NA") for n in range(8)]
    records += [record(learning_rate=0.9, clip="None", steps=4, pruned=True)]
    study = inferred(records)
    imported(study, source(records), store)
    write_trials(study, store, tmp_path / f"one{suffix}", curves=True)
    with Store.open(tmp_path / "again.db") as again:
        imported(study, read_source(tmp_path / f"one{suffix}"), again)
        write_trials(study, again, tmp_path / f"two{suffix}", curves=True)
        assert finals(study, again) == finals(study, store)
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()
    with pytest.raises(UsageError, match="8 trials of 9 end before step 20"):
        fit_trials(study.replace(steps=20), read_source(tmp_path / f"one{suffix}"))


def test_trials_of_another_search_are_refused(store, tmp_path):
    study = trained(store)
    write_trials(study, store, tmp_path / "trials.csv", curves=True)
    with Store.open(tmp_path / "again.db") as again, pytest.raises(UsageError, match='write search = "imported"'):
        imported(study.replace(seed=1), read_source(tmp_path / "trials.csv"), again)


def test_an_optuna_storage_has_the_trials(store, tmp_path):
    optuna = pytest.importorskip("optuna")
    from levelfield.optuna_export import write_optuna

    study = trained(store)
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    assert write_optuna(study, store, url) == 12
    for name in study.optimizers:
        trials = store.trials(study.identity(name))
        written = optuna.load_study(study_name=f"study/{name}", storage=url)
        assert written.best_value == pytest.approx(min(trial.curve.final("train_loss") for trial in trials))
        for trial, frozen in zip(trials, written.trials, strict=True):
            assert frozen.user_attrs["index"] == trial.point.index
            assert list(frozen.intermediate_values) == trial.curve.steps.tolist()
            for axis in study.optimizer(name).space.free:
                assert frozen.params[axis.key] == pytest.approx(axis.coordinate(trial.point.hyperparameters))
    with pytest.raises(UsageError, match="the storage has a study study/sgd"):
        write_optuna(study, store, url)


def test_infeasible_trials_come_back_from_an_optuna_storage(store, tmp_path):
    pytest.importorskip("optuna")
    from levelfield.optuna_export import write_optuna

    bad = record(final=np.nan, learning_rate=0.5, diverged=frozenset({"train_loss", "valid_error"}))
    records = [*random_records(6), bad]
    study = inferred(records)
    imported(study, source(records), store)
    write_optuna(study, store, f"sqlite:///{tmp_path / 'optuna.db'}")
    found = read_source(tmp_path / "optuna.db", {"sampling": "random"})
    again = infer_study(found, "again")
    assert again.steps == study.steps
    imported(again, found, store)
    (name,) = again.optimizers
    first, second = store.trials(study.identity("mine")), store.trials(again.identity(name))
    assert [trial.feasible for trial in second] == [True] * 6 + [False]
    assert [trial.point.hyperparameters for trial in first] == [trial.point.hyperparameters for trial in second]
    assert finals(study, store)[:6] == pytest.approx(finals(again, store, name)[:6])


# The command


def write_csv(path: Path, rows: int = 12, **columns: Any) -> Path:
    random = np.random.default_rng(0)
    content = {
        "optimizer": ["adam_like", "sgd_like"] * (rows // 2),
        "hp_learning_rate": 10 ** random.uniform(-4, 0, rows),
        "valid_error": random.uniform(0.1, 0.9, rows),
    }
    polars.DataFrame(content | columns).write_csv(path)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_table_becomes_a_report(command, folder):
    write_csv(folder / "sweep.csv")
    code, out, err = command("import", "sweep.csv", "--infer", "--sampling", "random")
    assert code == 0, err
    assert "adam_like: 6 trials" in out
    assert "levelfield report sweep.toml" in out
    assert "selects trials by valid_error (lower is better)" in out
    code, out, err = command("report", "sweep.toml")
    assert code == 0, err
    assert "were drawn at random" in out
    assert "were inferred from the trials" in out
    page = (folder / "levelfield-out/sweep/report.html").read_text()
    assert "Imported from sweep.csv" in page
    assert "were drawn at random" in page


@pytest.mark.parametrize("sampling", ["adaptive", "manual", None])
def test_nothing_is_tested_unless_the_trials_are_independent(sampling, command, folder):
    values = [0.1 + 0.001 * n if n % 2 else 0.9 + 0.001 * n for n in range(40)]
    write_csv(folder / "sweep.csv", 40, valid_error=values)
    options = ["--sampling", sampling] if sampling else []
    assert command("import", "sweep.csv", "--infer", *options)[0] == 0
    code, out, _ = command("compare", "sweep.toml", "--json")
    content = json.loads(out)
    assert code == 0
    assert content["separated"] == []
    told = " ".join(content["sentences"])
    assert "nothing is tested" in told
    assert "confidence interval:" not in told
    assert "a tuner would run" not in told
    assert "repetitions" not in told
    if sampling:  # a part of these trials would not be like another search
        assert "Of all trials, the best valid_error is 10.10% for sgd_like and 90.00% for adam_like" in told
        page = Path(content["report"]).read_text("utf-8")
        assert "How many trials" not in page
        assert "<label hidden>K" in page
    else:
        assert "this order is not tested" in told
    code, out, _ = command("plan", "sweep.toml")
    assert (code, "do not tell which optimizer to tune" in out) == (0, True)
    code, out, _ = command("refine", "sweep.toml")
    assert (code, "No range is known to need a change" in out) == (0, True)
    assert {axis["verdict"] for axis in content["boundaries"]} <= {"unknown", "fixed"}
    assert not {"good trials", "still improving with trials"} & {check["question"] for check in content["health"]}
    assert [(pair["wins"]["low"], pair["wins"]["high"]) for pair in content["pairs"]] == [(0.0, 1.0)]
    assert command("import", "sweep.csv", "--infer", "-o", "fair.toml", "--sampling", "random")[0] == 0
    assert json.loads(command("compare", "fair.toml", "--json")[1])["separated"] == [["sgd_like", "adam_like"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep.csv"], ["--study STUDY", "--infer"]),
        (["sweep.csv", "--infer", "--study", "quadratic"], ["--study STUDY", "--infer"]),
        (["nothing.csv", "--infer"], ["nothing.csv", "no such file"]),
        (["sweep.csv", "--infer", "--sampling", "tpe"], ["'tpe'", "adaptive"]),
        (["sweep.csv", "--infer", "--select", "valid_eror"], ["'valid_eror'", "valid_error"]),
        (["sweep.csv", "--infer", "--minimize", "a", "--maximize", "a"], ["--minimize a", "leave one"]),
        (["sweep.csv", "--infer", "--steps", "0"], ["steps = 0", "at least 1"]),
        (["sweep.csv", "--infer", "-o", "taken.toml"], ["taken.toml exists"]),
        (["sweep.csv", "--infer", "-o", "nowhere/sweep.toml"], ["folder nowhere does not exist"]),
        (["sweep.csv", "--study", "quadratic"], ["adam_like"]),
        (["sweep.csv", "--study", "quadratic", "--steps", "3"], ["--steps", "--infer"]),
    ],
)
def test_an_invalid_command_is_refused_in_one_line(arguments, words, command, folder):
    write_csv(folder / "sweep.csv")
    (folder / "taken.toml").touch()
    before = sorted(folder.rglob("*"))
    code, _, err = command("import", *arguments)
    assert sorted(folder.rglob("*")) == before
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--select", "test_error"], ["select: the study says valid_error, the import test_error", "change the study"]),
        (["--map", "select=test_error"], ["select: the study says valid_error, the import test_error"]),
        (["--map", "workload=elsewhere"], ["workload: the study says sweep, the import elsewhere"]),
        (["--maximize", "valid_error"], ["valid_error: the study says minimize, the source maximize"]),
        (["--sampling", "grid"], ["sampling: the study says random, the source grid"]),
    ],
)
def test_options_that_contradict_the_study_are_refused(arguments, words, command, folder):
    write_csv(folder / "sweep.csv", test_error=[0.5] * 12)
    assert command("import", "sweep.csv", "--infer", "--sampling", "random", "--select", "valid_error")[0] == 0
    code, _, err = command("import", "sweep.csv", "--study", "sweep.toml", *arguments)
    assert code == 2
    for word in words:
        assert word in err
    same = ["--select", "valid_error", "--sampling", "random", "--map", "workload=sweep", "--minimize", "valid_error"]
    code, out, err = command("import", "sweep.csv", "--study", "sweep.toml", *same)
    assert (code, "had been imported before" in out) == (0, True), err


@pytest.mark.parametrize(("sampling", "fits"), [("random", False), ("quasirandom", True), ("", True)])
def test_sampling_must_fit_a_search_of_levelfield(sampling, fits, store, tmp_path):
    study = trained(store)
    write_trials(study, store, tmp_path / "trials.csv", curves=True)
    found = read_source(tmp_path / "trials.csv", {"sampling": sampling})
    if fits:
        fit_trials(study, found)
    else:
        with pytest.raises(UsageError, match="sampling: the study says quasirandom, the source random"):
            fit_trials(study, found)


def test_trials_that_do_not_fit_leave_no_store_behind(command, folder):
    write_csv(folder / "sweep.csv")
    assert command("import", "sweep.csv", "--infer", "-o", "narrow.toml", "--out", "elsewhere")[0] == 0
    text = (folder / "narrow.toml").read_text()
    (folder / "narrow.toml").write_text(text.replace("valid_error", "test_error"))
    before = sorted(folder.rglob("*"))
    assert command("import", "sweep.csv", "--study", "narrow.toml")[0] == 2
    assert sorted(folder.rglob("*")) == before


def test_the_current_folder_is_a_source(command, folder, monkeypatch):
    shutil.copytree(FIXTURES / "imports/deepobs/quadratic_deep", folder / "quadratic_deep")
    monkeypatch.chdir(folder / "quadratic_deep")
    code, out, err = command("import", ".", "--infer", "--select", "test_loss")
    assert code == 0, err
    assert "levelfield report quadratic_deep.toml" in out


def test_of_points_that_were_chosen_the_best_of_all_is_shown(command, folder):
    """There is no other way to draw them."""
    write_csv(folder / "sweep.csv", 40)
    assert command("import", "sweep.csv", "--infer", "--sampling", "manual")[0] == 0
    study = lf.load_study(folder / "sweep.toml")
    assert (study.trials, study.replacement) == (20, False)
    (row, *_) = json.loads(command("report", "sweep.toml", "--json")[1])["rows"]
    values = polars.read_csv(folder / "sweep.csv").filter(polars.col("optimizer") == row["optimizer"])["valid_error"]
    assert row["median"] == pytest.approx(values.min())


def test_an_imported_study_cannot_be_run(command, folder):
    write_csv(folder / "sweep.csv")
    assert command("import", "sweep.csv", "--infer", "--sampling", "random")[0] == 0
    code, _, err = command("report", "sweep.toml", "--steps", "7")
    assert code == 2
    assert "'levelfield import SOURCE --study STUDY' adds them" in err
    code, _, err = command("run", "sweep.toml")
    assert code == 2
    assert "were imported, so levelfield cannot train more of them" in err


def test_large_numbers_of_trials_have_commas(command, folder):
    write_csv(folder / "sweep.csv", 2400, valid_error=[0.1, *[0.5] * 2398, float("nan")])
    code, out, _ = command("import", "sweep.csv", "--infer", "--sampling", "random")
    assert (code, "adam_like: 1,200 trials" in out) == (0, True)
    for arguments, words in (
        (["report", "sweep.toml"], "1,200 of 1,200"),
        (["status", "sweep.toml"], "1,199/1,200 feasible"),
        (["export", "sweep.toml", "-o", "out.csv"], "(2,400 rows)"),
    ):
        code, out, err = command(*arguments)
        assert (code, words in out + err) == (0, True), (out, err)


def test_checking_imported_trials_tells_no_cost_of_training(command, folder):
    write_csv(folder / "sweep.csv")
    assert command("import", "sweep.csv", "--infer", "--sampling", "random")[0] == 0
    code, out, _ = command("check", "sweep.toml")
    assert (code, "sweep: valid" in out, "cost" in out, "trial-steps" in out) == (0, True, False, False)
    assert "trial_steps" not in json.loads(command("check", "sweep.toml", "--json")[1])
    code, _, err = command("check", "sweep.toml", "--measure")
    assert (code, "its trials come from elsewhere" in err) == (2, True)


def test_every_reading_command_works_on_imported_trials(command, folder):
    write_csv(folder / "sweep.csv", 30)
    assert command("import", "sweep.csv", "--infer", "--sampling", "random")[0] == 0
    for arguments in (
        ["compare", "sweep.toml"],
        ["status", "sweep.toml"],
        ["check", "sweep.toml"],
        ["plan", "sweep.toml"],
        ["refine", "sweep.toml"],
        ["export", "sweep.toml", "-o", "out.csv"],
        ["report", "sweep.toml", "--figures", "figures"],
    ):
        code, _, err = command(*arguments)
        assert code == 0, (arguments, err)
