"""Claims: runners on one store share its points. One contract for SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from databases import connected
from fakes import NOWHERE, FormulaExecutor
from helpers import make_study
from hypothesis import given
from hypothesis import strategies as st
from test_store import DEFINITION, METRICS, trial_of

from levelfield.errors import StoreUnavailable, TrialFailed, UsageError
from levelfield.pool import PoolCount
from levelfield.run import run
from levelfield.store import Runner, Store
from levelfield.store.database import Database
from levelfield.trial import Failure, Point, Progress, Status
from levelfield.work import Work


@pytest.fixture
def opened(location: str) -> Iterator[Store]:
    with Store.open(location) as store:
        yield store


@contextlib.contextmanager
def runners(store: Store, count: int) -> Iterator[list[Runner]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(store.runner()) for _ in range(count)]


def test_a_point_is_claimed_by_one_runner(opened: Store) -> None:
    opened.enqueue("adam", 10)
    with runners(opened, 2) as (first, second):
        assert first.claim("adam", 10, 4) == [0, 1, 2, 3]
        assert second.claim("adam", 10, 4) == [4, 5, 6, 7]
        assert first.claim("adam", 9, 4) == [8]  # only the first 9 points
        assert second.claim("sgd", 10, 4) == []


def test_points_that_have_a_trial_are_not_handed_out(opened: Store) -> None:
    opened.add("adam", DEFINITION, METRICS, [trial_of(1), trial_of(3)], NOWHERE)
    opened.enqueue("adam", 5)
    with runners(opened, 2) as (first, second):
        assert first.claim("adam", 5, 2) == [0, 2]
        opened.add("adam", DEFINITION, METRICS, [trial_of(0)], NOWHERE)
        assert second.claim("adam", 5, 5) == [4]
        assert opened.open_below("adam", 3) == 1
        assert opened.open_points(["adam"]) == {"adam": (0, 2)}  # free, claimed
        opened.enqueue("adam", 7)  # the pool has grown
        assert second.claim("adam", 7, 5) == [5, 6]


def test_claims_return_when_a_runner_leaves_or_releases_them(opened: Store) -> None:
    opened.enqueue("adam", 4)
    with runners(opened, 1) as (other,):
        with runners(opened, 1) as (leaving,):
            leaving.claim("adam", 4, 3)
            leaving.release("adam", [1])
            assert other.claim("adam", 4, 1) == [1]
        assert other.claim("adam", 4, 4) == [0, 2, 3]


def seconds_ago(location: str, seconds: float) -> None:
    """Let the last sign of life of all runners lie in the past, or in the future if negative."""
    with connected(location) as connection:
        connection.execute(sa.text(f"UPDATE runners SET seen = seen - {seconds}"))


@pytest.mark.parametrize(("seconds", "is_free"), [(0, False), (250, False), (301, True), (-30, False), (-3600, True)])
def test_claims_are_free_when_the_lease_has_expired(
    opened: Store, location: str, seconds: float, is_free: bool
) -> None:
    """A lease from the future is one from before the clock went back."""
    opened.enqueue("adam", 2)
    with runners(opened, 1) as (silent,):
        silent.claim("adam", 2, 2)
        seconds_ago(location, seconds)
        with runners(opened, 1) as (other,):
            assert other.claim("adam", 2, 2) == ([0, 1] if is_free else [])


def test_a_runner_that_lost_its_lease_can_go_on(opened: Store, location: str) -> None:
    """It was stopped for longer than a lease. Its trial is stored once, and its new claims are its own."""
    opened.enqueue("adam", 4)
    with runners(opened, 1) as (slow,):
        assert slow.claim("adam", 4, 2) == [0, 1]
        seconds_ago(location, 1000)
        with runners(opened, 1) as (other,):
            assert other.claim("adam", 4, 2) == [0, 1]
            opened.add("adam", DEFINITION, METRICS, [trial_of(0)], NOWHERE)  # both finish it
            opened.add("adam", DEFINITION, METRICS, [trial_of(0)], NOWHERE)
            assert slow.claim("adam", 4, 1) == [2]
            assert other.claim("adam", 4, 4) == [3]
    assert list(opened.statuses("adam")) == [0]


def test_a_runner_that_lost_its_lease_does_not_claim_what_it_is_training(opened: Store, location: str) -> None:
    """Nobody else has taken its points, so it keeps them."""
    opened.enqueue("adam", 4)
    with runners(opened, 1) as (slow,):
        assert slow.claim("adam", 4, 2) == [0, 1]
        seconds_ago(location, 1000)
        with runners(opened, 1) as (other,):
            assert slow.claim("adam", 4, 1) == [2]
            assert other.claim("adam", 4, 4) == [3]
            other.free_abandoned()  # as if the slow one had been killed before it renewed its lease
            assert other.claim("adam", 4, 4) == [0, 1, 2]


def test_claims_of_a_process_that_was_killed_are_free_at_once(opened: Store, location: str) -> None:
    script = (
        "import sys, time; from levelfield.store import Store\n"
        "runner = Store.open(sys.argv[1]).runner(); runner.__enter__()\n"
        "print(runner.claim('adam', 3, 2), flush=True); time.sleep(60)"
    )
    opened.enqueue("adam", 3)
    with runners(opened, 1) as (other,):
        process = subprocess.Popen([sys.executable, "-c", script, location], stdout=subprocess.PIPE, text=True)
        assert process.stdout
        assert process.stdout.readline() == "[0, 1]\n"
        (worker,) = opened.workers(["adam"])
        assert (worker.pid, worker.points) == (process.pid, {"adam": 2})
        other.free_abandoned()
        assert other.claim("adam", 3, 3) == [2]
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        process.stdout.close()
        other.free_abandoned()
        assert other.claim("adam", 3, 3) == [0, 1]
        assert [worker.pid for worker in opened.workers(["adam"])] == [os.getpid()]


def test_a_runner_whose_store_is_gone_does_not_wait_for_it_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = store.runner()
    runner.__enter__()
    monkeypatch.setattr(Database, "write", lambda *_: pytest.fail("the store is used again"))
    runner.__exit__(StoreUnavailable, StoreUnavailable("gone"), None)


def test_the_lease_is_renewed_while_training(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVELFIELD_LEASE", "1")
    with Store.open(location) as store, Store.open(location) as elsewhere:
        store.enqueue("adam", 2)
        with runners(store, 1) as (busy,), runners(elsewhere, 1) as (other,):
            busy.claim("adam", 2, 2)
            time.sleep(2.5)
            other.free_abandoned()
            assert other.claim("adam", 2, 2) == []


def test_a_bad_lease_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVELFIELD_LEASE", "soon")
    with pytest.raises(UsageError, match="LEVELFIELD_LEASE = 'soon': expected a positive number of seconds"):
        store.runner()


def test_many_runners_never_claim_the_same_point(location: str) -> None:
    """Eight threads claim as fast as they can."""
    points, claimed = 400, list[int]()
    with Store.open(location) as store:
        store.enqueue("adam", points)

        def claim() -> None:
            with Store.open(location) as own, own.runner() as runner:
                while indices := runner.claim("adam", points, 7):
                    claimed.extend(indices)
                everyone.wait()  # leaving returns the claims

        everyone = threading.Barrier(8)
        threads = [threading.Thread(target=claim) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(claimed) == list(range(points))


@given(st.dictionaries(st.integers(0, 40), st.sampled_from(Status)), st.integers(1, 15))
def test_the_database_counts_a_pool_like_python(statuses: dict[int, Status], n: int) -> None:
    with Store.open("sqlite://") as store:
        store.add("adam", DEFINITION, METRICS, [trial_of(i, status) for i, status in statuses.items()], NOWHERE)
        assert store.pool_count("adam", n, 30) == PoolCount.of(statuses, n, 30)


@pytest.mark.parametrize("count", [2, 3])
def test_runs_on_one_store_train_each_point_once(location: str, count: int) -> None:
    """Each in a thread of its own; every third point is infeasible, so the pools grow while they run."""
    study = make_study(trials=1, pool=30)

    def loss(optimizer: str, point: Point) -> float:
        time.sleep(0.002)
        return float("inf") if point.index % 3 == 1 else 1.0

    executors = [FormulaExecutor(loss, slots=3, seed=seed) for seed in range(count)]

    def work(executor: FormulaExecutor) -> None:
        with Store.open(location) as own:
            run(study, own, executor, Silent())

    threads = [threading.Thread(target=work, args=[executor]) for executor in executors]
    Store.open(location).close()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    trained = [each for executor in executors for each in executor.finished]
    assert sorted(trained) == sorted((name, index) for name in study.optimizers for index in range(45))
    assert sum(len(executor.finished) > 5 for executor in executors) >= 2  # they shared the work
    with Store.open(location) as store:
        assert [len(store.statuses(study.identity(name))) for name in study.optimizers] == [45, 45]
        assert store.workers([study.identity(name) for name in study.optimizers]) == []


class Silent:
    """A listener that hears nothing."""

    def __getattr__(self, name: str):
        return lambda *_: None


def test_a_runner_stays_with_one_optimizer_while_there_is_work_for_it(store: Store) -> None:
    executor = FormulaExecutor(lambda *_: 1.0, slots=3)
    run(make_study(trials=1, pool=12), store, executor)
    assert executor.asked == ["sgd", "momentum"]


def test_a_second_runner_starts_with_the_optimizer_that_nobody_trains(location: str) -> None:
    study = make_study(trials=1, pool=12)
    with Store.open(location) as store, runners(store, 1) as (busy,):
        identity = study.identity("sgd")
        store.enqueue(identity, 12)
        busy.claim(identity, 12, 3)
        executor = FormulaExecutor(lambda *_: 1.0, slots=3, stretches=2)
        with contextlib.suppress(BaseException):
            run(study, store, executor)
    assert executor.asked == ["momentum"]


def test_points_that_others_finish_while_they_are_counted_leave_no_gap(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another runner finishes the last point just before it is counted. It is infeasible: the pool needs one more."""
    study = make_study(trials=1, pool=1).only(["sgd"])
    counted, elsewhere = store.open_below, FormulaExecutor(lambda *_: float("inf"))

    def count(*arguments: Any, **options: Any) -> int:
        monkeypatch.undo()
        run(study, store, elsewhere, Silent(), tries=1)
        return counted(*arguments, **options)

    monkeypatch.setattr(store, "open_below", count)
    with runners(store, 1) as (runner,):
        assert Work(study, store, runner, dict).left() == 1


def test_runners_whose_trials_fail_do_not_wait_for_each_other(location: str) -> None:
    """Each tries points that the other has returned, too, and ends."""

    class Failing(FormulaExecutor):
        def train(self, study: Any, take: Any) -> Any:
            while batch := take(2):
                time.sleep(0.05)
                yield Progress(batch.optimizer, failed=[Failure(point, "bad") for point in batch.points])

    study, errors = make_study(trials=1, pool=4), list[str]()

    def work() -> None:
        with Store.open(location) as own, pytest.raises(TrialFailed) as error:
            run(study, own, Failing(lambda *_: 1.0), Silent())
        errors.append(str(error.value))

    Store.open(location).close()
    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(errors) == 2
    assert all("sgd: trial" in error and "momentum: trial" in error and "failed: bad" in error for error in errors)
