"""Ctrl-C and SIGTERM at any moment: a message, exit code 130, what is finished is saved, the rest goes back."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sqlite3
import sys
import time
from pathlib import Path

import pytest
from processes import Commands, Running
from slow import slow_training
from stores import Pool, assert_complete, claimed, stored

MOMENTS = int(os.environ.get("FAULTS_MOMENTS", 3))
RUN = ("run", "study.toml", "--store", "trials.db", "--slots", "4")
# A stretch of training takes minutes.
LONG_STUDY = """
workload = "wilson"
steps = 2_000_000
eval_interval = 2_000_000
trials = 1
pool = 2

[optimizers.sgd]
learning_rate = { log = [1e-3, 1e-2] }
"""


def handles(number: signal.Signals, runner: Running) -> bool:
    """Return whether a process has a handler for a signal."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{runner.pid}/status").read_text())
    return bool(caught and int(caught[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("number", range(MOMENTS))
def test_a_run_can_be_interrupted_while_it_starts(number: int, commands: Commands, tmp_path: Path) -> None:
    """While it imports, reads the study, opens the store, or compiles."""
    generator = random.Random(number)
    ending = generator.choice([signal.SIGINT, signal.SIGTERM])
    runner = commands.start(*RUN, "--steps", "1000000")  # it does not end by itself meanwhile
    runner.wait_until(lambda: handles(signal.SIGTERM, runner))
    with contextlib.suppress(AssertionError):
        runner.wait_until(lambda: False, timeout=3.5 * (number + generator.random()) / MOMENTS)
    runner.send(ending)
    # Python kills itself by SIGINT if the interruption fell into certain imports; a shell reports 130 for that, too.
    assert runner.code() in (130, -signal.SIGINT), runner.err
    assert "Traceback" not in runner.err
    assert re.search(r"levelfield: [Ii]nterrupted", runner.err.splitlines()[-1])
    assert claimed(str(tmp_path / "trials.db")) == 0


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_run_saves_what_is_finished_and_says_how_to_resume(
    ending: signal.Signals, commands: Commands, tmp_path: Path, undisturbed: Pool
) -> None:
    location, study = tmp_path / "my trials.db", tmp_path / "it's a study.toml"
    (tmp_path / "study.toml").rename(study)
    runner = commands.fork("run", study.name, "--store", location.name, "--slots", "4", before=slow_training)
    runner.wait_until(lambda: len(stored(str(location))) >= 8)
    runner.send(ending)
    assert runner.code() == 130, runner.err
    last = runner.err.splitlines()[-1]
    told = re.fullmatch(
        r"levelfield: Interrupted; (\d+) trials of this run are saved in my trials.db. Resume with: (.*)", last
    )
    assert told, runner.err
    assert len(stored(str(location))) == int(told[1])
    assert claimed(str(location)) == 0
    # The command is meant for a shell in which levelfield is installed.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    resumed = commands.start(command=["sh", "-c", told[2]], PATH=path)
    assert resumed.code() == 0, resumed.err
    assert_complete(study, str(location), undisturbed)


def test_a_second_ctrl_c_ends_a_run_at_once(commands: Commands, tmp_path: Path) -> None:
    """Even in the middle of a long stretch of training, where Python handles no signals."""
    (tmp_path / "study.toml").write_text(LONG_STUDY)
    runner = commands.fork(*RUN)
    runner.wait_until(lambda: claimed(str(tmp_path / "trials.db")))
    time.sleep(1.5)  # it compiles, then it trains
    runner.send(signal.SIGINT)
    runner.says("levelfield: stopping at the next evaluation; interrupt again to stop at once\n")
    time.sleep(0.6)
    runner.send(signal.SIGINT)
    assert runner.code(timeout=5) == 130
    assert runner.err.splitlines()[-1].startswith("levelfield: Interrupted; 0 trials of this run are saved in")
    assert "0/2 feasible, 0 infeasible" in commands.run("status", *RUN[1:4]).out


def test_a_run_that_waits_for_a_lock_can_be_interrupted(commands: Commands, tmp_path: Path, undisturbed: Pool) -> None:
    """The trials that it could not save are not counted as saved."""
    location = str(tmp_path / "trials.db")
    runner = commands.fork(*RUN, before=slow_training)
    runner.wait_until(lambda: len(stored(location)) >= 4)
    with contextlib.closing(sqlite3.connect(location, isolation_level=None, timeout=10)) as other:
        other.execute("BEGIN IMMEDIATE")
        before = len(stored(location))
        runner.says("trials.db: waiting for the store (database is locked)")
        runner.send(signal.SIGINT)
        assert runner.code(timeout=10) == 130
        assert f"Interrupted; {before} trials of this run are saved" in runner.err.splitlines()[-1]
        assert len(stored(location)) == before
    assert commands.run(*RUN).code() == 0
    assert_complete(tmp_path / "study.toml", location, undisturbed)


def test_a_run_that_waits_for_other_runners_can_be_interrupted(
    commands: Commands, tmp_path: Path, undisturbed: Pool
) -> None:
    location = str(tmp_path / "trials.db")
    stopped = commands.fork(*RUN, before=slow_training)
    stopped.wait_until(lambda: claimed(location, stopped.pid))
    stopped.send(signal.SIGSTOP)
    waiting = commands.fork(*RUN)
    waiting.says("that other workers are training")
    waiting.send(signal.SIGTERM)
    assert waiting.code(timeout=10) == 130
    assert "levelfield: Interrupted; " in waiting.err.splitlines()[-1]
    assert claimed(location) == claimed(location, stopped.pid)
    stopped.send(signal.SIGCONT)
    assert stopped.code() == 0, stopped.err
    assert_complete(tmp_path / "study.toml", location, undisturbed)


def test_a_run_in_the_background_of_a_script_reacts_to_ctrl_c(commands: Commands, tmp_path: Path) -> None:
    """Shells let background jobs ignore SIGINT."""
    command = f"{sys.executable} -m levelfield {' '.join(RUN)} & echo $! > pid; wait $!; exit $?"
    (tmp_path / "study.toml").write_text(LONG_STUDY)
    script = commands.start(command=["sh", "-c", command])
    script.wait_until(lambda: claimed(str(tmp_path / "trials.db")))
    for _ in range(2):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGINT)
        time.sleep(0.6)
    assert script.code(timeout=10) == 130
    assert "levelfield: Interrupted; " in script.err
