"""Runners that lose touch: stopped for longer than their lease, without a database for a while, with a wrong clock."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from databases import Server, new_database
from processes import Commands
from slow import slow_training
from stores import Pool, assert_complete, claimed, in_transaction, stored

LEASE = {"LEVELFIELD_LEASE": "1"}


def test_a_runner_that_was_stopped_for_longer_than_its_lease(
    commands: Commands, location: str, tmp_path: Path, undisturbed: Pool
) -> None:
    """Another one trains its points; when it continues, its trials are not stored again."""
    arguments = ("work", "study.toml", "--store", location, "--slots", "4")
    stopped = commands.fork(*arguments, before=slow_training, **LEASE)
    stopped.wait_until(lambda: len(stored(location)) >= 4)
    stopped.send(signal.SIGSTOP)
    while in_transaction(location) or not claimed(location, stopped.pid):  # nobody could work then, or nothing is held
        stopped.send(signal.SIGCONT)
        time.sleep(0.02)
        stopped.send(signal.SIGSTOP)
    commands.run(*arguments, **LEASE)
    assert len(stored(location)) == len(undisturbed)
    stopped.send(signal.SIGCONT)
    assert stopped.code() == 0, stopped.err
    assert "Traceback" not in stopped.err
    assert_complete(tmp_path / "study.toml", location, undisturbed)


def test_runners_survive_a_database_server_that_is_killed(
    commands: Commands, server: Server, tmp_path: Path, undisturbed: Pool
) -> None:
    location = new_database(server.url)
    arguments = ("work", "study.toml", "--store", location, "--slots", "4")
    runners = [commands.fork(*arguments, before=slow_training) for _ in range(2)]
    for end in (server.stop, server.kill):
        before = len(stored(location))
        runners[0].wait_until(lambda before=before: len(stored(location)) > before)
        end()
        time.sleep(0.5)
        server.start()
    assert all(runner.is_running for runner in runners)
    for runner in runners:
        assert runner.code() == 0, runner.err
        assert "Traceback" not in runner.err
    assert_complete(tmp_path / "study.toml", location, undisturbed)


def ahead() -> None:
    _shift_clock(3600)


def behind() -> None:
    _shift_clock(-3600)


def jumping() -> None:
    _shift_clock(0, jump=-7200)


def _shift_clock(seconds: float, jump: float = 0.0) -> None:
    """Let all that tells the time of day be off; with ``jump``, more so half a second after the first look."""
    from levelfield.store.database import Database

    begun = time.monotonic()
    real_time, real_now = time.time, Database.now.fget

    def shift() -> float:
        return seconds + (jump if time.monotonic() - begun > 0.5 else 0.0)

    time.time = lambda: real_time() + shift()
    Database.now = property(lambda database: real_now(database) + sa.literal(shift(), sa.Double))


@pytest.mark.parametrize("clock", [ahead, behind, jumping])
def test_a_wrong_clock_changes_nothing(clock: object, commands: Commands, tmp_path: Path, undisturbed: Pool) -> None:
    """Two runners whose clocks differ may train a point twice; it is stored once."""
    location = str(tmp_path / "trials.db")
    arguments = ("run", "study.toml", "--store", location, "--slots", "4")
    right = commands.fork(*arguments, before=slow_training, **LEASE)
    right.wait_until(lambda: claimed(location))
    wrong = commands.fork(*arguments, before=clock, **LEASE)
    for runner in (right, wrong):
        assert runner.code() == 0, runner.err
        assert "Traceback" not in runner.err
    assert_complete(tmp_path / "study.toml", location, undisturbed)
