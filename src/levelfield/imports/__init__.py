"""Trials that were trained elsewhere, read from what other programs write. Nothing in their files is executed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from levelfield.errors import DataError, UnknownName, UsageError
from levelfield.imports.combine import combined
from levelfield.imports.layout import Layout, load_layout
from levelfield.imports.records import SAMPLINGS, Record, Source
from levelfield.trial import Curve

__all__ = ["FORMATS", "SAMPLINGS", "Layout", "Record", "Source", "load_layout", "read_source", "read_sources"]

# The modules that read each format, in the order in which they are asked whether they recognize a source. Each has
# ``recognizes(path)``, ``read(path, layout)`` and USES, the keys of a layout that it follows.
FORMATS = ("optuna", "table", "taskset", "deepobs", "algoperf", "ray_tune")
_MODULES = {"table": "tables"}
_GENERAL = ("workload", "directions", "select", "sampling")  # keys of a layout that every source follows


def read_source(source: str | Path, layout: Layout | Mapping[str, Any] | None = None, format: str = "auto") -> Source:
    """Read trials from a file, a folder or the URL of an Optuna storage.

    ``layout`` says which part of the source is what where names do not make it clear. ``format`` is one of FORMATS.
    """
    return read_sources([source], layout, format)


def read_sources(
    sources: Sequence[str | Path], layout: Layout | Mapping[str, Any] | None = None, format: str = "auto"
) -> Source:
    """Read trials from one source, or from several that belong together, as ``read_source`` does.

    If nothing in one of several tables names the optimizer, the table's file name does.
    """
    layout = layout if isinstance(layout, Layout) else Layout.parse(layout or {})
    parts = {_shown(source): _read(source, layout, format) for source in sources}
    if len(parts) == 1:
        (where, found), *_ = parts.items()
        if _is_unnamed(found):
            raise UsageError(
                f"{where}: no column names the optimizer; choose one with --map optimizer=COLUMN, or name the "
                f"optimizer of all trials with --map optimizer_name=NAME; if there is a file for each optimizer, named "
                f"after it, import all files at once"
            )
    else:
        found = combined({where: _with_optimizer(part, where) for where, part in parts.items()})
    for metric in (*layout.directions, *filter(None, [layout.select])):
        if metric not in found.metrics:
            raise UnknownName.of(f"metric of {found.name or 'these sources'}", metric, found.metrics)
    return found


def _shown(source: str | Path) -> str:
    """Return a source as messages show it, without secrets."""
    if not _is_url(source):
        return str(source)
    from levelfield.store import without_password

    return without_password(source)


def _read(source: str | Path, layout: Layout, format: str) -> Source:
    reader = _reader(source, format)
    for key in layout.given:
        if key not in (*reader.USES, *_GENERAL):
            raise UsageError(f"{source}: {key} has no meaning for this kind of source; leave it out")
    read: Source = reader.read(source if _is_url(source) else Path(source), layout)
    read = _with_steps(read, str(source))
    return replace(
        read,
        name=layout.workload or read.name,
        names_workload=read.names_workload or bool(layout.workload),
        directions={**read.directions, **layout.directions},
        select=layout.select or read.select,
        sampling=layout.sampling or read.sampling,
    )


def _is_unnamed(source: Source) -> bool:
    return not any(record.optimizer for record in source.records)


def _with_optimizer(source: Source, where: str) -> Source:
    """Return a source whose optimizer is named after its file if nothing else names it."""
    if not _is_unnamed(source):
        return source
    name = Path(where).name.partition(".")[0]
    return replace(source, records=[replace(record, optimizer=name) for record in source.records])


def _with_steps(source: Source, where: str) -> Source:
    """Return a source of which some trial has a step to compare at; raise if a step is negative."""
    for record in source.records:
        if record.curve.steps[0] < 0:
            raise DataError(f"{where}: {record.label} has step {record.curve.steps[0]}; expected steps from 0")
    if any(record.curve.steps[-1] > 0 for record in source.records):
        return source
    records = [replace(record, curve=Curve(record.curve.steps + 1, record.curve.values)) for record in source.records]
    return replace(source, records=records, notes=[*source.notes, "all values are of step 0, which is read as step 1"])


def _is_url(source: str | Path) -> bool:
    return isinstance(source, str) and "://" in source


def _reader(source: str | Path, format: str) -> ModuleType:
    """Return the module that reads a source."""
    if format not in ("auto", *FORMATS):
        raise UnknownName.of("format", format, FORMATS)
    if not _is_url(source) and not os.path.exists(source):
        raise UsageError(f"{source}: no such file or folder")
    if _is_url(source):
        return _module("optuna")
    try:
        for name in FORMATS if format == "auto" else [format]:
            if (module := _module(name)).recognizes(Path(source)):
                return module
    except OSError as error:
        raise DataError(f"{source}: cannot read it ({error.strerror})") from None
    if format == "table" and os.path.isfile(source):
        return _module("table")  # as CSV
    if format != "auto":
        raise UsageError(f"{source}: not what --format {format} reads; leave --format out to find out what it is")
    raise UsageError(
        f"{source}: cannot tell what this is; expected a table (.csv, .tsv, .parquet or .jsonl), an Optuna storage, "
        f"TaskSet's JSON, or a result folder of Ray Tune, DeepOBS or AlgoPerf"
    )


def _module(format: str) -> ModuleType:
    return importlib.import_module(f"levelfield.imports.{_MODULES.get(format, format)}")
