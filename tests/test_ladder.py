"""Ladders of tuning protocols: what each rung tunes, what it leaves alone, and who changes places."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

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
    content = {"name": "mine", "workload": "quadratic", "steps": 4, "eval_interval": 2, "trials": 2, "pool": 4}
    return lf.Study(**content | {"schedule": SCHEDULE, "optimizers": dict(optimizers)} | changes)


def rungs(study: lf.Study, name: str) -> dict[str, dict[str, Any]]:
    """Rung → an optimizer's table there, without what all of them say."""
    found = {}
    for key, each in ladder(study).optimizers.items():
        if key == f"{name} ({each.protocol})":
            table = each.spec()
            assert table.pop("rule") == study.optimizer(name).rule.name
            found[table.pop("protocol")] = table
    return found


# What is tuned


def test_a_ladder_tunes_more_and_more():
    found = rungs(study_of({"adam": ADAM}), "adam")
    rate = {"learning_rate": {"log": [1e-5, 1e-1]}}
    usual = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
    betas = {key: ADAM[key] for key in ("one_minus_beta1", "one_minus_beta2")}
    assert found == {
        "learning rate": rate | usual | {"schedule": {"kind": "constant"}},
        "+ schedule": rate | usual | {"schedule": SCHEDULE},
        "+ momentum": rate | betas | {"epsilon": 1e-8, "schedule": SCHEDULE},
        "+ epsilon": ADAM | {"schedule": SCHEDULE},
    }


def test_the_last_rung_is_the_study_itself():
    study = study_of({"sgd": SGD, "momentum": MOMENTUM, "adam": ADAM, "rmsprop": RMSPROP})
    found = ladder(study)
    last = [name for name, each in found.optimizers.items() if each.protocol == "+ epsilon"]
    assert len(last) == 4
    for name in last:
        assert found.identity(name) == study.identity(name.removesuffix(" (+ epsilon)"))


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
def test_what_is_not_tuned_is_as_those_have_it_who_do_not(name, table, usual):
    lowest = rungs(study_of({name: table}), name)["learning rate"]
    assert {key: value for key, value in lowest.items() if key not in ("learning_rate", "schedule")} == usual


@pytest.mark.parametrize(("name", "table"), [("adam", ADAM), ("rmsprop", RMSPROP)])
def test_a_ratio_to_what_is_fixed_becomes_a_rate(name, table):
    """Once ε is small, a step is as long as the rate, however large the study's own ε and with it its rates were."""
    for epsilon in ([1e-4, 1e-2], [1e4, 1e8]):
        found = rungs(study_of({name: table | {"epsilon": {"log": epsilon}}}), name)
        for rung in ("learning rate", "+ schedule", "+ momentum"):
            assert found[rung]["learning_rate"] == {"log": [1e-5, 1e-1]}


def test_a_ratio_to_what_the_study_fixes_stays():
    lowest = rungs(study_of({"adam": ADAM | {"epsilon": 0.5}}), "adam")["learning rate"]
    assert lowest["learning_rate/epsilon"] == ADAM["learning_rate/epsilon"]
    assert lowest["epsilon"] == 0.5
    assert "learning_rate" not in lowest


def test_what_the_study_fixes_stays_fixed():
    found = rungs(study_of({"adam": ADAM | {"one_minus_beta2": 0.25}}), "adam")
    assert {table["one_minus_beta2"] for table in found.values()} == {0.25}


def test_rungs_that_bring_nothing_new_are_left_out():
    study = study_of({"sgd": SGD}, schedule={"kind": "constant"})
    assert list(rungs(study, "sgd")) == ["learning rate"]
    assert list(rungs(study_of({"sgd": SGD}), "sgd")) == ["learning rate", "+ schedule"]
    both = study_of({"sgd": SGD, "momentum": MOMENTUM})
    assert list(rungs(both, "sgd")) == list(rungs(both, "momentum")) == ["learning rate", "+ schedule", "+ momentum"]


def test_everything_is_what_has_no_rung_of_its_own():
    table = {"rule": "momentum", **MOMENTUM, "l2": {"log": [1e-5, 1e-3]}}
    study = study_of({"it": table}, workload="cifar10_vgg16", steps=100)
    found = rungs(study, "it")
    assert list(found) == ["learning rate", "+ schedule", "+ momentum", "everything"]
    assert [each["l2"] for each in found.values()] == [0.0, 0.0, 0.0, {"log": [1e-5, 1e-3]}]


def test_optax_rules_are_left_at_optax_s_defaults():
    table = {
        "rule": "optax.adamw",
        "learning_rate": {"log": [1e-4, 1e-1]},
        "one_minus_b1": {"log": [1e-2, 1e0]},
        "b2": 0.99,
        "eps": {"log": [1e-10, 1e-2]},
        "weight_decay": {"log": [1e-6, 1e-1]},
    }
    found = rungs(study_of({"it": table}), "it")
    assert list(found) == list(RUNGS)
    lowest = found["learning rate"]
    assert lowest == {
        "learning_rate": table["learning_rate"],
        "b1": 0.9,
        "b2": 0.99,  # the study's
        "eps": 1e-8,
        "weight_decay": 1e-4,
        "schedule": {"kind": "constant"},
    }
    assert found["+ momentum"]["one_minus_b1"] == table["one_minus_b1"]
    assert found["+ epsilon"]["eps"] == table["eps"]
    assert found["everything"]["weight_decay"] == table["weight_decay"]


def test_what_is_off_by_default_is_left_off():
    """optax.rmsprop has no momentum unless told."""
    table = {"rule": "optax.rmsprop", "learning_rate": {"log": [1e-4, 1e-1]}, "momentum": {"uniform": [0.0, 0.9]}}
    found = rungs(study_of({"it": table}), "it")
    assert "momentum" not in found["+ schedule"]
    assert found["+ momentum"]["momentum"] == {"uniform": [0.0, 0.9]}


def test_the_ladder_is_a_study_like_any_other(tmp_path):
    found = ladder(study_of({"sgd": SGD, "adam": ADAM}, seed=3, target={"metric": "train_loss", "value": 0.1}))
    assert found.name == "mine_ladder"
    assert (found.seed, found.trials, found.pool, found.target.value) == (3, 2, 4, 0.1)
    (tmp_path / "rungs.toml").write_text(found.to_toml(), "utf-8")
    assert lf.load_study(tmp_path / "rungs.toml").spec() == found.spec()


@pytest.mark.parametrize("name", built_in_studies())
def test_built_in_studies_have_ladders(name):
    found = ladder(lf.load_study(name))
    assert {each.protocol for each in found.optimizers.values()} <= set(RUNGS)


# What is shared, what is refused


def test_rungs_that_are_the_same_share_their_trials():
    found = ladder(study_of({"sgd": SGD, "momentum": MOMENTUM, "adam": ADAM}))
    identities = {name: found.identity(name) for name in found.optimizers}
    assert len(found.optimizers) == 3 * 4
    assert identities["sgd (+ schedule)"] == identities["sgd (+ momentum)"] == identities["sgd (+ epsilon)"]
    assert identities["momentum (+ momentum)"] == identities["momentum (+ epsilon)"]
    assert len(set(identities.values())) == 2 + 3 + 4


def test_an_optimizer_with_nothing_free_has_no_ladder():
    fixed = {"rule": "sgd", "learning_rate": 0.1}
    with pytest.raises(UsageError, match=r"^still has nothing free: a ladder takes away what a study tunes$"):
        ladder(study_of({"sgd": SGD, "still": fixed}, schedule={"kind": "constant"}))
    ladder(study_of({"sgd": SGD, "still": fixed}))  # its schedule is free


def test_a_rule_that_nobody_knows_the_usual_value_of_is_refused():
    register_rule("odd", lambda **_: None, {"learning_rate": POSITIVE, "twist": Hyperparameter(0.0, 1.0)})
    table = {"rule": "odd", "learning_rate": {"log": [1e-2, 1e0]}, "twist": {"uniform": [0.0, 1.0]}}
    with pytest.raises(UsageError, match="No usual value is known for twist"):
        ladder(study_of({"it": table}))


# Who changes places


def climbed(made: Any, values: Mapping[str, Mapping[str, float]], trials: int = 2) -> lf.Comparison:
    """The comparison of a ladder whose optimizers end at these losses, rung by rung; some noise between trials."""
    tables = {"sgd": SGD, "momentum": MOMENTUM, "adam": ADAM}
    found = ladder(study_of({name: tables[name] for name in values}, trials=trials))
    pools = {
        f"{name} ({rung})": [{"train_loss": [9.0, value + noise]} for noise in (0.0, 0.1, 0.2, 0.3)]
        for name, rising in values.items()
        for rung, value in rising.items()
    }
    return made(found, pools)


# The same trials at the rungs where sgd has nothing more to tune.
SAME = dict.fromkeys(("+ schedule", "+ momentum", "+ epsilon"), 2.0)
LEVELS = {
    "sgd": {"learning rate": 3.0} | SAME,
    "adam": {"learning rate": 5.0, "+ schedule": 4.0, "+ momentum": 2.15, "+ epsilon": 1.0},
}


def test_pairs_say_who_leads_where(made):
    columns = by_protocol([climbed(made, LEVELS)])
    assert list(columns) == ["learning rate", "+ schedule", "+ momentum", "+ epsilon"]
    (pair,) = pairs(columns)
    assert (pair.ours, pair.theirs) == ("sgd", "adam")
    assert list(pair.leaders.values()) == ["sgd", "sgd", "sgd", "adam"]
    assert pair.settles == "+ epsilon"
    assert pair.beats["learning rate"] == pytest.approx(1)
    assert pair.beats["+ epsilon"] == pytest.approx(0)
    # Four equally likely trials each; best of two: sgd's has P(≤ its i-th) by hand.
    ours, theirs = ([level + noise for noise in (0.0, 0.1, 0.2, 0.3)] for level in (2.0, 2.15))
    minima = [[min(a, b) for a in pool for b in pool] for pool in (ours, theirs)]
    chance = sum(a < b for a in minima[0] for b in minima[1]) / 16**2
    assert pair.beats["+ momentum"] == pytest.approx(chance)
    content = pair.as_dict()
    assert json.loads(json.dumps(content)) == content
    assert content["settles"] == "+ epsilon"


def test_flips_are_where_the_leader_changes(made):
    (flip,) = flips(by_protocol([climbed(made, LEVELS)]))
    assert (flip.ours, flip.theirs, flip.before, flip.after) == ("sgd", "adam", "+ momentum", "+ epsilon")
    assert str(flip).startswith("sgd leads adam with + momentum")
    assert "trails it with + epsilon" in str(flip)


def test_a_pair_that_never_changes_places_never_settles(made):
    ahead = {"sgd": LEVELS["sgd"], "adam": dict.fromkeys(LEVELS["adam"], 1.0)}
    columns = by_protocol([climbed(made, ahead)])
    assert flips(columns) == []
    assert [pair.settles for pair in pairs(columns)] == [None]


def test_ties_and_empty_pools_lead_nowhere(made):
    """Where both are expected to do as well, or one has no trial, nobody leads; the order before it counts."""
    levels = {
        "sgd": {"learning rate": 3.0} | SAME,
        "adam": {"learning rate": 4.0, "+ schedule": 2.0, "+ momentum": 1.0},  # nothing at + epsilon
    }
    columns = by_protocol([climbed(made, levels)])
    (pair,) = pairs(columns)
    assert pair.leaders == {"learning rate": "sgd", "+ momentum": "adam"}
    (flip,) = flips(columns)
    assert (flip.before, flip.after) == ("learning rate", "+ momentum")


def test_a_pair_settles_only_where_the_leader_leads_to_the_end(made):
    levels = {
        "sgd": {"learning rate": 3.0} | SAME,
        "adam": {"learning rate": 5.0, "+ schedule": 1.0, "+ momentum": 1.0, "+ epsilon": 2.0},  # a tie in the end
    }
    (pair,) = pairs(by_protocol([climbed(made, levels)]))
    assert pair.leaders == {"learning rate": "sgd", "+ schedule": "adam", "+ momentum": "adam"}
    assert pair.settles is None


def test_a_grid_whose_rungs_have_too_few_points_has_no_ladder():
    table = {"learning_rate": {"choice": [0.1, 0.2]}, "one_minus_momentum": {"choice": [0.1, 0.2, 0.3]}}
    study = study_of({"momentum": table}, search="grid", pool=6, schedule={"kind": "constant"})
    with pytest.raises(UsageError, match="a ladder takes a quasi-random search"):
        ladder(study)


def test_who_is_better_hardly_more_often_leads_nowhere(made):
    """Two pools that differ in the worst trial alone: with one trial, sgd is better in 7 of 16, adam in 6."""
    study = study_of({"sgd": SGD, "adam": ADAM}, trials=1)
    columns = {
        "here": {"sgd": [1.0, 2.0, 3.0, 4.0], "adam": [1.0, 2.0, 3.0, 4.5]},
        "there": {"sgd": [1.0] * 4, "adam": [2.0] * 4},
    }
    found = {
        label: {
            rule: Entry(made(study, {rule: [{"train_loss": [9.0, value]} for value in pool]}).outcome(rule), 1)
            for rule, pool in column.items()
        }
        for label, column in columns.items()
    }
    (pair,) = pairs(found)
    assert pair.beats["here"] == pytest.approx(7 / 16)
    assert pair.leaders == {"there": "sgd"}


def test_two_optimizers_of_one_rule_keep_their_names_from_rung_to_rung(made):
    tables = {"low": {"rule": "sgd", **SGD}, "high": {"rule": "sgd", "learning_rate": {"log": [1e-1, 1e1]}}}
    study = ladder(study_of(tables))
    losses = {
        "low (learning rate)": 1.0,
        "high (learning rate)": 2.0,
        "low (+ schedule)": 4.0,
        "high (+ schedule)": 3.0,
    }
    columns = by_protocol([made(study, {name: [{"train_loss": [9.0, loss]}] * 4 for name, loss in losses.items()})])
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


@pytest.fixture
def cli(monkeypatch, command, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(FILE)
    return command


def test_ladder_by_command(cli, tmp_path):
    code, out, err = cli("ladder", "mine.toml")
    assert code == 0, err
    for words in ("learning rate", "+ schedule", "+ momentum", "sgd", "report: "):
        assert words in out
    page = (tmp_path / "levelfield-out/mine/ladder.html").read_text("utf-8")
    assert page.count("<tr data-optimizer=") == 2  # the study's own; the rungs are the protocols of one figure
    assert "Tuning protocols" in page
    with lf.Store.open("levelfield-out/mine/trials.db") as store:
        study = ladder(lf.load_study("mine.toml"))
        kept = {study.identity(name): len(store.statuses(study.identity(name))) for name in study.optimizers}
    assert len(kept) == 5  # of six: sgd has nothing to tune at + momentum
    assert all(count >= 3 for count in kept.values())
    code, out, err = cli("ladder", "mine.toml", "--json")
    assert code == 0
    assert "nothing to run" in err
    found = json.loads(out)
    assert list(found["rungs"]) == ["learning rate", "+ schedule", "+ momentum"]
    assert found["rungs"]["+ schedule"]["sgd"] == found["rungs"]["+ momentum"]["sgd"]
    (pair,) = found["pairs"]
    assert set(pair["leaders"]) == set(found["rungs"])


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        (FILE, ["--optimizers", "adm"], "'adm'"),
        (FILE, ["--slots", "none"], "--slots none"),
        (FILE, ["--rounds", "2"], "--rounds"),
        (
            FILE.replace("{ log = [1e-2, 1e0] }", "0.1").replace("{ choice = [0.01, 0.1] }", "0.1"),
            [],
            "sgd has nothing free",
        ),
    ],
    ids=["optimizer", "slots", "option", "nothing free"],
)
def test_what_has_no_ladder_is_refused_in_one_line(cli, tmp_path, text, arguments, words):
    Path("mine.toml").write_text(text)
    code, out, err = cli("ladder", "mine.toml", *arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert len(err.strip().splitlines()) == 1, err
    assert not (tmp_path / "levelfield-out").exists()
