"""The settings of trials that tuners store by name: which are hyperparameters, the optimizer and the seed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from levelfield.errors import DataError
from levelfield.imports.layout import OPTIMIZERS, SEEDS, Layout, chosen, require
from levelfield.imports.records import Record, hyperparameter_names, make_hyperparameters, non_finite
from levelfield.space import Hyperparameters
from levelfield.trial import Curve


class Described(NamedTuple):
    """A trial as its settings describe it."""

    label: str
    optimizer: str
    seed: int | None
    hyperparameters: Hyperparameters

    def record(self, curve: Curve, diverged: frozenset[str]) -> Record:
        """Return the trial with its results."""
        return Record(self.label, self.optimizer, self.hyperparameters, curve, self.seed, diverged=diverged)


class Settings(NamedTuple):
    """What a source stores of a trial."""

    label: str
    values: Mapping[str, Any]  # among which are its hyperparameters
    remarks: Mapping[str, Any] = {}  # which may name its optimizer and seed as well
    optimizer: str = ""  # if neither names it


def describe(trials: Sequence[Settings], layout: Layout, where: str, others: Collection[str] = ()) -> list[Described]:
    """Return each trial with its optimizer, seed and hyperparameters, as the layout says or as their names tell.

    ``others``: what else the source has that can be ignored.
    """
    names = list(dict.fromkeys(name for trial in trials for name in trial.values))
    everything = list(dict.fromkeys([*names, *(name for trial in trials for name in trial.remarks)]))
    for name in filter(None, [layout.optimizer, layout.seed]):
        require(name, everything, where)
    for name in layout.ignore:
        require(name, [*everything, *others], where)
    usual = () if layout.optimizer_name else OPTIMIZERS
    optimizer = [layout.optimizer] if layout.optimizer else [name for name in usual if name not in layout.ignore]
    seed = [layout.seed] if layout.seed else [name for name in SEEDS if name not in layout.ignore]
    taken = {*layout.ignore, *optimizer, *seed}
    if layout.hyperparameters is None:
        tuned = {name: name for name in names if name not in taken}
    else:
        tuned = {name: key for name, key in chosen(layout.hyperparameters, names, where).items() if key not in taken}
    plain = hyperparameter_names(tuned, where)
    described = []
    for trial in trials:
        here = f"{where}: {trial.label}"
        merged = {**trial.remarks, **trial.values}
        values = {name: trial.values[key] for name, key in tuned.items() if key in trial.values}
        named = next((str(merged[key]) for key in optimizer if merged.get(key) is not None), "")
        described.append(
            Described(
                trial.label,
                named or layout.optimizer_name or trial.optimizer,
                _seed(next((merged[key] for key in seed if merged.get(key) is not None), None), here),
                make_hyperparameters(values, plain, here),
            )
        )
    return described


def _seed(value: Any, where: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise DataError(f"{where}: seed = {value!r}: expected an integer")
    return int(value)


def make_curve(steps: Sequence[int], values: Mapping[str, Sequence[float | None]]) -> tuple[Curve, frozenset[str]]:
    """Return the curve of values at each step, and its metrics that diverged.

    A metric keeps its last value where it has none. Before its first value it is NaN, and one without values is left
    out.
    """
    arrays: dict[str, np.ndarray] = {}
    diverged = set()
    for metric, column in values.items():
        measured = np.array([value is not None for value in column])
        if not measured.any():
            continue
        numbers = np.array([np.nan if value is None else value for value in column], float)
        latest = np.maximum.accumulate(np.where(measured, np.arange(len(column)), -1))
        arrays[metric] = np.where(latest >= 0, numbers[latest], np.nan)
        if non_finite({metric: numbers[measured]}):
            diverged.add(metric)
    return Curve(np.asarray(steps, np.int64), arrays), frozenset(diverged)
