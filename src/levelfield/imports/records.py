"""Trials that were trained elsewhere, as every reader returns them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from levelfield.errors import DataError
from levelfield.formatting import pluralize
from levelfield.space import Hyperparameters, Value
from levelfield.trial import Curve, Direction, Status, Target

SAMPLINGS = ("random", "quasirandom", "grid", "adaptive", "manual")


@dataclass(frozen=True, eq=False)
class Record:
    """A trial that was trained elsewhere.

    In its curve, NaN stands for a value that was NaN, and for a metric that has not been measured yet; ``diverged``
    tells the two apart. A metric that is measured less often than others keeps its last value in between.
    """

    label: str  # how the source names it, for messages
    optimizer: str
    hyperparameters: Hyperparameters
    curve: Curve
    seed: int | None = None
    index: int | None = None  # its place in its sequence, if the source knows
    status: Status | None = None  # None: the source does not say; see ``feasible``
    pruned: bool = False  # it was stopped early
    diverged: frozenset[str] = frozenset()  # metrics of which a measured value is NaN or infinite
    started: float = 0.0  # seconds since the epoch
    seconds: float = 0.0

    def feasible(self, metric: str) -> bool:
        """Return what the source says, or else whether every measured value of a metric is finite."""
        return metric not in self.diverged if self.status is None else self.status is Status.FEASIBLE


@dataclass(frozen=True, eq=False)
class Source:
    """The trials of one workload, and what their source says about them."""

    name: str  # what the trials were trained on, or the name of the source itself
    records: Sequence[Record]
    names_workload: bool = False  # whether the source says what they were trained on
    directions: Mapping[str, Direction] = field(default_factory=dict)  # of the metrics, where the source states them
    select: str = ""  # the metric that was optimized, if the source says
    sampling: str = ""  # how points were chosen, one of SAMPLINGS, if the source says
    target: Target | None = None
    ranges: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # optimizer → key → dimension, if it says
    notes: Sequence[str] = ()  # what a reader must know: trials that were dropped or stopped early, and more

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of all trials, in the order in which they first appear."""
        return tuple(dict.fromkeys(metric for record in self.records for metric in record.curve.values))


def is_finite(values: np.ndarray) -> np.ndarray:
    """Return whether each value is finite in 32 bits, as a store keeps it: a loss of 1e39 has diverged."""
    with np.errstate(over="ignore"):
        return np.isfinite(values.astype(np.float32))


def non_finite(values: Mapping[str, np.ndarray]) -> frozenset[str]:
    """Return the metrics that have a value that is NaN or infinite."""
    return frozenset(metric for metric, array in values.items() if not is_finite(array).all())


class Name(NamedTuple):
    """What a hyperparameter of a source is called here."""

    name: str
    one_minus: bool  # the source has 1 − x


def plain_name(name: str) -> str:
    """Return a name that study files can use.

    >>> plain_name("optimizer.lr"), plain_name("val/top-1 acc")
    ('optimizer_lr', 'val_top_1_acc')
    """
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")


def hyperparameter_names(names: Iterable[str], where: str) -> dict[str, Name]:
    """Return what each hyperparameter of a source is called here; ``one_minus_x`` is known as x.

    >>> hyperparameter_names(["one_minus_beta1"], "")
    {'one_minus_beta1': Name(name='beta1', one_minus=True)}
    """
    result = {}
    for name in names:
        plain = plain_name(name)
        if not plain.removeprefix("one_minus_"):
            raise DataError(
                f"{where}: a hyperparameter is called {name!r}; expected a name with letters from a to z; name all "
                f"hyperparameters with --map hyperparameters.NAME=COLUMN"
            )
        result[name] = Name(plain.removeprefix("one_minus_"), plain.startswith("one_minus_"))
    return result


def make_hyperparameters(settings: Mapping[str, Any], names: Mapping[str, Name], where: str) -> Hyperparameters:
    """Return the settings of a trial as hyperparameters. A setting that is None is left out; lists become text."""
    result: Hyperparameters = {}
    for key, value in settings.items():
        if value is None:
            continue
        name, one_minus = names[key]
        if name in result:
            raise DataError(f"{where}: two hyperparameters are called {name}, one of them {key!r}; leave one out")
        result[name] = _value(value, one_minus, f"{where}: hyperparameter {key!r}")
    return result


def _value(value: Any, one_minus: bool, where: str) -> Value:
    if isinstance(value, list | tuple | dict):
        value = json.dumps(value)
    if not isinstance(value, bool | int | float | str):
        raise DataError(f"{where}: expected a number, a switch or a text, got {type(value).__name__}")
    if isinstance(value, int | float) and not abs(value) < math.inf:
        raise DataError(f"{where} is {value}; expected a finite number")
    if not one_minus:
        return value
    if isinstance(value, bool | str):
        raise DataError(f"{where}: expected a number, got {value!r}")
    return 1.0 - value


def distinct(records: Sequence[Record], where: str, *, labeled: bool) -> tuple[list[Record], list[str]]:
    """Return the records without those that repeat another, and notes about what was dropped or repeated.

    Trials with the same optimizer, hyperparameters and seed must have the same results. Without a seed, trials that a
    source tells apart (``labeled``) are repetitions of a point with other seeds.
    """
    kept: dict[Any, Record] = {}
    repetitions: list[Record] = []
    dropped: list[Record] = []
    for record in records:
        first = kept.setdefault(key_of(record), record)
        if first is record:
            continue
        if labeled and record.label != first.label and record.seed is None and record.index is None:
            repetitions.append(record)
        elif same_results(first, record):
            dropped.append(record)
        else:
            if record.seed is None:
                same = "optimizer and hyperparameters"
                remedy = "say what tells them apart with --map seed=COLUMN or trial=COLUMN"
            else:
                same = f"optimizer, hyperparameters, and seed {record.seed}"
                remedy = "ignore the column of the seed with --map ignore=COLUMN"
                remedy += "" if labeled else " and say what tells them apart with --map trial=COLUMN"
            raise DataError(
                f"{where}: {first.label} and {record.label} have the same {same} but different results; remove one, or "
                f"{remedy}"
            )
    notes = []
    if dropped:
        notes.append(f"{pluralize(len(dropped), 'duplicated trial')} dropped, the first {dropped[0].label}")
    if repetitions:
        notes.append(f"{pluralize(len(repetitions), 'trial')} without a seed repeat the hyperparameters of another")
    removed = set(map(id, dropped))
    return [record for record in records if id(record) not in removed], notes


def key_of(record: Record) -> Any:
    """Return what tells trials apart: trials with the same key must have the same results, or have no seed."""
    return record.optimizer, tuple(sorted(record.hyperparameters.items())), record.seed, record.index


def same_results(first: Record, second: Record) -> bool:
    """Return whether two trials have the same curves, in 32 bits, as a store keeps them."""
    one, other = first.curve, second.curve
    with np.errstate(over="ignore"):
        return (
            (first.status == second.status or None in (first.status, second.status))
            and np.array_equal(one.steps, other.steps)
            and one.values.keys() == other.values.keys()
            and all(
                np.array_equal(values.astype(np.float32), other.values[metric].astype(np.float32), equal_nan=True)
                for metric, values in one.values.items()
            )
        )
