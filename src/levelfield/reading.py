"""The results of a study from the trials in a store. Reading trains nothing and loads no JAX."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.results import PoolState, Results, outcomes_of
from levelfield.analysis.step_times import on_one_device
from levelfield.derive.follow import Following, followings
from levelfield.derive.rerun import rerun_study
from levelfield.pool import PoolCount, pool_window
from levelfield.store import Store
from levelfield.study import Study, workload_of
from levelfield.trial import FailedTrial, Status, Trial


def read(study: Study, store: Store) -> Results:
    """Return the results of a study's stored trials, reruns and followed trials. Trains nothing and loads no JAX."""
    return with_extra_trials(read_pools(study, store), store)


def with_extra_trials(results: Results, store: Store) -> Results:
    """Return the results with the stored reruns and followed trials."""
    pairs = [(following, stored_following(following, store)) for following in followings(results)]
    followed = [following.paired(trial) for following, trial in pairs if trial]
    return replace(results, followed=followed, reruns=_stored_reruns(results, store))


def read_pools(study: Study, store: Store) -> Results:
    """Return the results of a study's pools alone."""
    trials: dict[str, list[Trial]] = {}
    failures: dict[str, list[FailedTrial]] = {}
    provenance: list[Mapping[str, Any]] = []
    for name in study.optimizers:
        identity = study.identity(name)
        stored = {trial.point.index: trial for trial in store.trials(identity)}
        window = pool_window({index: trial.status for index, trial in stored.items()}, study.pool)
        trials[name] = [stored[index] for index in window if index in stored]
        failures[name] = [failure for failure in store.failures(identity) if failure.index in window]
        provenance += [entry for entry in store.provenance(identity) if entry not in provenance]
    step_times = on_one_device({name: store.step_times(study.identity(name)) for name in study.optimizers})
    return Results.of(study, trials, provenance, failures, step_times)


def read_states(study: Study, store: Store) -> dict[str, PoolState]:
    """Return how full each optimizer's pool is, and its best final value, without reading the curves."""
    sign = workload_of(study).metrics[study.select].sign
    states = {}
    for name in study.optimizers:
        ends = store.ends(study.identity(name), study.select)
        statuses = dict(zip(ends.index.tolist(), ends.status, strict=True))
        window = pool_window(statuses, study.pool)
        inside = ends.index < len(window)
        feasible = np.array([status is Status.FEASIBLE for status in ends.status], bool) & inside
        last_steps = ends.last_step[feasible].tolist()
        count = PoolCount.of(statuses, study.pool, study.points(name))
        values = sign * ends.final[feasible & np.isfinite(ends.final)]
        best = float(sign * values.min()) if len(values) else None
        codes = [code for code, here in zip(ends.code, inside, strict=True) if here]
        failed = [failure for failure in store.failures(study.identity(name)) if failure.index in window]
        states[name] = PoolState(count, best, codes, last_steps, failed)
    return states


def best_values(study: Study, store: Store) -> dict[str, float]:
    """Return the best final value of each pool; NaN if there is none."""
    states = read_states(study, store)
    return {name: math.nan if state.best is None else state.best for name, state in states.items()}


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


def _by_index(store: Store, identity: str) -> dict[int, Trial]:
    return {trial.point.index: trial for trial in store.trials(identity)}


def stored_following(following: Following, store: Store) -> Trial | None:
    """Return the trial that follows another one, if the store has it."""
    trials = store.trials(following.study.identity(following.general))
    return next((trial for trial in trials if trial.point.index == following.followed.point.index), None)
