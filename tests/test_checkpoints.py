"""Checkpoints: a run that was killed continues its trials exactly, and nothing about a checkpoint can end a run."""

from __future__ import annotations

import functools
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_helpers import WALK, by_index, from_list

import levelfield as lf
from levelfield import run
from levelfield.data import Data, Stream
from levelfield.executors import local
from levelfield.executors.base import hand_out
from levelfield.executors.local import LocalExecutor
from levelfield.rules import get_rule
from levelfield.search import Search
from levelfield.training import checkpoints as module
from levelfield.training.checkpoints import CheckpointFolder, Checkpoints, InFlight
from levelfield.training.program import Job, program
from levelfield.training.slots import train
from levelfield.trial import Point, Progress, Trial
from levelfield.workload import Workload

STEPS, INTERVAL = 22, 4  # the last stretch is shorter
STUDY = lf.Study(
    workload="quadratic",
    steps=STEPS,
    eval_interval=INTERVAL,
    trials=1,
    pool=5,
    optimizers={
        # Some of the learning rates diverge, at once or later.
        "momentum": {"learning_rate": {"log": [1e-3, 1e1]}, "momentum": 0.9},
        "adam": {"learning_rate": {"log": [1e-3, 1e-1]}, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8},
    },
)


def points(count: int = 5, optimizer: str = "momentum") -> list[Point]:
    return [Search(STUDY, optimizer).point(index) for index in range(count)]


def saving(folder: Path, slots: int = 4) -> LocalExecutor:
    """Return an executor that saves after each segment."""
    return LocalExecutor(slots, CheckpointFolder(folder, interval=0.0))


def segments(executor: LocalExecutor, handed_out: list[Point], optimizer: str = "momentum") -> Iterator[Progress]:
    return executor.train(STUDY, hand_out(optimizer, handed_out))


def stop(progress: Iterator[Progress], after: int) -> list[Trial]:
    """Let a run train some segments, as if it was killed then; return what has finished."""
    finished = []
    for segment in progress:
        finished += segment.finished
        after -= segment.trial_steps > 0
        if after == 0:
            break
    progress.close()  # type: ignore[attr-defined]
    return finished


def finish(progress: Iterator[Progress]) -> tuple[list[Trial], list[str], int]:
    """Return the finished trials, the notes, and how many steps were trained."""
    parts = list(progress)
    assert not any(part.failed for part in parts)
    trials = [trial for part in parts for trial in part.finished]
    return by_index(trials), [part.note for part in parts if part.note], sum(part.trial_steps for part in parts)


def left(handed_out: list[Point], finished: list[Trial]) -> list[Point]:
    return [point for point in handed_out if point not in [trial.point for trial in finished]]


def assert_equal(ours: list[Trial], theirs: list[Trial]) -> None:
    """Every bit of every curve is the same."""
    assert [trial.point for trial in ours] == [trial.point for trial in theirs]
    for trial, reference in zip(ours, theirs, strict=True):
        assert trial.status is reference.status
        np.testing.assert_array_equal(trial.curve.steps, reference.curve.steps)
        assert list(trial.curve.values) == list(reference.curve.values)
        for metric, values in trial.curve.values.items():
            assert values.tobytes() == reference.curve.values[metric].tobytes(), metric


@functools.cache
def undisturbed(optimizer: str = "momentum", slots: int = 4) -> list[Trial]:
    return finish(segments(LocalExecutor(slots), points(optimizer=optimizer), optimizer))[0]


def checkpoint(folder: Path, after: int = 3, count: int = 3) -> Path:
    """Return the checkpoint of a run that was killed after some segments."""
    stop(segments(saving(folder), points(count, "adam"), "adam"), after)
    (path,) = folder.iterdir()
    return path


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
    assert [failure for part in parts for failure in part.failed] == [
        (handed_out[0], f"the training data ended after 2 of {STEPS} batches")
    ]
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
    list(segments(LocalExecutor(4, CheckpointFolder(tmp_path, interval=1e6)), points()))
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


# Checkpoints that are foreign or damaged


def restarted(folder: Path, executor: LocalExecutor | None = None) -> list[str]:
    """Train again in a folder whose checkpoint must be of no use; return the notes."""
    trials, notes, steps = finish(segments(executor or saving(folder), points(3, "adam"), "adam"))
    assert_equal(trials, undisturbed("adam")[:3])
    assert steps == 3 * STEPS
    assert not folder.exists()  # once the trials have ended, it is of no use to anybody
    return notes


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("jax", "0.0.1"), "it was made with jax 0.0.1, not "),
        (("levelfield", "9.9"), "it was made with levelfield 9.9, not "),
        (("device", "NVIDIA H200"), "it was made with device NVIDIA H200, not cpu"),
        (("optimizer", "other"), "it was made with optimizer other, not "),
        (("code", "other"), "it was made with code other, not "),
        (("shapes", "other"), "it was made with shapes other, not "),
        (("format", 0), "it was made with format 0, not 1"),
        (("slots", None), "it was made with slots None, not "),
    ],
)
def test_foreign_checkpoints_are_ignored(change, reason, tmp_path):
    path = checkpoint(tmp_path)
    stored = json.loads((path / "trials.json").read_text())
    stored["content"]["origin"] |= dict([change])
    stored["digest"] = module.digest(stored["content"])
    (path / "trials.json").write_text(json.dumps(stored))
    (note,) = restarted(tmp_path)
    assert note.startswith(f"checkpoint {path.name} is ignored: {reason}")


def test_another_number_of_slots_does_not_continue_a_checkpoint(tmp_path):
    """It could round in another way."""
    path = checkpoint(tmp_path)
    trials, notes, steps = finish(segments(saving(tmp_path, 2), points(3, "adam"), "adam"))
    assert_equal(trials, undisturbed("adam", 2)[:3])
    assert steps == 3 * STEPS
    slots = [LocalExecutor(asked)._count(STUDY) for asked in (4, 2)]
    assert notes == [f"checkpoint {path.name} is ignored: it was made with slots {slots[0]}, not {slots[1]}"]


def test_other_hyperparameters_of_the_same_index_are_another_trial(tmp_path):
    checkpoint(tmp_path)
    other = [replace(point, seed=point.seed + 1) for point in points(3, "adam")]
    _, _, steps = finish(segments(saving(tmp_path), other, "adam"))
    assert steps == 3 * STEPS


def flip_a_bit(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def delete(path: Path, chance: random.Random) -> None:
    path.unlink()


def empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def zero(path: Path, chance: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("pristine"))


@pytest.mark.parametrize("damage", [flip_a_bit, truncate, delete, empty, zero])
def test_damage_anywhere_is_noticed_or_harmless(damage: Callable[..., None], pristine, tmp_path):
    """A damaged checkpoint gives nothing but one line; a bit may be flipped where it changes nothing, as in 1e-3."""
    files = sorted(path.relative_to(pristine) for path in pristine.rglob("*") if path.is_file())
    expected = Checkpoints(CheckpointFolder(pristine.parent), STUDY.identity("adam"), _origin()).find(points(3, "adam"))
    assert len(expected) == 3
    noticed = 0
    for seed in range(60):
        chance = random.Random(seed)
        damaged = tmp_path / str(seed) / pristine.name
        shutil.copytree(pristine, damaged)
        file = damaged / files[seed % len(files)]
        if file.stat().st_size == 0 and damage is not delete:
            continue
        damage(file, chance)
        subject = Checkpoints(CheckpointFolder(damaged.parent), STUDY.identity("adam"), _origin())
        found = subject.find(points(3, "adam"))
        if found:
            assert subject.notes == []
            for index, (trial, state) in found.items():
                assert trial.record() == expected[index].trial.record()
                assert state.tobytes() == expected[index].state.tobytes()
        else:
            (note,) = subject.notes
            assert note.startswith(f"checkpoint {pristine.name} is ignored: ")
            assert "\n" not in note
            noticed += 1
    assert noticed >= 50


def _origin() -> dict[str, Any]:
    """What the checkpoints of this process's executor belong to."""
    executor = saving(Path("unused"))
    compiled = program(local.job(STUDY, "adam"), executor._count(STUDY))
    return executor._checkpoints(STUDY, "adam", compiled)._origin  # type: ignore[union-attr]


@pytest.mark.parametrize("damage", [flip_a_bit, truncate, delete])
@pytest.mark.parametrize("file", ["trials.json", "state/_METADATA", "state/manifest.ocdbt"])
def test_a_run_goes_on_with_a_damaged_checkpoint(damage, file, tmp_path):
    path = checkpoint(tmp_path)
    damage(path / file, random.Random(1))
    (note,) = restarted(tmp_path)
    assert note.startswith(f"checkpoint {path.name} is ignored: ")


def test_something_else_in_the_folder_is_no_checkpoint(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / f"{STUDY.identity('adam')}-file").write_text("no folder")
    trials, notes, _ = finish(segments(saving(tmp_path), points(3, "adam"), "adam"))
    assert_equal(trials, undisturbed("adam")[:3])
    assert len(notes) == 1
    assert (tmp_path / "notes.txt").read_text() == "mine"


# Saving that fails


def assert_trains_without(executor: LocalExecutor, folder: Path) -> None:
    trials, notes, _ = finish(segments(executor, points(3, "adam"), "adam"))
    assert_equal(trials, undisturbed("adam")[:3])
    (note,) = notes
    assert note.startswith(f"cannot save a checkpoint in {folder} (")
    assert note.endswith("); training goes on without")


def test_a_full_disk_is_noted_once_and_training_goes_on(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)
    assert_trains_without(saving(tmp_path), tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_disk_that_fills_up_while_orbax_writes_leaves_nothing_behind(tmp_path):
    """No file may be larger than 1,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        assert_trains_without(saving(tmp_path / "small"), tmp_path / "small")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not any((tmp_path / "small").iterdir())


def test_a_folder_that_cannot_be_made_is_noted_once(tmp_path):
    (tmp_path / "file").write_text("")
    assert_trains_without(saving(tmp_path / "file" / "checkpoints"), tmp_path / "file" / "checkpoints")


def test_an_earlier_checkpoint_survives_a_save_that_fails(tmp_path, monkeypatch):
    path = checkpoint(tmp_path)
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)
    stop(segments(saving(tmp_path), points(3, "adam"), "adam"), after=2)
    assert [*tmp_path.iterdir()] == [path]


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
