"""Running a study: which points a pool needs, and that neither order nor interruptions change it."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from fakes import NOWHERE, FormulaExecutor, Interrupted
from helpers import make_study
from hypothesis import given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield.errors import StoreError
from levelfield.listener import Best
from levelfield.pool import PoolCount, pool_window
from levelfield.run import run
from levelfield.search import Search
from levelfield.store import Store
from levelfield.trial import Curve, Direction, Point, Progress, Status, Trial

# ---------------------------------------------------------------------------- which points a pool needs

outcomes = st.dictionaries(st.integers(0, 40), st.sampled_from(Status))
sizes = st.integers(1, 15)


def shortest_prefix(feasible: Callable[[int], bool], n: int) -> range:
    """Apply the definition: try every length."""
    return next(range(length) for length in range(1000) if sum(map(feasible, range(length))) >= n)


@given(outcomes, sizes)
def test_the_window_is_the_shortest_prefix_that_could_hold_n_feasible_trials(
    statuses: dict[int, Status], n: int
) -> None:
    hopeful = shortest_prefix(lambda index: statuses.get(index) is not Status.INFEASIBLE, n)
    assert pool_window(statuses, n) == hopeful
    finished = [statuses[index] for index in hopeful if index in statuses]
    count = PoolCount.of(statuses, n, math.inf)
    assert (count.feasible, count.tried) == (finished.count(Status.FEASIBLE), len(finished))


@given(outcomes, sizes)
def test_the_points_that_a_run_wants_are_the_window_up_to_its_limit(statuses: dict[int, Status], n: int) -> None:
    count = PoolCount.of(statuses, n, math.inf)
    assert count.wanted == min(len(pool_window(statuses, n)), count.limit)


@given(st.lists(st.sampled_from(Status), max_size=40), sizes)
def test_a_full_pool_wants_nothing_more(statuses: list[Status], n: int) -> None:
    """The pool is the first n feasible trials of a finished prefix."""
    finished = dict(enumerate(statuses))
    feasible = [index for index, status in finished.items() if status is Status.FEASIBLE]
    count = PoolCount.of(finished, n, math.inf)
    assert count.full == (len(feasible) >= n)
    if count.full:
        assert count.wanted <= len(finished)
        assert [index for index in pool_window(finished, n) if index in feasible] == feasible[:n]
    elif not count.given_up:
        assert count.wanted > len(finished)


@given(outcomes, sizes)
def test_a_larger_pool_contains_the_smaller_one(statuses: dict[int, Status], n: int) -> None:
    assert set(pool_window(statuses, n)) < set(pool_window(statuses, n + 1))
    assert PoolCount.of(statuses, n, math.inf).feasible <= PoolCount.of(statuses, n + 1, math.inf).feasible


@given(sizes, st.integers(0, 20))
def test_a_run_does_not_give_up_before_the_pool_could_be_full(n: int, feasible: int) -> None:
    assert n <= PoolCount(n, feasible, 0).limit <= max(10 * n, 20)


# ---------------------------------------------------------------------------- a run


def executor_of(feasible: Callable[[str, int], bool], slots: int = 3, **options: Any) -> FormulaExecutor:
    """Return an executor whose trials are feasible where ``feasible`` says so."""

    def loss(optimizer: str, point: Point) -> float:
        return 1.0 + point.index if feasible(optimizer, point.index) else np.inf

    return FormulaExecutor(loss, slots=slots, **options)


def grid_of(pool: int, size: int) -> lf.Study:
    rates = {"choice": [0.1 / (i + 1) for i in range(size)]}
    return make_study(trials=1, pool=pool, search="grid", optimizers={"sgd": {"rule": "sgd", "learning_rate": rates}})


def everything(store: Store, study: lf.Study) -> dict[str, dict[int, Status]]:
    return {name: store.statuses(study.identity(name)) for name in study.optimizers}


def finish(study: lf.Study, store: Store, executor: FormulaExecutor) -> bool:
    """Run the study and return whether all pools are full."""
    return run(study, store, executor) is None


class Table(NamedTuple):
    """Which points of each optimizer are feasible: the first are listed, the rest are all the same."""

    listed: dict[str, list[bool]]
    rest: bool

    def __call__(self, optimizer: str, index: int) -> bool:
        listed = self.listed.get(optimizer, [])
        return listed[index] if index < len(listed) else self.rest


flags = st.lists(st.booleans(), max_size=30)
tables = st.builds(
    lambda sgd, momentum, rest: Table({"sgd": sgd, "momentum": momentum}, rest), flags, flags, st.booleans()
)


@settings(max_examples=30)
@given(
    feasible=tables,
    pool=st.integers(1, 6),
    slots=st.integers(1, 5),
    seed=st.integers(0, 2**16),
    interruptions=st.lists(st.integers(0, 8), max_size=6),
)
def test_neither_order_nor_interruptions_change_the_pool(
    feasible: Table, pool: int, slots: int, seed: int, interruptions: list[int]
) -> None:
    study = make_study(trials=1, pool=pool)
    with Store.open("sqlite://") as calm, Store.open("sqlite://") as rough:
        executor = executor_of(feasible, slots=1)
        filled = finish(study, calm, executor)

        trained = []
        for number, stretches in enumerate(interruptions):
            attempt = executor_of(feasible, slots=slots, seed=seed + number, stretches=stretches)
            with contextlib.suppress(Interrupted):
                finish(study, rough, attempt)
            trained += attempt.finished
        last = executor_of(feasible, slots=slots, seed=seed)
        assert finish(study, rough, last) == filled
        trained += last.finished

        stored = everything(rough, study)
        assert stored == everything(calm, study)
        for name, statuses in stored.items():
            assert {index: status is Status.FEASIBLE for index, status in statuses.items()} == {
                index: feasible(name, index) for index in statuses
            }
            # The trained points are a prefix, and each was trained once.
            assert sorted(index for optimizer, index in trained if optimizer == name) == list(range(len(statuses)))
            assert sorted(index for optimizer, index in executor.finished if optimizer == name) == sorted(statuses)
            if filled:
                assert set(statuses) == set(shortest_prefix(lambda index, name=name: feasible(name, index), pool))


@pytest.mark.parametrize("slots", [1, 3, 10])
def test_no_unneeded_point_is_started(store: Store, slots: int) -> None:
    """With 2, 3 and 5 infeasible, a pool of 6 is the first 9 points, however many slots there are."""
    executor = executor_of(lambda _, index: index not in (2, 3, 5), slots=slots)
    run(make_study(trials=1, pool=6), store, executor)
    for name in ("sgd", "momentum"):
        assert sorted(point.index for optimizer, point in executor.started if optimizer == name) == list(range(9))
    assert executor.asked == ["sgd", "momentum"]


def test_the_search_defines_the_points(store: Store) -> None:
    study, executor = make_study(trials=1, pool=5), executor_of(lambda *_: True)
    run(study, store, executor)
    for name in study.optimizers:
        search = Search(study, name)
        assert [point for optimizer, point in executor.started if optimizer == name] == [
            search.point(index) for index in range(5)
        ]
        assert [trial.point for trial in store.trials(study.identity(name))] == [search.point(i) for i in range(5)]


def test_a_larger_pool_extends_the_smaller_one(store: Store) -> None:
    def feasible(optimizer: str, index: int) -> bool:
        return index % 3 != 1

    run(make_study(trials=1, pool=4), store, executor_of(feasible))
    before = {name: store.trials(make_study(trials=1, pool=4).identity(name)) for name in ("sgd", "momentum")}
    more = executor_of(feasible)
    run(make_study(trials=1, pool=7), store, more)
    assert more.asked == ["sgd", "momentum"]
    for name, trials in before.items():
        after = store.trials(make_study(trials=1, pool=7).identity(name))
        assert [trial.point for trial in after[: len(trials)]] == [trial.point for trial in trials]
        assert {trial.point.index for trial in after} == set(shortest_prefix(lambda index: index % 3 != 1, 7))
        assert not {(name, trial.point.index) for trial in trials} & set(more.finished)


def test_a_finished_study_trains_nothing(store: Store) -> None:
    run(make_study(trials=1, pool=4), store, executor_of(lambda *_: True))
    for pool in (4, 2):
        again = executor_of(lambda *_: True)
        run(make_study(trials=1, pool=pool), store, again)
        assert again.asked == []


def test_each_finished_trial_is_stored_at_once(store: Store) -> None:
    study = make_study(trials=1, pool=5)

    heard = []

    class Listener:
        finished = 0

        def begin(self, study: lf.Study, counts: Mapping[str, PoolCount], best: Best) -> None:
            heard.append(f"begin {[count.feasible for count in counts.values()]} {best()}")

        def advance(self, progress: Progress) -> None:
            self.finished += len(progress.finished)
            assert store.count() == self.finished

        def end(self) -> None:
            heard.append(f"end {self.finished}")

        def note(self, message: str) -> None: ...
        def stalled(self, message: str) -> None: ...

    run(study, store, executor_of(lambda *_: True, slots=2), Listener())
    first, last = {"sgd": np.nan, "momentum": np.nan}, {"sgd": 1.0, "momentum": 1.0}
    assert heard == [f"begin [0, 0] {first}", f"begin [5, 5] {last}", "end 10"]


@pytest.mark.parametrize(("pool", "tried"), [(1, 20), (3, 20), (20, 20), (30, 30)])
def test_a_run_gives_up_an_optimizer_without_feasible_trials(store: Store, pool: int, tried: int) -> None:
    """The others run anyway; the error names the optimizer and its space."""
    study, executor = make_study(trials=1, pool=pool), executor_of(lambda optimizer, _: optimizer == "momentum")
    error = run(study, store, executor)
    stored = everything(store, study)
    assert (len(stored["sgd"]), len(stored["momentum"])) == (tried, pool)
    message = str(error)
    assert message.startswith(f"sgd: none of {tried} trials is feasible")
    assert "learning_rate in log [0.001, 0.1]" in message
    assert "momentum" not in message
    assert "\n" not in message


@pytest.mark.parametrize(("pool", "tried"), [(2, 20), (5, 50)])
def test_a_run_gives_up_an_optimizer_with_too_few_feasible_trials(store: Store, pool: int, tried: int) -> None:
    study, executor = (
        make_study(trials=1, pool=pool),
        executor_of(lambda optimizer, index: optimizer == "momentum" or index == 0),
    )
    assert re.search(
        f"^sgd: only 1 of {tried} trials are feasible, too few for pool = {pool}", str(run(study, store, executor))
    )
    assert {name: len(statuses) for name, statuses in everything(store, study).items()} == {
        "sgd": tried,
        "momentum": pool,
    }


def test_all_shortages_are_reported_together(store: Store) -> None:
    assert re.search(
        r"^sgd: none of 20 .*; momentum: none of 20 ",
        str(run(make_study(trials=1, pool=2), store, executor_of(lambda *_: False))),
    )


def test_running_again_reports_the_same_shortage(store: Store) -> None:
    """And trains nothing."""
    first = run(make_study(trials=1, pool=2), store, executor_of(lambda *_: False))
    again = executor_of(lambda *_: False)
    second = run(make_study(trials=1, pool=2), store, again)
    assert str(second) == str(first)
    assert again.started == []


def test_an_executor_is_not_called_if_nothing_is_missing(store: Store) -> None:
    """It would compile its program."""
    for study in (make_study(trials=1, pool=2), grid_of(pool=4, size=6)):
        assert run(study, store, executor_of(lambda *_: False))
        again = executor_of(lambda *_: False)
        assert run(study, store, again)
        assert again.asked == []


def test_a_grids_pool_is_full_once_all_points_are_tried(store: Store) -> None:
    """There are no other points; infeasible ones are part of the result."""
    study = grid_of(pool=4, size=6)
    executor = executor_of(lambda _, index: index in (0, 2, 5))
    run(study, store, executor)
    assert sorted(executor.finished) == [("sgd", index) for index in range(6)]
    comparison = lf.Comparison.load(study, store)
    assert comparison.complete
    assert not any("larger pool" in check.remedy for check in comparison.health())


def test_changed_metrics_are_rejected_before_training(store: Store) -> None:
    study = grid_of(pool=2, size=6)
    old = Trial(Search(study, "sgd").point(0), Status.FEASIBLE, Curve(np.array([1]), {"other": np.array([1.0])}))
    store.add(study.identity("sgd"), study.definition("sgd"), {"other": Direction.MINIMIZE}, [old], NOWHERE)
    executor = executor_of(lambda *_: True)
    with pytest.raises(StoreError, match=r"metrics other, .*; increase the workload's version"):
        run(study.replace(pool=4), store, executor)
    assert executor.asked == []


def test_a_grid_without_feasible_points_is_exhausted(store: Store) -> None:
    assert re.search(
        r"^sgd: none of the grid's 6 points is feasible; lower its learning rates",
        str(run(grid_of(pool=4, size=6), store, executor_of(lambda *_: False))),
    )


def test_a_grid_stops_when_its_pool_is_full(store: Store) -> None:
    executor = executor_of(lambda _, index: index != 1)
    run(grid_of(pool=4, size=10), store, executor)
    assert sorted(index for _, index in executor.finished) == list(range(5))


def test_a_grid_given_up_early_does_not_claim_to_be_exhausted(store: Store) -> None:
    """The first 20 points are infeasible; the grid has 80 more."""
    error = run(grid_of(pool=2, size=100), store, executor_of(lambda *_: False))
    assert len(everything(store, grid_of(2, 100))["sgd"]) == 20
    assert "the grid's 20 points" not in str(error)
