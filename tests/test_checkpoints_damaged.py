"""Nothing about a checkpoint can end a run: foreign and damaged ones, and saving that fails."""

from __future__ import annotations

import json
import random
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_helpers import (
    STEPS,
    STUDY,
    assert_equal,
    checkpoint,
    finish,
    points,
    saving,
    segments,
    stop,
    undisturbed,
)

from levelfield.executors import _jax
from levelfield.executors._jax import JaxExecutor
from levelfield.training import checkpoints as module
from levelfield.training.checkpoints import CheckpointFolder, Checkpoints
from levelfield.training.program import program

# Checkpoints that are foreign or damaged


def restarted(folder: Path, executor: JaxExecutor | None = None) -> list[str]:
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
    slots = [JaxExecutor(asked).slots(STUDY) for asked in (4, 2)]
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
    compiled = program(_jax.job(STUDY, "adam"), executor.slots(STUDY))
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


def assert_trains_without(executor: JaxExecutor, folder: Path) -> None:
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
