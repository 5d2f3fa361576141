"""A general optimizer that follows a special one's best trial reproduces it and changes no outcome."""

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
from helpers import make_study

import levelfield as lf
from levelfield import hyperparameters, rules
from levelfield.analysis.results import Results
from levelfield.derive.follow import followings
from levelfield.executors import _jax
from levelfield.taxonomy import inclusions
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
    content = {"steps": 60, "eval_interval": 20, "target": {"metric": "train_loss", "value": 0.5}}
    return make_study(optimizers, **content | changes)


def count(path: Path) -> int:
    """Count all trials of a store without using the library."""
    with sqlite3.connect(path) as connection:
        (trials,) = connection.execute("SELECT count(*) FROM trials").fetchone()
    connection.close()
    return int(trials)


@dataclass
class Run:
    study: lf.Study
    plain: Path  # a store without followed trials
    seeded: Path  # the same store with them
    without: lf.Comparison
    comparison: lf.Comparison

    @property
    def results(self) -> list[dict[str, Any]]:
        """The followed trials as dicts."""
        return [pair.as_dict("train_loss") for pair in self.comparison.followed]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("follow")
    study, plain, seeded = study_of(OPTIMIZERS), folder / "plain.db", folder / "seeded.db"
    without = lf.compare(study, plain)
    shutil.copy(plain, seeded)
    (folder / "study.toml").write_text(study.to_toml())
    return Run(study, plain, seeded, without, lf.compare(study, seeded, seed_inclusions=True))


def test_every_inclusion_is_followed_once(run):
    assert sorted((row["special"], row["general"]) for row in run.results) == sorted(EDGES)


@pytest.mark.parametrize("edge", sorted(EDGES), ids=" in ".join)
def test_the_general_optimizer_reproduces_the_special_ones_best_trial(run, edge):
    (pair,) = (pair for pair in run.comparison.followed if (pair.special, pair.general) == edge)
    best = run.without.outcome(edge[0]).best_trial
    assert pair.followed.point == best.point
    assert pair.trial.point.seed == best.point.seed
    # The whole curve agrees, not only its end.
    np.testing.assert_array_equal(pair.trial.curve.steps, [20, 40, 60])
    np.testing.assert_allclose(pair.trial.curve.values["train_loss"], best.curve.values["train_loss"], rtol=1e-4)


def test_followed_trials_as_dicts(run):
    for row in run.results:
        best = min(run.without.outcome(row["special"]).values())
        assert row["metric"] == "train_loss"
        assert row["followed"] == pytest.approx(best)
        assert row["seeded"] == pytest.approx(best, rel=1e-4)
    assert json.loads(json.dumps(run.results)) == run.results


def test_following_changes_no_statistic(run):
    assert run.comparison.table().equals(run.without.table())
    assert json.dumps(run.comparison.rows()) == json.dumps(run.without.rows())
    assert run.comparison.beats_matrix() == run.without.beats_matrix()
    assert run.comparison.sentences() == run.without.sentences()
    assert [finding.as_dict() for finding in run.comparison.audit()] == [
        finding.as_dict() for finding in run.without.audit()
    ]
    for name in run.study.optimizers:
        assert [trial.point for trial in run.comparison.trials[name]] == [
            trial.point for trial in run.without.trials[name]
        ]
        assert len(run.comparison.outcome(name).pool) == 4


def test_following_is_off_by_default(run):
    assert run.without.followed == []
    feasible = sum(row["tried"] for row in run.without.rows())
    assert count(run.plain) == feasible
    assert count(run.seeded) == feasible + len(EDGES)


def test_following_again_trains_nothing(run, monkeypatch):
    def refuse(*_: Any) -> None:
        raise AssertionError("something was trained")

    monkeypatch.setattr(_jax, "program", refuse)
    before = count(run.seeded)
    again = lf.compare(run.study, run.seeded, seed_inclusions=True)
    assert [pair.as_dict("train_loss") for pair in again.followed] == run.results
    assert count(run.seeded) == before
    assert [pair.trial.started for pair in again.followed] == [pair.trial.started for pair in run.comparison.followed]


def test_followed_trials_are_read_from_the_store(run):
    with lf.Store.open(run.seeded, create=False) as store:
        pairs = lf.Comparison.load(run.study, store).followed
    assert [pair.as_dict("train_loss") for pair in pairs] == run.results


def test_stored_followed_trials_are_always_shown(run):
    comparison = lf.compare(run.study, run.seeded)
    assert [pair.as_dict("train_loss") for pair in comparison.followed] == run.results


def test_fewer_optimizers_have_fewer_followed_trials(run):
    with lf.Store.open(run.seeded, create=False) as store:
        pairs = lf.Comparison.load(run.study.only(["sgd", "adam"]), store).followed
    assert [(pair.special, pair.general) for pair in pairs] == [("sgd", "adam")]


def test_without_a_best_trial_nothing_is_followed(run):
    with lf.Store.open("sqlite://") as store:
        assert lf.Comparison.load(run.study, store).followed == []


def test_the_report_lists_followed_trials_separately(run, tmp_path):
    page = run.comparison.write_report(tmp_path / "report.html").read_text()
    assert "adam imitating momentum&#39;s best trial" in page
    assert "imitating momentum" not in run.without.write_report(tmp_path / "plain.html").read_text()


# Under a schedule


def check_followed(study: lf.Study, store: lf.Store) -> None:
    """Follow every inclusion of a study and check that the curves agree."""
    comparison = lf.compare(study, store, seed_inclusions=True)
    assert len(comparison.followed) == len(lf.inclusions(study))
    for pair in comparison.followed:
        ours, theirs = pair.trial.curve.values["train_loss"], pair.followed.curve.values["train_loss"]
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, err_msg=f"{pair.special} in {pair.general}")


def test_a_decaying_rate_is_followed(store):
    """rmsprop has the rate inside its momentum buffer, and adam also undoes its bias correction."""
    names = ("momentum", "rmsprop", "adam")
    study = study_of({name: OPTIMIZERS[name] for name in names}, schedule=LINEAR)
    assert len(lf.inclusions(study)) == 2
    check_followed(study, store)


def test_an_optimizer_with_a_schedule_follows_a_constant_rate(store):
    sgd = {**OPTIMIZERS["sgd"], "schedule": {"kind": "constant"}}
    study = study_of({"sgd": sgd, "momentum": MOMENTUM}, schedule=LINEAR)
    assert len(lf.inclusions(study)) == 1
    check_followed(study, store)


def test_inclusions_under_a_decaying_rate_can_be_followed(store):
    """rmsterov follows nesterov only at a constant rate, so no inclusion may be claimed that cannot be followed."""
    optimizers = {"nesterov": MOMENTUM, "rmsterov": RMSPROP}
    assert len(lf.inclusions(study_of(optimizers))) == 1
    check_followed(study_of(optimizers, schedule=LINEAR), store)


def test_a_followed_trial_depends_on_the_version_of_the_general_rule():
    """Otherwise a stored trial of an older version would be shown."""
    identities = []
    for version in (1, 2):
        domains = {"learning_rate": hyperparameters.POSITIVE, "mix": hyperparameters.FRACTION}
        rules.register_rule("soft", lambda learning_rate, mix: None, domains, version=version)
        inclusions.register_inclusion("sgd", "soft", lambda learning_rate: {"learning_rate": learning_rate, "mix": 0.0})
        tables = {"sgd": {"learning_rate": 0.1}, "soft": {"learning_rate": 0.1, "mix": {"uniform": [0, 1]}}}
        study = lf.Study(workload="quadratic", steps=2, trials=1, optimizers=tables)
        best = Trial(
            Point(0, {"learning_rate": 0.1}, 0), Status.FEASIBLE, Curve(np.array([2]), {"train_loss": np.array([1.0])})
        )
        (following,) = followings(Results.of(study, {"sgd": [best], "soft": [best]}))
        identities.append(following.study.identity("soft"))
    assert identities[0] != identities[1]


def test_optax_optimizers_follow(store):
    optax_adam = {"rule": "optax.adam", "learning_rate": RATE, "b1": {"uniform": [0.0, 0.9]}, "eps": EPSILON}
    study = study_of({"momentum": MOMENTUM, "optax_adam": optax_adam})
    assert len(lf.inclusions(study)) == 1
    check_followed(study, store)


# The commands


@pytest.fixture
def command(command, monkeypatch, run):
    """Run a command in the folder of the study file and its stores."""
    monkeypatch.chdir(run.plain.parent)
    return command


def test_compare_prints_audit_and_followed_trials(command, run, tmp_path):
    shutil.copy(run.plain, tmp_path / "trials.db")
    names = ("--optimizers", "sgd,momentum,adam", "--store", str(tmp_path / "trials.db"), "--out", str(tmp_path))
    code, out, err = command("compare", "study.toml", "--seed-inclusions", "--json", *names)
    printed = json.loads(out)
    assert code == 0
    expected = {pair for pair in EDGES if set(pair) <= {"sgd", "momentum", "adam"}}
    assert {(finding["special"], finding["general"]) for finding in printed["audit"]} == expected
    assert {finding["verdict"] for finding in printed["audit"]} <= {"consistent", "no separation", "violated"}
    shown = [row for row in run.results if (row["special"], row["general"]) in expected]
    for ours, theirs in zip(printed["seeded"], shown, strict=True):
        assert ours == theirs | {"seeded": pytest.approx(theirs["seeded"], rel=1e-5)}
    assert "adam has followed momentum's best trial" in err
    # The report shows them without being asked again.
    code, out, _ = command("report", "study.toml", *names)
    assert code == 0
    assert "not counted in any statistic" in out
    assert "adam imitating momentum's best trial" in out


def test_compare_follows_nothing_by_default(command, run, tmp_path):
    code, out, _ = command("compare", "study.toml", "--json", "--store", str(run.plain), "--out", str(tmp_path))
    assert code == 0
    assert json.loads(out)["seeded"] == []


def test_status_does_not_count_followed_trials(command, run):
    stores = (str(run.plain), str(run.seeded))
    plain, seeded = (command("status", "study.toml", "--json", "--store", store)[1] for store in stores)
    assert json.loads(seeded) == json.loads(plain)
    assert [row["feasible"] for row in json.loads(seeded)["optimizers"]] == [4] * len(OPTIMIZERS)


@pytest.mark.parametrize("curves", [[], ["--curves"]], ids=["trials", "curves"])
def test_export_leaves_out_followed_trials(command, run, tmp_path, curves):
    frames = []
    for store in (run.plain, run.seeded):
        path = tmp_path / f"{store.stem}.parquet"
        assert command("export", "study.toml", "-o", str(path), "--store", str(store), *curves)[0] == 0
        frames.append(polars.read_parquet(path))
    assert frames[1].equals(frames[0])
    assert set(frames[1]["optimizer"]) == OPTIMIZERS.keys()
