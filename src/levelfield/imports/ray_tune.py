"""Result folders of Ray Tune: experiment/trial with params.json and result.json. Reading them needs no Ray."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from levelfield.errors import DataError, UnknownName
from levelfield.formatting import pluralize
from levelfield.imports.frames import flattened, parse_json, read_json
from levelfield.imports.layout import Layout, chosen, metric_names, require
from levelfield.imports.records import Record, Source, distinct, plain_name
from levelfield.imports.settings import Described, Settings, describe, make_curve
from levelfield.trial import Status

USES = ("studies", "optimizer", "optimizer_name", "step", "seed", "hyperparameters", "metrics", "ignore")
_PARAMS, _RESULTS, _ERROR = "params.json", "result.json", "error.txt"
_ADAPTIVE = ("searcher-state-*", "search_gen_state-*", "pbt_global.txt")  # searchers, and population-based training
_STEP, _SECONDS = "training_iteration", "time_total_s"
# What Ray Tune writes into each result besides the metrics.
_BOOKKEEPING = {
    *("timestamp", "checkpoint_dir_name", "done", "trial_id", "date", "time_this_iter_s", "pid", "hostname", "node_ip"),
    *("time_since_restore", "iterations_since_restore", "should_checkpoint", "experiment_tag", "experiment_id"),
    *("timesteps_total", "episodes_total", "timesteps_since_restore", "warmup_time", _STEP, _SECONDS),
}

Result = Mapping[str, Any]


def recognizes(path: Path) -> bool:
    return path.is_dir() and next(_trials(path), None) is not None


def read(path: Path, layout: Layout) -> Source:
    """Read the trials of an experiment, or of all experiments in a folder."""
    where = str(path)
    trials = _chosen_trials(path, layout.studies)
    results = {trial: _results(trial / _RESULTS) for trial in trials}
    columns = list(dict.fromkeys(key for rows in results.values() for row in rows for key in row))
    step = layout.step or _STEP
    if columns:
        require(step, columns, where)
    metrics = _metrics(columns, results, step, layout, where)
    settings = [
        Settings(trial.name, flattened(_object(trial / _PARAMS), "/"), optimizer=trial.parent.name) for trial in trials
    ]
    records: dict[Path, list[Record]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for trial, described in zip(trials, describe(settings, layout, where, columns), strict=True):
        failed = (trial / _ERROR).exists()
        record = _record(described, results[trial], step, metrics, f"{where}: {trial.name}")
        if not len(record.curve.steps) or (failed and not record.diverged):
            left_out["failed" if failed else "unfinished"] += 1
        else:
            records[trial.parent].append(replace(record, status=Status.INFEASIBLE) if failed else record)
    notes = [f"{pluralize(count, f'{reason} trial')} left out" for reason, count in left_out.items()]
    if not records:
        raise DataError(f"{where}: no trial has finished ({'; '.join(notes)})")
    marked = [record for group in records.values() for record in _with_pruned(group)]
    if pruned := sum(record.pruned for record in marked):
        notes.append(f"{pluralize(pruned, 'trial')} ended before others, stopped by a scheduler or by themselves")
    kept, repeated = distinct(marked, where, labeled=True)
    samplings, selected = (
        {function(folder, group) for folder, group in records.items()} for function in (_sampling, _selected)
    )
    return Source(
        path.resolve().name,
        kept,
        select=selected.pop() if len(selected) == 1 else "",
        sampling=samplings.pop() if len(samplings) == 1 else "",
        notes=[*notes, *repeated],
    )


def _trials(path: Path) -> Iterator[Path]:
    """Yield the folders of the trials in an experiment, or in all experiments of a folder."""
    for pattern in (f"*/{_PARAMS}", f"*/*/{_PARAMS}"):
        yield from (file.parent for file in path.glob(pattern) if (file.parent / _RESULTS).is_file())


def _chosen_trials(path: Path, experiments: Sequence[str]) -> list[Path]:
    trials = sorted(_trials(path))
    known = dict.fromkeys(trial.parent.name for trial in trials)
    for name in experiments:
        if name not in known:
            raise UnknownName.of(f"experiment of {path}", name, known)
    return [trial for trial in trials if not experiments or trial.parent.name in experiments]


def _object(file: Path) -> dict[str, Any]:
    content = read_json(file)
    if not isinstance(content, dict):
        raise DataError(f"{file}: expected a JSON object")
    return content


def _results(file: Path) -> list[Result]:
    """Return the results of a trial. A last line that was cut off when its program was killed is left out."""
    lines = [line for line in file.read_bytes().splitlines() if line.strip()]
    results: list[Result] = []
    for number, line in enumerate(lines, 1):
        try:
            content = parse_json(line, f"{file}, line {number}")
        except DataError:
            if number < len(lines):
                raise
            break
        if not isinstance(content, dict):
            raise DataError(f"{file}, line {number}: expected a JSON object")
        results.append(flattened({key: value for key, value in content.items() if key != "config"}, "/"))
    return results


def _metrics(
    columns: Sequence[str], results: Mapping[Path, Sequence[Result]], step: str, layout: Layout, where: str
) -> dict[str, str]:
    """Return the metrics by name: as the layout says, or everything that is a number and is not Ray Tune's own."""
    if layout.metrics is not None:
        named = chosen(layout.metrics, columns, where)
    else:
        values = (item for rows in results.values() for row in rows for item in row.items())
        numeric = dict.fromkeys(key for key, value in values if _is_number(value))
        named = {key: key for key in numeric if key not in {*_BOOKKEEPING, step, *layout.ignore}}
    return metric_names(named, where)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _record(described: Described, rows: Sequence[Result], step: str, metrics: Mapping[str, str], where: str) -> Record:
    """Return a trial. Where one that was restored reports a step again, the later report counts."""
    by_step: dict[int, Result] = {}
    for row in rows:
        if not _is_number(row.get(step)) or row[step] != int(row[step]):
            raise DataError(f"{where}: {step} = {row.get(step)!r}: expected an integer")
        by_step[int(row[step])] = row
    steps = sorted(by_step)
    for name, key in metrics.items():
        for row in rows:
            if row.get(key) is not None and not _is_number(row[key]):
                raise DataError(f"{where}: {name} = {row[key]!r} at step {row[step]}: expected a number")
    curve, diverged = make_curve(steps, {name: [by_step[at].get(key) for at in steps] for name, key in metrics.items()})
    first, last = (rows[0], rows[-1]) if rows else ({}, {})
    return replace(
        described.record(curve, diverged),
        started=float(first.get("timestamp", 0.0)) - float(first.get(_SECONDS, 0.0)),
        seconds=float(last.get(_SECONDS, 0.0)),
    )


def _with_pruned(records: Sequence[Record]) -> list[Record]:
    """Mark the trials that ended before the longest one without diverging."""
    longest = max(record.curve.steps[-1] for record in records)
    return [
        replace(record, pruned=bool(record.curve.steps[-1] < longest and not record.diverged)) for record in records
    ]


def _sampling(experiment: Path, records: Sequence[Record]) -> str:
    """Return how an experiment chose its points, as far as the names of its files and the points tell."""
    if any(next(experiment.glob(pattern), None) for pattern in _ADAPTIVE):
        return "adaptive"
    if not next(experiment.glob("basic-variant-state-*"), None):
        return ""
    points = {tuple(sorted(record.hyperparameters.items())) for record in records}
    axes: dict[str, set[Any]] = defaultdict(set)
    for point in points:
        for name, value in point:
            axes[name].add(value)
    sizes = [len(values) for values in axes.values() if len(values) > 1]
    if len(sizes) < 2:  # random points on one axis look like a grid
        return ""
    if math.prod(sizes) == len(points):
        return "grid"
    # Values that repeat may be those of a grid of which some trials failed.
    return "random" if max(sizes) == len(points) else ""


def _selected(experiment: Path, records: Sequence[Record]) -> str:
    """Return the metric that an experiment optimized, if it says."""
    states = sorted(experiment.glob("experiment_state-*.json"))
    metric = ""
    with suppress(DataError, IndexError, KeyError, TypeError):
        metric = plain_name(str(read_json(states[-1])["runner_data"]["_metric"]))
    return metric if any(metric in record.curve.values for record in records) else ""
