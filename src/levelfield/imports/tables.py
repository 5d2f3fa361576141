"""Tables of trials: CSV, Parquet and JSON lines, with one row per trial or per step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars

from levelfield.errors import DataError, suggestion
from levelfield.formatting import pluralize
from levelfield.imports.columns import Roles, assign
from levelfield.imports.curves import unrolled, without_gaps
from levelfield.imports.frames import CSV, JSON_LINES, PARQUET, ROW, read_frame, suffix
from levelfield.imports.layout import Layout
from levelfield.imports.records import Record, Source, distinct, hyperparameter_names, make_hyperparameters
from levelfield.imports.values import as_integers, as_numbers, as_settings
from levelfield.trial import Curve, Status

USES = (
    *("optimizer", "optimizer_name", "trial", "step", "seed", "status", "seconds"),
    *("hyperparameters", "metrics", "ignore"),
)

_Convert = Callable[[polars.Series, polars.Series, str], polars.Series]

_TRIAL = "levelfield trial"  # a column that is added: the first row of each row's trial
_HYPERPARAMETER, _METRIC = "hp ", "metric "  # what their columns start with once they have their names

_STATUSES = {
    "finished": ("finished", "complete", "completed", "terminated", "success", "succeeded", "done", "ok"),
    "feasible": ("feasible",),
    "infeasible": ("infeasible", "diverged", "nan"),
    "pruned": ("pruned", "stopped", "early_stopped"),
    "failed": ("failed", "fail", "failure", "crashed", "error", "errored", "killed", "canceled", "cancelled"),
    "unfinished": ("running", "pending", "queued", "scheduled", "waiting", "created", "paused", "preempted"),
}
_MEANINGS = {word: meaning for meaning, words in _STATUSES.items() for word in words}


def recognizes(path: Path) -> bool:
    return path.is_file() and suffix(path) in (*CSV, *PARQUET, *JSON_LINES)


def read(path: Path, layout: Layout) -> Source:
    """Read a table of trials. The optimizer of all is "" if nothing names it."""
    where = str(path)
    frame = read_frame(path)
    columns = [column for column in frame.columns if column != ROW]
    varying = [column for column in columns if _varies(frame[column])]
    given = assign(columns, varying, layout, where)
    if given.exported:
        frame = read_frame(path, missing=[""])  # anything else is a value
    frame, roles = unrolled(frame, given, where)
    frame = _typed(frame, roles, layout.optimizer_name, where)
    is_one_row_a_trial = roles is not given or not (roles.step or roles.trial)
    keys = [ROW] if is_one_row_a_trial else _keys(frame, roles)
    frame, notes = _in_order(_grouped(frame, keys), where)
    if not roles.step:
        notes.append("no column has steps: the trials have one evaluation each, at step 1")
    if roles.unused:
        notes.append(f"unused columns: {', '.join(roles.unused)}")
    records, left_out = _finished(_records(frame, roles, where))
    if not records:
        raise DataError(f"{where}: no trial has finished ({'; '.join(left_out)})")
    records, repeated = distinct(records, where, labeled=bool(roles.trial))
    return Source(path.name.partition(".")[0], records, notes=[*notes, *left_out, *repeated])


def _varies(values: polars.Series) -> bool:
    return values.dtype.is_nested() or bool(values.ne_missing(values[0]).any())


def _typed(frame: polars.DataFrame, roles: Roles, optimizer: str, where: str) -> polars.DataFrame:
    """Return the columns that have a role, by its name and as the values that it needs."""
    rows = frame[ROW]

    def column(name: str, convert: _Convert, needed: bool = False) -> polars.Series:
        values = convert(frame[name], rows, f"{where}: column {name!r}")
        if needed and values.has_nulls():
            missing = rows.filter(values.is_null())[0]
            raise DataError(f"{where}: column {name!r}, row {missing}: expected a value, got nothing")
        return values

    def text(values: polars.Series, *_: Any) -> polars.Series:
        return values.cast(polars.String)

    length = len(frame)
    typed = {
        "optimizer": column(roles.optimizer, text, True)
        if roles.optimizer
        else polars.repeat(optimizer, length, eager=True),
        "step": column(roles.step, as_integers, True) if roles.step else polars.repeat(1, length, eager=True),
    }
    if roles.trial:
        typed["trial"] = column(roles.trial, as_integers if roles.exported else text, True)
    if roles.seed:
        typed["seed"] = column(roles.seed, as_integers)
    if roles.status:
        typed["status"] = column(roles.status, text)
    if roles.seconds:
        typed["seconds"] = column(roles.seconds, as_numbers)
    typed |= {_HYPERPARAMETER + key: column(name, as_settings) for key, name in roles.hyperparameters.items()}
    typed |= {_METRIC + key: column(name, as_numbers) for key, name in roles.metrics.items()}
    return polars.DataFrame([rows, *(values.alias(name) for name, values in typed.items())])


def _keys(frame: polars.DataFrame, roles: Roles) -> list[str]:
    """Return the columns that are the same in the rows of a trial, and in no other trial's."""
    names = ["optimizer", *(["seed"] if roles.seed else [])]
    return [*names, "trial"] if roles.trial else [*names, *_starting(frame, _HYPERPARAMETER)]


def _starting(frame: polars.DataFrame, prefix: str) -> list[str]:
    return [column for column in frame.columns if column.startswith(prefix)]


def _grouped(frame: polars.DataFrame, keys: list[str]) -> polars.DataFrame:
    """Return the rows grouped by trial, in the order in which trials begin."""
    frame = frame.with_columns(polars.col(ROW).first().over(keys).alias(_TRIAL))
    return frame if frame[_TRIAL].is_sorted() else frame.sort(_TRIAL, maintain_order=True)


def _in_order(frame: polars.DataFrame, where: str) -> tuple[polars.DataFrame, list[str]]:
    """Return the rows without those that repeat another, and raise unless the steps of each trial increase."""
    if not len(_backward(frame)):
        return frame, []
    once = frame.unique([column for column in frame.columns if column != ROW], keep="first", maintain_order=True)
    twice = once.filter(polars.struct(_TRIAL, "step").is_duplicated())
    if len(twice):
        same = twice.filter(
            polars.col(_TRIAL) == polars.col(_TRIAL).first(), polars.col("step") == polars.col("step").first()
        )
        raise DataError(
            f"{where}: rows {same[ROW][0]} and {same[ROW][1]} are of the same trial and step, {same['step'][0]}, but "
            f"differ; name the column that tells them apart with --map step=COLUMN, seed=COLUMN or trial=COLUMN"
        )
    for row in _backward(once):
        after, before = once.row(row, named=True), once.row(row - 1, named=True)
        raise DataError(
            f"{where}, row {after[ROW]}: step {after['step']} comes after step {before['step']} of the same trial (row "
            f"{before[ROW]}); expected steps that increase"
        )
    return once, [f"{pluralize(len(frame) - len(once), 'identical row')} dropped"]


def _backward(frame: polars.DataFrame) -> np.ndarray:
    """Return the rows whose step is not after the one before it, in the same trial."""
    steps, trials = frame["step"].to_numpy(), frame[_TRIAL].to_numpy()
    return 1 + np.flatnonzero((np.diff(trials) == 0) & (np.diff(steps) <= 0))


def _records(frame: polars.DataFrame, roles: Roles, where: str) -> Iterator[tuple[Record, str, bool]]:
    """Yield each trial, why it is left out if it is, and whether its last values were empty and so NaN."""
    starts = np.append(np.flatnonzero(np.diff(frame[_TRIAL].to_numpy(), prepend=0)), len(frame))
    first, last = frame[starts[:-1]], frame[starts[1:] - 1]
    _check_constant(frame, first, starts, where)
    steps = frame["step"].to_numpy()
    longest = steps.max()
    optimizers = frame["optimizer"].rank("dense").to_numpy()
    columns = _starting(frame, _METRIC)
    measured = frame.select(polars.any_horizontal(polars.col(columns).is_not_null())).to_series().to_numpy()
    silent = None if roles.exported else ~np.isin(optimizers, np.unique(optimizers[measured]))
    metrics = {
        column.removeprefix(_METRIC): without_gaps(frame[column], steps, starts, optimizers, silent)
        for column in columns
    }
    ends_empty = np.any([metric.ends_empty for metric in metrics.values()], axis=0)
    settings = first.select(
        polars.col(f"^{_HYPERPARAMETER}.*$").name.map(lambda name: name.removeprefix(_HYPERPARAMETER))
    )
    names = hyperparameter_names(settings.columns, where)
    described = first.select(ROW, "optimizer", *(name for name in ("trial", "seed") if name in first.columns))
    ends = last.select(name for name in ("status", "seconds") if name in last.columns)
    nothing: list[dict[str, Any]] = [{}] * len(first)
    rows = zip(described.to_dicts(), settings.to_dicts() or nothing, ends.to_dicts() or nothing, strict=True)
    for i, (about, setting, end) in enumerate(rows):
        here = slice(starts[i], starts[i + 1])
        label = f"trial {about['trial']}" if roles.trial else f"row {about[ROW]}"
        status, pruned, left_out = _outcome(end.get("status"), f"{where}: {label}")
        ended_early = roles.exported and status is Status.FEASIBLE and bool(steps[here][-1] < longest)
        yield (
            Record(
                label=label,
                optimizer=about["optimizer"],
                hyperparameters=make_hyperparameters(setting, names, f"{where}: {label}"),
                curve=Curve(
                    steps[here], {name: metric.values[here] for name, metric in metrics.items() if metric.present[i]}
                ),
                seed=about.get("seed"),
                index=about["trial"] if roles.exported else None,
                status=status,
                pruned=pruned or ended_early,
                diverged=frozenset(name for name, metric in metrics.items() if metric.diverged[i]),
                seconds=end.get("seconds") or 0.0,
            ),
            left_out,
            bool(ends_empty[i]),
        )


def _check_constant(frame: polars.DataFrame, first: polars.DataFrame, starts: np.ndarray, where: str) -> None:
    """Raise if a hyperparameter changes within a trial."""
    trials = np.repeat(np.arange(len(first)), np.diff(starts))
    for column in _starting(frame, _HYPERPARAMETER):
        changed = frame[column].ne_missing(first[column][trials]).to_numpy()
        if changed.any():
            row = int(np.argmax(changed))
            before, after = first.row(int(trials[row]), named=True), frame.row(row, named=True)
            raise DataError(
                f"{where}: {column.removeprefix(_HYPERPARAMETER)} changes within a trial, from {before[column]} in row "
                f"{before[ROW]} to {after[column]} in row {after[ROW]}; it may be no hyperparameter (--map "
                f"ignore=COLUMN), or another column tells trials apart (--map trial=COLUMN)"
            )


def _outcome(status: str | None, where: str) -> tuple[Status | None, bool, str]:
    """Return a trial's status, whether it was stopped early, and why it is left out if it is."""
    meaning = _MEANINGS.get((status or "finished").strip().lower())
    if meaning is None:
        raise DataError(
            f"{where}: unknown status {status!r}{suggestion(str(status), _STATUSES)}; or leave that column out "
            f"with --map ignore=COLUMN"
        )
    known = Status(meaning) if meaning in list(Status) else None
    return known, meaning == "pruned", meaning if meaning in ("failed", "unfinished") else ""


def _finished(records: Iterator[tuple[Record, str, bool]]) -> tuple[list[Record], list[str]]:
    """Return the trials to keep, and notes about the others and those that ended in another way."""
    kept: list[Record] = []
    left_out: Counter[str] = Counter()
    empty = 0
    for record, reason, ends_empty in records:
        if reason:
            left_out[reason] += 1
        else:
            kept.append(record)
            empty += ends_empty
    notes = [f"{pluralize(count, f'{reason} trial')} left out" for reason, count in left_out.items()]
    if pruned := sum(record.pruned for record in kept):
        notes.append(f"{pluralize(pruned, 'trial')} stopped early")
    if empty:
        notes.append(f"{pluralize(empty, 'trial')} with empty metrics at the end: they are taken as NaN")
    return kept, notes
