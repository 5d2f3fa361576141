"""Files as tables and as JSON. Nothing in them is executed; problems are reported in one line."""

from __future__ import annotations

import ast
import gzip
import json
import lzma
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import polars
from polars import selectors

from levelfield.errors import DataError

ROW = "levelfield row"  # a column that is added: the number of each row, from 1
CSV, PARQUET, JSON_LINES = (".csv", ".tsv"), (".parquet", ".pq"), (".jsonl", ".ndjson")
_MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "null", "NULL", "None")  # what programs write for no value
_DECIMAL = r"^\s*[+-]?\d*{}\d+([eE][+-]?\d+)?%?\s*$"  # with a mark that is to be filled in
_REASONS = {  # what polars says, and what is meant
    "found more fields": "a row has more fields than the header",
    "invalid utf-8": "its text is not UTF-8; save it as UTF-8",
}
_DEEPEST = 20  # levels of nested JSON
_OPENERS: dict[str, Callable[..., Any]] = {".xz": lzma.open, ".gz": gzip.open}


def suffix(path: Path) -> str:
    """Return how a file's name ends, in lower case and without the ending of a compressed file.

    >>> suffix(Path("trials.JSONL.xz"))
    '.jsonl'
    """
    name = Path(path.stem) if path.suffix in _OPENERS else path
    return name.suffix.lower()


def open_file(path: Path) -> IO[bytes]:
    """Open a file that may be compressed."""
    return _OPENERS.get(path.suffix, open)(path, "rb")  # type: ignore[no-any-return]


def read_frame(path: Path, missing: Sequence[str] = _MISSING) -> polars.DataFrame:
    """Return a file as a table with numbered rows, without empty ones.

    The columns of a CSV file are text, because only their roles tell what they hold. ``missing``: what stands
    for no value there.
    """
    try:
        frame = _READERS.get(suffix(path), _read_csv)(path, missing)
    except OSError as error:
        raise DataError(f"{path}: cannot read the file ({error.strerror or error})") from None
    except polars.exceptions.NoDataError:
        raise DataError(f"{path}: the file is empty; expected a header and a row for each trial") from None
    except (polars.exceptions.PolarsError, EOFError, lzma.LZMAError) as error:
        reason = next((said for part, said in _REASONS.items() if part in str(error)), str(error).splitlines()[0])
        raise DataError(f"{path}: not a valid {suffix(path)[1:]} file ({reason})") from None
    frame = frame.with_row_index(ROW, 1).filter(~polars.all_horizontal(polars.exclude(ROW).is_null()))
    if not len(frame):
        raise DataError(f"{path}: the file has no rows; expected one for each trial or step")
    return frame


def _read_csv(path: Path, missing: Sequence[str]) -> polars.DataFrame:
    with open_file(path) as file:
        header = file.readline()
        if b"\0" in header:
            raise DataError(f"{path}: not a CSV file; it holds binary data (if it is text in UTF-16, save it as UTF-8)")
        file.seek(0)
        separator = max(",", ";", "\t", key=lambda mark: header.count(mark.encode()))
        frame = polars.read_csv(file, infer_schema=False, null_values=list(missing), separator=separator)
    names = [re.sub(r"_duplicated_\d+$", "", name).strip() for name in frame.columns]  # polars calls repeated names so
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{path}: two columns are called {twice[0]!r}; rename one")
    frame.columns = names
    frame = _unpacked(frame, path)
    return _with_points(frame) if separator == ";" else frame


def _unpacked(frame: polars.DataFrame, path: Path) -> polars.DataFrame:
    """Return the dictionaries of W&B's API, which pandas writes as text, with a column for each key."""
    for name in ("config", "summary"):
        if name in frame.columns and frame[name].str.contains(r"^\s*\{.*\}\s*$").fill_null(False).all():
            cells = [
                flattened(_dictionary(cell, f"{path}: {name}, row {number}"), ".", f"{name}.")
                for number, cell in enumerate(frame[name], 1)
            ]
            keys = dict.fromkeys(key for cell in cells for key in cell)
            parts = [polars.Series(key, [cell.get(key) for cell in cells], strict=False) for key in keys]
            frame = frame.drop(name).with_columns(parts)
    return frame


def _dictionary(text: str, where: str) -> dict[str, Any]:
    """Return a dictionary that was written as JSON or as Python shows it."""
    literal = re.sub(r"(?<=[\s\[-])inf(?=[,}\]])", "1e999", re.sub(r"(?<=[\s\[])nan(?=[,}\]])", "'nan'", text))
    readers: list[tuple[Callable[[str], Any], str]] = [(json.loads, text), (ast.literal_eval, literal)]
    for read, content in readers:
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return dict(read(content))
    raise DataError(f"{where}: expected a dictionary, as JSON or Python writes it")


def _with_points(frame: polars.DataFrame) -> polars.DataFrame:
    """Return numbers with a decimal point where a file has decimal commas, and no decimal points."""
    if any(column.str.contains(_DECIMAL.format(r"\.")).any() for column in frame):
        return frame
    text = polars.all()
    return frame.select(
        polars.when(text.str.contains(_DECIMAL.format(","))).then(text.str.replace(",", ".")).otherwise(text)
    )


def _read_parquet(path: Path, _: Sequence[str]) -> polars.DataFrame:
    with open_file(path) as file:
        frame = polars.read_parquet(file if path.suffix in _OPENERS else path, glob=False)
    while nested := {name: kind for name, kind in frame.schema.items() if isinstance(kind, polars.Struct)}:
        parts = [
            polars.col(name).struct.field(part.name).alias(f"{name}.{part.name}")
            for name, kind in nested.items()
            for part in kind.fields
        ]
        frame = frame.select(polars.exclude(list(nested)), *parts)
    return frame.with_columns(selectors.array().arr.to_list())


def _read_json_lines(path: Path, _: Sequence[str]) -> polars.DataFrame:
    rows = []
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                row = parse_json(line, f"{path}: line {number}")
                if not isinstance(row, dict):
                    raise DataError(f"{path}: line {number}: expected a JSON object, got {type(row).__name__}")
                rows.append(flattened(row, "."))
    if not rows:
        raise polars.exceptions.NoDataError
    names = dict.fromkeys(name for row in rows for name in row)
    return polars.DataFrame([_series(name, [row.get(name) for row in rows], path) for name in names])


def _series(name: str, values: list[Any], path: Path) -> polars.Series:
    try:
        return polars.Series(name, values, strict=False)
    except (polars.exceptions.PolarsError, TypeError, OverflowError):
        raise DataError(f"{path}: {name}: expected values of one kind in all lines") from None


_READERS = {
    **dict.fromkeys(CSV, _read_csv),
    **dict.fromkeys(PARQUET, _read_parquet),
    **dict.fromkeys(JSON_LINES, _read_json_lines),
}


def read_json(path: Path) -> Any:
    try:
        with open_file(path) as file:
            return parse_json(file.read(), str(path))
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"{path}: cannot read the file ({getattr(error, 'strerror', None) or error})") from None


def parse_json(text: bytes, where: str) -> Any:
    """Return JSON as values; NaN and Infinity are numbers, as most programs write them."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else error
        raise DataError(f"{where}: not valid JSON ({reason})") from None


def flattened(content: Mapping[str, Any], separator: str, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Return nested tables as one, with joined keys.

    >>> flattened({"lr": 0.1, "model": {"width": 2}}, "/")
    {'lr': 0.1, 'model/width': 2}
    """
    if depth > _DEEPEST:
        raise DataError(f"{prefix[:40]}…: tables are nested more than {_DEEPEST} levels deep")
    result: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            result |= flattened(value, separator, f"{prefix}{key}{separator}", depth + 1)
        else:
            result[f"{prefix}{key}"] = value
    return result
