"""The curves of a table's trials: its metrics over steps, cut into trials and without gaps."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars

from levelfield.errors import DataError
from levelfield.imports.columns import Roles
from levelfield.imports.frames import ROW
from levelfield.imports.records import is_finite

STEP = "levelfield step"  # a column that is added where steps are part of the metrics


def unrolled(frame: polars.DataFrame, roles: Roles, where: str) -> tuple[polars.DataFrame, Roles]:
    """Return a table with one row per step where metrics were lists of values, or of [step, value] pairs.

    A metric that is a single value beside them was measured at the last step.
    """
    lists = [column for column in roles.metrics.values() if frame[column].dtype == polars.List]
    if not lists:
        return frame, roles
    single = [column for column in roles.metrics.values() if column not in lists]
    if roles.step and frame[roles.step].dtype == polars.List:
        lists.append(roles.step)
    lengths = frame.select(polars.max_horizontal(1, polars.col(lists).list.len())).to_series()
    for column in lists:
        own = frame[column].list.len().fill_null(0)
        _refuse(frame, (own > 0) & (own < lengths), where, f"{column} has fewer values than other lists in that row")
    frame = frame.with_columns(
        polars.when(polars.col(column).list.len() > 0)
        .then(polars.col(column))
        .otherwise(polars.lit(None).repeat_by(lengths).cast(frame[column].dtype))
        for column in lists
    ).explode(lists)
    is_last = polars.int_range(1, polars.len() + 1).over(ROW) == polars.len().over(ROW)
    frame = frame.with_columns(polars.when(is_last).then(polars.col(column)).alias(column) for column in single)
    if frame[lists[0]].dtype == polars.List:
        return _without_pairs(frame, lists, where), replace(roles, step=STEP)
    if roles.step in lists:
        return frame, roles
    number = polars.int_range(1, polars.len() + 1).over(ROW).alias(STEP)
    return frame.with_columns(number), replace(roles, step=STEP)


def _without_pairs(frame: polars.DataFrame, lists: list[str], where: str) -> polars.DataFrame:
    steps = frame[lists[0]].list.get(0, null_on_oob=True)
    for column in lists:
        _refuse(frame, frame[column].list.len() != 2, where, f"{column}: expected pairs of step and value")
        other = frame[column].list.get(0, null_on_oob=True)
        _refuse(frame, other != steps, where, f"{lists[0]} and {column} have different steps")
    values = [frame[column].list.get(1) for column in lists]
    return frame.with_columns(steps.fill_null(steps.min()).alias(STEP), *values)  # null: of a trial without any values


def _refuse(frame: polars.DataFrame, wrong: polars.Series, where: str, problem: str) -> None:
    if wrong.any():
        row = frame[ROW][int(np.argmax(wrong.fill_null(False).to_numpy()))]
        raise DataError(f"{where}, row {row}: {problem}")


class Metric(NamedTuple):
    """One metric of all trials."""

    values: np.ndarray  # trial after trial
    present: np.ndarray  # for each trial, whether it was measured at all
    diverged: np.ndarray  # for each trial, whether a measured value is NaN or infinite
    ends_empty: np.ndarray  # for each trial, whether its last values were empty and so NaN


def without_gaps(
    values: polars.Series, steps: np.ndarray, starts: np.ndarray, optimizers: np.ndarray, silent: np.ndarray | None
) -> Metric:
    """Return the values of a metric with gaps filled by the value before; before the first one they are NaN.

    ``starts``: where the rows of each trial begin, and where the last one's end. ``optimizers``: a number of each row's
    optimizer. ``silent``: for each row, whether its optimizer has no value of any metric. Unless that is None, an empty
    value is no gap but was NaN, as many programs write it, if the trial has no later value, other trials have one at
    that step, and other trials of its optimizer have the metric or none has any.
    """
    numbers = values.to_numpy()
    measured = values.is_not_null().to_numpy()
    empty = np.zeros(len(steps), bool)
    first = starts[:-1]
    if not measured.all():
        rows, lengths = np.arange(len(steps)), np.diff(starts)
        if silent is not None:
            last = np.repeat(np.maximum.reduceat(np.where(measured, rows, -1), first), lengths)
            at_step = np.isin(steps, np.unique(steps[measured])) | silent.all()
            empty = (rows > last) & at_step & (np.isin(optimizers, np.unique(optimizers[measured])) | silent)
            measured = measured | empty
        latest = np.maximum.accumulate(np.where(measured, rows, -1))
        numbers = np.where(latest >= np.repeat(first, lengths), numbers[latest], np.nan)
    present, diverged, ends_empty = (
        np.logical_or.reduceat(rows, first) for rows in (measured, measured & ~is_finite(numbers), empty)
    )
    return Metric(numbers, present, diverged, ends_empty)
