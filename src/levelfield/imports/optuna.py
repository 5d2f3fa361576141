"""Optuna storages: relational databases and journal files."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from levelfield.errors import DataError, UnknownName, UsageError
from levelfield.formatting import pluralize
from levelfield.imports.columns import is_metric
from levelfield.imports.layout import Layout, chosen, metric_names
from levelfield.imports.records import Record, Source, distinct, plain_name
from levelfield.imports.settings import Described, Settings, describe, make_curve
from levelfield.trial import Direction, Status

USES = ("studies", "optimizer", "optimizer_name", "seed", "hyperparameters", "metrics", "ignore")
_LONGEST = 10_000  # bytes of a line that tells what a file is
_SQLITE = b"SQLite format 3\0"
_TABLES = ("studies", "trials", "trial_params", "version_info", "alembic_version")
_METRIC_NAMES = "study:metric_names"
_ADAPTIVE = ("tpe:", "gp:", "cma:", "sepcma:", "cmawm:", "NSGA", "BaseGASampler:")  # of samplers that learn, in trials
_QUASIRANDOM = "qmc:"  # in studies


def recognizes(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        line = file.readline(_LONGEST)
    return line.startswith(_SQLITE) or _is_journal(line)


def _is_journal(line: bytes) -> bool:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"op_code", "worker_id"} <= content.keys()


def read(source: str | Path, layout: Layout) -> Source:
    """Read the trials of one study, or of several that tried one optimizer each."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise UsageError(f"{_shown(source)} needs Optuna; run pip install 'levelfield[optuna]'") from None
    where = _shown(source)
    try:
        with _opened(optuna, source, where) as storage:
            studies = _chosen_studies(storage, layout.studies, where)
            trials = [(study, trial) for study in studies for trial in storage.get_all_trials(study._study_id)]
    except (sa.exc.SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError, ValueError, LookupError) as error:
        raise DataError(f"{where}: cannot read the Optuna storage ({_reason(error)})") from None
    return _source(studies, trials, layout, where)


def _shown(source: str | Path) -> str:
    """Return a source as messages show it, without secrets."""
    if isinstance(source, Path):
        return str(source)
    try:
        return sa.make_url(source).set(query={}).render_as_string(hide_password=True)
    except (sa.exc.ArgumentError, ValueError):
        return f"{source.partition('://')[0]}://…"


def _reason(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0] or type(error).__name__


@contextmanager
def _opened(optuna: Any, source: str | Path, where: str) -> Iterator[Any]:
    if isinstance(source, Path):
        with source.open("rb") as file:
            is_journal = _is_journal(file.readline(_LONGEST))
        if is_journal:
            yield optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(source)))
            return
    storage = _database(optuna, source, where)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _database(optuna: Any, source: str | Path, where: str) -> Any:
    """Open a database that has Optuna's tables; Optuna would add them to any other."""
    is_file = isinstance(source, Path)
    url = sa.URL.create("sqlite", database=str(source)) if is_file else sa.make_url(str(source))
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise UsageError(f"{where}: no such file")
    try:
        engine = sa.create_engine(url)
    except ModuleNotFoundError as error:
        raise UsageError(f"{where} needs {error.name}; run pip install 'levelfield[postgres]'") from None
    try:
        tables = sa.inspect(engine).get_table_names()
    finally:
        engine.dispose()
    if not set(_TABLES) <= set(tables):
        raise DataError(f"{where}: not an Optuna storage: expected its tables {', '.join(_TABLES)}")
    plain = url.render_as_string(hide_password=False)
    return optuna.storages.RDBStorage(plain.replace("{", "{{").replace("}", "}}"))  # Optuna takes a template


def _chosen_studies(storage: Any, names: Sequence[str], where: str) -> list[Any]:
    known = {study.study_name: study for study in storage.get_all_studies()}
    for name in names:
        if name not in known:
            raise UnknownName.of(f"study of {where}", name, known)
    if not known:
        raise DataError(f"{where}: the storage has no studies")
    return [study for name, study in known.items() if not names or name in names]


# What to say about trials that have something to be known.
_NOTES = {
    "pruned": "{} stopped early by Optuna's pruner",
    "stopped": "{} left out that Optuna's pruner stopped before their first report",
    "failed": "{} left out that failed; Optuna counts those that returned NaN among them, so some may have diverged",
    "unfinished": "{} left out that had not finished",
    "revised": "the value that counts is the one that was returned, which differs from the last report in {}",
    "enqueued": "{} at points that were given by hand",
}


def _source(studies: Sequence[Any], trials: Sequence[tuple[Any, Any]], layout: Layout, where: str) -> Source:
    metrics = _metrics(studies, [trial for _, trial in trials], layout, where)
    settings = [
        Settings(f"{study.study_name} trial {trial.number}", _params(trial), trial.user_attrs, study.study_name)
        for study, trial in trials
    ]
    records: list[Record] = []
    counts: Counter[str] = Counter()
    distributions: dict[str, dict[str, list[Any]]] = {}  # optimizer → parameter → those of its trials
    for (study, trial), described in zip(trials, describe(settings, layout, where), strict=True):
        record = _record(trial, described, _objectives(study), metrics)
        reason = _left_out(trial, record)
        counts.update([reason] if reason else _remarks(trial))
        if not reason:
            records.append(record)
            for name, distribution in trial.distributions.items():
                distributions.setdefault(record.optimizer, {}).setdefault(name, []).append(distribution)
    notes = [text.format(pluralize(counts[key], "trial")) for key, text in _NOTES.items() if counts[key]]
    if not records:
        raise DataError(f"{where}: no trial has finished ({'; '.join(notes) or 'there are none'})")
    records, repeated = distinct(records, where, labeled=True)
    samplings = {_sampling(study, [trial for owner, trial in trials if owner is study]) for study in studies}
    sampling = "adaptive" if "adaptive" in samplings else samplings.pop() if len(samplings) == 1 else ""
    single = {tuple(_objectives(study)) for study in studies}
    return Source(
        studies[0].study_name if len(studies) == 1 else Path(where).stem,
        records,
        directions=_directions(studies, metrics, where),
        select=next((metric for metric, key in metrics.items() if single == {(key,)}), ""),
        sampling=sampling,
        ranges={} if sampling == "grid" else {name: _ranges(found) for name, found in distributions.items()},
        notes=[*notes, *repeated],
    )


def _ranges(distributions: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the dimensions of the parameters that had the same distribution in all trials."""
    same = {name: found[0] for name, found in distributions.items() if all(other == found[0] for other in found)}
    specs = {plain_name(name): _dimension(distribution) for name, distribution in same.items()}
    return {key: spec for key, spec in specs.items() if spec is not None}


def _dimension(distribution: Any) -> Any:
    """Return a distribution as study files write it; None if they cannot."""
    if hasattr(distribution, "choices"):
        choices = ["None" if choice is None else choice for choice in distribution.choices]
        return {"choice": choices} if len(choices) > 1 else choices[0]
    low, high = distribution.low, distribution.high
    if low == high:
        return low
    whole = isinstance(low, int)
    if distribution.log:
        return None if whole else {"log": [low, high]}
    return {"integer" if whole else "uniform": [low, high]}


def _params(trial: Any) -> dict[str, Any]:
    """Return the parameters of a trial; None among the choices of one is a value like any other."""
    return {name: "None" if value is None else value for name, value in trial.params.items()}


def _objectives(study: Any) -> list[str]:
    """Return the names of a study's objectives; "value" if they have none, as in Optuna's own tables."""
    count = len(study.directions)
    return study.system_attrs.get(_METRIC_NAMES) or (
        ["value"] if count == 1 else [f"value_{number}" for number in range(count)]
    )


def _metrics(studies: Sequence[Any], trials: Sequence[Any], layout: Layout, where: str) -> dict[str, str]:
    """Return the metrics by name: objectives, and attributes that the layout names or that look like metrics."""
    objectives = dict.fromkeys(name for study in studies for name in _objectives(study))
    numeric = dict.fromkeys(name for trial in trials for name, value in trial.user_attrs.items() if _is_number(value))
    if layout.metrics is not None:
        named = chosen(layout.metrics, [*objectives, *numeric], where)
    else:
        found = [name for name in numeric if is_metric(name) and name not in layout.ignore]
        named = {name: name for name in (*objectives, *found)}
    return metric_names(named, where)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _directions(studies: Sequence[Any], metrics: Mapping[str, str], where: str) -> dict[str, Direction]:
    found: dict[str, tuple[Direction, str]] = {}
    for study in studies:
        for name, direction in zip(_objectives(study), study.directions, strict=True):
            stated = (Direction(direction.name.lower()), study.study_name)
            first = found.setdefault(name, stated)
            if first[0] != stated[0]:
                raise DataError(
                    f"{where}: study {first[1]!r} tries to {first[0]} {name} and study {stated[1]!r} to {stated[0]} "
                    f"it; choose one of them with --map studies=NAME"
                )
    return {metric: found[key][0] for metric, key in metrics.items() if key in found}


def _record(trial: Any, described: Described, objectives: Sequence[str], metrics: Mapping[str, str]) -> Record:
    """Return a trial. Reports are the curve of a single objective; what else is known stands at the last step."""
    reports = trial.intermediate_values
    steps = sorted(reports) or [1]
    ends = {name: value for name, value in trial.user_attrs.items() if _is_number(value)}
    ends |= dict(zip(objectives, trial.values or [], strict=False))
    values: dict[str, list[float | None]] = {}
    for metric, key in metrics.items():
        values[metric] = [reports.get(step) if [key] == list(objectives) else None for step in steps]
        values[metric][-1] = ends.get(key, values[metric][-1])
    curve, diverged = make_curve(steps, values)
    return replace(
        described.record(curve, diverged),
        status=Status.INFEASIBLE if trial.state.name == "FAIL" else None,
        pruned=trial.state.name == "PRUNED",
        started=trial.datetime_start.timestamp() if trial.datetime_start else 0.0,
        seconds=trial.duration.total_seconds() if trial.duration else 0.0,
    )


def _left_out(trial: Any, record: Record) -> str:
    """Return why a trial is left out, if it is.

    One that failed after a report of NaN has diverged, or if `levelfield export` says so.
    """
    if trial.state.name in ("RUNNING", "WAITING"):
        return "unfinished"
    diverged = record.diverged or trial.user_attrs.get("status") == Status.INFEASIBLE.value
    if trial.state.name == "FAIL" and not diverged:
        return "failed"
    return "stopped" if record.pruned and not trial.intermediate_values else ""


def _remarks(trial: Any) -> list[str]:
    reports, values = trial.intermediate_values, trial.values
    remarks = {
        "pruned": trial.state.name == "PRUNED",
        "revised": bool(reports and values) and values[0] != reports[max(reports)],
        "enqueued": "fixed_params" in trial.system_attrs,
    }
    return [remark for remark, holds in remarks.items() if holds]


def _sampling(study: Any, trials: Sequence[Any]) -> str:
    """Return how points were chosen, where the sampler has left a trace; random search and TPE leave none."""
    if any(key.startswith(_ADAPTIVE) for trial in trials for key in trial.system_attrs):
        return "adaptive"
    if all("grid_id" in trial.system_attrs for trial in trials):
        return "grid"
    return "quasirandom" if any(key.startswith(_QUASIRANDOM) for key in study.system_attrs) else ""
