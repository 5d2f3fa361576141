"""The records that search, training, store and analysis exchange."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from levelfield.errors import StudyError
from levelfield.formatting import is_share
from levelfield.space import Hyperparameters


class Status(StrEnum):
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"


class Direction(StrEnum):
    """Which way a metric gets better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"

    @property
    def sign(self) -> int:
        """What to multiply a metric by so that lower is better."""
        return -1 if self is Direction.MAXIMIZE else 1


@dataclass(frozen=True)
class Target:
    """A value of a metric to reach."""

    metric: str
    value: float

    def __post_init__(self) -> None:
        if not isinstance(self.value, Real) or not math.isfinite(self.value):
            raise StudyError(f"target.value = {self.value!r}: expected a finite number")
        if is_share(self.metric) and not 0 <= self.value <= 1:
            remedy = f"; for {self.value:g}% write {self.value / 100:g}" if 1 < self.value <= 100 else ""
            raise StudyError(f"target.value = {self.value:g}: {self.metric} lies between 0 and 1{remedy}")


@dataclass(frozen=True)
class Point:
    """The index-th point of an optimizer's space, and the seed that its trial trains with."""

    index: int
    hyperparameters: Hyperparameters
    seed: int


@dataclass(frozen=True, eq=False)
class Curve:
    """Metrics over steps: one array of values for each metric."""

    steps: np.ndarray
    values: Mapping[str, np.ndarray]

    def final(self, metric: str) -> float:
        """Return the metric at the last step, or NaN if it was not measured."""
        return self.at(metric)

    def at(self, metric: str, step: int | None = None) -> float:
        """Return the metric at the last step, or at the last evaluation up to a step."""
        last = len(self.steps) if step is None else int(self.steps.searchsorted(step, side="right"))
        return float(self.values[metric][last - 1]) if last and metric in self.values else float("nan")

    def until(self, step: int) -> Curve:
        """Return the evaluations up to a step."""
        last = int(self.steps.searchsorted(step, side="right"))
        return Curve(self.steps[:last], {metric: values[:last] for metric, values in self.values.items()})


@dataclass(frozen=True, eq=False)
class Trial:
    """One training run at a point. ``seconds`` is its share of the device's time."""

    point: Point
    status: Status
    curve: Curve
    started: float = field(default=0.0)  # seconds since the epoch
    seconds: float = 0.0
    code: str = ""  # digest of the custom code of the study that it was trained for, as the store recorded it

    @property
    def feasible(self) -> bool:
        return self.status is Status.FEASIBLE


class Batch(NamedTuple):
    """Points of one optimizer to train."""

    optimizer: str
    points: list[Point]


class Failure(NamedTuple):
    """A trial that could not be run to its end, and why in one line. It says nothing about the optimizer."""

    point: Point
    reason: str
    details: str = ""  # the traceback, the last output of its worker, …; any number of lines


@dataclass(frozen=True)
class FailedTrial:
    """A trial that has failed and not finished since, as a store keeps it. No statistic counts it."""

    index: int
    reason: str  # of the last failure, like the rest
    details: str
    attempts: int  # how many times it has failed
    time: float  # seconds since the epoch
    host: str


@dataclass(frozen=True)
class StepTime:
    """The device time of a step of one trial, while only trials of one optimizer train. Evaluations do not count."""

    seconds: float  # of a stretch of training, divided by its steps and by the trials side by side
    slots: int  # trials side by side
    device: str = ""
    stretches: int = 1  # that were timed
    spread: float = 1.0  # the upper quartile of the stretches, divided by the lower one

    @classmethod
    def of(cls, measured: Sequence[StepTime]) -> StepTime:
        """Return what a step takes from single stretches on the same device with the same number of slots."""
        seconds = [each.seconds for each in measured]
        low, median, high = map(float, np.quantile(seconds, (0.25, 0.5, 0.75)))
        return replace(measured[0], seconds=median, stretches=len(seconds), spread=high / low)


@dataclass(frozen=True)
class Progress:
    """What a stretch of training of one optimizer's trials brought."""

    optimizer: str
    finished: list[Trial] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    running: int = 0  # trials in flight
    trial_steps: int = 0  # steps trained in this stretch, over all trials
    seconds: float = 0.0  # that the stretch took
    provenance: Mapping[str, Any] = field(default_factory=dict)  # versions, device and precision of the finished trials
    note: str = ""  # something the user should know; mostly empty
    error: BaseException | None = None  # what made trials fail, where it is at hand
    resumed_steps: int = 0  # trained before this run, of trials that now continue from a checkpoint
    step_time: StepTime | None = None  # if it was measured in this stretch, and nothing else was trained

    @property
    def ended(self) -> list[int]:
        """The indices of the points whose trials finished or failed."""
        return [trial.point.index for trial in self.finished] + [failure.point.index for failure in self.failed]
