"""Seeds: the general optimizer at a special one's best point gets what that got, and changes no outcome."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest

import levelfield as lf
from levelfield import hyperparameters, rules
from levelfield.executors.local import LocalExecutor
from levelfield.taxonomy import inclusions, seeding
from levelfield.trial import Curve, Point, Status, Trial

RATE, FRACTION, EPSILON = {"log": [1e-2, 1e0]}, {"log": [1e-1, 1e0]}, {"log": [1e-3, 1e3]}
MOMENTUM = {"learning_rate": RATE, "one_minus_momentum": FRACTION}
ADAM = {"learning_rate/epsilon": RATE, "one_minus_beta1": FRACTION, "one_minus_beta2": FRACTION, "epsilon": EPSILON}
RMSPROP = {
    "learning_rate/sqrt(epsilon)": RATE,
    "one_minus_momentum": FRACTION,
    "one_minus_rho": FRACTION,
    "epsilon": EPSILON,
}
FIXED = {"rule": "adam", "learning_rate": RATE, "beta1": 0.9, "beta2": 0.8, "epsilon": 1e-2}
OPTIMIZERS = {
    "sgd": {"learning_rate": RATE},
    "momentum": MOMENTUM,
    "nesterov": MOMENTUM,
    "rmsprop": RMSPROP,
    "adam": ADAM,
    "adam_fixed": FIXED,
    "nadam": ADAM,
    "rmsterov": RMSPROP,
}
EDGES = {
    ("sgd", "momentum"),
    ("sgd", "nesterov"),
    ("sgd", "rmsprop"),
    ("sgd", "adam"),
    ("sgd", "nadam"),
    ("momentum", "rmsprop"),
    ("momentum", "adam"),
    ("nesterov", "nadam"),
    ("adam_fixed", "adam"),
    ("sgd", "rmsterov"),
    ("nesterov", "rmsterov"),
}
LINEAR = {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": {"choice": [1e-3, 1e-1]}}


def study_of(optimizers: dict[str, Any], **changes: Any) -> lf.Study:
    content = {"workload": "quadratic", "steps": 60, "eval_interval": 20, "trials": 2, "pool": 4}
    target = {"metric": "train_loss", "value": 0.5}
    return lf.Study(**content | {"target": target, "optimizers": optimizers} | changes)


def count(path: Path) -> int:
    """All trials of a store, past the library."""
    with sqlite3.connect(path) as connection:
        (found,) = connection.execute("SELECT count(*) FROM trials").fetchone()
    connection.close()
    return int(found)


@dataclass
class Run:
    study: lf.Study
    plain: Path  # a store without seeds
    seeded: Path  # the same with them
    without: lf.Comparison
    comparison: lf.Comparison

    @property
    def results(self) -> list[dict[str, Any]]:
        return [each.as_dict("train_loss") for each in self.comparison.followed]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("seeding")
    study, plain, seeded = study_of(OPTIMIZERS), folder / "plain.db", folder / "seeded.db"
    without = lf.compare(study, plain)
    shutil.copy(plain, seeded)
    (folder / "study.toml").write_text(study.to_toml())
    return Run(study, plain, seeded, without, lf.compare(study, seeded, seed_inclusions=True))


def test_every_inclusion_is_seeded_once(run):
    assert sorted((each["special"], each["general"]) for each in run.results) == sorted(EDGES)


@pytest.mark.parametrize("edge", sorted(EDGES), ids=" in ".join)
def test_the_general_one_gets_what_the_special_one_got(run, edge):
    (one,) = (each for each in run.comparison.followed if (each.edge.special, each.edge.general) == edge)
    best = run.without.outcome(edge[0]).best_trial
    assert one.followed.point == best.point
    assert one.trial.point.seed == best.point.seed
    # All along, not at the end only.
    np.testing.assert_array_equal(one.trial.curve.steps, [20, 40, 60])
    np.testing.assert_allclose(one.trial.curve.values["train_loss"], best.curve.values["train_loss"], rtol=1e-4)


def test_what_is_told_of_them(run):
    for each in run.results:
        best = min(run.without.outcome(each["special"]).values())
        assert each["metric"] == "train_loss"
        assert each["followed"] == pytest.approx(best)
        assert each["seeded"] == pytest.approx(best, rel=1e-4)
    assert json.loads(json.dumps(run.results)) == run.results


def test_outcomes_are_unchanged(run):
    assert run.comparison.table().equals(run.without.table())
    assert json.dumps(run.comparison.rows()) == json.dumps(run.without.rows())
    assert run.comparison.beats_matrix() == run.without.beats_matrix()
    assert run.comparison.sentences() == run.without.sentences()
    assert [each.as_dict() for each in run.comparison.audit()] == [each.as_dict() for each in run.without.audit()]
    for name in run.study.optimizers:
        assert [trial.point for trial in run.comparison.trials[name]] == [
            trial.point for trial in run.without.trials[name]
        ]
        assert len(run.comparison.outcome(name).pool) == 4


def test_seeds_are_off_unless_asked_for(run):
    assert run.without.followed == []
    feasible = sum(row["tried"] for row in run.without.rows())
    assert count(run.plain) == feasible
    assert count(run.seeded) == feasible + len(EDGES)


def test_running_again_trains_nothing(run, monkeypatch):
    def refuse(*_: Any) -> None:
        raise AssertionError("something is trained")

    monkeypatch.setattr(LocalExecutor, "train", refuse)
    before = count(run.seeded)
    again = lf.compare(run.study, run.seeded, seed_inclusions=True)
    assert [each.as_dict("train_loss") for each in again.followed] == run.results
    assert count(run.seeded) == before
    assert [each.trial.started for each in again.followed] == [each.trial.started for each in run.comparison.followed]


def test_seeds_survive_in_the_store(run):
    with lf.Store.open(run.seeded, create=False) as store:
        found = lf.Comparison.load(run.study, store).followed
    assert [each.as_dict("train_loss") for each in found] == run.results


def test_seeds_that_are_there_are_shown_though_not_asked_for(run):
    assert [each.as_dict("train_loss") for each in lf.compare(run.study, run.seeded).followed] == run.results


def test_fewer_optimizers_have_fewer_seeds(run):
    with lf.Store.open(run.seeded, create=False) as store:
        found = lf.Comparison.load(run.study.only(["sgd", "adam"]), store).followed
    assert [(each.edge.special, each.edge.general) for each in found] == [("sgd", "adam")]


def test_without_a_best_trial_there_is_no_seed(run):
    with lf.Store.open("sqlite://") as store:
        assert lf.Comparison.load(run.study, store).seeds() == []


def test_the_report_lists_them_apart(run, tmp_path):
    page = run.comparison.write_report(tmp_path / "report.html").read_text()
    assert "Seeded by inclusions" in page
    assert "adam following momentum&#39;s best trial" in page
    assert "Seeded by inclusions" not in run.without.write_report(tmp_path / "plain.html").read_text()


# Under a schedule


def followed(study: lf.Study) -> None:
    with lf.Store.open("sqlite://") as store:
        comparison = lf.compare(study, store, seed_inclusions=True)
    for each in comparison.followed:
        ours, theirs = each.trial.curve.values["train_loss"], each.followed.curve.values["train_loss"]
        pair = f"{each.edge.special} in {each.edge.general}"
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, err_msg=pair)


def test_seeds_follow_a_rate_that_decays():
    """rmsprop has it inside its momentum buffer, adam undoes its bias correction besides."""
    names = ("momentum", "rmsprop", "adam")
    study = study_of({name: OPTIMIZERS[name] for name in names}, schedule=LINEAR)
    assert len(lf.inclusions(study)) == 2
    followed(study)


def test_a_constant_rate_is_followed_by_one_that_may_decay():
    sgd = {**OPTIMIZERS["sgd"], "schedule": {"kind": "constant"}}
    study = study_of({"sgd": sgd, "momentum": MOMENTUM}, schedule=LINEAR)
    assert len(lf.inclusions(study)) == 1
    followed(study)


def test_rmsterov_does_not_claim_to_follow_nesterov_at_a_rate_that_decays():
    """It does at a constant one only. Whatever is called an inclusion must be followed."""
    followed(study_of({"nesterov": MOMENTUM, "rmsterov": RMSPROP}, schedule=LINEAR))


def test_a_seed_has_the_version_of_the_rule_that_follows():
    """Else the trial of an older version would be taken for the proof."""
    identities = []
    for version in (1, 2):
        about = {"learning_rate": hyperparameters.POSITIVE, "mix": hyperparameters.FRACTION}
        rules.register_rule("soft", lambda learning_rate, mix: None, about, version=version)
        inclusions.register_inclusion("sgd", "soft", lambda learning_rate: {"learning_rate": learning_rate, "mix": 0.0})
        tables = {"sgd": {"learning_rate": 0.1}, "soft": {"learning_rate": 0.1, "mix": {"uniform": [0, 1]}}}
        study = lf.Study(workload="quadratic", steps=2, trials=1, optimizers=tables)
        best = Trial(Point(0, {"learning_rate": 0.1}, 0), Status.FEASIBLE, Curve(np.array([2]), {}))
        (seed,) = seeding.seeds(study, {"sgd": best, "soft": best})
        identities.append(seed.identity)
    assert identities[0] != identities[1]


def test_optax_optimizers_follow_too():
    optax_adam = {"rule": "optax.adam", "learning_rate": RATE, "b1": {"uniform": [0.0, 0.9]}, "eps": EPSILON}
    study = study_of({"momentum": MOMENTUM, "optax_adam": optax_adam})
    assert len(lf.inclusions(study)) == 1
    followed(study)


# The commands


@pytest.fixture
def cli(monkeypatch, command, run):
    """Commands are run beside the stores."""
    monkeypatch.chdir(run.plain.parent)
    return command


def test_compare_tells_audit_and_seeds(cli, run, tmp_path):
    shutil.copy(run.plain, tmp_path / "trials.db")
    names = ("--optimizers", "sgd,momentum,adam", "--store", str(tmp_path / "trials.db"), "--out", str(tmp_path))
    code, out, err = cli("compare", "study.toml", "--seed-inclusions", "--json", *names)
    found = json.loads(out)
    assert code == 0
    expected = {pair for pair in EDGES if set(pair) <= {"sgd", "momentum", "adam"}}
    assert {(each["special"], each["general"]) for each in found["audit"]} == expected
    assert {each["verdict"] for each in found["audit"]} <= {"consistent", "no separation", "violated"}
    shown = [each for each in run.results if (each["special"], each["general"]) in expected]
    for ours, theirs in zip(found["seeded"], shown, strict=True):
        assert ours == theirs | {"seeded": pytest.approx(theirs["seeded"], rel=1e-5)}
    assert "adam has followed momentum's best trial" in err
    # Without being asked again, the report still shows them; in words this time.
    code, out, _ = cli("report", "study.toml", *names)
    assert code == 0
    assert "take no part in the statistics" in out
    assert "adam following momentum's best trial" in out


def test_compare_has_no_seeds_of_its_own_accord(cli, run, tmp_path):
    code, out, _ = cli("compare", "study.toml", "--json", "--store", str(run.plain), "--out", str(tmp_path))
    assert code == 0
    assert json.loads(out)["seeded"] == []


def test_status_counts_no_seeds(cli, run):
    stores = (str(run.plain), str(run.seeded))
    plain, seeded = (cli("status", "study.toml", "--json", "--store", store)[1] for store in stores)
    assert json.loads(seeded) == json.loads(plain)
    assert [row["feasible"] for row in json.loads(seeded)["optimizers"]] == [4] * len(OPTIMIZERS)


@pytest.mark.parametrize("curves", [[], ["--curves"]], ids=["trials", "curves"])
def test_export_has_no_seeds(cli, run, tmp_path, curves):
    frames = []
    for store in (run.plain, run.seeded):
        assert cli("export", "study.toml", "-o", str(tmp_path / "out.parquet"), "--store", str(store), *curves)[0] == 0
        frames.append(polars.read_parquet(tmp_path / "out.parquet"))
    assert frames[1].equals(frames[0])
    assert set(frames[1]["optimizer"]) == OPTIMIZERS.keys()
