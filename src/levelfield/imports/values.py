"""Columns of a table as numbers and settings. What is not one is named with its row."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars

from levelfield.errors import DataError


def as_numbers(values: polars.Series, rows: polars.Series, where: str) -> polars.Series:
    """Return a column as floating-point numbers; 45% is 0.45."""
    values = _plain(values, where)
    if values.dtype == polars.String and (percent := values.str.ends_with("%").fill_null(False)).any():
        numbers = values.str.strip_suffix("%").cast(polars.Float64, strict=False) / np.where(percent, 100.0, 1.0)
    else:
        numbers = values.cast(polars.Float64, strict=False)
    _refuse(values, numbers.is_null(), rows, where, "a number")
    return numbers


def as_integers(values: polars.Series, rows: polars.Series, where: str) -> polars.Series:
    """Return a column as integers; 10.0 is one."""
    values = _plain(values, where)
    if not values.dtype.is_float():
        integers = values.cast(polars.Int64, strict=False)
        if integers.null_count() == values.null_count():
            return integers
    numbers = values.cast(polars.Float64, strict=False)
    whole = (numbers == numbers.floor()) & (numbers.abs() < 2**53)
    _refuse(values, ~whole.fill_null(False), rows, where, "an integer")
    return numbers.cast(polars.Int64)


def as_settings(values: polars.Series, rows: polars.Series, where: str) -> polars.Series:
    """Return a column as integers, numbers, switches or text: the first of these that all its values are.

    NaN counts as missing: programs write it where a setting does not apply. Lists are text.
    """
    if values.dtype == polars.List:
        values = polars.Series([None if each is None else json.dumps(each, default=str) for each in values.to_list()])
    values = _plain(values, where)
    if values.dtype != polars.String:
        return values.fill_nan(None) if values.dtype.is_float() else values
    values = values.set(values.str.to_lowercase() == "nan", None)
    for kind in (polars.Int64, polars.Float64):
        numbers = values.cast(kind, strict=False)
        if numbers.null_count() == values.null_count():
            return numbers
    switches = values.str.to_lowercase().replace_strict({"true": True, "false": False}, default=None)
    if switches.null_count() == values.null_count():
        return switches
    if numbers.null_count() < len(values):  # some are numbers
        _refuse(values, numbers.is_null(), rows, where, "a number as in other rows")
    return values


def _plain(values: polars.Series, where: str) -> polars.Series:
    """Return a column of numbers, switches or text."""
    kind = values.dtype
    if kind.is_nested() or kind == polars.Object or kind == polars.Binary:
        raise DataError(f"{where}: expected one value in each row, got {kind}")
    if kind.is_numeric() or kind == polars.Boolean:
        return values.cast(polars.Float64) if kind.is_decimal() else values
    return values.cast(polars.String).str.strip_chars()


def _refuse(values: polars.Series, wrong: polars.Series, rows: polars.Series, where: str, expected: str) -> None:
    """Raise if a value that is there could not be read."""
    wrong = wrong & values.is_not_null()
    if wrong.any():
        first = int(np.argmax(wrong.to_numpy()))
        raise DataError(f"{where}, row {rows[first]}: expected {expected}, got {_shown(values[first])}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
