"""Checkpoints: a run that was killed continues its trials exactly, and leaves no checkpoint behind."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_helpers import (
    INTERVAL,
    STEPS,
    STUDY,
    assert_equal,
    checkpoint,
    finish,
    left,
    points,
    saving,
    segments,
    stop,
    undisturbed,
)
from training_helpers import WALK, by_index, from_list

import levelfield as lf
from levelfield import run
from levelfield.data import Data, Stream
from levelfield.executors._jax import JaxExecutor
from levelfield.rules import get_rule
from levelfield.training import checkpoints as module
from levelfield.training.checkpoints import CheckpointFolder, Checkpoints, InFlight
from levelfield.training.program import program
from levelfield.training.slots import train
from levelfield.training.step import Job
from levelfield.trial import Point, Progress
from levelfield.workload import Workload

# Continuing


@pytest.mark.parametrize("seed", range(6))
def test_killed_any_number_of_times_every_curve_is_the_same(seed, tmp_path):
    """The points come in another order each time, so the trials come back in other slots."""
    chance = random.Random(seed)
    optimizer, slots = chance.choice(["momentum", "adam"]), chance.choice([1, 2, 3, 4])
    handed_out, finished = points(optimizer=optimizer), []
    for _ in range(3):
        remaining = left(handed_out, finished)
        chance.shuffle(remaining)
        finished += stop(segments(saving(tmp_path, slots), remaining, optimizer), after=chance.randint(2, 4))
    last, _, steps = finish(segments(saving(tmp_path, slots), left(handed_out, finished), optimizer))
    expected = undisturbed(optimizer, slots)
    assert_equal(by_index(finished + last), expected)
    whole = sum(int(trial.curve.steps[-1]) for trial in expected)
    assert steps < whole
    CheckpointFolder(tmp_path).prune(STUDY.identity(optimizer), range(5))
    assert not tmp_path.exists()


def test_a_trial_continues_with_its_time_and_in_any_slot(tmp_path):
    handed_out = points(3, "adam")
    stop(segments(saving(tmp_path), handed_out, "adam"), after=4)  # of 6 segments; 3 are saved
    before = time.time()
    trials, notes, steps = finish(segments(saving(tmp_path), handed_out[::-1], "adam"))
    assert_equal(trials, undisturbed("adam")[:3])
    assert notes == ["continuing 3 trials from a checkpoint"]
    assert steps == 3 * (STEPS - 3 * INTERVAL)
    assert all(trial.started < before for trial in trials)


@pytest.mark.parametrize(("seconds", "is_saved"), [(0.0, True), (3600.0, False)])
def test_a_run_that_is_stopped_saves_trials_that_have_trained_for_a_while(tmp_path, monkeypatch, seconds, is_saved):
    """By Ctrl-C or SIGTERM. Nothing was saved before, because the interval is long."""
    monkeypatch.setattr("levelfield.training.checkpoints._WORTH_SAVING", seconds)
    executor = JaxExecutor(4, CheckpointFolder(tmp_path / "saved", interval=3600.0))
    progress = segments(executor, points(3, "adam"), "adam")
    next(progress)
    next(progress)
    progress.close()
    assert (tmp_path / "saved").exists() == is_saved
    trials, notes, _ = finish(segments(executor, points(3, "adam"), "adam"))
    assert notes == (["continuing 3 trials from a checkpoint"] if is_saved else [])
    assert_equal(trials, undisturbed("adam")[:3])


def test_seconds_add_up_over_both_runs(tmp_path, monkeypatch):
    """Each segment takes a second by a clock of our own."""
    ticks = iter(range(1_000))
    monkeypatch.setattr("levelfield.training.slots.time.perf_counter", lambda: float(next(ticks)))
    stop(segments(saving(tmp_path), points(2, "adam"), "adam"), after=4)
    trials, _, _ = finish(segments(saving(tmp_path), points(2, "adam"), "adam"))
    assert [trial.seconds for trial in trials] == [6 / 2, 6 / 2]


def test_resumed_steps_are_reported_for_the_estimate_of_the_time_left(tmp_path):
    checkpoint(tmp_path, after=3)
    parts = list(segments(saving(tmp_path), points(3, "adam"), "adam"))
    assert sum(part.resumed_steps for part in parts) == 3 * 2 * INTERVAL
    assert sum(part.resumed_steps + part.trial_steps for part in parts) == 3 * STEPS


def test_the_checkpoint_that_has_got_furthest_counts(tmp_path):
    early, late = tmp_path / "early", tmp_path / "late"
    first, second = checkpoint(early, after=2), checkpoint(late, after=5)
    shutil.move(first, late / f"{second.name}1")
    _, _, steps = finish(segments(saving(late), points(3, "adam"), "adam"))
    assert steps == 3 * (STEPS - 4 * INTERVAL)


def test_a_worker_takes_over_single_trials_of_another(tmp_path):
    """Two workers share what a third has left behind; the checkpoint stays until both are done with it."""
    handed_out = points(3, "adam")
    path = checkpoint(tmp_path)
    ours, _, steps = finish(segments(saving(tmp_path), handed_out[2:], "adam"))
    assert steps == STEPS - 2 * INTERVAL
    assert path.exists()
    CheckpointFolder(tmp_path).prune(STUDY.identity("adam"), {2})
    assert path.exists()
    theirs, _, steps = finish(segments(saving(tmp_path), handed_out[:2], "adam"))
    assert steps == 2 * (STEPS - 2 * INTERVAL)
    assert_equal(by_index(ours + theirs), undisturbed("adam")[:3])
    CheckpointFolder(tmp_path).prune(STUDY.identity("adam"), {0, 1, 2})
    assert not tmp_path.exists()


# Streams


def stream_of(reads: list[int]) -> Workload:
    """A workload that streams what the random walk reads from memory, and tells which batches were read."""

    def batches(seed: int, batch_size: int) -> Iterator[Any]:
        chance = np.random.default_rng(seed)
        while True:
            reads.append(seed)
            yield (chance.integers(0, 10, batch_size),)

    data = Data(Stream(10, (np.int64(0),), batches), {"train": (np.arange(10),)})
    return replace(WALK, name="walk_stream", load=lambda: data)


def streamed(on: Workload, folder: Path | None, handed_out: list[Point]) -> Iterator[Progress]:
    traced = tuple(handed_out[0].hyperparameters)
    job = Job(on, get_rule("sgd"), "constant", STEPS, 5, INTERVAL, traced)
    checkpoints = Checkpoints(CheckpointFolder(folder, 0.0), "walk", {}) if folder else None
    return train(program(job, 2), "sgd", from_list(handed_out), checkpoints)


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_stream_goes_on_after_the_batches_that_were_read(after, tmp_path):
    """The walk records which examples it has met, so a batch too many or too few would show."""
    reads: list[int] = []
    on = stream_of(reads)
    handed_out = [Point(i, {"learning_rate": 1.0, "pull": 1.0}, seed=i) for i in range(2)]
    expected, _, _ = finish(streamed(on, None, handed_out))
    stop(streamed(on, tmp_path, handed_out), after)
    reads.clear()
    trials, _, steps = finish(streamed(on, tmp_path, handed_out[::-1]))
    assert_equal(trials, expected)
    assert steps == 2 * (STEPS - (after - 1) * INTERVAL)
    assert sorted(reads) == [0] * STEPS + [1] * STEPS  # skipped and trained on, but none after the end


def test_a_stream_that_fails_while_it_is_skipped_fails_its_trial_alone(tmp_path):
    reads: list[int] = []
    on = stream_of(reads)
    handed_out = [Point(i, {"learning_rate": 1.0, "pull": 1.0}, seed=i) for i in range(2)]
    stop(streamed(on, tmp_path, handed_out), after=3)

    def failing(seed: int, batch_size: int) -> Iterator[Any]:
        yield from ((np.arange(5),) for _ in range(100 if seed else 2))

    data = Data(Stream(10, (np.int64(0),), failing), {"train": (np.arange(10),)})
    parts = list(streamed(replace(on, load=lambda: data), tmp_path, handed_out))
    ((point, reason),) = [(failure.point, failure.reason) for part in parts for failure in part.failed]
    assert point == handed_out[0]
    assert reason == f"the training data ended after 2 of {STEPS} batches"
    assert [trial.point for part in parts for trial in part.finished] == [handed_out[1]]


def test_a_state_of_any_types_and_shapes_is_restored():
    """Also one that has no elements, such as a bias of no units."""
    none = {"none": jnp.zeros((3, 0))}
    mixed = replace(WALK, name="walk_mixed", init=lambda key: ({**WALK.init(key)[0], **none}, jnp.int8(0)))
    compiled = program(Job(mixed, get_rule("momentum"), "constant", 8, 5, 4, ("learning_rate", "momentum", "pull")), 2)
    numbers = {"learning_rate": np.ones(2), "momentum": np.zeros(2), "pull": np.array([2.0, 3.0])}
    held = compiled.fill(compiled.empty(), np.array([True, True]), np.array([5, 6]), numbers)
    expected = jax.tree.map(np.array, jax.device_get(held))
    restored = compiled.restore(compiled.empty(), {0: compiled.snapshot(held)[1]})
    for ours, theirs in zip(jax.tree.leaves(restored), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours[0], theirs[1])
        np.testing.assert_array_equal(ours[1], np.zeros_like(theirs[1]))


# When checkpoints are written and removed


def test_a_checkpoint_is_replaced_and_removed_at_the_end(tmp_path):
    seen = []
    for _ in segments(saving(tmp_path), points()):
        seen.append(sorted(path.name for path in tmp_path.iterdir()) if tmp_path.exists() else [])
    assert all(len(names) <= 1 for names in seen)
    assert len({name for names in seen for name in names}) >= 5
    assert not tmp_path.exists()


def test_trials_shorter_than_the_interval_are_not_saved(tmp_path, monkeypatch):
    """Slots are never empty for longer than the interval, but no trial is in one for so long."""
    now = iter(range(30, 10_000, 10))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(now)))  # 10 seconds between any two looks
    saved = []
    monkeypatch.setattr(Checkpoints, "save", lambda self, in_flight, state: saved.append(in_flight))
    entered = [InFlight(point, 0.0, entered=10.0 * i) for i, point in enumerate(points(3))]
    checkpoints = Checkpoints(CheckpointFolder(tmp_path, interval=45), "any", {})
    assert not checkpoints.due(entered)  # 30
    assert not checkpoints.due(entered)  # 40
    assert checkpoints.due(entered)  # 50
    assert not checkpoints.due(entered[2:])  # 60: the others have ended
    assert checkpoints.due(entered[2:])  # 70
    assert not checkpoints.due([])
    list(segments(JaxExecutor(4, CheckpointFolder(tmp_path, interval=1e6)), points()))
    assert saved == []


def test_slow_saves_become_rarer(tmp_path):
    checkpoints = Checkpoints(CheckpointFolder(tmp_path, interval=10.0), "any", {})
    trial = InFlight(points(1)[0], 0.0, entered=0.0)
    for took, pause in [(0.1, 10), (1.0, 20), (100.0, 40)]:
        checkpoints._took, checkpoints._saved = took, time.monotonic() - pause + 1
        assert not checkpoints.due([trial])
        checkpoints._saved -= 2
        assert checkpoints.due([trial])


def test_trials_of_another_optimizer_are_left_alone(tmp_path):
    path = checkpoint(tmp_path)
    _, notes, _ = finish(segments(saving(tmp_path), points()))
    assert notes == []
    assert [*tmp_path.iterdir()] == [path]


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    host, own = module._HOST, os.getpid()
    abandoned = [f"tmp-{host}-{int(dead.stdout)}-aaaa-1", f"tmp-{host}-{own}-other-1", "tmp-some-other-host-1-aaaa-1"]
    alive = [f"tmp-{host}-{os.getppid()}-aaaa-1", f"tmp-{host}-{own}-{module._PROCESS}-1", "tmp-new-host-1-aaaa-1"]
    for name in (*abandoned, *alive):
        (tmp_path / name / "arrays").mkdir(parents=True)
    os.utime(tmp_path / abandoned[2], (0, 0))
    CheckpointFolder(tmp_path).prune("any", set())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(alive)


# Where checkpoints go


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        (None, "levelfield-out/quadratic/trials.checkpoints"),
        ("results/my.trials.db", "results/my.trials.checkpoints"),
        (Path("trials"), "trials.checkpoints"),
        ("sqlite:///some/trials.db", "some/trials.checkpoints"),
        ("sqlite://", "levelfield-out/quadratic/checkpoints"),
        ("postgresql://me@host/db", "levelfield-out/quadratic/checkpoints"),
    ],
)
def test_checkpoints_lie_beside_a_file_or_in_the_folder_of_the_study(location, folder):
    study = STUDY.replace(name="quadratic")
    assert run.checkpoint_folder(study, location) == CheckpointFolder(Path(folder), 300)
    assert run.checkpoint_folder(study, location, minutes=0) is None
    if folder.endswith("/checkpoints"):
        assert run.checkpoint_folder(study, location, 1, Path("out")) == CheckpointFolder(Path("out/checkpoints"), 60)


@pytest.mark.parametrize("minutes", [-1, float("nan"), float("inf")])
def test_minutes_must_be_a_number(minutes):
    with pytest.raises(lf.errors.UsageError, match="expected a number of at least 0"):
        run.checkpoint_folder(STUDY, None, minutes)


# A run on the command line

LONG = """
workload = "wilson"
steps = 80_000
eval_interval = 1_000
trials = 1
pool = 2

[optimizers.adam]
learning_rate = { log = [1e-3, 1e-1] }
beta1 = 0.9
beta2 = 0.99
epsilon = 1e-2
"""


def start(folder: Path, minutes: str = "0.0005") -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    (folder / "study.toml").write_text(LONG)
    command = [sys.executable, "-c", "from levelfield.cli import main; main()", "run", "study.toml"]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder.parent / "cache")}
    with (folder / "stderr").open("w") as stderr:
        return subprocess.Popen(
            [*command, "--store", "trials.db", "--checkpoint-minutes", minutes],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )


def curves(folder: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(folder / "trials.db") as connection:
        return connection.execute('SELECT "index", status, steps, curve FROM trials ORDER BY "index"').fetchall()


def test_a_run_that_was_killed_continues_in_the_middle_of_its_trials(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole, minutes="0").wait() == 0
    process = start(killed)
    saved = killed / "trials.checkpoints"
    while process.poll() is None and not any(saved.glob("[!t]*")):
        time.sleep(0.005)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "trials.db").exists() or curves(killed) == []
    assert start(killed).wait() == 0
    assert "adam: continuing 2 trials from a checkpoint" in (killed / "stderr").read_text()
    assert curves(killed) == curves(whole)
    assert len(curves(whole)) == 2
    assert not saved.exists()
    assert not (whole / "trials.checkpoints").exists()
