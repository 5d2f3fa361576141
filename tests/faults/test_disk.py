"""A disk that is full for a while or for good, and stores that cannot be written."""

from __future__ import annotations

import os
import pwd
import resource
import tempfile
import time
from pathlib import Path

import pytest
from processes import Commands, Running
from slow import slow_training
from stores import Pool, assert_complete, stored

from levelfield.store import Store

RUN = ("run", "study.toml", "--store", "trials.db", "--slots", "4")


def fill(runner: Running, tmp_path: Path) -> None:
    """Let no file of the process grow beyond the size that the store's log has now, as on a full disk."""
    size = (tmp_path / "trials.db-wal").stat().st_size
    resource.prlimit(runner.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_run_waits_for_a_full_disk(commands: Commands, tmp_path: Path, undisturbed: Pool) -> None:
    location = str(tmp_path / "trials.db")
    runner = commands.fork(*RUN, before=slow_training)
    runner.wait_until(lambda: len(stored(location)) >= 4)
    fill(runner, tmp_path)
    time.sleep(1)
    before = stored(location)
    time.sleep(1)
    assert stored(location) == before
    resource.prlimit(runner.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert runner.code() == 0, runner.err
    assert "Traceback" not in runner.err
    assert_complete(tmp_path / "study.toml", location, undisturbed)


def test_a_disk_that_stays_full_ends_the_run(commands: Commands, tmp_path: Path, undisturbed: Pool) -> None:
    """With exit code 1, because trials were written; 2 would mean that nothing was."""
    location = str(tmp_path / "trials.db")
    runner = commands.fork(*RUN, before=slow_training, LEVELFIELD_PATIENCE="1")
    runner.wait_until(lambda: len(stored(location)) >= 4)
    fill(runner, tmp_path)
    assert runner.code() == 1, runner.err
    assert "Traceback" not in runner.err
    assert runner.err.splitlines()[-1].startswith("levelfield: trials.db: cannot write the store (")
    commands.run(*RUN)
    assert_complete(tmp_path / "study.toml", location, undisturbed)


def as_nobody() -> None:
    """Root can write everywhere, so root opens the store as nobody."""
    Store.open("sqlite://").close()  # imports what nobody may not read
    really_open = Store.open

    def open_as_nobody(*arguments: object, **options: object) -> Store:
        if os.geteuid() == 0:
            os.seteuid(pwd.getpwnam("nobody").pw_uid)
        return really_open(*arguments, **options)

    Store.open = open_as_nobody


@pytest.mark.parametrize("exists", [False, True], ids=["new store", "read-only store"])
def test_an_unwritable_store_is_noticed_before_training(exists: bool, commands: Commands) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "trials.db"
        if exists:
            Store.open(store).close()
            store.chmod(0o444)
        Path(folder).chmod(0o555)
        runner = commands.fork("run", "study.toml", "--store", str(store), before=as_nobody)
        assert runner.code() == 2, runner.err
        Path(folder).chmod(0o755)
    (line,) = runner.err.splitlines()
    assert line.startswith(f"levelfield: {store}: cannot ")


def test_a_store_below_a_file_is_refused(commands: Commands) -> None:
    runner = commands.fork("run", "study.toml", "--store", "study.toml/trials.db")
    assert runner.code() == 2
    (line,) = runner.err.splitlines()
    assert line == "levelfield: study.toml: cannot create the folder (File exists)"
