"""Ladders of tuning protocols: what each rung tunes, what it fixes, and how the ranking changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import make_study

import levelfield as lf
from levelfield.analysis.protocols import Entry, by_protocol, flips, pairs
from levelfield.derive.ladder import RUNGS, ladder
from levelfield.errors import UsageError
from levelfield.hyperparameters import POSITIVE, Hyperparameter
from levelfield.rules import register_rule
from levelfield.study import built_in_studies

SCHEDULE = {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": {"choice": [1e-3, 1e-2, 1e-1]}}
SGD = {"learning_rate": {"log": [1e-2, 1e0]}}
MOMENTUM = {"learning_rate": {"log": [1e-3, 1e1]}, "one_minus_momentum": {"log": [1e-3, 1e0]}}
ADAM = {
    "learning_rate/epsilon": {"log": [1e-1, 1e2]},
    "one_minus_beta1": {"log": [1e-2, 1e0]},
    "one_minus_beta2": {"log": [1e-3, 1e0]},
    "epsilon": {"log": [1e-4, 1e1]},
}
RMSPROP = {
    "learning_rate/sqrt(epsilon)": {"log": [1e-2, 1e1]},
    "momentum": {"uniform": [0.0, 0.9]},
    "one_minus_rho": {"log": [1e-3, 1e0]},
    "epsilon": {"log": [1e-8, 1e-2]},
}


def study_of(optimizers: Mapping[str, Any], **changes: Any) -> lf.Study:
    return make_study(optimizers, **{"name": "mine", "schedule": SCHEDULE} | changes)


def rungs(study: lf.Study, name: str) -> dict[str, dict[str, Any]]:
    """Return rung → an optimizer's table, without its rule and protocol."""
    tables = {}
    for key, optimizer in ladder(study).optimizers.items():
        if key == f"{name} ({optimizer.protocol})":
            table = optimizer.spec()
            assert table.pop("rule") == study.optimizer(name).rule.name
            tables[table.pop("protocol")] = table
    return tables


# What each rung tunes


def test_each_rung_tunes_more_hyperparameters():
    tables = rungs(study_of({"adam": ADAM}), "adam")
    rate = {"learning_rate": {"log": [1e-5, 1e-1]}}
    usual = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
    betas = {key: ADAM[key] for key in ("one_minus_beta1", "one_minus_beta2")}
    assert tables == {
        "learning rate": rate | usual | {"schedule": {"kind": "constant"}},
        "+ schedule": rate | usual | {"schedule": SCHEDULE},
        "+ momentum": rate | betas | {"epsilon": 1e-8, "schedule": SCHEDULE},
        "+ epsilon": ADAM | {"schedule": SCHEDULE},
    }


def test_the_last_rung_is_the_study_itself():
    study = study_of({"sgd": SGD, "momentum": MOMENTUM, "adam": ADAM, "rmsprop": RMSPROP})
    rungs_study = ladder(study)
    last = [name for name, optimizer in rungs_study.optimizers.items() if optimizer.protocol == "+ epsilon"]
    assert len(last) == 4
    for name in last:
        assert rungs_study.identity(name) == study.identity(name.removesuffix(" (+ epsilon)"))


@pytest.mark.parametrize(
    ("name", "table", "usual"),
    [
        ("momentum", MOMENTUM, {"momentum": 0.9}),
        ("nesterov", MOMENTUM, {"momentum": 0.9}),
        ("rmsprop", RMSPROP, {"momentum": 0.0, "rho": 0.9, "epsilon": 1e-10}),
        ("rmsterov", RMSPROP, {"momentum": 0.9, "rho": 0.9, "epsilon": 1e-10}),
        ("nadam", ADAM, {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}),
    ],
)
def test_hyperparameters_that_are_not_tuned_have_their_usual_values(name, table, usual):
    lowest = rungs(study_of({name: table}), name)["learning rate"]
    assert {key: value for key, value in lowest.items() if key not in ("learning_rate", "schedule")} == usual


@pytest.mark.parametrize(("name", "table"), [("adam", ADAM), ("rmsprop", RMSPROP)])
def test_a_ratio_to_a_fixed_hyperparameter_becomes_a_rate(name, table):
    """Once ε is small, the rate is the length of a step, no matter how large the ε and rates of the study are."""
    for epsilon in ([1e-4, 1e-2], [1e4, 1e8]):
        tables = rungs(study_of({name: table | {"epsilon": {"log": epsilon}}}), name)
        for rung in ("learning rate", "+ schedule", "+ momentum"):
            assert tables[rung]["learning_rate"] == {"log": [1e-5, 1e-1]}


def test_a_ratio_to_a_hyperparameter_that_the_study_fixes_stays():
    lowest = rungs(study_of({"adam": ADAM | {"epsilon": 0.5}}), "adam")["learning rate"]
    assert lowest["learning_rate/epsilon"] == ADAM["learning_rate/epsilon"]
    assert lowest["epsilon"] == 0.5
    assert "learning_rate" not in lowest


def test_hyperparameters_that_the_study_fixes_stay_fixed():
    tables = rungs(study_of({"adam": ADAM | {"one_minus_beta2": 0.25}}), "adam")
    assert {table["one_minus_beta2"] for table in tables.values()} == {0.25}


def test_rungs_that_change_nothing_are_left_out():
    study = study_of({"sgd": SGD}, schedule={"kind": "constant"})
    assert list(rungs(study, "sgd")) == ["learning rate"]
    assert list(rungs(study_of({"sgd": SGD}), "sgd")) == ["learning rate", "+ schedule"]
    both = study_of({"sgd": SGD, "momentum": MOMENTUM})
    assert list(rungs(both, "sgd")) == list(rungs(both, "momentum")) == ["learning rate", "+ schedule", "+ momentum"]


def test_the_last_rung_tunes_everything_else():
    table = {"rule": "momentum", **MOMENTUM, "l2": {"log": [1e-5, 1e-3]}}
    study = study_of({"ours": table}, workload="cifar10_vgg16", steps=100)
    tables = rungs(study, "ours")
    assert list(tables) == ["learning rate", "+ schedule", "+ momentum", "everything"]
    assert [rung["l2"] for rung in tables.values()] == [0.0, 0.0, 0.0, {"log": [1e-5, 1e-3]}]


def test_optax_rules_keep_the_defaults_of_optax():
    table = {
        "rule": "optax.adamw",
        "learning_rate": {"log": [1e-4, 1e-1]},
        "one_minus_b1": {"log": [1e-2, 1e0]},
        "b2": 0.99,
        "eps": {"log": [1e-10, 1e-2]},
        "weight_decay": {"log": [1e-6, 1e-1]},
    }
    tables = rungs(study_of({"ours": table}), "ours")
    assert list(tables) == list(RUNGS)
    lowest = tables["learning rate"]
    assert lowest == {
        "learning_rate": table["learning_rate"],
        "b1": 0.9,
        "b2": 0.99,  # the study's
        "eps": 1e-8,
        "weight_decay": 1e-4,
        "schedule": {"kind": "constant"},
    }
    assert tables["+ momentum"]["one_minus_b1"] == table["one_minus_b1"]
    assert tables["+ epsilon"]["eps"] == table["eps"]
    assert tables["everything"]["weight_decay"] == table["weight_decay"]


def test_hyperparameters_that_are_off_by_default_stay_off():
    """optax.rmsprop has no momentum by default."""
    table = {"rule": "optax.rmsprop", "learning_rate": {"log": [1e-4, 1e-1]}, "momentum": {"uniform": [0.0, 0.9]}}
    tables = rungs(study_of({"ours": table}), "ours")
    assert "momentum" not in tables["+ schedule"]
    assert tables["+ momentum"]["momentum"] == {"uniform": [0.0, 0.9]}


def test_a_ladder_is_a_study_file(tmp_path):
    climbed = ladder(study_of({"sgd": SGD, "adam": ADAM}, seed=3, target={"metric": "train_loss", "value": 0.1}))
    assert climbed.name == "mine_ladder"
    assert (climbed.seed, climbed.trials, climbed.pool, climbed.target.value) == (3, 2, 4, 0.1)
    (tmp_path / "rungs.toml").write_text(climbed.to_toml(), "utf-8")
    assert lf.load_study(tmp_path / "rungs.toml").spec() == climbed.spec()


@pytest.mark.parametrize("name", built_in_studies())
def test_built_in_studies_have_ladders(name):
    optimizers = ladder(lf.load_study(name)).optimizers.values()
    protocols = {optimizer.protocol for optimizer in optimizers}
    assert protocols
    assert protocols <= set(RUNGS)


# Shared trials and refusals


def test_equal_rungs_share_their_trials():
    rungs_study = ladder(study_of({"sgd": SGD, "momentum": MOMENTUM, "adam": ADAM}))
    identities = {name: rungs_study.identity(name) for name in rungs_study.optimizers}
    assert len(rungs_study.optimizers) == 3 * 4
    assert identities["sgd (+ schedule)"] == identities["sgd (+ momentum)"] == identities["sgd (+ epsilon)"]
    assert identities["momentum (+ momentum)"] == identities["momentum (+ epsilon)"]
    assert len(set(identities.values())) == 2 + 3 + 4


def test_an_optimizer_without_free_hyperparameters_has_no_ladder():
    fixed = {"rule": "sgd", "learning_rate": 0.1}
    with pytest.raises(UsageError, match=r"^still has no free hyperparameters; a ladder needs"):
        ladder(study_of({"sgd": SGD, "still": fixed}, schedule={"kind": "constant"}))
    ladder(study_of({"sgd": SGD, "still": fixed}))  # its schedule is free


def test_a_rule_without_usual_values_is_refused():
    register_rule("odd", lambda **_: None, {"learning_rate": POSITIVE, "twist": Hyperparameter(0.0, 1.0)})
    table = {"rule": "odd", "learning_rate": {"log": [1e-2, 1e0]}, "twist": {"uniform": [0.0, 1.0]}}
    with pytest.raises(UsageError, match="No usual value is known for twist"):
        ladder(study_of({"ours": table}))


# Rank changes

NOISE = tuple(i / 40 for i in range(12))  # of the trials of a pool


def climbed(made: Any, values: Mapping[str, Mapping[str, float]], trials: int = 2) -> lf.Comparison:
    """Return the comparison of a ladder whose optimizers have these losses (plus noise) on each rung."""
    tables = {"sgd": SGD, "momentum": MOMENTUM, "adam": ADAM}
    rungs_study = ladder(study_of({name: tables[name] for name in values}, trials=trials, pool=len(NOISE)))
    pools = {
        f"{name} ({rung})": [{"train_loss": [9.0, value + noise]} for noise in NOISE]
        for name, losses in values.items()
        for rung, value in losses.items()
    }
    return made(rungs_study, pools)


# sgd has nothing more to tune on these rungs, so it has the same trials.
SAME = dict.fromkeys(("+ schedule", "+ momentum", "+ epsilon"), 2.0)
LEVELS = {
    "sgd": {"learning rate": 3.0} | SAME,
    "adam": {"learning rate": 5.0, "+ schedule": 4.0, "+ momentum": 2.04, "+ epsilon": 1.0},
}


def test_pairs_have_a_leader_under_each_protocol(made):
    columns = by_protocol([climbed(made, LEVELS).results])
    assert list(columns) == ["learning rate", "+ schedule", "+ momentum", "+ epsilon"]
    (pair,) = pairs(columns)
    assert (pair.ours, pair.theirs) == ("sgd", "adam")
    assert pair.leaders == {"learning rate": "sgd", "+ schedule": "sgd", "+ epsilon": "adam"}
    assert pair.settles == "+ epsilon"
    assert pair.beats["learning rate"] == pytest.approx(1)
    assert pair.beats["+ epsilon"] == pytest.approx(0)
    # The best of two equally likely trials, by enumeration. sgd leads, but not by more than chance.
    ours, theirs = ([level + noise for noise in NOISE] for level in (2.0, 2.04))
    minima = [[min(a, b) for a in pool for b in pool] for pool in (ours, theirs)]
    chance = np.mean([a < b for a in minima[0] for b in minima[1]])
    assert chance > 0.5
    assert pair.beats["+ momentum"] == pytest.approx(chance)
    content = pair.as_dict()
    assert json.loads(json.dumps(content)) == content
    assert content["settles"] == "+ epsilon"


def test_a_flip_is_a_change_of_leader(made):
    (flip,) = flips(by_protocol([climbed(made, LEVELS).results]))
    assert (flip.ours, flip.theirs, flip.before, flip.after) == ("sgd", "adam", "+ schedule", "+ epsilon")
    assert str(flip) == "sgd leads adam under “+ schedule” (100%) but trails it under “+ epsilon” (0%)."


def test_a_pair_whose_leader_never_changes_does_not_settle(made):
    ahead = {"sgd": LEVELS["sgd"], "adam": dict.fromkeys(LEVELS["adam"], 1.0)}
    columns = by_protocol([climbed(made, ahead).results])
    assert flips(columns) == []
    assert [pair.settles for pair in pairs(columns)] == [None]


def test_ties_and_empty_pools_have_no_leader(made):
    """A protocol without a leader is skipped when looking for changes."""
    levels = {
        "sgd": {"learning rate": 3.0} | SAME,
        "adam": {"learning rate": 4.0, "+ schedule": 2.0, "+ momentum": 1.0},  # no trials at + epsilon
    }
    columns = by_protocol([climbed(made, levels).results])
    (pair,) = pairs(columns)
    assert pair.leaders == {"learning rate": "sgd", "+ momentum": "adam"}
    (flip,) = flips(columns)
    assert (flip.before, flip.after) == ("learning rate", "+ momentum")


def test_a_pair_settles_only_if_its_leader_leads_to_the_end(made):
    levels = {
        "sgd": {"learning rate": 3.0} | SAME,
        "adam": {"learning rate": 5.0, "+ schedule": 1.0, "+ momentum": 1.0, "+ epsilon": 2.0},  # a tie at the end
    }
    (pair,) = pairs(by_protocol([climbed(made, levels).results]))
    assert pair.leaders == {"learning rate": "sgd", "+ schedule": "adam", "+ momentum": "adam"}
    assert pair.settles is None


def test_a_grid_whose_rungs_have_too_few_points_is_refused():
    table = {"learning_rate": {"choice": [0.1, 0.2]}, "one_minus_momentum": {"choice": [0.1, 0.2, 0.3]}}
    study = study_of({"momentum": table}, search="grid", pool=6, schedule={"kind": "constant"})
    with pytest.raises(UsageError, match='use search = "quasirandom"'):
        ladder(study)


def test_a_small_difference_makes_no_leader(made):
    """Two pools that differ only in the worst trial: with one trial, sgd wins 7 of 16 repetitions and adam 6."""
    study = study_of({"sgd": SGD, "adam": ADAM}, trials=1, pool=12)
    columns = {
        "here": {"sgd": [1.0, 2.0, 3.0, 4.0], "adam": [1.0, 2.0, 3.0, 4.5]},
        "there": {"sgd": [1.0] * 12, "adam": [2.0] * 12},
    }
    entries = {
        label: {
            rule: Entry(made(study, {rule: [{"train_loss": [9.0, value]} for value in pool]}).outcome(rule), 1)
            for rule, pool in column.items()
        }
        for label, column in columns.items()
    }
    (pair,) = pairs(entries)
    assert pair.beats["here"] == pytest.approx(7 / 16)
    assert pair.leaders == {"there": "sgd"}


def test_two_optimizers_of_the_same_rule_keep_their_names_on_all_rungs(made):
    tables = {"low": {"rule": "sgd", **SGD}, "high": {"rule": "sgd", "learning_rate": {"log": [1e-1, 1e1]}}}
    study = ladder(study_of(tables, pool=12))
    losses = {
        "low (learning rate)": 1.0,
        "high (learning rate)": 2.0,
        "low (+ schedule)": 4.0,
        "high (+ schedule)": 3.0,
    }
    comparison = made(study, {name: [{"train_loss": [9.0, loss]}] * 12 for name, loss in losses.items()})
    columns = by_protocol([comparison.results])
    assert {label: list(column) for label, column in columns.items()} == {
        "learning rate": ["low", "high"],
        "+ schedule": ["low", "high"],
    }
    (flip,) = flips(columns)
    assert (flip.ours, flip.theirs) == ("low", "high")


# The command

FILE = """
workload = "quadratic"
steps = 40
eval_interval = 20
trials = 2
pool = 3

[schedule]
kind = "linear"
decay_steps = 1.0
decay_factor = { choice = [0.01, 0.1] }

[optimizers.sgd]
learning_rate = { log = [1e-2, 1e0] }

[optimizers.momentum]
learning_rate = { log = [1e-2, 1e0] }
one_minus_momentum = { log = [1e-2, 1e0] }
"""


def test_the_ladder_command(command, tmp_path):
    Path("mine.toml").write_text(FILE)
    code, out, err = command("ladder", "mine.toml")
    assert code == 0, err
    for words in ("learning rate", "+ schedule", "+ momentum", "sgd", "report: "):
        assert words in out
    page = (tmp_path / "levelfield-out/mine/ladder.html").read_text("utf-8")
    assert page.count("<tr data-optimizer=") == 2  # the page is about the study; the rungs are protocols in a figure
    assert "Tuning protocols" in page
    with lf.Store.open("levelfield-out/mine/trials.db") as store:
        study = ladder(lf.load_study("mine.toml"))
        kept = {study.identity(name): len(store.statuses(study.identity(name))) for name in study.optimizers}
    assert len(kept) == 5  # of six: sgd has nothing new to tune at + momentum
    assert all(count >= 3 for count in kept.values())
    code, out, err = command("ladder", "mine.toml", "--json")
    assert code == 0
    assert "nothing to run" in err
    printed = json.loads(out)
    assert list(printed["rungs"]) == ["learning rate", "+ schedule", "+ momentum"]
    assert printed["rungs"]["+ schedule"]["sgd"] == printed["rungs"]["+ momentum"]["sgd"]
    (pair,) = printed["pairs"]
    assert set(pair["beats"]) == set(printed["rungs"])


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        (FILE, ["--optimizers", "adm"], "'adm'"),
        (FILE, ["--slots", "none"], "--slots none"),
        (FILE, ["--rounds", "2"], "--rounds"),
        (
            FILE.replace("{ log = [1e-2, 1e0] }", "0.1").replace("{ choice = [0.01, 0.1] }", "0.1"),
            [],
            "sgd has no free hyperparameters",
        ),
    ],
    ids=["optimizer", "slots", "option", "nothing free"],
)
def test_invalid_ladders_are_refused_in_one_line(command, tmp_path, text, arguments, words):
    Path("mine.toml").write_text(text)
    code, out, err = command("ladder", "mine.toml", *arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert len(err.strip().splitlines()) == 1, err
    assert not (tmp_path / "levelfield-out").exists()
