"""A model of how good trials are over all axes of a search space, and where it expects the best of K to be best.

A Gaussian process is fitted to the ranks of all trials of an optimizer, wherever they were run. It is only used to
choose which ranges to try next: whether these are better is left to the trials.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from levelfield.analysis.best_of import weights
from levelfield.space import Axis, Choice, Log, Value

# scikit-learn and scipy.stats take seconds to import. The functions that need them import them themselves.

Box = np.ndarray  # axes × (low, high), in positions

_DRAWS = 128  # points of a box at which the best of K is predicted
_LOOKS = 1024  # points at which the model's best one is looked for
_GRID = 0.5  # decades between the ends of log ranges to choose from
_ENDS = 9  # ends of other ranges to choose from
_STEP = 0.04  # smallest gain, in standard deviations of the ranks' normal scores, for which a range is changed
_LITTLE = 0.02
_SLACK = 1e-6


def position(axis: Axis, coordinate: Value) -> float:
    """Return where a coordinate lies on the axis of the model: logarithmically for log ranges and positive choices."""
    if isinstance(axis.dimension, Choice):
        values = axis.dimension.values
        if not all(isinstance(value, int | float) and value > 0 for value in values):
            return float(values.index(coordinate)) if coordinate in values else math.nan
        return math.log10(float(coordinate))
    if isinstance(axis.dimension, Log):
        return math.log10(float(coordinate)) if float(coordinate) > 0 else math.nan
    return float(coordinate)


def positions(axes: Sequence[Axis], points: Sequence[Mapping[str, Value]]) -> np.ndarray:
    """Return the positions of points given by their hyperparameters (points × axes)."""
    return np.array([[position(axis, axis.coordinate(point)) for axis in axes] for point in points]).reshape(
        len(points), len(axes)
    )


def present_box(axes: Sequence[Axis]) -> Box:
    """Return the ranges of the axes as positions."""
    ends = [[position(axis, end) for end in axis.dimension.ends] for axis in axes]
    return np.array([[min(each), max(each)] for each in ends])


class Surrogate:
    """A Gaussian process over positions, fitted to the normal scores of the ranks of the trials' values."""

    def __init__(self, places: np.ndarray, values: np.ndarray) -> None:
        """``places`` are trials × axes; lower values are better, and infinity is worst."""
        from scipy import stats
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        known = np.isfinite(places).all(axis=1)
        places, values = places[known], values[known]
        self._center, self._scale = places.mean(axis=0), places.std(axis=0) + 1e-9
        scores = stats.norm.ppf((stats.rankdata(values) - 0.5) / len(values))
        kernel = ConstantKernel(1.0, (0.1, 30.0)) * Matern(np.full(places.shape[1], 2.0), (0.2, 30.0), nu=2.5)
        kernel += WhiteKernel(0.1, (0.003, 1.0))
        self._model = GaussianProcessRegressor(kernel, alpha=1e-6)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # an axis without effect has no finite length scale
            self._model.fit((places - self._center) / self._scale, scores)

    def predict(self, places: np.ndarray) -> np.ndarray:
        """Return the expected scores; lower is better."""
        expected: np.ndarray = self._model.predict((places - self._center) / self._scale)
        return expected


@dataclass(frozen=True)
class Widths:
    """The smallest and the largest width of each range to choose from."""

    least: np.ndarray
    most: np.ndarray


class BoxSearch:
    """Looks for the box of ranges in which a surrogate expects the best of k trials to be best."""

    def __init__(self, surrogate: Surrogate, axes: Sequence[Axis], reach: Box, k: int) -> None:
        """``reach`` are the ranges in which trials were run: beyond them, the surrogate knows nothing."""
        from scipy.stats import qmc

        self._surrogate, self._axes, self._reach = surrogate, axes, reach
        self._units = qmc.Sobol(len(axes), rng=0).random(_DRAWS)
        self._looks = qmc.Sobol(len(axes), rng=1).random(_LOOKS)
        self._weights = weights(np.arange(_DRAWS), k)  # of the ordered scores

    def expected(self, boxes: np.ndarray) -> np.ndarray:
        """Return the expected score of the best of k trials in each box."""
        places = np.stack([self._places(box, self._units) for box in boxes])
        scores = self._surrogate.predict(places.reshape(-1, places.shape[-1])).reshape(len(boxes), -1)
        expected: np.ndarray = np.sort(scores, axis=1) @ self._weights
        return expected

    def best(self, present: Box, widths: Widths) -> tuple[Box, float]:
        """Return the best box found, and how much better than the present box it is expected to be.

        One search starts at the present box and changes one range at a time. Ranges that make up for each other have
        to change together, so another one starts around the model's best point and restores each range that hardly
        matters.
        """
        options = {
            i: self._options(i, present[i], widths.least[i], widths.most[i])
            for i, axis in enumerate(self._axes)
            if not isinstance(axis.dimension, Choice)
        }
        start = float(self.expected(present[None])[0])
        box, score = self._descend(present, options, _STEP)
        joint, joint_score = self._descend(self._around_best(present, options), options, _LITTLE)
        joint, joint_score = self._restored(joint, joint_score, present)
        if joint_score < score - _LITTLE:
            box, score = joint, joint_score
        return box, start - score

    def _places(self, box: Box, units: np.ndarray) -> np.ndarray:
        places: np.ndarray = box[:, 0] + units * (box[:, 1] - box[:, 0])
        for i, axis in enumerate(self._axes):
            if isinstance(axis.dimension, Choice):
                values = np.array([position(axis, value) for value in axis.dimension.values])
                places[:, i] = values[np.minimum((units[:, i] * len(values)).astype(int), len(values) - 1)]
        return places

    def _options(self, i: int, present: np.ndarray, least: float, most: float) -> list[tuple[float, float]]:
        """Return the ranges to choose from for an axis."""
        low, high = self._reach[i]
        if isinstance(self._axes[i].dimension, Log):
            ends = _GRID * np.arange(math.floor(low / _GRID + 0.01), math.ceil(high / _GRID - 0.01) + 1)
        else:
            ends = np.linspace(low, high, _ENDS)
        ends = np.unique(np.clip([*ends, *present], low, high).round(6))
        least = min(least, ends[-1] - ends[0])
        return [
            (first, last)
            for first in ends
            for last in ends
            if least - _SLACK <= last - first <= max(most, least) + _SLACK and first < last
        ]

    def _descend(
        self, box: Box, options: Mapping[int, Sequence[tuple[float, float]]], least_gain: float
    ) -> tuple[Box, float]:
        """Change the range that gains most, again and again, while it gains enough."""
        score = float(self.expected(box[None])[0])
        while candidates := [_with(box, i, ends) for i, ranges in options.items() for ends in ranges]:
            scores = self.expected(np.array(candidates))
            best = int(np.argmin(scores))
            if score - scores[best] < least_gain:
                break
            box, score = candidates[best], float(scores[best])
        return box, score

    def _around_best(self, present: Box, options: Mapping[int, Sequence[tuple[float, float]]]) -> Box:
        """Return the narrowest ranges around the point that the model expects to be best."""
        places = self._places(self._reach, self._looks)
        best = places[np.argmin(self._surrogate.predict(places))]
        box = present
        for i, ranges in options.items():
            narrowest = min(last - first for first, last in ranges)
            narrow = [ends for ends in ranges if ends[1] - ends[0] < narrowest + _GRID + _SLACK]
            distances = [abs((first + last) / 2 - best[i]) for first, last in narrow]
            box = _with(box, i, narrow[int(np.argmin(distances))])
        return box

    def _restored(self, box: Box, score: float, present: Box) -> tuple[Box, float]:
        """Restore the present ends of ranges, one range at a time, while that costs little."""
        while changed := [i for i in range(len(box)) if not np.allclose(box[i], present[i])]:
            candidates = [_with(box, i, present[i]) for i in changed]
            scores = self.expected(np.array(candidates))
            best = int(np.argmin(scores))
            if scores[best] - score > _STEP:
                break
            box, score = candidates[best], float(scores[best])
        return box, score


def _with(box: Box, i: int, ends: Any) -> Box:
    changed = box.copy()
    changed[i] = ends
    return changed
