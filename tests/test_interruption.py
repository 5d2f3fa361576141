"""A run that is killed or interrupted loses no finished trial, and ends with the same pool."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import levelfield as lf
from levelfield.trial import Trial

STUDY = """
workload = "wilson"
steps = 30_000
eval_interval = 1_000
trials = 4
pool = 16

[optimizers.sgd]
learning_rate = { log = [1e-2, 1e1] }  # diverges at the upper end

[optimizers.adam]
learning_rate = { log = [1e-3, 1e0] }
one_minus_beta1 = { log = [1e-1, 1e0] }
beta2 = 0.99
epsilon = 1e-2
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from levelfield.cli import main; main()"]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder.parent / "cache")}
    with (folder / "stderr").open("w") as stderr:
        return subprocess.Popen(
            [*command, "run", "study.toml", "--store", "trials.db", *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )


def stored(folder: Path) -> int:
    try:
        with sqlite3.connect(folder / "trials.db", timeout=10) as connection:
            return connection.execute("SELECT count(*) FROM trials").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def wait_for(folder: Path, trials: int, process: subprocess.Popen[bytes]) -> None:
    while stored(folder) < trials and process.poll() is None:
        time.sleep(0.01)


def pool(folder: Path) -> dict[tuple[str, int], Trial]:
    study = lf.load_study(folder / "study.toml")
    with lf.Store.open(folder / "trials.db", create=False) as store:
        comparison = lf.Comparison.load(study, store)
    return {(name, trial.point.index): trial for name in study.optimizers for trial in comparison.trials[name]}


@pytest.fixture
def folders(tmp_path):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.toml").write_text(STUDY)
    return tmp_path / "whole", tmp_path / "killed"


def test_a_killed_and_resumed_run_has_the_same_pool(folders):
    whole, killed = folders
    assert start(whole).wait(timeout=120) == 0
    expected = pool(whole)
    assert {trial.status for trial in expected.values()} == {"feasible", "infeasible"}

    generator = random.Random(0)
    kills, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        before = stored(killed)
        process = start(killed)
        if kills < 5:
            wait_for(killed, before + generator.randint(1, 5), process)
            time.sleep(generator.uniform(0, 0.1))
            process.send_signal(signal.SIGKILL)
        code = process.wait(timeout=120)
        kills += code == -signal.SIGKILL
        assert stored(killed) >= before
    assert code == 0
    assert kills >= 3, "the run is too fast to be killed, so the test shows nothing"

    resumed = pool(killed)
    assert resumed.keys() == expected.keys()
    for key, trial in resumed.items():
        other = expected[key]
        assert trial.point == other.point
        assert trial.status == other.status
        for metric, values in trial.curve.values.items():
            np.testing.assert_array_equal(values, other.curve.values[metric], err_msg=f"{key} {metric}")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_run_says_how_to_resume_and_exits_with_130(folders, ending):
    _, folder = folders
    process = start(folder)
    wait_for(folder, 2, process)
    process.send_signal(ending)
    code = process.wait(timeout=60)
    err = (folder / "stderr").read_text()
    assert code == 130, err
    last = err.strip().splitlines()[-1]
    assert last.startswith("levelfield: Interrupted; ")
    assert "of this run are saved in trials.db. Resume with: " in last
    assert "levelfield run study.toml --store trials.db" in last
    assert stored(folder) >= 2
