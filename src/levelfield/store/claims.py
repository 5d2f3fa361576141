"""Claims: which runner trains which point, so that several runners on one store share a study's points.

A runner claims points in batches, holds them by a lease that it renews, and returns them when it ends. The claims of a
runner whose lease has expired, or whose process on this machine has ended, are free for others. If a runner was only
slow, a point may be trained twice; its trial is stored once.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from levelfield.environment import positive_number
from levelfield.errors import StoreError, StoreUnavailable
from levelfield.store.database import Database
from levelfield.store.schema import claims, queues, runners, trials

LEASE = 300.0  # seconds; LEVELFIELD_LEASE changes it
_RENEWALS_PER_LEASE = 5
_CLOCK_SLACK = 60.0  # seconds that the database's clock may go back without ending leases

_log = logging.getLogger("levelfield.store")


@dataclass(frozen=True)
class Worker:
    """A runner as ``status`` shows it."""

    host: str
    pid: int
    points: dict[str, int]  # optimizer → how many of its points it trains
    running_seconds: float  # since it started
    silent_seconds: float  # since its last sign of life


class Runner:
    """This process as others on the store see it. Use it as a context manager around training."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._id = uuid.uuid4().hex
        self._lease = positive_number("LEVELFIELD_LEASE", LEASE, "seconds")
        self._held: dict[str, set[int]] = defaultdict(set)  # optimizer → claimed points
        self._lock = threading.Lock()  # between claiming and renewing
        self._stopped = threading.Event()
        self._renewing = threading.Thread(target=self._renew_regularly, name="levelfield-lease", daemon=True)

    def __enter__(self) -> Runner:
        self._database.allow_readers_while_writing()
        self._renew()  # also shows whether the store can be written
        if self._database.is_shared:
            self._renewing.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: Any) -> None:
        if kind and issubclass(kind, StoreUnavailable):  # it would have to be waited for again
            self._stopped.set()
        else:
            self.leave()

    def leave(self) -> None:
        """Return all claims, and stop renewing the lease."""
        self._stopped.set()
        with contextlib.suppress(StoreError, KeyboardInterrupt):  # otherwise the claims expire
            self._database.write(self._leave)

    def claim(self, optimizer: str, end: int, count: int, besides: Sequence[int] = ()) -> list[int]:
        """Claim up to ``count`` of the first ``end`` points of an optimizer, the first free ones first.

        ``besides``: points that this runner does not want.
        """
        statement = sa.update(claims).where(claims.c.optimizer == optimizer, claims.c.index.in_(sa.select(self._free)))
        chosen = statement.values(runner=self._id).returning(claims.c.index)
        choice = {"of": optimizer, "end": end, "count": count, "besides": list(besides)}
        attempts = 0

        def work(connection: sa.Connection) -> list[int]:
            nonlocal attempts
            attempts += 1
            # If the connection broke while an attempt was committed, the store has claims that we know nothing of.
            unknown = self._unknown(connection, optimizer) if attempts > 1 else []
            return unknown or list(connection.scalars(chosen, choice))

        with self._lock:
            # Points that this runner lost with its lease, and goes on training, become its own again.
            while (indices := set(self._database.execute(work, writes=True))) and indices <= self._held[optimizer]:
                pass
            new = sorted(indices - self._held[optimizer])
            self._held[optimizer].update(new)
        return new

    def _unknown(self, connection: sa.Connection, optimizer: str) -> list[int]:
        mine = sa.select(claims.c.index).where(claims.c.optimizer == optimizer, claims.c.runner == self._id)
        return [index for index in connection.scalars(mine) if index not in self._held[optimizer]]

    @functools.cached_property
    def _free(self) -> sa.CTE:
        """The first free points of an optimizer."""
        free = (
            sa.select(claims.c.index)
            .where(claims.c.optimizer == sa.bindparam("of"), claims.c.runner.is_(None))
            .where(claims.c.index < sa.bindparam("end"))
            .where(claims.c.index.not_in(sa.bindparam("besides", expanding=True)))
            .order_by(claims.c.index)
            .limit(sa.bindparam("count"))
            .with_for_update(skip_locked=True)
            .cte("free")
        )
        # Otherwise a plan of PostgreSQL's could lock more points than the limit.
        return free if self._database.is_sqlite else free.prefix_with("MATERIALIZED")

    def release(self, optimizer: str, indices: Iterable[int]) -> None:
        """Return points that this runner is not going to finish."""
        returned = list(indices)
        self.forget(optimizer, returned)
        own = (claims.c.optimizer == optimizer, claims.c.index.in_(returned), claims.c.runner == self._id)
        self._database.write(lambda connection: connection.execute(sa.update(claims).where(*own).values(runner=None)))

    def forget(self, optimizer: str, indices: Iterable[int]) -> None:
        """Hear that trials of these points are stored: their claims are gone."""
        with self._lock:
            self._held[optimizer].difference_update(indices)

    def free_abandoned(self) -> None:
        """Free the claims of runners that have ended without returning them."""
        self._database.write(lambda connection: _free_abandoned(connection, self._database))

    def _renew_regularly(self) -> None:
        while not self._stopped.wait(self._lease / _RENEWALS_PER_LEASE):
            try:
                self._renew()
            except StoreError as error:
                _log.warning("%s", error)

    def _renew(self) -> None:
        with self._lock:
            self._database.write(self._write_renewal)

    def _write_renewal(self, connection: sa.Connection) -> None:
        if self._stopped.is_set():  # it has left meanwhile
            return
        now = connection.scalar(sa.select(self._database.now))
        row = {"id": self._id, "started": now, "seen": now, "lease": self._lease, **_this_process()}
        content = self._database.insert(runners).values(row)
        connection.execute(content.on_conflict_do_update(index_elements=["id"], set_={"seen": now}))
        _free_abandoned(connection, self._database)

    def _leave(self, connection: sa.Connection) -> None:
        connection.execute(sa.update(claims).where(claims.c.runner == self._id).values(runner=None))
        connection.execute(sa.delete(runners).where(runners.c.id == self._id))


def enqueue(connection: sa.Connection, database: Database, optimizer: str, end: int) -> None:
    """Put the first ``end`` points of an optimizer into the claims, except those that have a trial."""
    row = database.insert(queues).values(optimizer=optimizer, end=0).on_conflict_do_nothing()
    connection.execute(row)
    known = sa.select(queues.c.end).where(queues.c.optimizer == optimizer).with_for_update()
    begin = connection.scalar(known) or 0
    if begin >= end:
        return
    missing = _missing(connection, optimizer, begin, end)
    if missing:
        insert = database.insert(claims).on_conflict_do_nothing()
        connection.execute(insert, [{"optimizer": optimizer, "index": index, "runner": None} for index in missing])
    connection.execute(sa.update(queues).where(queues.c.optimizer == optimizer).values(end=end))


def _missing(connection: sa.Connection, optimizer: str, begin: int, end: int) -> list[int]:
    window = (trials.c.optimizer == optimizer, trials.c.index >= begin, trials.c.index < end)
    stored = set(connection.scalars(sa.select(trials.c.index).where(*window)))
    return [index for index in range(begin, end) if index not in stored]


def forget_queue(connection: sa.Connection, optimizer: str) -> None:
    """Look at all points of an optimizer again, because trials of it were removed or have returned."""
    connection.execute(sa.delete(queues).where(queues.c.optimizer == optimizer))
    stored = sa.select(trials.c.index).where(trials.c.optimizer == optimizer).scalar_subquery()
    connection.execute(sa.delete(claims).where(claims.c.optimizer == optimizer, claims.c.index.in_(stored)))


def forget_queues(connection: sa.Connection) -> None:
    """Look at all points of all optimizers again."""
    connection.execute(sa.delete(queues))


def remove_claims(connection: sa.Connection, optimizer: str, indices: Sequence[int]) -> None:
    connection.execute(sa.delete(claims).where(claims.c.optimizer == optimizer, claims.c.index.in_(indices)))


class Open(NamedTuple):
    """The points of an optimizer that were offered and have no trial yet."""

    free: int
    claimed: int


def queue_end(connection: sa.Connection, optimizer: str) -> int:
    return connection.scalar(sa.select(queues.c.end).where(queues.c.optimizer == optimizer)) or 0


def open_points(connection: sa.Connection, optimizers: Sequence[str]) -> dict[str, Open]:
    count, claimed = sa.func.count(), sa.func.count(claims.c.runner)
    query = sa.select(claims.c.optimizer, count, claimed).where(claims.c.optimizer.in_(optimizers))
    rows = connection.execute(query.group_by(claims.c.optimizer)).all()
    return {optimizer: Open(count - claimed, claimed) for optimizer, count, claimed in rows}


def open_below(connection: sa.Connection, optimizer: str, end: int, besides: Sequence[int]) -> int:
    below = (claims.c.optimizer == optimizer, claims.c.index < end, claims.c.index.not_in(besides))
    return connection.scalar(sa.select(sa.func.count()).select_from(claims).where(*below)) or 0


def workers(connection: sa.Connection, database: Database, optimizers: Sequence[str]) -> list[Worker]:
    """Return the live runners that have points of these optimizers."""
    now = connection.scalar(sa.select(database.now)) or 0.0
    rows = connection.execute(sa.select(runners).where(_has_lease(now)))
    live = {row.id: row for row in rows if not _has_ended(row.host, row.pid, row.process)}
    query = sa.select(claims.c.runner, claims.c.optimizer, sa.func.count()).where(
        claims.c.optimizer.in_(optimizers), claims.c.runner.is_not(None)
    )
    points: dict[str, Counter[str]] = defaultdict(Counter)
    for runner, optimizer, count in connection.execute(query.group_by(claims.c.runner, claims.c.optimizer)):
        points[runner][optimizer] = count
    return [
        Worker(row.host, row.pid, dict(points[key]), now - row.started, now - row.seen)
        for key, row in sorted(live.items(), key=lambda item: item[1].started)
        if points[key]
    ]


def _free_abandoned(connection: sa.Connection, database: Database) -> None:
    now = connection.scalar(sa.select(database.now)) or 0.0
    has_ended = functools.cache(_has_ended)
    gone = list(connection.scalars(sa.select(runners.c.id).where(~_has_lease(now))))
    here = sa.select(runners).where(runners.c.host == socket.gethostname(), _has_lease(now))
    gone += [row.id for row in connection.execute(here) if has_ended(row.host, row.pid, row.process)]
    if gone:
        connection.execute(sa.delete(runners).where(runners.c.id.in_(gone)))
    # A runner may have claimed points after it lost its lease, and been killed before it renewed it.
    nobodys = claims.c.runner.is_not(None) & claims.c.runner.not_in(sa.select(runners.c.id))
    connection.execute(sa.update(claims).where(nobodys).values(runner=None))


def _has_lease(now: float) -> sa.ColumnElement[bool]:
    return (runners.c.seen - _CLOCK_SLACK <= now) & (runners.c.seen + runners.c.lease > now)


def _has_ended(host: str, pid: int, process: str) -> bool:
    """Return whether a process of this machine is known to have ended."""
    if host != socket.gethostname() or process.partition(" ")[0] != _system():
        return False  # another machine, or a container of it whose processes cannot be seen
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return process != f"{_system()} {_birth(pid)}"


def _this_process() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "process": f"{_system()} {_birth(pid)}"}


@functools.cache
def _system() -> str:
    """Return an id of this machine since it was started, or of this container, because others may have its name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return "?"


def _birth(pid: int) -> str:
    """Return when a process began, because process ids are reused."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:  # not Linux, or it has ended
        return "?"
    return "zombie" if status[0] == "Z" else status[19]
