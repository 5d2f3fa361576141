"""The curves of many trials as arrays: one row for each trial."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from levelfield.trial import Target, Trial

_NEVER = np.iinfo(np.int64).max  # pads the steps of shorter curves


class Curves:
    """What analyses read from all curves of a pool at once."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = trials
        self._known: dict[str, np.ndarray] = {}

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.array([len(trial.curve.steps) for trial in self._trials], int)

    @cached_property
    def _steps(self) -> np.ndarray:
        return self._rows([trial.curve.steps for trial in self._trials], _NEVER, np.int64)

    def _values(self, metric: str) -> np.ndarray:
        """Return a metric of each trial at each of its steps, then NaN; all NaN if it was not measured."""
        if metric not in self._known:
            curves = [trial.curve for trial in self._trials]
            values = [
                curve.values[metric] if metric in curve.values else np.full(len(curve.steps), np.nan)
                for curve in curves
            ]
            self._known[metric] = self._rows(values, np.nan, None)
        return self._known[metric]

    def _rows(self, parts: Sequence[np.ndarray], beyond: float, dtype: type | None) -> np.ndarray:
        """Stack arrays of different lengths."""
        flat = np.concatenate(parts, dtype=dtype) if parts else np.empty(0)
        width = int(self._lengths.max(initial=0))
        if len(flat) == width * len(parts):
            return flat.reshape(len(parts), width)
        rows = np.full((len(parts), width), beyond, flat.dtype)
        rows[np.arange(width) < self._lengths[:, None]] = flat
        return rows

    def _counts(self, step: int | None) -> np.ndarray:
        """Return how many evaluations of each trial there are up to a step."""
        return self._lengths if step is None else (self._steps <= step).sum(axis=1)

    def _ends(self, rows: np.ndarray, step: int | None, missing: float) -> np.ndarray:
        counts = self._counts(step)
        ends = np.full(len(counts), missing, float)
        known = np.flatnonzero(counts)
        ends[known] = rows[known, counts[known] - 1]
        return ends

    def at(self, metric: str, step: int | None = None) -> np.ndarray:
        """Return a metric at the last step, or at the last evaluation up to a step; NaN if there is none."""
        return self._ends(self._values(metric), step, np.nan)

    def last(self, step: int | None = None) -> np.ndarray:
        """Return the last step of each curve, up to a step; 0 if there is none."""
        return self._ends(self._steps, step, 0)

    def first(self, target: Target, sign: int) -> np.ndarray:
        """Return the step at which each trial first reached a target; infinity if it did not."""
        reached = reaches(self._values(target.metric), target, sign)
        found = np.flatnonzero(reached.any(axis=1))
        steps = np.full(len(reached), np.inf)
        if len(found):
            steps[found] = self._steps[found, reached[found].argmax(axis=1)]
        return steps


def reaches(values: np.ndarray, target: Target, sign: int) -> np.ndarray:
    # Compare in float32, as curves are stored: 280 wrong of 2,000 are an error of exactly 0.14 there, but of slightly
    # more than 0.14 in float64.
    reached: np.ndarray = sign * values.astype(np.float32) <= sign * np.float32(target.value)
    return reached
