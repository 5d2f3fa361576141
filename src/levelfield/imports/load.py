"""Trials from elsewhere become trials of a study in a store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from levelfield.derive.rerun import reruns_of
from levelfield.errors import UnknownName, UsageError
from levelfield.formatting import format_hyperparameters, join_words, pluralize
from levelfield.imports.layout import Layout
from levelfield.imports.records import Record, Source, is_finite
from levelfield.search import Search
from levelfield.space import Choice, Fixed, Hyperparameters, Value
from levelfield.store import Store
from levelfield.study import Study, workload_of
from levelfield.trial import Curve, Point, Status, Trial

_NO_SEED = -1
_CHUNK = 5_000  # trials that are written at a time
_Key = tuple[tuple[str, Value], ...]  # identifies a point


@dataclass
class Imported:
    """What an import brought."""

    trials: Counter[str] = field(default_factory=Counter)  # by optimizer
    infeasible: Counter[str] = field(default_factory=Counter)  # of these
    reruns: Counter[str] = field(default_factory=Counter)  # further seeds of points, by optimizer
    known: int = 0  # trials that the store had before
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Fitted:
    """The trials of a source as a study has them; those without an index have −1."""

    trials: Mapping[str, Sequence[Trial]]  # by optimizer
    notes: Sequence[str]


def check_layout(study: Study, layout: Layout) -> None:
    """Raise if a layout asks for something else than a study says; directions and sampling are checked by trials."""
    for key in ("workload", "select"):
        given, fixed = getattr(layout, key), getattr(study, key)
        if given not in ("", fixed):
            raise UsageError(f"{key}: the study says {fixed}, the import {given}; leave it out, or change the study")


def fit_trials(study: Study, source: Source) -> Fitted:
    """Return the trials of a source as trials of a study; raise if one does not fit."""
    notes = list(source.notes)
    _check_names(study, source, notes)
    _check_budget(study, source, notes)
    trials: dict[str, list[Trial]] = defaultdict(list)
    for record in source.records:
        trial = _trial(study, record, _hyperparameters(study, record))
        own = _checked(study, record.optimizer, trial) if study.search == "quasirandom" else trial
        trials[record.optimizer].append(own)
    return Fitted(trials, notes)


def import_trials(study: Study, fitted: Fitted, store: Store, origin: str) -> Imported:
    """Store trials that fit a study. ``origin`` names their source.

    The first trial of each point belongs to the pool, the others are its reruns.
    """
    result = Imported(notes=list(fitted.notes))
    filed = {name: list(_filed(study, name, trials, store)) for name, trials in fitted.trials.items()}
    known = {name: [_known(target, name, found, store) for target, found in groups] for name, groups in filed.items()}
    provenance = {"imported": origin} | ({"notes": fitted.notes} if fitted.notes else {})
    metrics = workload_of(study).metrics
    for name, groups in filed.items():
        for (target, found), before in zip(groups, known[name], strict=True):
            identity, counts = target.identity(name), result.trials if target is study else result.reruns
            new = [trial for trial in found if trial.point.index not in before]
            for start in range(0, len(new), _CHUNK):
                store.add(identity, target.definition(name), metrics, new[start : start + _CHUNK], provenance)
            counts[name] += len(new)
            if target is study:
                result.infeasible[name] += sum(not trial.feasible for trial in new)
            result.known += len(found) - len(new)
        feasible = sum(status is Status.FEASIBLE for status in store.statuses(study.identity(name)).values())
        if feasible > study.pool:
            result.notes.append(
                f"the store has {feasible:,} feasible trials of {name}, of which the study counts the first "
                f"{study.pool:,}; raise its pool to count all"
            )
    return result


def _check_names(study: Study, source: Source, notes: list[str]) -> None:
    """Raise if the source contradicts the study, lacks a metric of it, or has an optimizer that it does not."""
    sampling = study.sampling or study.search
    if source.sampling not in ("", sampling):
        raise UsageError(f"sampling: the study says {sampling}, the source {source.sampling}; correct one of them")
    for name in dict.fromkeys(record.optimizer for record in source.records):
        if name not in study.optimizers:
            raise UnknownName.of("optimizer of this study", name, study.optimizers)
    metrics, found = workload_of(study).metrics, source.metrics
    for metric in metrics:
        if metric not in found:
            raise UsageError(
                f"the trials have no {metric}, a metric of {study.workload}; they have {join_words(found)}"
            )
        stated = source.directions.get(metric)
        if stated and stated is not metrics[metric]:
            raise UsageError(f"{metric}: the study says {metrics[metric]}, the source {stated}; correct one of them")
    if unused := [metric for metric in found if metric not in metrics]:
        notes.append(f"metrics that the study does not have were left out: {', '.join(unused)}")


def _check_budget(study: Study, source: Source, notes: list[str]) -> None:
    """Raise if trials end before the study does without having diverged or been pruned."""
    early = [record for record in source.records if record.curve.steps[-1] < study.steps]
    whole = workload_of(study).feasibility
    if short := [record for record in early if not record.pruned and record.feasible(whole)]:
        raise UsageError(
            f"{pluralize(len(short), 'trial')} of {len(source.records):,} end before step {study.steps:,}, the study's "
            f"steps: {short[0].label} at {int(short[0].curve.steps[-1]):,}; lower steps, which cuts the others off, or "
            f"leave these trials out"
        )
    if any(record.pruned for record in early):
        notes.append("trials that were stopped early count with their last values")
    if later := sum(bool(record.curve.steps[-1] > study.steps) for record in source.records):
        notes.append(f"{pluralize(later, 'trial')} went on after step {study.steps:,}; what followed was cut off")
    if empty := [record.label for record in source.records if record.curve.steps[0] > study.steps]:
        raise UsageError(f"{empty[0]} has no values up to step {study.steps:,}, the study's steps; raise steps")


def _hyperparameters(study: Study, record: Record) -> Hyperparameters:
    """Return the hyperparameters of a trial as its space has them; raise if it does not lie in the space."""
    space = study.optimizer(record.optimizer).space
    where = f"{record.label}: {record.optimizer}"
    fixed = {axis.name: axis.extremes[0] for axis in space if not axis.dimension.free and axis.extremes}
    values = fixed | record.hyperparameters
    for name in values:
        if name not in space.names:
            error = UnknownName.of(f"hyperparameter of {where} in the study", name, space.names)
            raise UnknownName(f"{error}; or rename its column with --map hyperparameters.NAME=COLUMN")
    for name in space.names:
        if name not in values:
            raise UsageError(f"{where} has no {name}, which is a hyperparameter in the study")
    for axis in space:
        if isinstance(values[axis.name], str) and not isinstance(axis.dimension, Choice | Fixed):
            raise UsageError(f"{where} has {axis.name} = {values[axis.name]!r}; expected a number, as in the study")
    for axis in space:
        if not axis.holds(values):
            raise UsageError(
                f"{where} has {axis.name} = {values[axis.name]}, outside of {axis.key} = {axis.dimension.spec()} in "
                f"the study; extend that range, or leave the trial out"
            )
    return {name: values[name] for name in space.names}


def _trial(study: Study, record: Record, values: Hyperparameters) -> Trial:
    """Return a trial that is still to be given its index."""
    workload, curve = workload_of(study), record.curve.until(study.steps)
    missing = np.full(len(curve.steps), np.nan)
    status = Status.FEASIBLE if _is_feasible(record, curve, workload.feasibility) else Status.INFEASIBLE
    with np.errstate(over="ignore"):  # what is too large for 32 bits has diverged
        metrics = {metric: curve.values.get(metric, missing).astype(np.float32) for metric in workload.metrics}
    index = -1 if record.index is None else record.index
    point = Point(index, values, _NO_SEED if record.seed is None else record.seed)
    return Trial(point, status, Curve(curve.steps, metrics), record.started, record.seconds)


def _is_feasible(record: Record, curve: Curve, metric: str) -> bool:
    """Return whether a trial is feasible up to where its curve was cut off: it may have diverged afterward."""
    if record.feasible(metric):
        return True
    if record.status is not None or len(curve.steps) == len(record.curve.steps):
        return False
    finite = is_finite(curve.values[metric])
    return bool(finite.any() and finite[np.argmax(finite) :].all())


def _filed(study: Study, name: str, trials: Sequence[Trial], store: Store) -> Iterator[tuple[Study, list[Trial]]]:
    """Yield the study with the trials of its pool, and the study of the reruns of each point that has any."""
    if study.search == "quasirandom":
        yield study, list(trials)
        return
    places = _places(study, name, store)
    pool: dict[int, Trial] = {}
    repeated: dict[_Key, list[Trial]] = defaultdict(list)
    for trial in trials:
        key = _key(trial.point.hyperparameters)
        index, seed = places.get(key, (len(places), None))
        if index not in pool and (seed is None or trial.point.seed in (_NO_SEED, seed)):
            pool[index] = _placed(trial, index)
            places[key] = index, pool[index].point.seed
        else:
            repeated[key].append(trial)
    yield study, list(pool.values())
    for again in repeated.values():
        target = reruns_of(study, {name: again[0].point.hyperparameters}, len(again))
        yield target, list(_rerun(target, name, again, store))


def _places(study: Study, name: str, store: Store) -> dict[_Key, tuple[int, int | None]]:
    """Return the index and the seed of each point that the store has, or the grid; None is a seed yet to come."""
    places: dict[_Key, tuple[int, int | None]] = {}
    if study.search == "grid":
        search = Search(study, name)
        for index in range(int(search.size)):
            places[_key(search.point(index).hyperparameters)] = (index, None)
    for trial in store.trials(study.identity(name)):
        places[_key(trial.point.hyperparameters)] = (trial.point.index, trial.point.seed)
    return places


def _rerun(target: Study, name: str, trials: Sequence[Trial], store: Store) -> Iterator[Trial]:
    """Yield trials with the indices that they have in the store, by their seeds, or the next free ones."""
    known = {trial.point.seed: trial.point.index for trial in store.trials(target.identity(name))}
    for position, trial in enumerate(trials):
        seed = position if trial.point.seed == _NO_SEED else trial.point.seed
        yield _placed(trial, known.setdefault(seed, len(known)), seed)


def _known(study: Study, name: str, trials: Sequence[Trial], store: Store) -> set[int]:
    """Return the indices of trials that the store has; raise if it has other results of one."""
    stored = {trial.point.index: trial for trial in store.trials(study.identity(name))}
    known = {trial.point.index for trial in trials} & stored.keys()
    for trial in trials:
        if trial.point.index in known and not _same_results(stored[trial.point.index], trial):
            point = format_hyperparameters(trial.point.hyperparameters)
            raise UsageError(
                f"{name}: the store has other results of the point {point} and seed {trial.point.seed}; give "
                f"repetitions other seeds, or import into another store with --out DIR"
            )
    return known


def _same_results(one: Trial, other: Trial) -> bool:
    """Return whether two trials end with the same values; a source may have no more of their curves."""
    return one.curve.steps[-1] == other.curve.steps[-1] and all(
        np.array_equal(values[-1], other.curve.values[metric][-1], equal_nan=True)
        for metric, values in one.curve.values.items()
        if metric in other.curve.values
    )


def _placed(trial: Trial, index: int, seed: int | None = None) -> Trial:
    """Return a trial with its index. If it has no seed, ``seed`` or else the index stands for it."""
    own = trial.point.seed if trial.point.seed != _NO_SEED else index if seed is None else seed
    return replace(trial, point=replace(trial.point, index=index, seed=own))


def _checked(study: Study, name: str, trial: Trial) -> Trial:
    """Return a trial of levelfield's own search; raise if it is none."""
    remedy = 'for trials from elsewhere, write search = "imported" and sampling = "random" (or another) in the study'
    if trial.point.index < 0:
        raise UsageError(f"{name}: the trials have no index, so they are not those of the study's own search; {remedy}")
    own = Search(study, name).point(trial.point.index)
    if _key(own.hyperparameters) != _key(trial.point.hyperparameters) or own.seed != trial.point.seed:
        raise UsageError(
            f"{name}: trial {trial.point.index} is not point {own.index} of the study's own search (their seeds or "
            f"spaces differ); {remedy}"
        )
    return replace(trial, point=own)


def _key(values: Mapping[str, Value]) -> _Key:
    """Return what identifies a point; numbers are compared up to rounding errors."""

    def plain(value: Value) -> Value:
        return float(f"{value:.12g}") if isinstance(value, int | float) and not isinstance(value, bool) else value

    return tuple(sorted((name, plain(value)) for name, value in values.items()))
