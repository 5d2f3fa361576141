"""Stores: one contract for SQLite and PostgreSQL, and errors."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from databases import connected

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
    """Compare bit by bit, including NaN and the sign of zero."""
    assert ours.point == theirs.point
    for name, value in theirs.point.hyperparameters.items():
        assert type(ours.point.hyperparameters[name]) is type(value)
    assert (ours.status, ours.started, ours.seconds) == (theirs.status, theirs.started, theirs.seconds)
    np.testing.assert_array_equal(ours.curve.steps, theirs.curve.steps)
    assert list(ours.curve.values) == list(theirs.curve.values)
    for metric, values in ours.curve.values.items():
        assert values.astype("<f4").tobytes() == np.asarray(theirs.curve.values[metric], "<f4").tobytes()


def count(location: str, table: str) -> int:
    with connected(location) as connection:
        return int(connection.scalar(sa.text(f"SELECT count(*) FROM {table}")) or 0)


def name_of(location: str) -> str:
    """Return the name of the file or database."""
    return location.partition("?")[0].rpartition("/")[2]


def failure(location: str | Path, **options: Any) -> str:
    """Return the one-line message with which Store.open fails."""
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
    """A process that adds trials once it is started with go()."""

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
        """Wait for the process and return its stderr."""
        return self.process.communicate(timeout=60)[1]


class TestEveryStore:
    def test_trials_are_read_back_bit_by_bit(self, location: str) -> None:
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

    def test_trials_are_read_back_by_index(self, location: str) -> None:
        with Store.open(location) as store:
            for index in (3, 0, 2):
                store.add("adam", DEFINITION, METRICS, [trial_of(index)], HERE)
            store.add("adam", DEFINITION, METRICS, [trial_of(10), trial_of(1)], HERE)
            assert [trial.point.index for trial in store.trials("adam")] == [0, 1, 2, 3, 10]

    def test_adding_twice_changes_nothing(self, location: str) -> None:
        """A stored trial stays unchanged, and does not prevent others in the same call."""
        with Store.open(location) as store:
            store.add("adam", DEFINITION, METRICS, [trial_of(0), trial_of(1)], HERE)
            other = trial_of(1, Status.INFEASIBLE, seconds=99.0)
            store.add("adam", DEFINITION, METRICS, [other, trial_of(2)], THERE)
            store.add("adam", {"changed": True}, METRICS, [trial_of(0)], HERE)
            trials = store.trials("adam")
        assert len(trials) == 3
        for index, trial in enumerate(trials):
            assert_same(trial, trial_of(index))
        assert count(location, "optimizers") == 1

    def test_optimizers_are_separate(self, location: str) -> None:
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

    def test_ends_are_those_of_the_trials(self, location: str) -> None:
        lengths = {3: 1, 0: 3, 7: 2, 5: 0}  # by index, in the order of writing
        trials = [
            trial_of(index, status, curve=Curve(np.arange(n) * 10, {name: all_values[name][:n] for name in METRICS}))
            for (index, n), status in zip(lengths.items(), itertools.cycle(Status))
            for all_values in [trial_of(index).curve.values]
        ]
        with Store.open(location) as store:
            store.add("sgd", DEFINITION, METRICS, trials[:2], HERE)
            store.add("sgd", DEFINITION, METRICS, trials[2:], HERE | {"code": "v2"})
            store.add("adam", DEFINITION, METRICS, [trial_of(1)], HERE)
            for metric in [*METRICS, "test_loss"]:
                ends = store.ends("sgd", metric)
                assert ends.index.tolist() == [0, 3, 5, 7]
                assert ends.status == [store.statuses("sgd")[index] for index in (0, 3, 5, 7)]
                finals = [trial.curve.final(metric) for trial in store.trials("sgd")]
                np.testing.assert_array_equal(ends.final, np.array(finals, np.float32))
                assert ends.code == ["", "", "v2", "v2"]
                assert ends.last_step.tolist() == [20, 0, 0, 10]
            assert len(store.ends("momentum", "train_loss").index) == 0

    def test_equal_provenance_is_stored_once(self, location: str) -> None:
        with Store.open(location) as store:
            for index, where in enumerate([HERE, THERE, HERE, dict(reversed(HERE.items()))]):
                store.add("adam", DEFINITION, METRICS, [trial_of(index)], where)
            store.add("sgd", DEFINITION, METRICS, [trial_of(0)], HERE)
            assert sorted(store.provenance("adam"), key=lambda entry: entry["device"]) == [HERE, THERE]
            assert store.provenance("sgd") == [HERE]
        assert count(location, "provenance") == 2

    def test_versions_of_code_are_kept_apart(self, location: str) -> None:
        """Trials of another version are set aside, and return with their version."""
        versions = {0: "old", 1: "older", 2: "old", 3: "new", 4: ""}
        with Store.open(location) as store:
            for index, code in versions.items():
                store.add("adam", DEFINITION, METRICS, [trial_of(index)], HERE | ({"code": code} if code else {}))
            store.add("sgd", DEFINITION, METRICS, [trial_of(0)], HERE | {"code": "old"})
            assert store.codes("adam") == versions
            for current, indices in {"new": [3, 4], "old": [0, 2, 4], "older": [1, 4], "unknown": [4]}.items():
                for _ in range(2):
                    store.keep_code_apart("adam", current)
                    trials = store.trials("adam")
                    assert [trial.point.index for trial in trials] == indices
                    assert {trial.code for trial in trials} <= {current, ""}
                    for trial in trials:
                        assert_same(trial, trial_of(trial.point.index))
                assert store.count() == 6
            assert store.codes("sgd") == {0: "old"}
            store.keep_code_apart("nadam", "new")
            store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE | {"code": "old"})  # trained again
            store.keep_code_apart("adam", "new")
            store.keep_code_apart("adam", "old")
            assert [trial.point.index for trial in store.trials("adam")] == [0, 2, 4]
            assert store.count() == 6

    def test_versions_of_code_may_have_different_metrics(self, location: str) -> None:
        loss = {"train_loss": Direction.MINIMIZE}
        with Store.open(location) as store:
            store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE | {"code": "old"})
            store.keep_code_apart("adam", "new")
            store.add("adam", DEFINITION, loss, [trial_of(0)], HERE | {"code": "new"})
            assert list(store.trials("adam")[0].curve.values) == list(loss)
            store.keep_code_apart("adam", "old")
            assert_same(store.trials("adam")[0], trial_of(0))

    def test_adding_no_trials_writes_nothing(self, location: str) -> None:
        with Store.open(location) as store:
            store.add("adam", DEFINITION, METRICS, [], HERE)
        assert [count(location, table) for table in ("optimizers", "provenance", "trials")] == [0, 0, 0]

    @pytest.mark.parametrize("fault", ["no start", "no curve of a metric"])
    def test_an_error_halfway_writes_nothing(self, location: str, fault: str) -> None:
        """The third trial is invalid, after the first two were written."""
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

    def test_killing_a_writer_leaves_complete_calls(self, location: str) -> None:
        writer = Writer(location, 0, 40_000, 8)
        writer.go()
        assert writer.process.stdout
        for _ in range(5):
            assert writer.process.stdout.readline()
        time.sleep(0.013)  # at an arbitrary moment
        writer.process.send_signal(signal.SIGKILL)
        writer.wait()
        with Store.open(location, create=False) as store:
            trials = store.trials("adam")
            assert len(trials) >= 5 * 8
            assert len(trials) % 8 == 0
            for index, trial in enumerate(trials):
                assert_same(trial, trial_of(index))

    def test_two_processes_write_at_once(self, location: str) -> None:
        """Both write half of the trials of the other, too."""
        Store.open(location).close()
        writers = [Writer(location, 0, 60, 2), Writer(location, 30, 90, 3)]
        for writer in writers:
            writer.go()
        assert [writer.wait() for writer in writers] == ["", ""]
        with Store.open(location) as store:
            trials = store.trials("adam")
            assert [trial.point.index for trial in trials] == list(range(90))
            for index, trial in enumerate(trials):
                assert_same(trial, trial_of(index))
        assert count(location, "provenance") == 1

    def test_several_processes_create_the_store_at_once(self, location: str) -> None:
        writers = [Writer(location, i, i + 1, 1) for i in range(4)]
        for writer in writers:
            writer.go()
        assert [writer.wait() for writer in writers] == 4 * [""]
        with Store.open(location) as store:
            assert set(store.statuses("adam")) == {0, 1, 2, 3}

    def test_a_newer_schema_is_rejected(self, location: str) -> None:
        Store.open(location).close()
        with connected(location) as connection:
            connection.execute(sa.text(f"UPDATE levelfield SET value = '{SCHEMA_VERSION + 1}' WHERE key = 'schema'"))
        for create in (True, False):
            message = failure(location, create=create)
            assert name_of(location) in message
            assert f"has schema {SCHEMA_VERSION + 1}" in message
            assert "upgrade levelfield" in message

    def test_another_programs_database_is_rejected(self, location: str) -> None:
        with connected(location) as connection:
            connection.execute(sa.text("CREATE TABLE customers (id INTEGER)"))
        for create in (True, False):
            assert "not a levelfield store" in failure(location, create=create)
        with connected(location) as connection:
            assert sa.inspect(connection).get_table_names() == ["customers"]  # unchanged

    def test_the_order_of_metrics_does_not_matter(self, location: str) -> None:
        """The order in which a workload declares its metrics is not part of an optimizer's identity."""
        with Store.open(location) as store:
            store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
            store.add("adam", DEFINITION, dict(reversed(METRICS.items())), [trial_of(1)], HERE)
            for index, trial in enumerate(store.trials("adam")):
                assert_same(trial, trial_of(index))

    def test_trials_with_other_metrics_do_not_damage_stored_ones(self, location: str) -> None:
        """A workload may have got one more metric; its new trials are rejected or kept separately."""
        more = METRICS | {"test_loss": Direction.MINIMIZE}
        values = {name: np.ones(3, np.float32) for name in more}
        with Store.open(location) as store:
            store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
            with contextlib.suppress(StoreError):
                store.add("adam", DEFINITION, more, [trial_of(1, curve=Curve(np.arange(3), values))], HERE)
            assert_same(store.trials("adam")[0], trial_of(0))

    def test_an_empty_database_can_become_a_store(self, location: str) -> None:
        if "://" not in location:
            Path(location).touch()
        assert name_of(location) in failure(location, create=False)
        with Store.open(location) as store:
            store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
        with Store.open(location, create=False) as store:
            assert len(store.trials("adam")) == 1


# ---------------------------------------------------------------------------- errors


def test_a_file_that_is_not_a_database_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary, today I tuned the learning rate.\n" * 100)
    for create in (True, False):
        assert str(path) in failure(path, create=create)
    assert path.read_text().startswith("Dear diary")


def test_a_damaged_store_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "trials.db"
    Store.open(path).close()
    content = bytearray(path.read_bytes())
    content[100:2000] = b"\xff" * 1900
    path.write_bytes(content)
    assert str(path) in failure(path)


def test_a_foreign_table_named_like_ours_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE levelfield (area REAL)")
    connection.close()
    assert str(path) in failure(path)


def test_a_folder_is_rejected(tmp_path: Path) -> None:
    for create in (True, False):
        assert str(tmp_path) in failure(tmp_path, create=create)


@pytest.mark.parametrize("below", ["trials.db", "deeper/still/trials.db"])
def test_a_location_that_cannot_be_written_is_rejected(tmp_path: Path, below: str) -> None:
    """Below a file, where not even root can write."""
    file = tmp_path / "file.txt"
    file.write_text("a file")
    assert str(file) in failure(file / below)


def test_reading_does_not_create_a_store(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "trials.db"
    assert str(path) in failure(path, create=False)
    assert list(tmp_path.iterdir()) == []


def test_writing_creates_missing_folders(tmp_path: Path) -> None:
    path = tmp_path / "some" / "folder" / "trials.db"
    Store.open(path).close()
    assert path.is_file()


@pytest.mark.parametrize("form", ["path", "text", "sqlite URL"])
def test_a_location_is_a_path_or_a_url(tmp_path: Path, form: str) -> None:
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
def test_other_urls_are_rejected(location: str) -> None:
    assert location.partition("://")[0] + "://" in failure(location)


@pytest.mark.parametrize("driver", ["postgresql+nonsense", "sqlite+nonsense"])
def test_unknown_drivers_are_rejected(driver: str) -> None:
    assert "nonsense" in failure(f"{driver}://localhost/trials")


def test_a_missing_server_is_reported(tmp_path: Path) -> None:
    assert "cannot open the store" in failure(f"postgresql://nobody@/trials?host={tmp_path}")


def test_a_missing_database_is_reported(postgres: str) -> None:
    assert "does not exist" in failure(postgres.format("nowhere"))


def test_a_rejected_store_is_closed(database: str) -> None:
    """No connection stays open."""
    with connected(database) as connection:
        connection.execute(sa.text("CREATE TABLE customers (id INTEGER)"))
        # Keep the error, because its traceback could keep the engine alive.
        with pytest.raises(StoreError) as error:
            Store.open(database)
    others = sa.text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
    deadline = time.monotonic() + 10  # the server takes a moment to end closed connections
    while True:
        with connected(database) as connection:
            if connection.scalar(others) == 1:
                break
        assert time.monotonic() < deadline, error


@pytest.mark.parametrize(
    "place", ["postgresql://{}@/trials?host=/nowhere", "postgresql://{}@host:port/", "mysql://{}@host/"]
)
@pytest.mark.parametrize("password", ["hunter2", "hunter2/x", "x/hunter2", "x:hunter2:x", "x@hunter2@x"])
def test_errors_do_not_show_the_password(place: str, password: str) -> None:
    """Errors end up in logs and bug reports."""
    assert "hunter2" not in failure(place.format(f"me:{password}"))


def test_a_lost_connection_is_renewed(database: str) -> None:
    """A firewall may close a connection that is idle for hours, while a trial trains."""
    with Store.open(database) as store:
        store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
        with connected(database) as connection:
            ended = sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            connection.execute(ended)
        store.add("adam", DEFINITION, METRICS, [trial_of(1)], HERE)
        assert list(store.statuses("adam")) == [0, 1]


def test_a_reader_does_not_interrupt_a_run(tmp_path: Path) -> None:
    """Writing waits while another process reads a SQLite store."""
    path = tmp_path / "trials.db"
    with Store.open(path) as store:
        store.add("adam", DEFINITION, METRICS, [trial_of(0), trial_of(1)], HERE)
        reader = sqlite3.connect(path, check_same_thread=False)
        rows = reader.execute("SELECT * FROM trials")
        next(rows)
        reader_leaves = threading.Timer(6, rows.close)  # longer than SQLite waits by default
        reader_leaves.start()
        store.add("adam", DEFINITION, METRICS, [trial_of(2)], HERE)
        reader_leaves.join()
        reader.close()
        assert list(store.statuses("adam")) == [0, 1, 2]


def test_a_read_only_store_can_be_read() -> None:
    """Root can write everywhere, so root reads it as nobody."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trials.db"
        with Store.open(path) as store:
            store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        script = (
            "import os, pwd, sys; from levelfield.store import Store\n"
            "Store.open('sqlite://').close()  # imports what nobody may not read\n"
            "if os.geteuid() == 0: os.seteuid(pwd.getpwnam('nobody').pw_uid)\n"
            "print(Store.open(sys.argv[1], create=False).statuses('adam'))"
        )
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60)
        Path(folder).chmod(0o755)
    assert (done.stderr, done.returncode) == ("", 0)
    assert "FEASIBLE" in done.stdout


def test_a_store_that_fails_later_reports_it_in_one_line(tmp_path: Path) -> None:
    """When reading, too."""
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


def test_a_foreign_database_stays_unchanged(tmp_path):
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("create table trials (id integer, name text)")
        other.commit()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not a levelfield store"):
        Store.open(path)
    assert path.read_bytes() == before
