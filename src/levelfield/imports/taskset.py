"""TaskSet's trials (Metz et al. 2020), in the JSON files of DPL's repository (Kadra et al. 2023)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from levelfield.errors import DataError
from levelfield.imports.frames import open_file, read_json, suffix
from levelfield.imports.layout import Layout
from levelfield.imports.records import (
    Record,
    Source,
    distinct,
    hyperparameter_names,
    make_hyperparameters,
    non_finite,
)
from levelfield.trial import Curve, Direction

USES = ("optimizer_name",)
_STEPS, _EVALUATIONS = 10_000, 51  # of every trial of TaskSet; the files do not say


def recognizes(path: Path) -> bool:
    if not path.is_file() or suffix(path) != ".json":
        return False
    with open_file(path) as file:
        return b'"hp"' in file.read(1000)


def read(path: Path, layout: Layout) -> Source:
    """Read the trials of one task. They are of Adam with 1 to 8 hyperparameters, drawn at random."""
    trials = read_json(path)
    if not isinstance(trials, list) or not trials:
        raise DataError(f"{path}: expected a list of trials")
    records = [_record(trial, f"trial {number}", layout, path) for number, trial in enumerate(trials, 1)]
    records, notes = distinct(records, str(path), labeled=True)
    metrics = records[0].curve.values
    return Source(
        path.name.partition(".json")[0],
        records,
        names_workload=True,
        directions=dict.fromkeys(metrics, Direction.MINIMIZE),
        select="valid_loss" if "valid_loss" in metrics else "",
        sampling="random",
        notes=notes,
    )


def _record(trial: Any, label: str, layout: Layout, path: Path) -> Record:
    where = f"{path}: {label}"
    try:
        settings = dict(trial["hp"])
        splits = {split: content["loss"] for split, content in trial.items() if split != "hp"}
        values = {f"{split}_loss": np.array(losses, float) for split, losses in splits.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f'{where}: expected {{"hp": {{…}}, "train": {{"loss": [numbers]}}, …}}') from None
    lengths = {array.shape for array in values.values()}
    if len(lengths) != 1 or (count := len(next(iter(values.values())))) != _EVALUATIONS:
        raise DataError(f"{where}: expected {_EVALUATIONS} losses of each split, as all trials of TaskSet have")
    names = hyperparameter_names(settings, where)
    return Record(
        label=label,
        optimizer=layout.optimizer_name or f"adam{len(settings)}p",  # TaskSet's name for that many hyperparameters
        hyperparameters=make_hyperparameters(settings, names, where),
        curve=Curve(np.linspace(0, _STEPS, count, dtype=np.int64), values),
        diverged=non_finite(values),
    )
