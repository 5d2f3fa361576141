"""The store: every finished trial with its curve, hyperparameters, seed, timing and provenance.

SQLite by default, PostgreSQL if several machines write; both have the same schema. A trial is written once, when it has
finished, in one transaction with everything that belongs to it, so killing the process never leaves part of a trial.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from levelfield.errors import NoStore, StoreError
from levelfield.study import digest
from levelfield.trial import Curve, Direction, Point, Status, Trial

SCHEMA_VERSION = 1
_CREATION_LOCK = 0x6C66  # of PostgreSQL, held while a store is created
_SQLITE_TIMEOUT = 300  # seconds to wait while another process has locked the store

_schema = sa.MetaData()
_meta = sa.Table(
    "levelfield",
    _schema,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
# One row for all trials with the same definition, whatever study they were run for.
_optimizers = sa.Table(
    "optimizers",
    _schema,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("definition", sa.Text, nullable=False),  # JSON
    sa.Column("metrics", sa.Text, nullable=False),  # JSON: name → direction
)
_provenance = sa.Table(
    "provenance",
    _schema,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("content", sa.Text, nullable=False),  # JSON: versions, device, precision, …
)
_trials = sa.Table(
    "trials",
    _schema,
    sa.Column("optimizer", sa.ForeignKey("optimizers.id"), primary_key=True),
    sa.Column("index", sa.Integer, primary_key=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("hyperparameters", sa.Text, nullable=False),  # JSON
    sa.Column("steps", sa.LargeBinary, nullable=False),  # int64, little-endian: the steps of the curve
    sa.Column("curve", sa.LargeBinary, nullable=False),  # float32, little-endian: metrics by name × steps
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("provenance", sa.ForeignKey("provenance.id"), nullable=False),
)

_c = _trials.c
_READ = (_c.index, _c.status, _c.seed, _c.hyperparameters, _c.steps, _c.curve, _c.started, _c.seconds, _c.provenance)
_STATUS = {status.value: status for status in Status}
_NO_VALUE = np.float32(np.nan).tobytes()


@dataclass(frozen=True, eq=False)
class Ends:
    """How the trials of an optimizer ended, by index."""

    index: np.ndarray
    status: list[Status]
    final: np.ndarray  # a metric at the last step; NaN if it was not measured
    code: list[str]  # digest of the custom code of each


class Store:
    """Finished trials by optimizer and index. ``Store.open`` opens or creates one."""

    def __init__(self, engine: sa.Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    @classmethod
    def open(cls, location: str | Path, *, create: bool = True) -> Store:
        """Open the store at a path (SQLite) or a database URL such as ``postgresql://…``."""
        url = _url(location)
        if url.get_backend_name() == "sqlite" and url.database:
            path = Path(url.database)
            if not create and not path.exists():
                raise NoStore(str(location), "no such store; a run creates it")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(f"{path.parent}: cannot create the folder ({error.strerror})") from None
        name = without_password(location)
        try:
            store = cls(_engine(url), name)
        except ModuleNotFoundError as error:
            raise StoreError(f"{name} needs {error.name}; run pip install 'levelfield[postgres]'") from None
        except sa.exc.NoSuchModuleError:
            raise StoreError(f"{name}: unknown driver {url.drivername!r}; expected postgresql://…") from None
        try:
            store._check_or_create(create)
        except sa.exc.DatabaseError as error:
            store.close()
            raise StoreError(f"{name}: cannot open the store ({_reason(error)})") from None
        except StoreError:
            store.close()
            raise
        return store

    def _check_or_create(self, create: bool) -> None:
        inspector = sa.inspect(self._engine)
        tables = inspector.get_table_names()
        if _meta.name not in tables:
            # A process may have been killed while it created the store: its tables are ours, and incomplete.
            expected = {name: {column.name for column in table.columns} for name, table in _schema.tables.items()}
            actual = {name: {column["name"] for column in inspector.get_columns(name)} for name in tables}
            if any(columns != expected.get(name) for name, columns in actual.items()):
                raise StoreError(f"{self.name}: a database of another program, not a levelfield store")
            if not create:
                raise NoStore(self.name, "the store is empty; a run fills it")
            self._create()
        with self._connect() as connection:
            version = connection.scalar(sa.select(_meta.c.value).where(_meta.c.key == "schema"))
        if int(version or 0) > SCHEMA_VERSION:
            raise StoreError(
                f"{self.name}: the store has schema {version}, this version of levelfield reads up to "
                f"{SCHEMA_VERSION}; upgrade levelfield"
            )

    def _create(self) -> None:
        with self._connect() as connection:
            if self._engine.dialect.name == "postgresql":
                # "If not exists" fails if two processes create the same table at once.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
            # SQLite commits each table separately, so the table that marks a complete store comes last.
            for table in (_optimizers, _provenance, _trials, _meta):
                connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
            version = self._insert(_meta).values(key="schema", value=str(SCHEMA_VERSION))
            connection.execute(version.on_conflict_do_nothing())

    @contextmanager
    def _connect(self) -> Iterator[sa.Connection]:
        """Open a transaction and turn the database's errors into a StoreError."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.DatabaseError as error:
            raise StoreError(f"{self.name}: cannot read or write the store ({_reason(error)})") from None

    def _insert(self, table: sa.Table) -> Any:
        dialect = importlib.import_module(f"sqlalchemy.dialects.{self._engine.dialect.name}")
        return dialect.insert(table)

    def add(
        self,
        optimizer: str,
        definition: Mapping[str, Any],
        metrics: Mapping[str, Direction],
        trials: Sequence[Trial],
        provenance: Mapping[str, Any],
    ) -> None:
        """Add finished trials, all or none. Trials that the store already has stay unchanged."""
        if not trials:
            return
        rows = [_row(optimizer, trial, sorted(metrics), digest(provenance)) for trial in trials]
        optimizer_row = {"id": optimizer, "definition": json.dumps(definition), "metrics": json.dumps(metrics)}
        provenance_row = {"id": digest(provenance), "content": json.dumps(provenance)}
        self.check_metrics(optimizer, metrics)
        with self._connect() as connection:
            for table, content in ((_optimizers, [optimizer_row]), (_provenance, [provenance_row]), (_trials, rows)):
                connection.execute(self._insert(table).on_conflict_do_nothing(), content)

    def check_metrics(self, optimizer: str, metrics: Mapping[str, Direction]) -> None:
        """Raise if the optimizer's stored trials have other metrics than these."""
        with self._connect() as connection:
            stored = connection.scalar(sa.select(_optimizers.c.metrics).where(_optimizers.c.id == optimizer))
        if stored and json.loads(stored).keys() != metrics.keys():
            raise StoreError(
                f"{self.name}: the stored trials have the metrics {', '.join(json.loads(stored))}, the workload has "
                f"{', '.join(metrics)}; increase the workload's version to keep them apart"
            )

    def count(self) -> int:
        """Return the number of trials of all studies."""
        with self._connect() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(_trials)).scalar_one())

    def statuses(self, optimizer: str) -> dict[int, Status]:
        """Return the status of each finished trial of an optimizer by index."""
        query = sa.select(_trials.c.index, _trials.c.status).where(_trials.c.optimizer == optimizer)
        with self._connect() as connection:
            return {index: Status(status) for index, status in connection.execute(query)}

    def codes(self, optimizer: str) -> dict[int, str]:
        """Return the version of custom code of each trial of an optimizer by index; "" where none was recorded."""
        query = sa.select(_trials.c.index, _trials.c.provenance).where(_trials.c.optimizer == optimizer)
        with self._connect() as connection:
            codes = _codes(connection, optimizer)
            return {index: codes[provenance] for index, provenance in connection.execute(query)}

    def trials(self, optimizer: str) -> list[Trial]:
        """Return all finished trials of an optimizer, by index."""
        metrics_query = sa.select(_optimizers.c.metrics).where(_optimizers.c.id == optimizer)
        query = sa.select(*_READ).where(_trials.c.optimizer == optimizer).order_by(_trials.c.index)
        with self._connect() as connection:
            metrics = json.loads(connection.scalar(metrics_query) or "{}")
            codes = _codes(connection, optimizer)
            return _trials_of(connection.execute(query).all(), list(metrics), codes)

    def provenance(self, optimizer: str) -> list[dict[str, Any]]:
        """Return each provenance of an optimizer's trials once."""
        ids = sa.select(_trials.c.provenance).where(_trials.c.optimizer == optimizer).distinct()
        query = sa.select(_provenance.c.content).where(_provenance.c.id.in_(ids)).order_by(_provenance.c.id)
        with self._connect() as connection:
            return [json.loads(content) for content in connection.scalars(query)]

    def keep_code_apart(self, optimizer: str, code: str) -> None:
        """Set aside the trials of an optimizer that were trained with another version of custom code than this one.

        They stay in the store under the optimizer's id with the version appended, where nothing reads them. Trials of
        this version that were set aside before return.
        """
        with self._connect() as connection:
            codes = _codes(connection, optimizer)
            own = _trials.c.optimizer == optimizer
            for other in {version for version in codes.values() if version not in ("", code)}:
                stale = own & _trials.c.provenance.in_([key for key, version in codes.items() if version == other])
                self._move(connection, stale, optimizer, _aside(optimizer, other))
                before = sa.select(_trials.c.index).where(_trials.c.optimizer == _aside(optimizer, other))
                again = stale & _trials.c.index.in_(before.scalar_subquery())  # the same trials, set aside before
                connection.execute(sa.delete(_trials).where(again))
            if connection.scalar(sa.select(sa.func.count()).where(own)) == 0:  # other code may have other metrics
                connection.execute(sa.delete(_optimizers).where(_optimizers.c.id == optimizer))
            aside = _aside(optimizer, code)
            self._move(connection, _trials.c.optimizer == aside, aside, optimizer)

    def _move(self, connection: sa.Connection, chosen: sa.ColumnElement[bool], source: str, destination: str) -> None:
        """File trials under another optimizer, except for those that it already has."""
        row = connection.execute(sa.select(_optimizers).where(_optimizers.c.id == source)).one_or_none()
        if row is None:
            return
        content = [{"id": destination, "definition": row.definition, "metrics": row.metrics}]
        connection.execute(self._insert(_optimizers).on_conflict_do_nothing(), content)
        if connection.scalar(sa.select(_optimizers.c.metrics).where(_optimizers.c.id == destination)) == row.metrics:
            taken = sa.select(_trials.c.index).where(_trials.c.optimizer == destination).scalar_subquery()
            moved = sa.update(_trials).where(chosen, _trials.c.index.not_in(taken))
            connection.execute(moved.values(optimizer=destination))

    def ends(self, optimizer: str, metric: str) -> Ends:
        """Return how an optimizer's trials ended, by index, without reading their curves."""
        metrics_query = sa.select(_optimizers.c.metrics).where(_optimizers.c.id == optimizer)
        with self._connect() as connection:
            metrics = sorted(json.loads(connection.scalar(metrics_query) or "{}"))
            codes = _codes(connection, optimizer)
            query = sa.select(_trials.c.index, _trials.c.status, _trials.c.provenance, _last(metric, metrics))
            rows = connection.execute(query.where(_trials.c.optimizer == optimizer).order_by(_trials.c.index)).all()
        indices, statuses, provenances, values = zip(*rows, strict=True) if rows else ((), (), (), ())
        final = np.frombuffer(b"".join(value or _NO_VALUE for value in values), "<f4")
        return Ends(
            np.array(indices, int), [_STATUS[status] for status in statuses], final, [codes[key] for key in provenances]
        )

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def _engine(url: sa.URL) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        # A process that reads the store for a moment must not end a run.
        return sa.create_engine(url, connect_args={"timeout": _SQLITE_TIMEOUT})
    return sa.create_engine(url, pool_pre_ping=True)  # a connection may time out between two trials


def _url(location: str | Path) -> sa.URL:
    if "://" not in str(location):
        return sa.URL.create("sqlite", database=str(location))
    try:
        url = sa.make_url(str(location))
    except (sa.exc.ArgumentError, ValueError):
        raise StoreError(f"{without_password(location)}: expected a file or a postgresql:// URL") from None
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise StoreError(f"{without_password(location)}: expected a file or a postgresql:// URL")
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    return url


def without_password(location: str | Path) -> str:
    """Return a location as messages show it."""
    return re.sub(r"://([^:@/]*):.*@", r"://\1:***@", str(location))


def _row(optimizer: str, trial: Trial, metrics: list[str], provenance: str) -> dict[str, Any]:
    curve = np.array([trial.curve.values[name] for name in metrics], "<f4")
    return {
        "optimizer": optimizer,
        "index": trial.point.index,
        "status": trial.status.value,
        "seed": trial.point.seed,
        "hyperparameters": json.dumps(trial.point.hyperparameters),
        "steps": np.asarray(trial.curve.steps, "<i8").tobytes(),
        "curve": curve.tobytes(),
        "started": trial.started,
        "seconds": trial.seconds,
        "provenance": provenance,
    }


def _codes(connection: sa.Connection, optimizer: str) -> dict[str, str]:
    """Return the version of custom code of each provenance of an optimizer's trials; "" where none was recorded."""
    ids = sa.select(_trials.c.provenance).where(_trials.c.optimizer == optimizer).distinct()
    query = sa.select(_provenance.c.id, _provenance.c.content).where(_provenance.c.id.in_(ids))
    return {key: json.loads(content).get("code", "") for key, content in connection.execute(query)}


def _aside(optimizer: str, code: str) -> str:
    return f"{optimizer}@{code}"


def _trials_of(rows: Sequence[Any], metrics: list[str], codes: Mapping[str, str]) -> list[Trial]:
    """Return the trials in rows of the columns ``_READ``. Trials that were evaluated at the same steps share them."""
    places = [(name, sorted(metrics).index(name)) for name in metrics]
    hyperparameters = json.loads(f"[{','.join(row[3] for row in rows)}]")  # faster than one by one
    trials: list[Trial] = []
    shared: dict[bytes, np.ndarray] = {}
    for row, values in zip(rows, hyperparameters, strict=True):
        index, status, seed, _, steps, curve, started, seconds, provenance = row
        if steps not in shared:
            shared[steps] = np.frombuffer(steps, "<i8")
        table = np.frombuffer(curve, "<f4").reshape(len(metrics), len(shared[steps]))
        content = Curve(shared[steps], {name: table[place] for name, place in places})
        trials.append(Trial(Point(index, values, seed), _STATUS[status], content, started, seconds, codes[provenance]))
    return trials


def _last(metric: str, metrics: list[str]) -> sa.ColumnElement[Any]:
    """Return the last value of a metric as bytes: a curve has the metrics one after the other, in four bytes a step."""
    if metric not in metrics:
        return sa.null()
    end = (metrics.index(metric) + 1) * sa.func.length(_trials.c.steps) // 2
    return sa.func.substr(_trials.c.curve, end - 3, 4)  # counted from 1


def _reason(error: sa.exc.DatabaseError) -> str:
    return str(error.orig).strip().splitlines()[0]
