"""The database below a store: its location, its transactions, and waiting while it is unavailable."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from levelfield import interruption
from levelfield.environment import positive_number
from levelfield.errors import MissingRow, StoreError, StoreUnavailable

T = TypeVar("T")

# Seconds to wait for a database that is locked, full, restarting or out of reach; LEVELFIELD_PATIENCE changes it.
PATIENCE = 600.0
_QUIET = 5.0  # seconds of waiting before a message
_LONGEST_PAUSE = 5.0  # seconds between two attempts
_BUSY_TIMEOUT = 0.5  # seconds that SQLite itself waits for a lock, without looking at signals

# PostgreSQL's classes of temporary errors (SQLSTATE): connection lost, resources exhausted, shutdown, conflicts.
_PASSING = re.compile(r"08|53|57P0|40001|40P01|55P03")
_LOCKED = ("database is locked", "database table is locked")
_FULL = ("database or disk is full", "disk I/O error")  # what SQLite says of a full disk
_SHARED_FILE_SYSTEMS = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "fuse", "9p", "afs", "glusterfs")
_SECRETS = re.compile(r"pass|secret|token|key", re.IGNORECASE)
_PLAIN_HOST = re.compile(r"[\w.\-:\[\],]*")

_log = logging.getLogger("levelfield.store")


class Database:
    """Runs transactions. Waits for temporary problems to pass; all others are a StoreError."""

    def __init__(self, location: str | Path, *, writes: bool) -> None:
        self.url = parsed(location)
        self.name = without_password(location)
        self._patience = positive_number("LEVELFIELD_PATIENCE", PATIENCE, "seconds")
        self._keeps_log = False
        self.is_open = False  # from then on, a connection that fails is tried again
        try:
            self.engine = _engine(self.url, writes)
        except ModuleNotFoundError as error:
            raise StoreError(f"{self.name} needs {error.name}; run pip install 'levelfield[postgres]'") from None
        except sa.exc.NoSuchModuleError:
            raise StoreError(f"{self.name}: unknown driver {self.url.drivername!r}; expected postgresql://…") from None

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @property
    def is_shared(self) -> bool:
        """Whether other processes can use the database; not if it is in memory."""
        return not self.is_sqlite or bool(self.url.database)

    def insert(self, table: sa.Table) -> Any:
        """Return an INSERT statement of the dialect, which has ``on_conflict_do_nothing``."""
        return importlib.import_module(f"sqlalchemy.dialects.{self.engine.dialect.name}").insert(table)

    @property
    def now(self) -> sa.ColumnElement[float]:
        """The database's clock, in seconds since the epoch."""
        if self.is_sqlite:
            return (sa.func.julianday("now") - 2440587.5) * 86400.0
        return sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Double)

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Return what ``work`` does in a transaction. It may be called several times."""
        return self._attempt(work, writes=False)

    def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Like ``read``, for work that writes: all of it takes effect, or nothing."""
        return self._attempt(work, writes=True)

    def execute(self, work: Callable[[sa.Connection], T], *, writes: bool = False) -> T:
        """Like ``read`` or ``write``, for work that is a single statement; saves beginning and ending a transaction."""
        return self._attempt(work, writes=writes, single=True)

    def _attempt(self, work: Callable[[sa.Connection], T], *, writes: bool, single: bool = False) -> T:
        begun, noted, pause = time.monotonic(), False, 0.05
        while True:
            try:
                connecting = self.engine.connect().execution_options(**self._options(writes, single))
                with connecting as connection, connection.begin():
                    return work(connection)
            except sa.exc.IntegrityError as error:
                raise MissingRow(f"{self.name}: cannot write the store ({_reason(error)})") from None
            except sa.exc.DBAPIError as error:
                reason, waited = _reason(error), time.monotonic() - begun
                if not self._passes(error, writes) or waited > self._patience:
                    problem = f"{self.name}: cannot {'write' if writes else 'read'} the store ({reason})"
                    if not self.is_open:
                        raise StoreError(f"{self.name}: cannot open the store ({reason})") from None
                    raise StoreUnavailable(problem) from None
            except UnicodeDecodeError as error:
                raise StoreError(f"{self.name}: the store is damaged (a text in it is not UTF-8: {error})") from None
            if waited > _QUIET and not noted:
                noted = True
                _log.warning("%s: waiting for the store (%s)", self.name, reason)
            interruption.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _options(self, writes: bool, single: bool) -> dict[str, Any]:
        if self.is_sqlite:
            return {"levelfield_writes": writes}
        if single:
            return {"isolation_level": "AUTOCOMMIT"}
        # All queries of a transaction that reads must see the same state, as in SQLite.
        return {"isolation_level": "READ COMMITTED" if writes else "REPEATABLE READ"}

    def _passes(self, error: sa.exc.DBAPIError, writes: bool) -> bool:
        if self.is_sqlite:
            return any(text in str(error.orig) for text in (_LOCKED + _FULL if writes else _LOCKED))
        state = getattr(error.orig, "sqlstate", None)
        if state is None:  # the connection broke, or could not be made
            return self.is_open and isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)
        return self.is_open and bool(_PASSING.match(state))

    def allow_readers_while_writing(self) -> None:
        """Let SQLite keep a write-ahead log, where the file system allows it."""
        if self.is_sqlite and self.url.database and not _is_on_shared_file_system(Path(self.url.database)):
            self._keeps_log = True
            self._set_journal("WAL")

    def close(self) -> None:
        """Close all connections. If nobody else uses it, a SQLite database is a single file again."""
        if self._keeps_log:
            self._set_journal("DELETE")
        self.engine.dispose()

    def _set_journal(self, mode: str) -> None:
        with contextlib.closing(self.engine.raw_connection()) as connection, contextlib.suppress(sqlite3.Error):
            connection.cursor().execute(f"PRAGMA journal_mode = {mode}")  # fails while others use the database


def _engine(url: sa.URL, writes: bool) -> sa.Engine:
    if url.get_backend_name() != "sqlite":
        return sa.create_engine(url, pool_size=1, max_overflow=4, connect_args=_pg_options(url))
    path = Path(url.database) if url.database else None
    if path and not writes and path.is_file() and not _can_write(path.parent) and not Path(f"{path}-wal").exists():
        # Even readers of a database with a write-ahead log write files next to it, unless it cannot change.
        url = url.set(database=f"file:{path}").update_query_dict({"mode": "ro", "immutable": "1", "uri": "true"})
    engine = sa.create_engine(url, connect_args={"timeout": _BUSY_TIMEOUT})

    @sa.event.listens_for(engine, "connect")
    def connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # sqlite3 must not begin transactions by itself
        connection.execute("PRAGMA foreign_keys = ON")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("levelfield_writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _pg_options(url: sa.URL) -> dict[str, Any]:
    """Notice a dead server within a minute, and use no prepared statements, which PgBouncer may not know."""
    options = {
        "connect_timeout": 10,
        "keepalives": 1,
        "keepalives_idle": 20,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
        "prepare_threshold": None,
    }
    return {name: value for name, value in options.items() if name not in url.query}


def _can_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _is_on_shared_file_system(path: Path) -> bool:
    """Return whether a file is on a network file system, where a write-ahead log would damage the database."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text("utf-8").splitlines()]
    except OSError:  # not Linux
        return False
    folder = path.resolve().parent
    holding = [(len(mount), kind) for _, mount, kind, *_ in mounts if folder.is_relative_to(mount)]
    return bool(holding) and max(holding)[1].startswith(_SHARED_FILE_SYSTEMS)


def parsed(location: str | Path) -> sa.URL:
    """Return the URL of a location: a path (SQLite) or a database URL."""
    if "://" not in str(location):
        return sa.URL.create("sqlite", database=str(location))
    try:
        url = sa.make_url(str(location))
    except (sa.exc.ArgumentError, ValueError):
        raise StoreError(f"{without_password(location)}: expected a file or a postgresql:// URL") from None
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise StoreError(f"{without_password(location)}: expected a file or a postgresql:// URL")
    if not _is_plain(url):
        raise StoreError(
            f"{without_password(location)}: expected scheme://user@host/database; write @, : and / in a user name or "
            f"password as %40, %3A and %2F, or set PGPASSWORD instead"
        )
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def without_password(location: str | Path) -> str:
    """Return a location as messages show it, and as commands can be pasted: without any secret.

    >>> without_password("postgresql://me:secret@host/trials?sslmode=require&password=secret")
    'postgresql://me@host/trials?sslmode=require'
    """
    text = str(location)
    if "://" not in text:
        return text
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        url = None
    if url is None or not _is_plain(url):  # whatever it is, part of it may be a secret
        return f"{text.partition('://')[0]}://…"
    secrets = [key for key in url.query if _SECRETS.search(key)]
    safe = url.difference_update_query(secrets)
    if safe.password is not None:
        safe = sa.URL.create(safe.drivername, safe.username, None, safe.host, safe.port, safe.database, safe.query)
    return safe.render_as_string(hide_password=True).replace("%2F", "/")


def _is_plain(url: sa.URL) -> bool:
    """Return whether no part of a URL can be a piece of a password with characters that separate its parts."""
    parts = [url.host or "", url.database or "", *map(str, url.query)]
    return bool(_PLAIN_HOST.fullmatch(parts[0])) and not any("@" in part for part in parts)


def _reason(error: sa.exc.DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return lines[0] if lines else type(error.orig).__name__
