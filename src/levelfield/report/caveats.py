"""What a reader must know before the results: how trials were drawn, trained, and counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from levelfield.analysis.intervals import needed_trials
from levelfield.analysis.outcomes import held_out_metric
from levelfield.analysis.results import PoolState, Results, default_k
from levelfield.formatting import join_words, pluralize
from levelfield.study import Study, workload_of
from levelfield.user_code import is_other_version

_FULL = 0.9  # trials that reach this share of the longest one's steps were not stopped early
_UNFAIR = "there are no confidence intervals, and nothing is tested"
_NO_SEARCH = f"the best of them does not tell what another search would find: {_UNFAIR}"
_SAMPLING = {
    "random": "were drawn at random, so the best of K trials is what random search with K trials would have found",
    "quasirandom": "are quasi-random, so the best of K trials is what such a search with K trials would have found",
    "grid": "lie on a grid, so the best of K trials is what K points drawn from that grid would have given",
    "adaptive": f"were chosen by a tuner that learned from earlier trials, so {_NO_SEARCH}",
    "manual": f"were chosen by hand, so {_NO_SEARCH}",
    "unknown": f'were chosen in an unknown way, so {_UNFAIR}. If it was at random, write sampling = "random" in the '
    "study",
}


def caveats(results: Results) -> list[str]:
    """Return what a reader must know before anything else."""
    return pool_caveats(results.study, results.states, _code_of_extra_trials(results))


def pool_caveats(study: Study, pools: Mapping[str, PoolState], code_sentences: Sequence[str] = ()) -> list[str]:
    """Return what a reader must know about a study's pools before anything else."""
    lines = []
    if study.scale < 1:
        lines.append(f"Scaled to {study.scale:.2g} of the study's steps, trials, and pool: a dry run, not a result.")
    if study.sampling:
        lines.append(sampling_sentence(study))
    if study.inferred:
        lines.append(inferred_sentence(study))
    lines += stopped_sentences(study, pools)
    lines += [*_code_of_pools(study, pools), *code_sentences, *failure_sentences(pools)]
    counts = [pool.count for pool in pools.values()]
    if not study.replacement and any(count.feasible == default_k(study, counts) for count in counts):
        lines.append(
            "With K = N and no replacement, there is only one way to draw K trials; ranges and win rates show no luck."
        )
    if study.select.startswith("test_"):
        held_out = held_out_metric(study.select, workload_of(study).metrics)
        instead = f"see {held_out} instead" if held_out else "no other data are held out"
        lines.append(f"Trials are selected by {study.select}, so their {study.select} is optimistic; {instead}.")
    return lines


def stopped_sentences(study: Study, pools: Mapping[str, PoolState]) -> list[str]:
    """Say which trials from elsewhere were stopped early, and what that means for their results."""
    longest = max((step for pool in pools.values() for step in pool.last_steps), default=0)
    stopped = {name: sum(step < _FULL * longest for step in pool.last_steps) for name, pool in pools.items()}
    if not study.sampling or not any(stopped.values()):
        return []
    counts = [f"{n:,} of {len(pools[name].last_steps):,} feasible trials of {name}" for name, n in stopped.items() if n]
    return [
        f"However, {join_words(counts)} ended early, before the others, and count with their last values. These are "
        f"results of a search that stops trials early: its trials are of different lengths and may depend on each "
        f"other, and full trials might rank the optimizers differently."
    ]


def failure_sentences(pools: Mapping[str, PoolState]) -> list[str]:
    """Say which trials have failed, and why the first of each optimizer did."""
    lines = []
    for name, pool in pools.items():
        if pool.failures:
            count, first = len(pool.failures), pool.failures[0]
            failed = f"{pluralize(count, 'trial')} of {name} failed and {'is' if count == 1 else 'are'} not counted"
            lines.append(f"{failed}: trial {first.index}: {first.reason.rstrip('.')}.")
    if lines:
        lines[-1] += " 'levelfield status STUDY --failures' shows the details; the next run trains failed trials again."
    return lines


def sampling_sentence(study: Study) -> str:
    """Say how the points of imported trials were chosen, and what that allows."""
    return f"The hyperparameters of the imported trials {_SAMPLING[study.sampling or 'unknown']}."


def inferred_sentence(study: Study) -> str:
    """Say where search spaces come from that the trials themselves gave."""
    if study.search == "grid":
        return "The grid was inferred from the trials: it has all values that were tried."
    return (
        "The search ranges were inferred from the trials: each reaches from the lowest to the highest value that was "
        "tried, and may have been wider."
    )


def provenance_sentences(results: Results) -> list[str]:
    """Say where and with which software the trials were trained."""
    return [_provenance(entry) for entry in results.provenance]


def _provenance(entry: Mapping[str, Any]) -> str:
    if "imported" in entry:
        notes = f": {'; '.join(entry['notes'])}" if entry.get("notes") else ""
        return f"Imported from {entry['imported']}{notes}."
    versions = [f"{name} {version}" for key in ("versions", "packages") for name, version in entry.get(key, {}).items()]
    device = f"{entry.get('devices', 1)} × {entry.get('device', 'unknown device')}"
    precision = f", {entry['precision']}" if "precision" in entry else ""
    return f"Trained with {', '.join(versions) or 'unknown versions'} on {device}{precision}."


def code_sentences(results: Results) -> list[str]:
    """Say which trials were trained with another version of the study's custom code than the current one."""
    return [*_code_of_pools(results.study, results.states), *_code_of_extra_trials(results)]


def _code_of_pools(study: Study, pools: Mapping[str, PoolState]) -> list[str]:
    outdated, mixed = [], []
    file = study.code_name
    for name, pool in pools.items():
        current = study.code_version(name)
        codes: Counter[str] = Counter()
        for code, number in Counter(pool.codes).items():
            codes[code or current] += number
        old, tried = sum(n for code, n in codes.items() if is_other_version(code, current)), len(pool.codes)
        if old == tried and len(codes) == 1:
            outdated.append(name)
        elif old:
            mixed.append(
                f"{old} of {tried} trials of {name} were trained with a different version of {file} than the "
                f"current one; its results mix {len(codes)} versions, which may not be comparable."
            )
    if outdated:
        names = join_words(outdated)
        mixed.insert(0, f"All trials of {names} were trained with a different version of {file} than the current one.")
    return mixed


def _code_of_extra_trials(results: Results) -> list[str]:
    """Say which reruns and followed trials were trained with another version than the trials they repeat."""
    study, mixed = results.study, []
    file = study.code_name
    for name, outcome in results.reruns.items():
        best = results.outcome(name).best_trial
        if study.code_version(name) and best and any(is_other_version(run.code, best.code) for run in outcome.pool):
            mixed.append(f"{name}'s reruns were trained with a different version of {file} than its best trial.")
    for pair in results.followed:
        depends = study.code_version(pair.special) or study.code_version(pair.general)
        if depends and is_other_version(pair.trial.code, pair.followed.code):
            mixed.append(
                f"The trial in which {pair.general} imitates {pair.special} was trained with a different version of "
                f"{file} than the trial that it imitates."
            )
    return mixed


def pool_sentence(study: Study) -> str | None:
    """Say what a pool is too small for; None if it is large enough."""
    needed = needed_trials(study.trials)
    if study.pool >= needed or study.search == "grid" or not study.is_tested:
        return None
    side = "above" if workload_of(study).metrics[study.select].sign < 0 else "below"
    fewer = math.floor(study.pool * study.trials / needed)
    return (
        f"pool = {study.pool} is less than 4.3 × trials, so the confidence intervals are open: such a pool does "
        f"not bound the median best of {study.trials} from {side}. That takes pool = {needed} or more"
        + (f", or trials = {fewer} or fewer." if fewer else ".")
    )
