"""One orchestration: check a study, open its store, train what is missing, follow best trials, read the results.

The CLI and ``levelfield.compare`` both call this module.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.results import PoolState, Results, outcomes_of
from levelfield.derive.follow import Following, followings
from levelfield.derive.refine import Refinement, check_pool, refine
from levelfield.derive.rerun import rerun_study
from levelfield.derive.rounds import Rounds
from levelfield.errors import SearchExhausted, StaleTrials, UsageError
from levelfield.executors import Executor, get_executor
from levelfield.formatting import join_words
from levelfield.pool import PoolCount, next_missing, pool_window
from levelfield.search import Search
from levelfield.store import Store
from levelfield.study import Study
from levelfield.taxonomy.coverage import StudyCoverage, study_coverage
from levelfield.taxonomy.inclusions import registered_inclusions
from levelfield.taxonomy.order import inclusions
from levelfield.trial import Point, Progress, Status, Trial
from levelfield.user_code import code_digest, is_other_version
from levelfield.workloads import get_workload

Location = str | Path | Store
Stale = Literal["retrain", "keep"]  # what to do with trials of another version of the study's custom code


class Listener(Protocol):
    """Is told of a run's progress."""

    def begin(self, study: Study, stored: Mapping[str, Mapping[int, Trial]]) -> None:
        """Hear which study is run, and which trials of its optimizers the store already has."""

    def advance(self, optimizer: str, progress: Progress) -> None: ...
    def end(self, optimizer: str) -> None: ...
    def note(self, message: str) -> None:
        """Hear something that the user should know."""


class Quiet:
    """A listener that shows no progress; notes become warnings."""

    def begin(self, study: Study, stored: Mapping[str, Mapping[int, Trial]]) -> None: ...
    def advance(self, optimizer: str, progress: Progress) -> None: ...
    def end(self, optimizer: str) -> None: ...
    def note(self, message: str) -> None:
        warnings.warn(message, stacklevel=2)


def default_folder(study: Study) -> Path:
    """Return where a study's store and report go unless the user says otherwise."""
    return Path("levelfield-out") / study.name


@contextmanager
def opened(study: Study, location: Location | None, *, create: bool = True) -> Iterator[Store]:
    """Open a study's store; one that is already open stays open."""
    if isinstance(location, Store):
        yield location
        return
    with Store.open(location or default_folder(study) / "trials.db", create=create) as store:
        yield store


def prepared(study: Study, executor: str | Executor = "local", slots: int | None = None) -> Executor:
    """Return an executor that can train the study. Everything that can be refused is refused here."""
    chosen = get_executor(executor, slots) if isinstance(executor, str) else executor
    chosen.check(study)
    if registered_inclusions():
        from levelfield.taxonomy.verify import check_registered

        check_registered(study)
    return chosen


def coverage(study: Study, gradient_scale: float | None = None, executor: str | Executor = "local") -> StudyCoverage:
    """Return how much of each special optimizer's space the optimizers that include it can express, before training.

    ``gradient_scale`` is the size of the gradients' entries; if it is needed and not given, the executor measures it.
    """
    if gradient_scale is not None and not 0 < gradient_scale < math.inf:
        raise UsageError(f"gradient_scale = {gradient_scale:g}: expected a positive number, the size of the gradients")
    if gradient_scale is None and any(edge.has_limit for edge in inclusions(study)):
        chosen = get_executor(executor, None) if isinstance(executor, str) else executor
        gradient_scale = chosen.gradient_scale(study)
    return study_coverage(study, gradient_scale, use_jax=True)


def compare(
    study: Study,
    location: Location | None = None,
    *,
    executor: str | Executor = "local",
    slots: int | None = None,
    listener: Listener | None = None,
    seed_inclusions: bool = False,
    reruns: int = 0,
    stale: Stale | None = None,
) -> tuple[Results, SearchExhausted | None]:
    """Run what is missing of a study and return its results, and which pools could not be filled, if any."""
    if reruns < 0:
        raise UsageError(f"reruns = {reruns}: expected an integer of at least 0")
    chosen = prepared(study, executor, slots)
    with opened(study, location) as store:
        shortages = [run(study, store, chosen, listener, stale)]
        results = read_pools(study, store)
        if stale == "retrain":
            _keep_extra_trials_apart(results, store)
        if seed_inclusions:
            follow(results, store, chosen, listener, stale)
        best = [name for name, outcome in results.outcomes.items() if outcome.best_trial]
        if reruns and best:
            shortages.append(run(rerun_study(results, best, reruns), store, chosen, listener, stale))
        shortage = "; ".join(str(error) for error in shortages if error)
        return _with_extra_trials(results, store), SearchExhausted(shortage) if shortage else None


def rerun(
    study: Study,
    location: Location | None = None,
    *,
    seeds: int,
    index: int | None = None,
    select: str | None = None,
    executor: str | Executor = "local",
    slots: int | None = None,
    listener: Listener | None = None,
    stale: Stale | None = None,
) -> tuple[Results, SearchExhausted | None]:
    """Train each optimizer's best trial by ``select``, or the one at an index, again with new seeds.

    Returns the results with these reruns, and which of them could not be completed, if any.
    """
    with opened(study, location, create=False) as store:
        if stale == "retrain" and _stale_counts(study, store):
            run(study, store, prepared(study, executor, slots), listener, stale)
        settle_code(study, store, stale)
        results = read_pools(study, store).at(select=select)
        again = rerun_study(results, seeds=seeds, index=index)
        shortage = run(again, store, prepared(again, executor, slots), listener, stale)
        return replace(results, reruns=read_pools(again, store).outcomes), shortage


def read(study: Study, store: Store) -> Results:
    """Return the results of a study's stored trials, reruns and followed trials. Trains nothing and loads no JAX."""
    return _with_extra_trials(read_pools(study, store), store)


def _with_extra_trials(results: Results, store: Store) -> Results:
    pairs = [(following, _stored(following, store)) for following in followings(results)]
    followed = [following.paired(trial) for following, trial in pairs if trial]
    return replace(results, followed=followed, reruns=_stored_reruns(results, store))


def read_pools(study: Study, store: Store) -> Results:
    """Return the results of a study's pools alone."""
    trials: dict[str, list[Trial]] = {}
    provenance: list[Mapping[str, Any]] = []
    for name in study.optimizers:
        identity = study.identity(name)
        stored = {trial.point.index: trial for trial in store.trials(identity)}
        window = pool_window({index: trial.status for index, trial in stored.items()}, study.pool)
        trials[name] = [stored[index] for index in window if index in stored]
        provenance += [entry for entry in store.provenance(identity) if entry not in provenance]
    return Results.of(study, trials, provenance)


def read_states(study: Study, store: Store) -> dict[str, PoolState]:
    """Return how full each optimizer's pool is, and its best final value, without reading the curves."""
    sign = get_workload(study.workload).metrics[study.select].sign
    states = {}
    for name in study.optimizers:
        ends = store.ends(study.identity(name), study.select)
        statuses = dict(zip(ends.index.tolist(), ends.status, strict=True))
        inside = ends.index < len(pool_window(statuses, study.pool))
        feasible = np.array([status is Status.FEASIBLE for status in ends.status], bool) & inside
        count = PoolCount.of(statuses, study.pool, study.points(name))
        values = sign * ends.final[feasible & np.isfinite(ends.final)]
        best = float(sign * values.min()) if len(values) else None
        states[name] = PoolState(count, best, [code for code, here in zip(ends.code, inside, strict=True) if here])
    return states


def read_tried(study: Study, store: Store, tries: int) -> Results:
    """Return the results of the first ``tries`` points of each optimizer, feasible or not."""
    stored = {name: _by_index(store, study.identity(name)) for name in study.optimizers}
    return Results.of(study, {name: [stored[name][i] for i in range(tries)] for name in stored})


def _stored_reruns(results: Results, store: Store) -> dict[str, Outcome]:
    reruns: dict[str, Outcome] = {}
    for name, outcome in results.outcomes.items():
        if outcome.best_trial:
            study = rerun_study(results, [name])
            if trials := store.trials(study.identity(name)):
                reruns |= outcomes_of(study, {name: trials})
    return reruns


def run(
    study: Study,
    store: Store,
    executor: Executor,
    listener: Listener | None = None,
    stale: Stale | None = None,
    *,
    tries: int | None = None,
) -> SearchExhausted | None:
    """Train until each optimizer's pool holds N feasible trials; store each trial as soon as it has finished.

    Returns a SearchExhausted, rather than raising it, for optimizers whose pool cannot be filled. With ``tries``, train
    that many points of each optimizer instead, feasible or not.
    """
    listener = listener or Quiet()
    settle_code(study, store, stale)
    listener.begin(study, {name: _by_index(store, study.identity(name)) for name in study.optimizers})
    shortages = []
    for name in study.optimizers:
        if shortage := _run_optimizer(study, name, store, executor, listener, tries):
            shortages.append(shortage)
    return SearchExhausted("; ".join(shortages)) if shortages else None


def _by_index(store: Store, identity: str) -> dict[int, Trial]:
    return {trial.point.index: trial for trial in store.trials(identity)}


def _run_optimizer(
    study: Study, name: str, store: Store, executor: Executor, listener: Listener, tries: int | None
) -> str | None:
    """Fill an optimizer's pool; return why if that is impossible.

    Counting every unfinished point as feasible tells which points the pool needs at least; only those are started, so
    nothing is trained in vain and the pool does not depend on which trials finish first.
    """
    search, points = Search(study, name), study.points(name)
    identity = study.identity(name)
    stored = _by_index(store, identity)
    listener.begin(study, {name: stored})  # an earlier optimizer of this run may have had the same trials
    statuses = {index: trial.status for index, trial in stored.items()}
    in_flight: set[int] = set()

    def upcoming() -> int | None:
        if tries is not None:
            return next((i for i in range(tries) if i not in statuses and i not in in_flight), None)
        index = next_missing(statuses, in_flight, study.pool)
        limit = PoolCount.of(statuses, study.pool, points).limit
        return index if index is not None and index < limit else None

    def take() -> Point | None:
        if (index := upcoming()) is None:
            return None
        in_flight.add(index)
        return search.point(index)

    if upcoming() is not None:
        store.check_metrics(identity, get_workload(study.workload).metrics)
        for progress in _train(study, name, store, executor, take):
            for trial in progress.finished:
                statuses[trial.point.index] = trial.status
                in_flight.discard(trial.point.index)
            listener.advance(name, progress)
    listener.end(name)
    count = PoolCount.of(statuses, study.pool, points)
    return None if count.full or tries is not None else _shortage(study, name, count)


def _train(
    study: Study, name: str, store: Store, executor: Executor, take: Callable[[], Point | None]
) -> Iterator[Progress]:
    """Train the points that ``take`` hands out; each trial is stored before it is reported."""
    identity, definition = study.identity(name), study.definition(name)
    metrics = get_workload(study.workload).metrics
    provenance = dict(executor.provenance())
    if study.code:
        provenance["code"] = code_digest(study.code)
    if any(edge.has_limit for edge in inclusions(study)):
        provenance["gradient_scale"] = executor.gradient_scale(study)
    for progress in executor.train(study, name, take):
        store.add(identity, definition, metrics, progress.finished, provenance)
        yield progress


def _shortage(study: Study, name: str, count: PoolCount) -> str:
    space = ", ".join(f"{axis.key} = {axis.dimension.spec()}" for axis in study.optimizer(name).space.free)
    if count.exhausted:
        return f"{name}: none of the grid's {count.tried} points is feasible; lower its learning rates"
    return (
        f"{name}: only {count.feasible} of {count.tried} trials are feasible, too few for pool = {study.pool}; "
        f"narrow its search space, most likely the learning rate ({space or 'nothing is free'})"
    )


def settle_code(study: Study, store: Store, stale: Stale | None = None) -> None:
    """Deal with stored trials of another version of the custom code, so that versions are never mixed unknowingly.

    Raises StaleTrials unless ``stale`` says what to do: "retrain" sets them aside, "keep" counts them as they are.
    Trials of the current version that were set aside return.
    """
    if stale not in (None, "retrain", "keep"):
        raise UsageError(f"stale = {stale!r}: expected 'retrain' or 'keep'")
    counts = _stale_counts(study, store)
    if counts and stale is None:
        raise StaleTrials(f"{join_words(list(counts.values()))} were trained with {_other_code(study)}")
    for name in study.optimizers:
        if (current := study.code_version(name)) and (stale == "retrain" or name not in counts):
            store.keep_code_apart(study.identity(name), current)


def _stale_counts(study: Study, store: Store) -> dict[str, str]:
    """Return how many trials of each optimizer were trained with another version of the code, where any were."""
    counts = {}
    for name in study.optimizers:
        if current := study.code_version(name):
            codes = store.codes(study.identity(name)).values()
            if old := sum(is_other_version(code, current) for code in codes):
                counts[name] = f"{old} of {len(codes)} stored trials of {name}"
    return counts


def _other_code(study: Study) -> str:
    return f"a different version of {Path(study.code or '').name} than the current one"


def _keep_extra_trials_apart(results: Results, store: Store) -> None:
    """Set aside reruns and followed trials of another version of the code."""
    study = results.study
    for following in followings(results):
        if following.code:
            store.keep_code_apart(following.study.identity(following.general), following.code)
    for name, outcome in results.outcomes.items():
        if outcome.best_trial and (current := study.code_version(name)):
            store.keep_code_apart(rerun_study(results, [name]).identity(name), current)


def follow(
    results: Results,
    store: Store,
    executor: Executor,
    listener: Listener | None = None,
    stale: Stale | None = None,
) -> None:
    """Train each special optimizer's best point with the optimizers that include it, unless the store has it."""
    for following in followings(results):
        trial = _stored(following, store)
        if trial and is_other_version(trial.code, following.code) and stale is None:
            raise StaleTrials(
                f"the extra trial in which {following.general} imitates {following.special} was trained with "
                f"{_other_code(results.study)}"
            )
        if trial is None:
            points = iter([following.followed.point])
            take = functools.partial(next, points, None)
            for _ in _train(following.study, following.general, store, executor, take):
                pass
            if listener:
                listener.note(f"{following.general} has followed {following.special}'s best trial")


def _stored(following: Following, store: Store) -> Trial | None:
    trials = store.trials(following.study.identity(following.general))
    return next((trial for trial in trials if trial.point.index == following.followed.point.index), None)


def refine_in_rounds(
    study: Study,
    rounds: int,
    store: Store,
    executor: Executor,
    listener: Listener | None = None,
    stale: Stale | None = None,
) -> Iterator[Refinement]:
    """Alternate search and refinement until nothing better is found or the rounds are used up.

    Each round yields what it tried and changed; the last refinement judges the final ranges, whose pools are full then.
    All trials are stored, so an interrupted refinement takes the same path again without training them anew. Raises
    SearchExhausted if a final pool cannot be filled.
    """
    if rounds < 1:
        raise UsageError(f"rounds = {rounds}: expected an integer of at least 1")
    check_pool(study)
    if study.search == "grid":
        yield from _refine_grid(study, rounds, store, executor, listener, stale)
        return

    def tried(version: Study) -> Results:
        run(version, store, executor, listener, stale, tries=study.pool)
        return read_tried(version, store, study.pool)

    path = Rounds(study)
    for _ in range(rounds):
        if not path.open:
            break
        present = tried(path.study)
        candidate = path.propose(present, tried(path.wider()))
        yield path.decide(tried(candidate) if candidate else None)
    if shortage := run(path.study, store, executor, listener, stale):
        raise shortage
    yield path.last(read(path.study, store))


def _refine_grid(
    study: Study, rounds: int, store: Store, executor: Executor, listener: Listener | None, stale: Stale | None
) -> Iterator[Refinement]:
    """Extend the lists of a grid while the best points are at their ends: a grid has no points in between."""
    for number in range(rounds + 1):
        if shortage := run(study, store, executor, listener, stale):
            raise shortage
        refinement = refine(read(study, store), propose=number < rounds)
        yield refinement
        if refinement.study is study:
            return
        study = refinement.study
