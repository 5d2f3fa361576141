"""Result folders of DeepOBS (Schneider et al. 2019): problem/optimizer/setting/random_seed__….json."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from levelfield.errors import DataError, UnknownName, UsageError
from levelfield.formatting import pluralize
from levelfield.imports.frames import read_json
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

USES = ()
_FILES = "*/*/random_seed__*.json"
_METRICS = {"losses": ("loss", Direction.MINIMIZE), "accuracies": ("accuracy", Direction.MAXIMIZE)}
# levelfield's names for the optimizers of TensorFlow and PyTorch that are the same rule.
_RULES = {"GradientDescentOptimizer": "sgd", "MomentumOptimizer": "momentum", "AdamOptimizer": "adam"}


def recognizes(path: Path) -> bool:
    return path.is_dir() and (_is_problem(path) or any(_is_problem(folder) for folder in path.iterdir()))


def _is_problem(folder: Path) -> bool:
    return next(folder.glob(_FILES), None) is not None


def read(path: Path, layout: Layout) -> Source:
    """Read the runs of one test problem. Steps are epochs, because the files do not say how many batches one has."""
    folder = _problem(path, layout.workload)
    files = sorted(folder.glob(_FILES), key=lambda file: (str(file.parent), file.name))
    contents = {file: _content(file) for file in files}
    varying = {
        key for key in ("batch_size", "num_epochs") if len({content.get(key) for content in contents.values()}) > 1
    }
    records: list[Record] = []
    refilled = 0
    for _, group in groupby(files, key=lambda file: file.parent):
        # The runs of a setting are of one point, even where a learning rate was copied with fewer digits.
        members = sorted(group, key=lambda file: contents[file].get("random_seed", 0))
        settings = _settings(contents[members[0]], varying)
        for file in members:
            record, was_refilled = _record(file, folder, contents[file], settings)
            records.append(record)
            refilled += was_refilled
    records, notes = distinct(records, str(folder), labeled=True)
    notes.insert(0, "steps are epochs")
    if refilled:
        notes.append(
            f"{pluralize(refilled, 'run')} diverged: DeepOBS continued their curves with the values before training, "
            f"which are dropped"
        )
    directions = {f"{split}_{name}": way for split in ("train", "valid", "test") for name, way in _METRICS.values()}
    measured = {metric for record in records for metric in record.curve.values}
    return Source(
        folder.name,
        records,
        names_workload=True,
        directions={metric: way for metric, way in directions.items() if metric in measured},
        sampling="grid",
        notes=notes,
    )


def _problem(path: Path, name: str) -> Path:
    """Return the folder of one test problem, by name if there are several."""
    if _is_problem(path):
        return path
    folders = {folder.name: folder for folder in sorted(path.iterdir()) if folder.is_dir() and _is_problem(folder)}
    if name and name not in folders:
        raise UnknownName.of(f"test problem of {path}", name, folders)
    if not name and len(folders) > 1:
        raise UsageError(
            f"{path}: has several test problems: {', '.join(folders)}; choose one with --map workload=NAME"
        )
    return folders[name] if name else next(iter(folders.values()))


def _content(file: Path) -> Mapping[str, Any]:
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("train_losses"), list):
        raise DataError(f"{file}: expected a JSON object with train_losses")
    return content


def _settings(content: Mapping[str, Any], varying: set[str]) -> dict[str, Any]:
    """Return the settings of a run; DeepOBS 1.1 and 1.2 store them in different places."""
    own = {"learning_rate": content.get("learning_rate"), **(content.get("hyperparams") or {})}
    own |= content.get("optimizer_hyperparams") or {}
    own |= content.get("training_params") or {}
    names = ("weight_decay", "l2_reg", "lr_sched_epochs", "lr_sched_factors", *varying)
    settings = {**own, **{name: content.get(name) for name in names}}
    return {name: value for name, value in settings.items() if value is not None}


def _record(file: Path, folder: Path, content: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[Record, bool]:
    """Return a run, and whether it was aborted and its curves continued with the values before training."""
    label = str(file.relative_to(folder))
    curves = {
        f"{split}_{name}": content[f"{split}_{kind}"]
        for kind, (name, _) in _METRICS.items()
        for split in ("train", "valid", "test")
        if content.get(f"{split}_{kind}")
    }
    try:
        values = {metric: np.array(numbers, float) for metric, numbers in curves.items()}
    except (TypeError, ValueError):
        raise DataError(f"{file}: expected lists of numbers as losses and accuracies") from None
    if len({array.shape for array in values.values()}) != 1:
        raise DataError(f"{file}: expected as many values of each metric")
    aborted = _aborted(values) if "optimizer_name" in content else len(values["train_loss"])
    for array in values.values():
        array[aborted:] = np.nan
    optimizer = str(content.get("optimizer") or content.get("optimizer_name") or file.parent.parent.name)
    settings = dict(settings)
    if optimizer == "MomentumOptimizer" and settings.pop("use_nesterov", False):
        optimizer = "nesterov"
    seed = content.get("random_seed")
    record = Record(
        label=label,
        optimizer=_RULES.get(optimizer, optimizer),
        hyperparameters=make_hyperparameters(settings, hyperparameter_names(settings, str(file)), str(file)),
        curve=Curve(np.arange(len(values["train_loss"]), dtype=np.int64), values),
        seed=seed if isinstance(seed, int) else None,
        diverged=non_finite(values),
    )
    return record, aborted < len(values["train_loss"])


def _aborted(values: Mapping[str, np.ndarray]) -> int:
    """Return from which epoch on all metrics are what they were before training, or the number of epochs."""
    same = np.all([array == array[0] for array in values.values()], axis=0)
    return len(same) - int(np.argmin(same[::-1])) if not same.all() else 1
