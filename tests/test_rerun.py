"""Reruns of the best trials with new seeds, and the rerun and plan commands."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import NOWHERE, FormulaExecutor
from helpers import make_study

import levelfield as lf
from levelfield import rerun_study
from levelfield.analysis.reruns import reruns
from levelfield.errors import UnknownName, UsageError
from levelfield.report.latex import latex_tables
from levelfield.report.narrative import rerun_sentences
from levelfield.search import Search
from levelfield.trial import Curve, Point, Status, Trial
from levelfield.workloads import get_workload

SCHEDULE = {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": {"choice": [1e-3, 1e-2, 1e-1]}}
SGD = {"learning_rate": {"log": [1e-2, 1e0]}}
ADAM = {
    "learning_rate/epsilon": {"log": [1e-1, 1e2]},
    "one_minus_beta1": {"choice": [0.1, 0.05, 0.001]},
    "one_minus_beta2": {"log": [1e-3, 1e0]},
    "epsilon": {"log": [1e-4, 1e1]},
    "protocol": "all of it",
}
POOL = 8


def study_of(optimizers: Mapping[str, Any] | None = None, **changes: Any) -> lf.Study:
    content = {
        "name": "mine",
        "workload": "fashion_mini",
        "steps": 6,
        "trials": 4,
        "pool": POOL,
        "schedule": SCHEDULE,
    }
    return make_study(optimizers or {"sgd": SGD, "adam": ADAM}, **content | changes)


def curves(value: float, other: float = 0.5) -> dict[str, list[float]]:
    """Return curves in which valid_error ends at a value and all other metrics at another."""
    metrics = {key: [0.9, 0.7, other] for key in get_workload("fashion_mini").metrics}
    return metrics | {"valid_error": [0.9, 0.7, value]}


def added(store: lf.Store, study: lf.Study, name: str, values: Sequence[float | None], **others: float) -> None:
    """Add trials that end at these errors to a store; None is infeasible."""
    search, metrics, trials = Search(study, name), get_workload(study.workload).metrics, []
    for index, value in enumerate(values):
        status = Status.INFEASIBLE if value is None else Status.FEASIBLE
        arrays = {key: np.array(curve) for key, curve in curves(math.nan if value is None else value, **others).items()}
        trials.append(Trial(search.point(index), status, Curve(np.array([2, 4, 6]), arrays)))
    store.add(study.identity(name), study.definition(name), metrics, trials, NOWHERE)


BEST = 3  # index of sgd's best trial; adam's is the next


@pytest.fixture
def compared(store) -> lf.Comparison:
    study = study_of()
    added(store, study, "sgd", [0.5, 0.4, 0.6, 0.1, 0.3, 0.2, 0.7, 0.8])
    added(store, study, "adam", [None, 0.5, 0.4, 0.6, 0.2, 0.3, 0.9, 0.7, 0.8])
    return lf.Comparison.load(study, store)


# The study of a rerun


def test_a_rerun_fixes_the_hyperparameters_of_the_best_trial(compared):
    again = rerun_study(compared, seeds=5)
    assert (again.name, again.pool, again.trials) == ("mine_rerun", 5, 1)
    assert list(again.optimizers) == ["sgd", "adam"]
    for name, index in (("sgd", BEST), ("adam", BEST + 1)):
        assert again.optimizer(name).space.free == ()
        assert again.optimizer(name).rule is compared.study.optimizer(name).rule
        assert again.optimizer(name).schedule == "linear"
        assert again.optimizer(name).protocol == compared.study.optimizer(name).protocol
        expected = Search(compared.study, name).point(index).hyperparameters
        points = [Search(again, name).point(i) for i in range(5)]
        assert all(point.hyperparameters == expected for point in points)


def test_seeds_are_fresh(compared):
    """All seeds are different, and none is that of a trial of the study."""
    study = compared.study
    again = rerun_study(compared, seeds=20)
    for name in study.optimizers:
        fresh = {Search(again, name).point(index).seed for index in range(20)}
        used = {Search(study, name).point(index).seed for index in range(100)}
        assert len(fresh) == 20
        assert not fresh & used


def test_more_seeds_extend_a_rerun(compared):
    few, many = (rerun_study(compared, seeds=seeds) for seeds in (2, 7))
    for name in few.optimizers:
        assert few.identity(name) == many.identity(name)
        assert Search(few, name).point(1) == Search(many, name).point(1)


def test_the_seeds_depend_on_the_seed_of_the_study(store):
    first, other = study_of(), study_of(seed=1)
    for study in (first, other):
        added(store, study, "sgd", [0.1] * POOL)
        added(store, study, "adam", [0.1] * POOL)
    seeds = [Search(rerun_study(lf.Comparison.load(study, store)), "sgd").point(0).seed for study in (first, other)]
    assert seeds[0] != seeds[1]


def test_some_optimizers_and_another_trial_can_be_rerun(compared):
    again = rerun_study(compared, ["adam"], seeds=3, index=6)
    assert list(again.optimizers) == ["adam"]
    expected = Search(compared.study, "adam").point(6).hyperparameters
    assert Search(again, "adam").point(0).hyperparameters == expected


def test_the_best_by_another_metric(store):
    study = study_of(optimizers={"sgd": SGD})
    metrics = get_workload(study.workload).metrics
    search, trials = Search(study, "sgd"), []
    for index in range(POOL):
        values = {key: np.array([9.0, 1.0 + index]) for key in metrics} | {"test_error": np.array([9.0, 8.0 - index])}
        trials.append(Trial(search.point(index), Status.FEASIBLE, Curve(np.array([2, 6]), values)))
    store.add(study.identity("sgd"), study.definition("sgd"), metrics, trials, NOWHERE)
    comparison = lf.Comparison.load(study, store)
    for view, index in ((comparison, 0), (comparison.at(select="test_error"), POOL - 1)):
        hyperparameters = Search(rerun_study(view), "sgd").point(0).hyperparameters
        assert hyperparameters == search.point(index).hyperparameters


def test_a_grid_is_rerun_with_fresh_seeds(store):
    study = study_of(search="grid", pool=3, trials=1, schedule={"kind": "constant"}, optimizers={
        "sgd": {"learning_rate": {"choice": [0.1, 0.2, 0.3]}}
    })  # fmt: skip
    added(store, study, "sgd", [0.5, 0.1, 0.3])
    again = rerun_study(lf.Comparison.load(study, store), seeds=4)
    best = Search(study, "sgd").point(1).hyperparameters["learning_rate"]
    assert [Search(again, "sgd").point(i).hyperparameters["learning_rate"] for i in range(4)] == [best] * 4


def test_the_study_of_a_rerun_is_a_study_file(compared, tmp_path):
    again = rerun_study(compared, seeds=2)
    (tmp_path / "again.toml").write_text(again.to_toml(), "utf-8")
    assert lf.load_study(tmp_path / "again.toml").spec() == again.spec()


# Refusals


def test_invalid_reruns_are_refused(compared, store):
    with pytest.raises(UsageError, match=r"^trial 0 of adam is infeasible .*; choose another"):
        rerun_study(compared, ["adam"], index=0)
    with pytest.raises(UsageError, match=r"^sgd has no trial 8; expected an index from 0 to 7"):
        rerun_study(compared, index=8)
    with pytest.raises(UnknownName, match=r"'adm' of this study; did you mean 'adam'"):
        rerun_study(compared, ["adm"])
    lost = study_of(seed=7)
    added(store, lost, "sgd", [0.1] * POOL)
    added(store, lost, "adam", [None] * 20)
    with pytest.raises(UsageError, match=r"^adam has no feasible trials to rerun; lower its learning rates"):
        rerun_study(lf.Comparison.load(lost, store))
    assert list(rerun_study(lf.Comparison.load(lost, store), ["sgd"]).optimizers) == ["sgd"]


# In a comparison


def test_a_comparison_reads_the_reruns_of_its_best_trials(compared, store):
    assert compared.reruns == {}
    again = rerun_study(compared, ["adam"], seeds=3)
    added(store, again, "adam", [0.25, None, 0.15, 0.23], other=0.4)
    comparison = lf.Comparison.load(compared.study, store)
    assert list(comparison.reruns) == ["adam"]
    outcome = comparison.reruns["adam"]
    assert (outcome.tried, len(outcome.pool)) == (4, 3)
    assert outcome.values() == pytest.approx([0.25, 0.15, 0.23])
    assert comparison.rows() == compared.rows()  # no statistic counts them


def test_reruns_of_another_trial_are_left_out(compared, store):
    added(store, rerun_study(compared, ["sgd"], index=0), "sgd", [0.3])
    assert lf.Comparison.load(compared.study, store).reruns == {}


def test_reruns_of_a_former_best_trial_are_left_out(compared, store):
    added(store, rerun_study(compared, ["sgd"]), "sgd", [0.3])
    larger = compared.study.replace(pool=POOL + 2)
    assert list(lf.Comparison.load(larger, store).reruns) == ["sgd"]
    added(store, larger, "sgd", [0.5, 0.4, 0.6, 0.1, 0.3, 0.2, 0.7, 0.8, 0.05, 0.9])
    assert lf.Comparison.load(larger, store).reruns == {}


def test_a_view_keeps_reruns_if_the_best_trial_stays_the_same(compared, store):
    added(store, rerun_study(compared, ["sgd", "adam"]), "sgd", [0.3, 0.2], other=0.6)
    comparison = lf.Comparison.load(compared.study, store)
    rate = Search(comparison.study, "sgd").point(BEST).hyperparameters["learning_rate"]
    assert list(comparison.narrowed({"sgd": {"learning_rate": (rate / 1.01, None)}}).reruns) == ["sgd"]
    assert comparison.narrowed({"sgd": {"learning_rate": (rate * 1.01, None)}}).reruns == {}
    seen = comparison.at(step=6).reruns["sgd"]
    assert seen.values() == pytest.approx([0.3, 0.2])
    other = comparison.at(select="train_loss")  # all trials tie, so the first one is the best
    assert other.reruns == {}


def test_health_compares_the_best_trials_with_seeds(compared, store):
    added(store, rerun_study(compared, ["sgd"]), "sgd", [0.1, 0.3, 0.5])
    comparison = lf.Comparison.load(compared.study, store)
    (check,) = (check for check in comparison.health() if check.question == "trials against seeds")
    top = np.std([0.1, 0.2, 0.3, 0.4, 0.5], ddof=1)
    assert (check.optimizer, check.value) == ("sgd", pytest.approx(top / np.std([0.1, 0.3, 0.5], ddof=1)))
    assert not check.healthy


# In words


def test_reruns_in_words(compared, store):
    """The selected value against what its hyperparameters give again."""
    again = rerun_study(compared, seeds=3)
    added(store, again, "sgd", [0.12, 0.14, 0.16], other=0.3)
    added(store, again, "adam", [0.25, None, 0.15], other=0.4)
    comparison = lf.Comparison.load(compared.study, store)
    assert rerun_sentences(comparison.results) == [
        "sgd's best trial has valid_error 10.00% and test_error 50.00%; 3 reruns with new seeds average "
        "14.00% (12.00% … 16.00%) and 30.00% (30.00% … 30.00%).",
        "adam's best trial has valid_error 20.00% and test_error 50.00%; 3 reruns with new seeds, 1 of them "
        "infeasible, average 20.00% (15.00% … 25.00%) and 40.00% (40.00% … 40.00%).",
    ]
    assert rerun_sentences(compared.results) == []
    assert rerun_sentences(comparison.results, 2)[0].startswith("sgd's trial 2 has valid_error 60.00%")
    earlier = comparison.at(step=4).results  # all trials are equal then, so another one is the best
    assert rerun_sentences(earlier) == []


def test_reruns_that_all_diverge_in_words(compared, store):
    added(store, rerun_study(compared, ["sgd"]), "sgd", [None, None])
    (sentence,) = rerun_sentences(lf.Comparison.load(compared.study, store).results)
    assert sentence == "sgd's best trial: no feasible trial in 2 reruns with new seeds."


def test_a_single_rerun_in_words(compared, store):
    added(store, rerun_study(compared, ["sgd"]), "sgd", [0.15], other=0.3)
    (sentence,) = rerun_sentences(lf.Comparison.load(compared.study, store).results)
    assert sentence == (
        "sgd's best trial has valid_error 10.00% and test_error 50.00%; 1 rerun with a new seed gives 15.00% and "
        "30.00%."
    )


def test_reruns_in_latex(compared, store):
    added(store, rerun_study(compared, ["sgd"]), "sgd", [0.12, 0.14, 0.16], other=0.3)
    tables = latex_tables(lf.Comparison.load(compared.study, store).results)
    assert (
        r"sgd & 10.00\% & 14.00\% & 12.00\% -- 16.00\% & 50.00\% & 30.00\% & 30.00\% -- 30.00\% & 3 \\"
        in tables["reruns"]
    )
    assert "reruns" not in latex_tables(compared.results)


def test_compare_reruns_the_best_trials():
    """A selected trial is better than its hyperparameters are: all of its advantage here is luck."""
    luck = {}

    def loss(optimizer: str, point: Point) -> float:
        luck[optimizer, point.seed] = value = np.random.default_rng(point.seed).uniform()
        return value if optimizer == "sgd" else math.inf

    study = make_study(trials=5, pool=20)
    comparison = lf.compare(study, "sqlite://", executor=FormulaExecutor(loss), reruns=50)
    assert list(comparison.reruns) == ["sgd"]
    (again,) = reruns(comparison.results)
    assert (again.seeds, again.feasible) == (50, 50)
    pool = [luck["sgd", Search(study, "sgd").point(index).seed] for index in range(20)]
    fresh = rerun_study(comparison, ["sgd"])
    means = [luck["sgd", Search(fresh, "sgd").point(index).seed] for index in range(50)]
    spread = again.metrics["train_loss"]
    expected = (min(pool), np.mean(means), min(means), max(means))
    assert (spread.selected, spread.mean, spread.min, spread.max) == pytest.approx(expected)
    assert spread.mean > spread.selected + 0.3
    with pytest.raises(UsageError, match=r"^reruns = -1: expected an integer of at least 0"):
        lf.compare(study, "sqlite://", reruns=-1)


def test_the_report_shows_reruns(compared, store, tmp_path):
    added(store, rerun_study(compared, ["sgd"]), "sgd", [0.12, 0.14, 0.16], other=0.3)
    comparison = lf.Comparison.load(compared.study, store)
    (sentence,) = rerun_sentences(comparison.results)
    assert sentence in comparison.write_report(tmp_path / "report.html").read_text("utf-8").replace("&#39;", "'")


# The commands

FILE = """
workload = "quadratic"
steps = 40
eval_interval = 20
trials = 2
pool = 3

[optimizers.sgd]
learning_rate = { log = [1e-2, 1e0] }

[optimizers.momentum]
learning_rate = { log = [1e-2, 1e0] }
one_minus_momentum = { log = [1e-1, 1e0] }
"""


@pytest.fixture
def command(command, made):
    """Run a command on a study with full pools; sgd's second trial is infeasible, and its last is the best."""
    Path("mine.toml").write_text(FILE)
    Path("levelfield-out/mine").mkdir(parents=True)
    losses = {"sgd": [3.0, math.nan, 2.0, 1.0], "momentum": [1.4, 1.6, 1.7]}
    pools = {name: [{"train_loss": [9.0, loss]} for loss in ends] for name, ends in losses.items()}
    made(lf.load_study("mine.toml"), pools, {"sgd": [1]}, store="levelfield-out/mine/trials.db")
    return command


def stored(index: int, count: int, name: str = "sgd") -> list[float]:
    """Return the stored losses of the reruns of a trial."""
    study = lf.load_study("mine.toml")
    with lf.Store.open("levelfield-out/mine/trials.db") as store:
        again = rerun_study(lf.Comparison.load(study, store), [name], count, index)
        return [trial.curve.final("train_loss") for trial in store.trials(again.identity(name))]


def test_the_rerun_command(command):
    code, out, err = command("rerun", "mine.toml", "--seeds", "3")
    assert code == 0, err
    losses = stored(3, 3)
    assert len(losses) == len(set(losses)) == 3
    mean, low, high = (f"{value:.4g}" for value in (np.mean(losses), min(losses), max(losses)))
    expected = f"sgd's best trial has train_loss 1; 3 reruns with new seeds average {mean} ({low} … {high})."
    assert expected in out.splitlines()
    assert "momentum's best trial has train_loss 1.4;" in out
    code, out, err = command("rerun", "mine.toml", "--seeds", "3", "--json")
    assert code == 0
    assert "nothing to run" in err
    printed = json.loads(out)
    assert list(printed) == ["sgd", "momentum"]
    assert (printed["sgd"]["seeds"], printed["sgd"]["feasible"]) == (3, 3)
    spread = {"selected": 1.0, "mean": np.mean(losses), "min": min(losses), "max": max(losses)}
    assert printed["sgd"]["train_loss"] == pytest.approx(spread)
    code, out, _ = command("report", "mine.toml")
    assert "The best trials with new seeds:" in out
    assert " ".join(expected.split()) in " ".join(out.split())
    assert json.loads(command("report", "mine.toml", "--json")[1])["reruns"] == printed


def test_compare_with_reruns(command):
    code, out, err = command("compare", "mine.toml", "--reruns", "2", "--json")
    assert code == 0, err
    assert "sgd: 2/2 feasible" in err
    assert {name: entry["seeds"] for name, entry in json.loads(out)["reruns"].items()} == {"sgd": 2, "momentum": 2}
    assert len(stored(3, 2)) == 2


def test_the_rerun_command_with_another_trial(command):
    code, out, err = command("rerun", "mine.toml", "--optimizers", "sgd", "--trial", "2", "--seeds", "2")
    assert code == 0, err
    assert out.startswith("sgd's trial 2 has train_loss 2; 2 reruns with new seeds average ")
    assert len(stored(2, 2)) == 2
    assert stored(3, 2) == []


def test_the_plan_command(command):
    code, out, _ = command("plan", "mine.toml")
    assert code == 0
    # momentum has the better mean with 1 or 2 trials, but nothing tells the two apart, so one is advised throughout.
    assert " ".join(out.split()) == (
        "With any number of trials from 1 to 3, sgd has the best expected train_loss; with 3 trials, it is not clearly "
        "different from the other one."
    )
    code, out, _ = command("plan", "mine.toml", "--gpu-hours", "0.01", "--json")
    assert code == 0
    printed = json.loads(out)
    assert printed["gpu_hours"] == 0.01
    assert [choice["optimizer"] for choice in printed["within_budget"]] == ["sgd", "momentum"]
    assert [choice["trials"] for choice in printed["within_budget"]] == [3, 3]
    code, out, _ = command("plan", "mine.toml", "--gpu-hours", "0.0001")
    assert code == 0
    assert "sgd: no trial fits" in out
    assert json.loads(command("plan", "mine.toml", "--gpu-hours", "0.0001", "--json")[1])["within_budget"][0] == {
        "optimizer": "sgd",
        "trials": 0,
        "expected": None,
        "reported": None,
        "hours": pytest.approx(0.5 * 4 / 3 / 3600),
        "enough": True,
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rerun", "--seeds", "0"], "--seeds"),
        (["rerun", "--seeds", "few"], "--seeds"),
        (["rerun", "--optimizers", "sgd", "--trial", "1"], "trial 1 of sgd is infeasible"),
        (["rerun", "--trial", "9"], "sgd has no trial 9"),
        (["rerun", "--metric", "train_los"], "did you mean 'train_loss'"),
        (["rerun", "--seed", "5"], "sgd has no trials to rerun yet; run it first"),
        (["rerun", "--out", "elsewhere"], "no such store"),
        (["plan", "--gpu-hours", "0"], "expected a finite number above 0"),
        (["plan", "--gpu-hours", "-1"], "expected a finite number above 0"),
        (["plan", "--gpu-hours", "nan"], "expected a finite number above 0"),
        (["plan", "--gpu-hours", "inf"], "expected a finite number above 0"),
        (["plan", "--gpu-hours", "all"], "--gpu-hours"),
        (["plan", "--seed", "5"], "no feasible trials of this study"),
        (["plan", "--out", "elsewhere"], "no such store"),
    ],
    ids=" ".join,
)
def test_invalid_commands_are_refused_in_one_line(command, tmp_path, arguments, words):
    before = set(tmp_path.rglob("*"))
    name, *options = arguments
    code, out, err = command(name, "mine.toml", *options)
    assert code == 2
    assert out == ""
    assert words in err
    assert len(err.strip().splitlines()) == 1, err
    assert set(tmp_path.rglob("*")) == before
