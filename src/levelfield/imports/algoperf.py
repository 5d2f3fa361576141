"""Log folders of AlgoPerf: submission/study_i/workload/trial_j with hparams.json and eval_measurements.csv."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from levelfield.errors import DataError, UnknownName, UsageError
from levelfield.formatting import pluralize
from levelfield.imports.frames import ROW, read_frame, read_json
from levelfield.imports.layout import Layout, require
from levelfield.imports.records import Record, Source, distinct, plain_name
from levelfield.imports.settings import Described, Settings, describe, make_curve
from levelfield.imports.values import as_integers, as_numbers
from levelfield.trial import Direction, Target

USES = ("hyperparameters", "ignore")
_EVALUATIONS = "eval_measurements.csv"
_TRIALS = f"study_*/*/trial_*/{_EVALUATIONS}"
_SPLITS = {"train/": "train", "validation/": "valid", "test/": "test"}
_DIRECTIONS = {
    **dict.fromkeys(("loss", "ctc_loss", "wer", "ppl", "error_rate"), Direction.MINIMIZE),
    **dict.fromkeys(("accuracy", "mean_average_precision", "ssim", "bleu"), Direction.MAXIMIZE),
}
_TIME = "accumulated_submission_time"
_EARLY = 0.95  # of the time that a trial may take; one that ended before did so for another reason


def recognizes(path: Path) -> bool:
    return path.is_dir() and next(path.rglob(_TRIALS), None) is not None


def read(path: Path, layout: Layout) -> Source:
    """Read all submissions below a folder on one workload. A study repeats its points: its number is their seed."""
    workload, trials = _of_workload(sorted(file.parent for file in path.rglob(_TRIALS)), path, layout.workload)
    submissions = _submissions([trial.parents[2] for trial in trials])
    settings = [
        Settings(
            label="/".join(trial.parts[-4:]),
            values=_object(trial / "hparams.json"),
            remarks={"seed": _number(trial.parents[1])},
            optimizer=submissions[trial.parents[2]],
        )
        for trial in trials
    ]
    about = _object(trials[0] / "meta_data_0.json") if (trials[0] / "meta_data_0.json").exists() else {}
    records = [
        _record(trial / _EVALUATIONS, described)
        for trial, described in zip(trials, describe(settings, layout, str(path)), strict=True)
    ]
    records, notes = distinct(records, str(path), labeled=True)
    notes.append("trials end by time, at different steps")
    target = _target(about, {metric for record in records for metric in record.curve.values})
    limit = about.get("workload.max_allowed_runtime_sec")
    if target and isinstance(limit, int | float):
        records = [_ended_at_target(record, target, limit) for record in records]
        if early := sum(record.pruned for record in records):
            notes.append(
                f"{pluralize(early, 'trial')} reached {target.metric} {target.value:g} and ended before the time limit "
                f"of {limit:,g} s: AlgoPerf ends trials that have reached its targets"
            )
    source = Source(
        workload, records, names_workload=True, sampling="manual" if _repeated(records) else "", notes=notes
    )
    directions = {metric: _direction(metric) for metric in source.metrics}
    return replace(
        source,
        directions={metric: direction for metric, direction in directions.items() if direction},
        select=target.metric if target else "",
        target=target,
    )


def _of_workload(trials: Sequence[Path], path: Path, name: str) -> tuple[str, list[Path]]:
    """Return the trials on one workload, by name if there are several."""
    workloads: dict[str, list[Path]] = defaultdict(list)
    for trial in trials:
        workloads[re.sub(r"_(jax|pytorch)$", "", trial.parent.name)].append(trial)
    if name and name not in workloads:
        raise UnknownName.of(f"workload of {path}", name, workloads)
    if not name and len(workloads) > 1:
        raise UsageError(f"{path}: has several workloads: {', '.join(workloads)}; choose one with --map workload=NAME")
    name = name or next(iter(workloads))
    return name, workloads[name]


def _submissions(folders: Sequence[Path]) -> dict[Path, str]:
    """Return the name of each submission's folder."""
    names: dict[str, Path] = {}
    for folder in dict.fromkeys(folders):
        if (other := names.setdefault(folder.name, folder)) != folder:
            raise UsageError(
                f"{other} and {folder}: two submissions have the same name; read the folder of one ruleset"
            )
    return {folder: name for name, folder in names.items()}


def _number(study: Path) -> int:
    digits = study.name.removeprefix("study_")
    if not digits.isdecimal():
        raise DataError(f"{study}: expected study_ and a number")
    return int(digits)


def _object(file: Path) -> dict[str, Any]:
    content = read_json(file)
    if not isinstance(content, dict):
        raise DataError(f"{file}: expected a JSON object")
    return content


def _record(file: Path, described: Described) -> Record:
    frame = read_frame(file)
    columns = {
        f"{name}_{plain_name(column.removeprefix(split))}": column
        for split, name in _SPLITS.items()
        for column in frame.columns
        if column.startswith(split) and column != f"{split}num_examples"
    }
    for column in ("global_step", *([] if columns else ["validation/loss"])):
        require(column, frame.columns, str(file))
    steps = as_integers(frame["global_step"], frame[ROW], f"{file}: global_step").to_list()
    values = {
        metric: as_numbers(frame[column], frame[ROW], f"{file}: {column}").to_list()
        for metric, column in columns.items()
    }
    for number, (before, after) in enumerate(pairwise(steps), 2):
        if after is None or before is None or after <= before:
            raise DataError(
                f"{file}, row {number}: step {after} comes after step {before}; expected steps that increase"
            )
    curve, diverged = make_curve(steps, values)
    seconds = as_numbers(frame[_TIME], frame[ROW], f"{file}: {_TIME}")[-1] if _TIME in frame.columns else None
    return replace(
        described.record(curve, diverged),
        seconds=seconds or 0.0,
    )


def _repeated(records: Sequence[Record]) -> bool:
    """Return whether each submission has the same points in all its studies, of which there are several."""
    points: dict[str, dict[int | None, set[Any]]] = defaultdict(lambda: defaultdict(set))
    for record in records:
        points[record.optimizer][record.seed].add(tuple(sorted(record.hyperparameters.items())))
    return all(
        len(studies) > 1 and all(study == next(iter(studies.values())) for study in studies.values())
        for studies in points.values()
    )


def _direction(metric: str) -> Direction | None:
    return _DIRECTIONS.get(metric.partition("_")[2])


def _ended_at_target(record: Record, target: Target, limit: float) -> Record:
    """Mark a trial that ended before its time was over as stopped early, if it had reached the target."""
    sign = (_direction(target.metric) or Direction.MINIMIZE).sign
    reached = bool((sign * record.curve.values.get(target.metric, np.empty(0)) <= sign * target.value).any())
    return replace(record, pruned=reached and record.seconds < _EARLY * limit)


def _target(about: Mapping[str, Any], metrics: Collection[str]) -> Target | None:
    metric = f"valid_{about.get('workload.target_metric_name')}"
    value = about.get("workload.validation_target_value")
    return Target(metric, float(value)) if metric in metrics and isinstance(value, int | float) else None
