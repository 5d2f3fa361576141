"""The progress of a run: what the store already has counts, too."""

from __future__ import annotations

import io
import math
import os
import signal

import numpy as np
import pytest
from fakes import FormulaExecutor, Interrupted
from helpers import make_study
from rich.console import Console

import levelfield as lf
from levelfield import interruption
from levelfield.cli.common import showing_progress
from levelfield.cli.progress import RunProgress
from levelfield.run import run
from levelfield.trial import Curve, Point, Progress, Status, Trial

STUDY = make_study({"sgd": {"learning_rate": {"log": [1e-3, 1e-1]}}}, trials=1, pool=6)


def loss(optimizer: str, point: Point) -> float:
    """The first trial is the best, and the second infeasible."""
    return math.inf if point.index == 1 else 1.0 + point.index


def shown(store, executor: FormulaExecutor, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal, color_system=None)
    with RunProgress(STUDY, console=console) as progress:
        run(STUDY, store, executor, progress)
    return console.file.getvalue()


@pytest.mark.parametrize("terminal", [False, True], ids=["plain", "live"])
def test_a_resumed_run_shows_the_best_of_all_stored_trials(store, terminal):
    with pytest.raises(Interrupted):
        shown(store, FormulaExecutor(loss, stretches=3))
    text = shown(store, FormulaExecutor(loss), terminal)
    last = [line for line in text.splitlines() if "sgd" in line][-1]  # a live table is followed by the speed
    assert "6/6" in last
    if terminal:
        assert last.split() == ["✓", "sgd", "6/6", "1", "0", "1"]  # feasible, infeasible, running, best
    else:
        assert last.startswith("sgd: 6/6 feasible, 1 infeasible, 0 running, best 1;")


def test_a_complete_study_shows_its_best_and_runs_nothing(store):
    run(STUDY, store, FormulaExecutor(loss))
    assert shown(store, FormulaExecutor(loss)) == (
        "sgd: 6/6 feasible, 1 infeasible, 0 running, best 1; nothing to run\n"
    )


def test_trials_beyond_the_pool_do_not_count(store):
    """A larger study of the same trials may have found a better one."""
    run(STUDY.replace(pool=12), store, FormulaExecutor(lambda _, point: 20.0 - point.index))
    assert "6/6 feasible, 0 infeasible, 0 running, best 15;" in shown(store, FormulaExecutor(loss))


def test_notes_are_shown():
    console = Console(file=io.StringIO(), width=100)
    trial = Trial(Point(0, {}, 0), Status.FEASIBLE, Curve(np.array([4]), {"train_loss": np.array([0.5])}))
    with RunProgress(STUDY, console=console) as progress:
        progress.advance(Progress("sgd", [trial], trial_steps=4, seconds=0.1, note="fewer slots"))
    assert progress.finished == 1
    assert "sgd: fewer slots" in console.file.getvalue()


OWN_CODE = lf.Study(
    workload="mine",
    command=("true",),
    metrics={"train_loss": "minimize"},
    select="train_loss",
    steps=2,
    trials=1,
    optimizers={"sgd": {"learning_rate": 0.1}},
)


def interrupt_a_run(study: lf.Study) -> None:
    with showing_progress(study, "trials.db"):
        os.kill(os.getpid(), signal.SIGINT)
        interruption.sleep(10)


@pytest.mark.parametrize(
    ("study", "when"),
    [(STUDY, "at the next evaluation"), (OWN_CODE, "now: unfinished trials will be trained again")],
    ids=["jax", "own code"],
)
def test_an_interrupted_run_says_when_it_stops(study, when, capfd):
    with pytest.raises(SystemExit):
        interrupt_a_run(study)
    announced, *_, told = capfd.readouterr().err.splitlines()
    assert announced == f"levelfield: stopping {when}; interrupt again to stop at once"
    assert told.startswith("levelfield: Interrupted; 0 trials of this run are saved in trials.db. Resume with: ")
