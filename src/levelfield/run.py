"""One orchestration: check a study, open its store, train what is missing, follow best trials, read the results.

The CLI and ``levelfield.compare`` both call this module.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from levelfield import interruption
from levelfield.analysis.results import Results
from levelfield.derive.follow import followings
from levelfield.derive.refine import Refinement, check_pool, refine
from levelfield.derive.rerun import rerun_study
from levelfield.derive.rounds import Rounds
from levelfield.errors import SearchExhausted, StaleTrials, TrialFailed, UsageError
from levelfield.executors import Executor, get_executor
from levelfield.executors.base import hand_out
from levelfield.formatting import format_range, join_words, pluralize
from levelfield.listener import Listener, Quiet
from levelfield.pool import PoolCount
from levelfield.provenance import package_versions
from levelfield.reading import best_values, read, read_pools, read_tried, stored_following, with_extra_trials
from levelfield.search import Search
from levelfield.store import Store
from levelfield.study import Study, workload_of
from levelfield.taxonomy.coverage import StudyCoverage, study_coverage
from levelfield.taxonomy.inclusions import registered_inclusions
from levelfield.taxonomy.order import inclusions
from levelfield.training.checkpoints import CheckpointFolder
from levelfield.training_code import Trainable
from levelfield.trial import Failure, Point, Progress, StepTime
from levelfield.user_code import code_digest, is_other_version
from levelfield.watchdog import Watchdog
from levelfield.work import Work
from levelfield.workload import Workload

Location = str | Path | Store
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0  # seconds between checks for free points while others train the rest
_PAUSE = 1.0  # seconds before a run that has found nothing to train looks again
_LOOK_FOR_DEAD = 5.0  # seconds between checks for runners that have died
_FEWEST_TIMED, _MOST_TIMED, _TIMED_SECONDS = 3, 50, 2.0  # stretches of training, to measure what a step takes
Stale = Literal["retrain", "keep"]  # what to do with trials of another version of the study's custom code


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


def checkpoint_folder(
    study: Study, location: Location | None = None, minutes: float = 5.0, out: Path | None = None
) -> CheckpointFolder | None:
    """Return where a study's trials in flight are saved: next to a store in a file, or else in the study's folder.

    They are saved after so many minutes of training; 0 saves none.
    """
    if not 0 <= minutes < math.inf:
        raise UsageError(f"checkpoint_minutes = {minutes:g}: expected a number of at least 0")
    folder = out or default_folder(study)
    name = location.name if isinstance(location, Store) else str(location or folder / "trials.db")
    file = name.removeprefix("sqlite:///")
    beside = "://" not in file and file not in ("", ":memory:")
    path = Path(file).with_suffix(".checkpoints") if beside else folder / "checkpoints"
    return CheckpointFolder(path, 60 * minutes) if minutes else None


def prepared(
    study: Study,
    executor: str | Executor = "local",
    slots: int | None = None,
    checkpoints: CheckpointFolder | None = None,
) -> Executor:
    """Return an executor that can train the study. Everything that can be refused is refused here."""
    chosen = get_executor(executor, slots, checkpoints) if isinstance(executor, str) else executor
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
    if gradient_scale is None and is_trainable(study) and any(edge.has_limit for edge in inclusions(study)):
        chosen = get_executor(executor, None) if isinstance(executor, str) else executor
        gradient_scale = chosen.gradient_scale(study)
    return study_coverage(study, gradient_scale, use_jax=True)


def is_trainable(study: Study) -> bool:
    """Return whether trials of the study can be trained here; otherwise they are imported."""
    return study.search != "imported" and isinstance(workload_of(study), Workload | Trainable)


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
    checkpoints: CheckpointFolder | None = None,
    seconds: bool = False,
) -> tuple[Results, SearchExhausted | None]:
    """Run what is missing of a study and return its results, and which pools could not be filled, if any.

    ``seconds``: also measure how long steps take here, apart from the training of trials.
    """
    if reruns < 0:
        raise UsageError(f"reruns = {reruns}: expected an integer of at least 0")
    if not is_trainable(study):
        with opened(study, location, create=False) as store:
            return read(study, store), None
    chosen = prepared(study, executor, slots, checkpoints)
    if seconds and isinstance(workload_of(study), Trainable):
        raise UsageError(f"{study.name}: seconds measures the steps of JAX workloads only; leave it out")
    with opened(study, location) as store:
        shortages = [run(study, store, chosen, listener, stale)]
        if seconds:
            measure_steps(study, store, chosen, listener)
        results = read_pools(study, store)
        _prune(study, store, checkpoints)
        if stale == "retrain":
            _keep_extra_trials_apart(results, store)
        if seed_inclusions:
            follow(results, store, chosen, listener, stale)
        best = [name for name, outcome in results.outcomes.items() if outcome.best_trial]
        if reruns and best:
            shortages.append(run(rerun_study(results, best, reruns), store, chosen, listener, stale))
        shortage = "; ".join(str(error) for error in shortages if error)
        return with_extra_trials(results, store), SearchExhausted(shortage) if shortage else None


def fill(
    study: Study,
    location: Location | None = None,
    *,
    executor: str | Executor = "local",
    slots: int | None = None,
    listener: Listener | None = None,
    stale: Stale | None = None,
    checkpoints: CheckpointFolder | None = None,
) -> SearchExhausted | None:
    """Run what is missing of a study, and read no curves. Returns which pools could not be filled, if any."""
    chosen = prepared(study, executor, slots, checkpoints)
    with opened(study, location) as store:
        shortage = run(study, store, chosen, listener, stale)
        _prune(study, store, checkpoints)
        if stale == "retrain":
            _keep_extra_trials_apart(read_pools(study, store), store)
        return shortage


def _prune(study: Study, store: Store, checkpoints: CheckpointFolder | None) -> None:
    """Remove the checkpoints of trials that have finished."""
    if checkpoints and checkpoints.path.exists():
        for name in study.optimizers:
            checkpoints.prune(study.identity(name), store.statuses(study.identity(name)))


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
    checkpoints: CheckpointFolder | None = None,
) -> tuple[Results, SearchExhausted | None]:
    """Train each optimizer's best trial by ``select``, or the one at an index, again with new seeds.

    Returns the results with these reruns, and which of them could not be completed, if any.
    """
    with opened(study, location, create=False) as store:
        if stale == "retrain" and _stale_counts(study, store):
            run(study, store, prepared(study, executor, slots, checkpoints), listener, stale)
        settle_code(study, store, stale)
        results = read_pools(study, store).at(select=select)
        again = rerun_study(results, seeds=seeds, index=index)
        shortage = run(again, store, prepared(again, executor, slots, checkpoints), listener, stale)
        return replace(results, reruns=read_pools(again, store).outcomes), shortage


def measure_steps(study: Study, store: Store, executor: Executor, listener: Listener | None = None) -> None:
    """Measure how long a step of each optimizer takes here, and forget what runs have measured.

    Trains some trials for a moment, which are not stored.
    """
    for name in study.optimizers:
        if listener:
            listener.note(f"measuring the steps of {name}")
        points = map(Search(study, name).point, range(int(min(study.points(name), 3 * study.pool))))
        stretches: list[Progress] = []
        with interruption.deferred(), closing(executor.train(study, hand_out(name, points))) as progress:
            for stretch in (each for each in progress if each.seconds):
                stretches.append(stretch)
                if len(stretches) > _MOST_TIMED or _is_enough(stretches):
                    break
            interruption.check()
        measured = [stretch.step_time for stretch in stretches if stretch.step_time]
        if not measured:
            raise UsageError(
                f"{name}: how long its steps take cannot be measured here; that needs a JAX workload, the local "
                f"executor, and more than one stretch between evaluations"
            )
        store.add_step_time(study.identity(name), StepTime.of(measured), replace=True)


def _is_enough(stretches: Sequence[Progress]) -> bool:
    return len(stretches) > _FEWEST_TIMED and sum(stretch.seconds for stretch in stretches) > _TIMED_SECONDS


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

    Other runners on the store share the work. Returns a SearchExhausted, rather than raising it, for optimizers whose
    pool cannot be filled. With ``tries``, train that many points of each optimizer instead, feasible or not. Raises
    TrialFailed at the end if trials failed, and KeyboardInterrupt between two stretches of training.
    """
    listener = listener or Quiet()
    settle_code(study, store, stale)
    best = functools.partial(best_values, study, store)
    with interruption.deferred(), store.runner() as runner:
        code = _code_now(study)  # it may be edited while trials train
        work = Work(study, store, runner, functools.partial(_provenance, study, executor, code), tries)
        listener.begin(study, work.counts(), best)
        _train(study, work, executor, listener)
        work.store_step_times()
    counts = work.counts()
    listener.begin(study, counts, best)
    listener.end()
    if failures := [_failures(name, failed) for name, failed in work.failures.items() if failed]:
        raise TrialFailed(
            f"{'; '.join(failures)}; all finished trials are saved in {store.name}, and the next run trains the others"
        ) from work.error
    shortages = [_shortage(study, name, count) for name, count in counts.items() if not count.full]
    return SearchExhausted("; ".join(shortages)) if shortages and tries is None else None


def _train(study: Study, work: Work, executor: Executor, listener: Listener) -> None:
    """Train what is missing, together with other runners, until the study has what it needs."""
    while True:
        watchdog = Watchdog(functools.partial(_stalled, work, listener))
        with watchdog, closing(executor.train(study, work.take)) as stretches:
            for progress in stretches:
                work.record(progress)
                watchdog.reset()
                listener.advance(progress)
                interruption.check()
        if not (busy := work.trained_by_others()) and not work.left():
            return
        if busy:
            listener.note(f"waiting for {pluralize(busy, 'trial')} that other workers are training")
            _wait(work)
        else:  # there are points, but perhaps none that this study needs and nobody trains
            interruption.sleep(_PAUSE)


def _wait(work: Work) -> None:
    """Wait until others have finished, or have left points to this run; look now and then for runners that have died.

    Many runners may be waiting, so they ask the store rarely, and not all at once.
    """
    begun = looked = time.monotonic()
    while work.trained_by_others():
        waited = time.monotonic() - begun
        interruption.sleep(random.uniform(0.5, 1.5) * min(_SHORTEST_PAUSE + waited / 10, _LONGEST_PAUSE))
        if time.monotonic() - looked > _LOOK_FOR_DEAD:
            looked = time.monotonic()
            work.free_abandoned()


def _stalled(work: Work, listener: Listener, message: str) -> None:
    work.leave()
    listener.stalled(message)


def _failures(name: str, failed: Sequence[Failure]) -> str:
    """Say which trials of an optimizer failed, and why the first did."""
    first = min(failed, key=lambda failure: failure.point.index)
    others = f" ({pluralize(len(failed), 'trial')} failed)" if len(failed) > 1 else ""
    return f"{name}: trial {first.point.index} failed: {first.reason}{others}"


def _code_now(study: Study) -> dict[str, Any]:
    return {"code": code_digest(*files)} if (files := study.code_files) else {}


def _provenance(study: Study, executor: Executor, code: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is stored with all trials of a study, wherever they are trained."""
    content = dict(code)
    if versions := package_versions(study, study.optimizers):
        content["packages"] = versions
    if any(edge.has_limit for edge in inclusions(study)):
        content["gradient_scale"] = executor.gradient_scale(study)
    return content


def _shortage(study: Study, name: str, count: PoolCount) -> str:
    if count.exhausted:
        return f"{name}: none of the grid's {count.tried} points is feasible; lower its learning rates"
    free = study.optimizer(name).space.free
    rates = [f"{axis.key} in {format_range(axis.dimension)}" for axis in free if axis.key.startswith("learning_rate")]
    where = f", most likely the learning rate ({join_words(rates)})" if rates else ""
    found = f"none of {count.tried} trials is feasible"
    if count.feasible:
        found = f"only {count.feasible} of {count.tried} trials are feasible, too few for pool = {study.pool}"
    return f"{name}: {found}; narrow its search space{where}"


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
    return f"a different version of {study.code_name} than the current one"


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
        trial = stored_following(following, store)
        if trial and is_other_version(trial.code, following.code) and stale is None:
            raise StaleTrials(
                f"the extra trial in which {following.general} imitates {following.special} was trained with "
                f"{_other_code(results.study)}"
            )
        if trial is None:
            _train_extra(following.study, following.general, following.followed.point, store, executor)
            if listener:
                listener.note(f"{following.general} has followed {following.special}'s best trial")


def _train_extra(study: Study, optimizer: str, point: Point, store: Store, executor: Executor) -> None:
    """Train a point that no other runner would train."""
    metrics = workload_of(study).metrics
    with interruption.deferred():
        code = _code_now(study)
        for progress in executor.train(study, hand_out(optimizer, [point])):
            if progress.failed:
                raise TrialFailed(_failures(optimizer, progress.failed)) from progress.error
            provenance = {**progress.provenance, **_provenance(study, executor, code)}
            store.add(study.identity(optimizer), study.definition(optimizer), metrics, progress.finished, provenance)
            interruption.check()


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
    All trials are stored, so an interrupted refinement takes the same path without training them again. Raises
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
