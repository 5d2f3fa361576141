"""The records that travel between search, training, store and analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from levelfield.space import Hyperparameters


class Status(StrEnum):
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"


class Direction(StrEnum):
    """Which way a metric gets better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


@dataclass(frozen=True)
class Point:
    """The index-th point of an optimizer's space, and the seed its trial trains with."""

    index: int
    hyperparameters: Hyperparameters
    seed: int


@dataclass(frozen=True, eq=False)
class Curve:
    """Metrics over steps: one array of values for each metric."""

    steps: np.ndarray
    values: Mapping[str, np.ndarray]

    def final(self, metric: str) -> float:
        """The metric at the last step; NaN where it was not measured."""
        return self.at(metric)

    def at(self, metric: str, step: int | None = None) -> float:
        """The metric at the last step, or at the last evaluation up to a step."""
        last = len(self.steps) if step is None else int(self.steps.searchsorted(step, side="right"))
        return float(self.values[metric][last - 1]) if last and metric in self.values else float("nan")

    def until(self, step: int) -> Curve:
        """The evaluations up to a step."""
        last = int(self.steps.searchsorted(step, side="right"))
        return Curve(self.steps[:last], {metric: values[:last] for metric, values in self.values.items()})


@dataclass(frozen=True, eq=False)
class Trial:
    """One training at a point. ``seconds`` is its share of the device's time."""

    point: Point
    status: Status
    curve: Curve
    started: float = field(default=0.0)  # seconds since the epoch
    seconds: float = 0.0

    @property
    def feasible(self) -> bool:
        return self.status is Status.FEASIBLE
