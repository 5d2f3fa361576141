"""Stores with flipped bits and missing ends: reading gives what was written or an error, never anything else.

FAULTS_STORES sets how many stores are damaged; `make faults` uses 2,000.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fakes import FormulaExecutor
from helpers import make_study

from levelfield.errors import StoreError
from levelfield.run import run
from levelfield.store import Store
from levelfield.trial import Point

STORES = int(os.environ.get("FAULTS_STORES", 100))
STUDY = make_study(trials=2, pool=12)


def train(path: Path) -> FormulaExecutor:
    """Train what is missing; every fifth trial is infeasible."""

    def loss(optimizer: str, point: Point) -> float:
        return 1.0 + point.index if point.index % 5 else float("inf")

    executor = FormulaExecutor(loss, slots=3)
    with Store.open(path) as store:
        run(STUDY, store, executor)
    return executor


def content(path: Path) -> dict[tuple[str, int], Any]:
    """Return everything that results depend on."""
    found = {}
    with Store.open(path, create=False) as store:
        for name in STUDY.optimizers:
            for trial in store.trials(STUDY.identity(name)):
                values = {metric: numbers.tobytes() for metric, numbers in trial.curve.values.items()}
                found[name, trial.point.index] = (trial.point, trial.status, trial.curve.steps.tolist(), values)
            store.provenance(STUDY.identity(name))
    return found


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("intact") / "trials.db"
    train(path)
    return path


def damaged(data: bytes, generator: random.Random) -> bytes:
    """Flip a bit; in every tenth store, cut off the end."""
    place = generator.randrange(len(data))
    if generator.random() < 0.1:
        return data[:place]
    return data[:place] + bytes([data[place] ^ 1 << generator.randrange(8)]) + data[place + 1 :]


def test_a_damaged_store_never_gives_other_results(intact: Path, tmp_path: Path) -> None:
    expected, data, path = content(intact), intact.read_bytes(), tmp_path / "trials.db"
    outcomes: Counter[str] = Counter()
    for number in range(STORES):
        for old in tmp_path.iterdir():
            old.unlink()
        path.write_bytes(damaged(data, random.Random(number)))
        found = content_or_error(path)
        assert found in (expected, None), number
        outcomes["same" if found else repaired(path, expected, number)] += 1
    print(dict(outcomes))
    assert outcomes.keys() >= {"same", "repaired", "beyond repair"}


def content_or_error(path: Path) -> dict[tuple[str, int], Any] | None:
    """Return what a store holds; None if reading it ends in an error of one line."""
    try:
        return content(path)
    except StoreError as error:
        if "\n" in str(error):
            raise
        return None


def repaired(path: Path, expected: dict[tuple[str, int], Any], number: int) -> str:
    """Check a store that cannot be read. If only trials were damaged, a run after the repair restores the pool."""
    try:
        with Store.open(path) as store:
            damage = store.check()
            assert damage, f"store {number}: damage that reading finds is not found by the check"
            store.remove(damage)
            if store.check():  # of SQLite, or of what many trials share; the command says so
                return "beyond repair"
    except StoreError as error:
        if "\n" in str(error):
            raise
        return "beyond repair"
    train(path)
    assert content(path) == expected, number
    return "repaired"


def test_a_damaged_log_loses_the_last_trials_at_most(
    tmp_path: Path, intact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite ignores the end of a log from the first damaged page on: what is lost is trained again."""
    monkeypatch.setenv("LEVELFIELD_LEASE", "0.01")  # the process that wrote the log is this one, and lives
    folder = tmp_path / "whole"
    folder.mkdir()
    with Store.open(folder / "trials.db") as store:
        run(STUDY, store, FormulaExecutor(lambda _, point: 1.0 + point.index if point.index % 5 else float("inf")))
        killed = tmp_path / "killed"
        shutil.copytree(folder, killed)  # a process that is killed leaves the log
    expected, log = content(intact), (killed / "trials.db-wal").read_bytes()
    for number in range(10):
        path = tmp_path / str(number) / "trials.db"
        shutil.copytree(killed, path.parent)
        (path.parent / "trials.db-shm").unlink()
        Path(f"{path}-wal").write_bytes(damaged(log, random.Random(number)))
        before = content_or_error(path) or {}  # perhaps not even the tables are left
        assert before.items() <= expected.items()
        trained = train(path).finished
        assert sorted(trained) == sorted(expected.keys() - before.keys())
        assert content(path) == expected


def test_the_commands_find_and_repair_a_damaged_trial(
    intact: Path, tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    shutil.copy(intact, tmp_path / "trials.db")
    with closing(sqlite3.connect(tmp_path / "trials.db")) as connection, connection:
        connection.execute('UPDATE trials SET seconds = 7 WHERE "index" = 3')
    code, out, err = command("store", "check", "trials.db")
    assert (code, out.count("damaged: trial 3 of optimizer")) == (2, 2)
    assert err.startswith("levelfield: trials.db: the store is damaged; --repair removes damaged trials")
    code, out, err = command("store", "check", "trials.db", "--repair")
    assert (code, err) == (0, "")
    assert "removed 2 damaged trials; the next run trains them again" in out
    assert sorted(train(tmp_path / "trials.db").finished) == [("momentum", 3), ("sgd", 3)]
    assert content(tmp_path / "trials.db") == content(intact)
    assert command("store", "check", "trials.db")[0] == 0
