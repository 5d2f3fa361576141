"""Finished trials in a database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from levelfield.errors import MissingRow, NoStore, StoreError
from levelfield.pool import PoolCount
from levelfield.store import claims, failures
from levelfield.store.claims import Open, Runner, Worker
from levelfield.store.database import Database
from levelfield.store.rows import Ends, ends_of, last_step, last_value, problem_of, row_of, trials_of
from levelfield.store.schema import SCHEMA_VERSION, meta, metadata, optimizers, provenance, step_times, trials
from levelfield.study import digest
from levelfield.trial import Direction, FailedTrial, Failure, Status, StepTime, Trial

_CREATION_LOCK = 0x6C66  # of PostgreSQL, held while a store is created or upgraded


@dataclass(frozen=True)
class Damage:
    """Something in a store that is not what was written."""

    what: str
    optimizer: str = ""  # together with the index: the trial that is damaged
    index: int = -1


class Store:
    """Finished trials by optimizer and index. ``Store.open`` opens or creates one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.name = database.name
        self._version = SCHEMA_VERSION
        self._known: set[tuple[str, str, frozenset[str]]] = set()  # optimizers, provenances and metrics that it has

    @classmethod
    def open(cls, location: str | Path, *, create: bool = True) -> Store:
        """Open the store at a path (SQLite) or a database URL such as ``postgresql://…``.

        ``create``: open it to write; otherwise it must exist.
        """
        database = Database(location, writes=create)
        try:
            if database.is_sqlite and database.url.database:
                path = Path(database.url.database)
                if not create and not path.exists():
                    raise NoStore(str(location), "no such store; 'levelfield run' or 'levelfield import' creates it")
                if create:
                    _make_folder(path.parent)
            store = cls(database)
            store._check_or_create(create)
            if create:
                nothing = sa.update(meta).where(sa.false()).values(value="")  # shows whether the store can be written
                database.write(lambda connection: connection.execute(nothing))
        except StoreError:
            database.close()
            raise
        database.is_open = True
        return store

    def _check_or_create(self, create: bool) -> None:
        columns = self._database.read(_existing_columns)
        if meta.name not in columns:
            # A process may have been killed while it created the store: its tables are ours, and incomplete.
            expected = {name: {column.name for column in table.columns} for name, table in metadata.tables.items()}
            if any(names != expected.get(table) for table, names in columns.items()):
                raise StoreError(f"{self.name}: a database of another program, not a levelfield store")
            if not create:
                raise NoStore(self.name, "the store is empty; 'levelfield run' or 'levelfield import' fills it")
            self._database.write(self._create)
        self._version = self._read_version()
        if self._version > SCHEMA_VERSION:
            raise StoreError(
                f"{self.name}: the store has schema {self._version}, this version of levelfield reads up to "
                f"{SCHEMA_VERSION}; upgrade levelfield"
            )
        if create and self._version < SCHEMA_VERSION:
            self._database.write(self._create)
            self._version = self._read_version()

    def _read_version(self) -> int:
        text = self._database.read(lambda c: c.scalar(sa.select(meta.c.value).where(meta.c.key == "schema")))
        if not (text or "").isdigit():
            raise StoreError(f"{self.name}: the store is damaged (its schema is {text!r}, not a number)")
        return int(text or 0)

    def _create(self, connection: sa.Connection) -> None:
        """Create what the store lacks."""
        if not self._database.is_sqlite:
            # "If not exists" fails if two processes create the same table at once.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
        columns = _existing_columns(connection)
        if trials.name in columns and trials.c.digest.name not in columns[trials.name]:
            connection.execute(sa.text("ALTER TABLE trials ADD COLUMN digest VARCHAR(32)"))
        metadata.create_all(connection)
        for index in trials.indexes:  # the table of an older store exists, but not its index
            index.create(connection, checkfirst=True)
        version = self._database.insert(meta).values(key="schema", value=str(SCHEMA_VERSION))
        connection.execute(version.on_conflict_do_update(index_elements=["key"], set_={"value": str(SCHEMA_VERSION)}))

    def add(
        self,
        optimizer: str,
        definition: Mapping[str, Any],
        metrics: Mapping[str, Direction],
        finished: Sequence[Trial],
        origin: Mapping[str, Any],
    ) -> None:
        """Add finished trials with their provenance, all or none. Trials that the store already has stay unchanged."""
        if not finished:
            return
        key = digest(origin)
        known = optimizer, key, frozenset(metrics)
        indices = [trial.point.index for trial in finished]
        rows = [row_of(optimizer, trial, sorted(metrics), key) for trial in finished]
        optimizer_row = {"id": optimizer, "definition": json.dumps(definition), "metrics": json.dumps(metrics)}

        def work(connection: sa.Connection) -> None:
            if known not in self._known:
                self._check_metrics(connection, optimizer, metrics)
                self._insert(connection, optimizers, [optimizer_row])
                self._insert(connection, provenance, [{"id": key, "content": json.dumps(origin)}])
            self._insert(connection, trials, rows)
            claims.remove_claims(connection, optimizer, indices)
            failures.remove(connection, optimizer, indices)

        try:
            self._database.write(work)
        except MissingRow:  # somebody has set the optimizer's trials aside
            self._known.clear()
            self._database.write(work)
        self._known.add(known)

    def _insert(self, connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows, except those that are there."""
        connection.execute(self._database.insert(table).on_conflict_do_nothing(), rows)

    def add_failures(self, optimizer: str, failed: Sequence[Failure]) -> None:
        """Add failed trials, which are kept until they finish. One that has failed before gets one attempt more."""
        if failed:
            self._database.write(lambda connection: failures.add(connection, self._database, optimizer, failed))

    def failures(self, optimizer: str) -> list[FailedTrial]:
        """Return the trials of an optimizer that have failed and not finished since, by index."""
        if self._version < 3:
            return []
        return self._database.read(lambda connection: failures.read(connection, optimizer))

    def add_step_time(self, optimizer: str, measured: StepTime, *, replace: bool = False) -> None:
        """Add how long a step of an optimizer takes on a device.

        An existing measurement of more stretches is kept unless ``replace`` is true.
        """
        insert = self._database.insert(step_times).values(optimizer=optimizer, **asdict(measured))
        new = {name: insert.excluded[name] for name in ("seconds", "slots", "stretches", "spread")}
        update = insert.on_conflict_do_update(
            index_elements=["optimizer", "device"],
            set_=new,
            where=None if replace else step_times.c.stretches <= insert.excluded.stretches,
        )
        self._database.write(lambda connection: connection.execute(update))

    def step_times(self, optimizer: str) -> list[StepTime]:
        """Return how long a step of an optimizer takes, for each device on which it was measured."""
        if self._version < 4:
            return []
        columns = [step_times.c[field.name] for field in fields(StepTime)]
        query = sa.select(*columns).where(step_times.c.optimizer == optimizer).order_by(step_times.c.device)
        return [StepTime(*row) for row in self._database.read(lambda c: c.execute(query).all())]

    def check_metrics(self, optimizer: str, metrics: Mapping[str, Direction]) -> None:
        """Raise if the optimizer's stored trials have other metrics than these."""
        self._database.read(lambda connection: self._check_metrics(connection, optimizer, metrics))

    def _check_metrics(self, connection: sa.Connection, optimizer: str, metrics: Mapping[str, Direction]) -> None:
        stored = self._metrics(connection, optimizer)
        if stored and set(stored) != set(metrics):
            raise StoreError(
                f"{self.name}: the stored trials have the metrics {', '.join(stored)}, the workload has "
                f"{', '.join(metrics)}; increase the workload's version to keep them apart"
            )

    def _metrics(self, connection: sa.Connection, optimizer: str) -> list[str]:
        """Return the metrics of an optimizer's trials in their workload's order; none if it has no trials."""
        text = connection.scalar(sa.select(optimizers.c.metrics).where(optimizers.c.id == optimizer))
        return list(self._parsed(text or "{}", f"the metrics of optimizer {optimizer}"))

    def _parsed(self, text: str, what: str) -> dict[str, Any]:
        try:
            content = json.loads(text)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise self._damaged(what)
        return content

    def _damaged(self, what: str, why: str = "") -> StoreError:
        reason = f" ({why})" if why else ""
        return StoreError(
            f"{self.name}: {what} is damaged{reason}; 'levelfield store check {self.name}' lists all damage, and with "
            f"--repair removes damaged trials, so that a run trains them again"
        )

    def count(self) -> int:
        """Return the number of trials of all studies."""
        query = sa.select(sa.func.count()).select_from(trials)
        return self._database.read(lambda connection: int(connection.execute(query).scalar_one()))

    def statuses(self, optimizer: str) -> dict[int, Status]:
        """Return the status of each finished trial of an optimizer by index."""
        query = sa.select(trials.c.index, trials.c.status).where(trials.c.optimizer == optimizer)
        rows = self._database.read(lambda connection: connection.execute(query).all())
        try:
            return {index: Status(status) for index, status in rows}
        except ValueError as error:
            raise self._damaged("the status of a trial", str(error)) from None

    def pool_count(self, optimizer: str, n: int, points: float) -> PoolCount:
        """Count the finished trials inside the window of a pool of n feasible trials. The database counts."""

        def infeasible_below(connection: sa.Connection, end: int) -> int:
            return _count(connection, optimizer, Status.INFEASIBLE, end)

        def work(connection: sa.Connection) -> PoolCount:
            infeasible = 0
            while (more := infeasible_below(connection, n + infeasible)) > infeasible:
                infeasible = more
            return PoolCount(n, _count(connection, optimizer, Status.FEASIBLE, n + infeasible), infeasible, points)

        return self._database.read(work)

    def codes(self, optimizer: str) -> dict[int, str]:
        """Return the version of custom code of each trial of an optimizer by index; "" where none was recorded."""
        query = sa.select(trials.c.index, trials.c.provenance).where(trials.c.optimizer == optimizer)

        def work(connection: sa.Connection) -> dict[int, str]:
            codes = self._codes(connection, optimizer)
            return {index: codes.get(origin, "") for index, origin in connection.execute(query)}

        return self._database.read(work)

    def _codes(self, connection: sa.Connection, optimizer: str) -> dict[str, str]:
        """Return the version of custom code of each provenance of an optimizer's trials; "" where there is none."""
        ids = sa.select(trials.c.provenance).where(trials.c.optimizer == optimizer).distinct()
        query = sa.select(provenance.c.id, provenance.c.content).where(provenance.c.id.in_(ids))
        return {
            key: str(self._parsed(content, f"provenance {key}").get("code", ""))
            for key, content in connection.execute(query)
        }

    def trials(self, optimizer: str) -> list[Trial]:
        """Return all finished trials of an optimizer, by index. Raises a StoreError if one of them is damaged."""
        query = self._rows.where(trials.c.optimizer == optimizer).order_by(trials.c.index)

        def work(connection: sa.Connection) -> tuple[list[str], dict[str, str], Sequence[Any]]:
            names, codes = self._metrics(connection, optimizer), self._codes(connection, optimizer)
            rows = connection.execute(query).all()
            if len(rows) != self._count_twice(connection, optimizer, len(rows)):
                raise self._damaged(f"the list of trials of optimizer {optimizer}")
            return names, codes, rows

        names, codes, rows = self._database.read(work)
        for row in rows:
            if problem := problem_of(row, names, codes):
                raise self._damaged(f"trial {row.index} of optimizer {optimizer}", problem)
        return trials_of(rows, names, codes)

    def _count_twice(self, connection: sa.Connection, optimizer: str, found: int) -> int:
        """Count an optimizer's trials by another index than the one they were found by, which may have lost some."""
        if not self._database.is_sqlite or self._version == 1:  # PostgreSQL has checksums of its own
            return found
        query = sa.text("SELECT count(*) FROM trials INDEXED BY trials_status WHERE optimizer = :optimizer")
        return int(connection.execute(query, {"optimizer": optimizer}).scalar_one())

    @property
    def _rows(self) -> sa.Select[Any]:
        """A query for whole trials. Stores of schema 1 that were only read have no digests."""
        columns = [column for column in trials.c if column is not trials.c.digest]
        return sa.select(*columns, trials.c.digest if self._version > 1 else sa.literal(None).label("digest"))

    def provenance(self, optimizer: str) -> list[dict[str, Any]]:
        """Return each provenance of an optimizer's trials once."""
        ids = sa.select(trials.c.provenance).where(trials.c.optimizer == optimizer).distinct()
        query = sa.select(provenance).where(provenance.c.id.in_(ids)).order_by(provenance.c.id)
        rows = self._database.read(lambda connection: connection.execute(query).all())
        contents = {row.id: self._parsed(row.content, f"provenance {row.id}") for row in rows}
        for key, content in contents.items():
            if digest(content) != key:
                raise self._damaged(f"provenance {key}")
        return list(contents.values())

    def keep_code_apart(self, optimizer: str, code: str) -> None:
        """Set aside the trials of an optimizer that were trained with another version of custom code than this one.

        They stay in the store under the optimizer's id with the version appended, where nothing reads them. Trials of
        this version that were set aside before return.
        """

        def work(connection: sa.Connection) -> None:
            codes = self._codes(connection, optimizer)
            own = trials.c.optimizer == optimizer
            for other in {version for version in codes.values() if version not in ("", code)}:
                stale = own & trials.c.provenance.in_([key for key, version in codes.items() if version == other])
                self._move(connection, stale, optimizer, _aside(optimizer, other))
                before = sa.select(trials.c.index).where(trials.c.optimizer == _aside(optimizer, other))
                again = stale & trials.c.index.in_(before.scalar_subquery())  # the same trials, set aside before
                connection.execute(sa.delete(trials).where(again))
            if connection.scalar(sa.select(sa.func.count()).where(own)) == 0:  # other code may have other metrics
                connection.execute(sa.delete(optimizers).where(optimizers.c.id == optimizer))
            aside = _aside(optimizer, code)
            self._move(connection, trials.c.optimizer == aside, aside, optimizer)
            claims.forget_queue(connection, optimizer)

        self._database.write(work)

    def _move(self, connection: sa.Connection, chosen: sa.ColumnElement[bool], source: str, destination: str) -> None:
        """File trials under another optimizer, except for those that it already has."""
        row = connection.execute(sa.select(optimizers).where(optimizers.c.id == source)).one_or_none()
        if row is None:
            return
        content = [{"id": destination, "definition": row.definition, "metrics": row.metrics}]
        self._insert(connection, optimizers, content)
        if connection.scalar(sa.select(optimizers.c.metrics).where(optimizers.c.id == destination)) == row.metrics:
            taken = sa.select(trials.c.index).where(trials.c.optimizer == destination).scalar_subquery()
            moved = sa.update(trials).where(chosen, trials.c.index.not_in(taken))
            connection.execute(moved.values(optimizer=destination))

    def runner(self) -> Runner:
        """Return a runner, which claims points of this store for this process."""
        return Runner(self._database)

    def enqueue(self, optimizer: str, end: int) -> None:
        """Offer the first ``end`` points of an optimizer to all runners, except those that have a trial."""
        self._database.write(lambda connection: claims.enqueue(connection, self._database, optimizer, end))

    def offered_points(self, optimizer: str) -> int:
        """Return how many points of an optimizer have been offered to all runners."""
        return self._database.execute(lambda connection: claims.queue_end(connection, optimizer))

    def open_points(self, identities: Sequence[str]) -> dict[str, Open]:
        """Return how many of the offered points of each optimizer are free, and how many somebody trains."""
        return self._database.execute(lambda connection: claims.open_points(connection, identities))

    def open_below(self, optimizer: str, end: int, besides: Sequence[int] = ()) -> int:
        """Return how many of the first ``end`` points of an optimizer have no trial yet, not counting ``besides``."""
        return self._database.execute(lambda connection: claims.open_below(connection, optimizer, end, besides))

    def workers(self, identities: Sequence[str]) -> list[Worker]:
        """Return the runners that are training points of these optimizers."""
        if self._version < 2:
            return []
        return self._database.read(lambda connection: claims.workers(connection, self._database, identities))

    def check(self) -> list[Damage]:
        """Return everything in the store that is not what was written."""
        return self._database.read(self._check)

    def _check(self, connection: sa.Connection) -> list[Damage]:
        found = []
        if self._database.is_sqlite:
            lines = connection.exec_driver_sql("PRAGMA integrity_check").scalars()
            found += [Damage(f"SQLite: {line}") for line in lines if line != "ok"]
        names: dict[str, list[str]] = {}
        for row in connection.execute(sa.select(optimizers)):
            try:
                names[row.id] = list(self._parsed(row.metrics, ""))
                intact = digest(self._parsed(row.definition, "")) == row.id.partition("@")[0]
            except StoreError:
                intact = False
            if not intact:
                found.append(Damage(f"the definition of optimizer {row.id}"))
        codes: dict[str, str] = {}
        for row in connection.execute(sa.select(provenance)):
            codes[row.id] = ""
            if _digest_of(row.content) != row.id:
                found.append(Damage(f"provenance {row.id}"))
        stored: Any
        for stored in connection.execute(self._rows.order_by(trials.c.optimizer, trials.c.index)):
            if problem := problem_of(stored, names.get(stored.optimizer, []), codes):
                what = f"trial {stored.index} of optimizer {stored.optimizer} ({problem})"
                index = stored.index if isinstance(stored.index, int) else -1
                found.append(Damage(what, stored.optimizer, index))
        return found

    def remove(self, damaged: Sequence[Damage]) -> int:
        """Remove damaged trials, so that a run trains them again; return how many."""
        chosen = [damage for damage in damaged if damage.index >= 0]

        def work(connection: sa.Connection) -> None:
            for damage in chosen:
                place = (trials.c.optimizer == damage.optimizer, trials.c.index == damage.index)
                connection.execute(sa.delete(trials).where(*place))
            for table, used in ((optimizers, trials.c.optimizer), (provenance, trials.c.provenance)):
                connection.execute(sa.delete(table).where(table.c.id.not_in(sa.select(used))))  # may be damaged, too
            claims.forget_queues(connection)  # the damage may have been in a trial's optimizer or index

        self._database.write(work)
        return len(chosen)

    def ends(self, optimizer: str, metric: str) -> Ends:
        """Return how an optimizer's trials ended, by index, without reading their curves."""

        def work(connection: sa.Connection) -> tuple[dict[str, str], Sequence[Any]]:
            names, codes = sorted(self._metrics(connection, optimizer)), self._codes(connection, optimizer)
            origin = trials.c.provenance if any(codes.values()) else sa.literal("")
            query = sa.select(trials.c.index, trials.c.status, origin, last_value(metric, names), last_step())
            return codes, connection.execute(
                query.where(trials.c.optimizer == optimizer).order_by(trials.c.index)
            ).all()

        codes, rows = self._database.read(work)
        try:
            return ends_of(rows, codes)
        except KeyError as error:
            raise self._damaged(f"a trial of optimizer {optimizer}", f"unknown {error}") from None

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder}: cannot create the folder ({error.strerror})") from None


def _existing_columns(connection: sa.Connection) -> dict[str, set[str]]:
    inspector = sa.inspect(connection)
    return {table: {column["name"] for column in inspector.get_columns(table)} for table in inspector.get_table_names()}


def _count(connection: sa.Connection, optimizer: str, status: Status, end: int) -> int:
    window = (trials.c.optimizer == optimizer, trials.c.status == status.value, trials.c.index < end)
    return connection.scalar(sa.select(sa.func.count()).select_from(trials).where(*window)) or 0


def _digest_of(text: str) -> str:
    try:
        return digest(json.loads(text))
    except ValueError:
        return ""


def _aside(optimizer: str, code: str) -> str:
    return f"{optimizer}@{code}"
