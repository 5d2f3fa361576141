"""The runner: what is missing → executor → store, until each optimizer's pool is full.

The pool is the shortest prefix of the sequence that holds N feasible trials. Counting every unfinished point
as feasible tells which points that prefix needs at least; those are the ones to run. Nothing is started that
might turn out superfluous, so the pool does not depend on which trials finish first, or on interruptions.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Protocol

from levelfield.errors import SearchExhausted
from levelfield.executors import Executor, Progress
from levelfield.search import Search
from levelfield.store import Store
from levelfield.study import Study
from levelfield.trial import Point, Status
from levelfield.user_code import code_digest
from levelfield.workloads import get_workload


class Listener(Protocol):
    """Hears of a run's progress."""

    def begin(self, stored: Mapping[str, Mapping[int, Status]]) -> None: ...
    def advance(self, optimizer: str, progress: Progress) -> None: ...
    def end(self, optimizer: str) -> None: ...


def pool_window(statuses: Mapping[int, Status], n: int) -> range:
    """The shortest prefix that could hold n feasible trials, if all unfinished ones were feasible."""
    infeasible = sorted(index for index, status in statuses.items() if status is Status.INFEASIBLE)
    end = n
    for index in infeasible:
        if index >= end:
            break
        end += 1
    return range(end)


def pool_of(statuses: Mapping[int, Status], n: int) -> list[int]:
    """The feasible trials of the pool, as far as they have finished."""
    return [index for index in pool_window(statuses, n) if statuses.get(index) is Status.FEASIBLE]


def next_missing(statuses: Mapping[int, Status], in_flight: Container[int], n: int) -> int | None:
    """The first point that the pool needs and that is neither finished nor in flight."""
    window = pool_window(statuses, n)
    return next((i for i in window if i not in statuses and i not in in_flight), None)


def most_points(n: int, feasible: int) -> int:
    """After how many points to give up: ten for each that is needed, but n (at least 20) while none is feasible."""
    return 10 * n if feasible else max(n, 20)


def gave_up(study: Study, optimizer: str, feasible: int, tried: int) -> bool:
    """Whether a run would try no more points, though the pool is not full."""
    return not study.full(optimizer, feasible, tried) and tried >= most_points(study.pool, feasible)


def cost(study: Study) -> dict[str, Any]:
    """What a study costs if every trial is feasible, and what it searches."""
    return {
        "trials": len(study.optimizers) * study.pool,
        "trial_steps": len(study.optimizers) * study.pool * study.steps,
        "free": {name: [one.key for one in study.optimizer(name).space.free] for name in study.optimizers},
    }


def other_code(study: Study, store: Store) -> list[str]:
    """Optimizers of which trials are stored that were trained with other code of the study's own than it has now."""
    if not study.code:
        return []
    now = code_digest(study.code)
    return [
        name
        for name in study.optimizers
        if any(each.get("code", now) != now for each in store.provenance(study.identity(name)))
    ]


def run(study: Study, store: Store, executor: Executor, listener: Listener | None = None) -> None:
    """Train until each optimizer's pool holds N feasible trials; each finished trial is stored at once.

    Raises SearchExhausted, after all the others, for optimizers whose pool cannot be filled.
    """
    failures = []
    if listener:
        listener.begin({name: store.statuses(study.identity(name)) for name in study.optimizers})
    for name in study.optimizers:
        try:
            _run_optimizer(study, name, store, executor, listener)
        except SearchExhausted as failure:
            failures.append(str(failure))
    if failures:
        raise SearchExhausted("; ".join(failures))


def _run_optimizer(study: Study, name: str, store: Store, executor: Executor, listener: Listener | None) -> None:
    search = Search(study, name)
    identity, definition = study.identity(name), study.definition(name)
    metrics = get_workload(study.workload).metrics
    statuses = store.statuses(identity)
    if listener:
        listener.begin({name: statuses})  # an optimizer before it may have had the same trials
    in_flight: set[int] = set()

    def upcoming() -> int | None:
        index = next_missing(statuses, in_flight, study.pool)
        limit = min(search.size, most_points(study.pool, len(pool_of(statuses, study.pool))))
        return index if index is not None and index < limit else None

    def take() -> Point | None:
        if (index := upcoming()) is None:
            return None
        in_flight.add(index)
        return search.point(index)

    if upcoming() is not None:
        store.check_metrics(identity, metrics)
        provenance = {**executor.provenance(), **({"code": code_digest(study.code)} if study.code else {})}
        for progress in executor.train(study, name, take):
            store.add(identity, definition, metrics, progress.finished, provenance)
            for trial in progress.finished:
                statuses[trial.point.index] = trial.status
                in_flight.discard(trial.point.index)
            if listener:
                listener.advance(name, progress)
    if listener:
        listener.end(name)
    feasible = len(pool_of(statuses, study.pool))
    if not study.full(name, feasible, len(statuses)):
        raise SearchExhausted(_exhausted(study, name, feasible, len(statuses), search.size))


def _exhausted(study: Study, name: str, feasible: int, tried: int, size: float) -> str:
    space = ", ".join(f"{one.key} = {one.dimension.spec()}" for one in study.optimizer(name).space.free)
    if tried == size:
        return f"{name}: none of the grid's {tried} points is feasible; lower its learning rates"
    return (
        f"{name}: {feasible} of {tried} trials are feasible, too few for pool = {study.pool}; "
        f"narrow its space, most likely the learning rate ({space or 'nothing is free'})"
    )
