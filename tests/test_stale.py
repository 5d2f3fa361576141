"""Trials of changed custom code: never mixed or shown without a word."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import polars
import pytest
from fakes import FormulaExecutor

import levelfield as lf
from levelfield.derive.follow import followings
from levelfield.errors import StaleTrials, UsageError
from levelfield.run import rerun
from levelfield.trial import Point

OWN = """
import levelfield as lf
import optax

lf.register_rule("own", optax.sgd, {"learning_rate": lf.Hyperparameter(low=0.0)})
"""
WORKLOAD = """
from dataclasses import replace
from levelfield.workloads import get_workload

lf.register_workload(replace(get_workload("quadratic"), name="own_workload"))
"""
STUDY = """
code = "own.py"
workload = "quadratic"
steps = 20
eval_interval = 10
trials = 2
pool = 3

[optimizers.own]
learning_rate = { log = [1e-2, 1e0] }

[optimizers.sgd]
learning_rate = { log = [1e-2, 1e0] }
"""
OLD = "different version of own.py than the current one"


def old_loss(optimizer: str, point: Point) -> float:
    return 3.0 - 0.5 * point.index


def new_loss(optimizer: str, point: Point) -> float:
    return 0.3 + 0.1 * point.index


@pytest.fixture
def own(tmp_path) -> Path:
    """A study file in a folder of its own, with custom code next to it."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path / "study.toml"


@pytest.fixture
def changed(own, store) -> lf.Study:
    """The study after its code has changed; the store has its trials of the old code."""
    lf.compare(lf.load_study(own), store, executor=FormulaExecutor(old_loss))
    return change(own)


def change(own: Path, code: str = OWN + "# changed\n") -> lf.Study:
    (own.parent / "own.py").write_text(code)
    return lf.load_study(own)


def values(comparison: lf.Comparison, name: str = "own") -> list[float]:
    return [round(float(value), 3) for value in comparison.outcome(name).values()]


def test_a_run_stops_if_the_code_has_changed(changed, store):
    executor = FormulaExecutor(new_loss)
    with pytest.raises(StaleTrials) as caught:
        lf.compare(changed, store, executor=executor)
    assert str(caught.value) == (
        f"3 of 3 stored trials of own were trained with a {OLD}; "
        'pass stale="retrain" to train them again (the store keeps the old ones apart), or stale="keep" to count them '
        "anyway"
    )
    assert caught.value.exit_code == 2
    assert executor.asked == []
    assert store.count() == 6


def test_retrained_trials_replace_the_old_ones_and_built_in_rules_keep_theirs(changed, store):
    executor = FormulaExecutor(new_loss)
    comparison = lf.compare(changed, store, executor=executor, stale="retrain")
    assert executor.asked == ["own"]  # sgd on the quadratic does not depend on the code
    assert values(comparison) == [0.3, 0.4, 0.5]
    assert values(comparison, "sgd") == [3.0, 2.5, 2.0]
    assert not any(OLD in sentence for sentence in comparison.sentences())
    assert store.count() == 9  # nothing is lost
    assert values(lf.compare(changed, store, executor=FormulaExecutor(old_loss))) == [0.3, 0.4, 0.5]


def test_going_back_to_the_old_code_brings_its_trials_back(changed, own, store):
    lf.compare(changed, store, executor=FormulaExecutor(new_loss), stale="retrain")
    before = change(own, OWN)
    with pytest.raises(StaleTrials):
        lf.compare(before, store)
    executor = FormulaExecutor(new_loss)
    assert values(lf.compare(before, store, executor=executor, stale="retrain")) == [3.0, 2.5, 2.0]
    assert executor.asked == []
    assert values(lf.compare(change(own), store, executor=executor, stale="retrain")) == [0.3, 0.4, 0.5]
    assert executor.asked == []
    assert store.count() == 9


def test_trials_that_are_kept_are_said_to_be_mixed(changed, store):
    comparison = lf.compare(changed.replace(pool=5), store, executor=FormulaExecutor(new_loss), stale="keep")
    assert values(comparison) == [3.0, 2.5, 2.0, 0.6, 0.7]
    assert comparison.sentences()[0] == (
        f"3 of 5 trials of own were trained with a {OLD}; its results mix 2 versions, which may not be comparable."
    )
    with pytest.raises(StaleTrials, match=r"^3 of 5 stored trials of own"):
        lf.compare(changed.replace(pool=5), store)


def test_trials_of_the_old_code_are_shown_with_a_word(changed, store, tmp_path):
    comparison = lf.Comparison.load(changed, store)
    sentence = f"All trials of own were trained with a {OLD}."
    assert comparison.sentences()[0] == sentence
    page = comparison.write_report(tmp_path / "report.html").read_text("utf-8")
    assert page.count(sentence) == 1
    assert page.index(sentence) < page.index("<h1>")


def test_unchanged_code_and_trials_without_a_version_need_no_word(own, store):
    study = lf.load_study(own)
    lf.compare(study, store, executor=FormulaExecutor(old_loss))
    again = lf.compare(study, store, executor=FormulaExecutor(old_loss))
    without_code = lf.Study(**{key: value for key, value in study.spec().items() if key != "code"})
    assert without_code.identity("own") == study.identity("own")
    for comparison in (again, lf.Comparison.load(without_code, store)):
        assert not any("version" in sentence for sentence in comparison.sentences())


def test_results_can_be_read_after_the_code_file_is_gone(own, store):
    """A server, or a notebook, has run it."""
    study = lf.load_study(own)
    lf.compare(study, store, executor=FormulaExecutor(old_loss))
    (own.parent / "own.py").unlink()
    comparison = lf.Comparison.load(study.replace(trials=1), store)
    assert values(comparison) == [3.0, 2.5, 2.0]
    assert not any("version" in sentence for sentence in comparison.sentences())


def test_a_custom_workload_makes_every_optimizer_depend_on_the_code(own, store):
    own.write_text(STUDY.replace('"quadratic"', '"own_workload"'))
    lf.compare(change(own, OWN + WORKLOAD), store, executor=FormulaExecutor(old_loss))
    with pytest.raises(StaleTrials, match=r"^3 of 3 stored trials of own and 3 of 3 stored trials of sgd were"):
        lf.compare(change(own, OWN + WORKLOAD + "#"), store)


def test_an_unknown_choice_is_refused(changed, store):
    with pytest.raises(UsageError, match=r"^stale = 'ignore': expected 'retrain' or 'keep'"):
        lf.compare(changed, store, stale="ignore")


# Reruns and followed trials


def test_reruns_of_the_old_code_go_with_its_trials(own, store):
    """The best point stays the same, so the old reruns would pass for the new trial's."""
    study = lf.load_study(own)
    lf.compare(study, store, executor=FormulaExecutor(old_loss), reruns=2)
    assert len(lf.Comparison.load(study, store).reruns["own"].pool) == 2
    comparison = lf.compare(change(own), store, executor=FormulaExecutor(old_loss), stale="retrain")
    assert list(comparison.reruns) == ["sgd"]
    assert len(lf.compare(change(own), store, executor=FormulaExecutor(old_loss), reruns=1).reruns["own"].pool) == 1


def test_reruns_of_another_version_than_the_best_trial_are_said(changed, store):
    with pytest.raises(StaleTrials, match=r"^3 of 3 stored trials of own"):
        rerun(changed, store, seeds=2, executor=FormulaExecutor(new_loss))
    rerun(changed, store, seeds=2, executor=FormulaExecutor(new_loss), stale="keep")
    said = lf.Comparison.load(changed, store).sentences()
    assert "own's reruns were trained with a different version of own.py than its best trial." in said[:2]


def test_a_rerun_can_retrain_the_pool_first(changed, store):
    executor = FormulaExecutor(new_loss)
    results, _ = rerun(changed, store, seeds=2, executor=executor, stale="retrain")
    assert executor.trained == [
        *(("study", "own", index) for index in range(3)),
        *(("study_rerun", name, index) for name in ("own", "sgd") for index in range(2)),
    ]
    assert [trial.curve.final("train_loss") for trial in results.trials["own"]] == pytest.approx([0.3, 0.4, 0.5])


def test_followed_trials_of_the_old_code_go_with_its_trials(own, store):
    own.write_text(
        STUDY.replace("[optimizers.own]", '[optimizers.heavy]\nrule = "momentum"\nmomentum = 0.0').replace(
            '"quadratic"', '"own_workload"'
        )
    )
    study = change(own, OWN + WORKLOAD)
    (pair,) = lf.compare(study, store, executor=FormulaExecutor(old_loss), seed_inclusions=True).followed
    assert (pair.special, pair.general) == ("sgd", "heavy")
    again = lf.compare(change(own, OWN + WORKLOAD + "#"), store, executor=FormulaExecutor(old_loss), stale="retrain")
    assert again.followed == []
    (following,) = followings(again.results)
    lf.compare(again.study, store, executor=FormulaExecutor(new_loss), seed_inclusions=True)
    assert len(store.trials(following.study.identity("heavy"))) == 1
    assert math.isclose(
        lf.Comparison.load(again.study, store).followed[0].trial.curve.final("train_loss"), 0.5, rel_tol=1e-6
    )


# The commands


@pytest.fixture
def cli(command, own, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """Run a command on the study after its code has changed."""
    monkeypatch.chdir(own.parent)
    code, _, err = command("compare", "study.toml")
    assert code == 0, err
    change(own)
    return command


@pytest.mark.parametrize("name", ["run", "compare", "ladder", "rerun", "refine --rounds 1 --pool 8"])
def test_commands_that_train_stop_in_one_line(cli, own, name):
    before = {
        path: path.read_bytes() for path in own.parent.rglob("*") if path.is_file() and "pycache" not in str(path)
    }
    command, *options = name.split()
    code, out, err = cli(command, "study.toml", *options)
    assert (code, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert "stored trials of own" in line
    assert line.endswith(
        f"were trained with a {OLD}; add --stale retrain to train them again (the store keeps the old ones apart), or "
        f"--stale keep to count them anyway"
    )
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize("name", ["status", "report", "plan", "compare --stale keep"])
def test_commands_say_first_what_is_stale(cli, name):
    command, *options = name.split()
    code, out, err = cli(command, "study.toml", *options)
    assert code == 0, err
    assert out.startswith(f"All trials of own were trained with a {OLD}.")
    assert out.count(OLD) == 1


def test_json_and_exports_say_what_is_stale(cli):
    sentence = f"All trials of own were trained with a {OLD}."
    assert json.loads(cli("status", "study.toml", "--json")[1])["caveats"] == [sentence]
    assert json.loads(cli("report", "study.toml", "--json")[1])["sentences"][0] == sentence
    code, _, err = cli("export", "study.toml", "-o", "trials.csv")
    assert code == 0
    assert err.splitlines()[0] == sentence
    assert cli("run", "study.toml", "--stale", "retrain", "--optimizers", "own")[0] == 0
    assert cli("run", "study.toml", "--pool", "4")[0] == 0
    assert "version" not in cli("export", "study.toml", "-o", "again.csv")[2]
    old, new = (polars.read_csv(name).filter(polars.col("optimizer") == "own") for name in ("trials.csv", "again.csv"))
    assert len(set(old["code"])) == len(set(new["code"])) == 1
    assert old["code"][0] != new["code"][0]
