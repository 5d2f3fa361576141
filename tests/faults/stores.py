"""What a store holds, and what must hold for it after a fault."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from databases import connected

import levelfield as lf

Pool = dict[tuple[str, int], tuple[Any, ...]]  # optimizer and index → what must be the same in every run, bit by bit


def read_pool(study_file: Path, location: str) -> Pool:
    """Read the pool of a study as a report does."""
    study = lf.load_study(study_file)
    with lf.Store.open(location, create=False) as store:
        trials = lf.Comparison.load(study, store).trials
    return {
        (name, trial.point.index): (
            trial.point,
            trial.status.value,
            trial.curve.steps.tolist(),
            {metric: values.tobytes() for metric, values in trial.curve.values.items()},
        )
        for name in study.optimizers
        for trial in trials[name]
    }


def stored(location: str) -> set[tuple[str, int]]:
    """Return the optimizer and index of each stored trial."""
    return {(row[0], row[1]) for row in _rows(location, 'SELECT optimizer, "index" FROM trials')}


def claimed(location: str, pid: int | None = None) -> int:
    """Return how many points somebody has claimed, or a process."""
    whose = "" if pid is None else f"JOIN runners ON runner = id AND pid = {pid}"
    return len(_rows(location, f"SELECT 1 FROM claims {whose} WHERE runner IS NOT NULL"))


def _rows(location: str, query: str) -> list[Any]:
    """Ask the database itself; a table that does not exist yet is empty."""
    if "://" not in location and not Path(location).exists():
        return []
    try:
        with connected(location) as connection:
            return list(connection.execute(sa.text(query)))
    except (sa.exc.OperationalError, sa.exc.ProgrammingError) as error:
        if "no such table" in str(error) or "does not exist" in str(error):
            return []
        raise


def in_transaction(location: str) -> bool:
    """Return whether somebody is changing the database right now."""
    if "://" in location:
        query = "SELECT pid FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
        return bool(_rows(location, query))
    if not Path(location).exists():
        return False
    with contextlib.closing(sqlite3.connect(location, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            return "locked" in str(error)
    return False


def assert_complete(study_file: Path, location: str, expected: Pool) -> None:
    """The pool is that of an undisturbed run, the store has each of its trials once and no other, and nobody works."""
    assert read_pool(study_file, location) == expected
    assert len(_rows(location, "SELECT 1 FROM trials")) == len(expected)
    assert claimed(location) == 0
    assert _rows(location, "SELECT id FROM runners") == []
    with lf.Store.open(location, create=False) as store:
        assert store.check() == []
