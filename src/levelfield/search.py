"""The points of an optimizer's space, stable by index: asking for more never changes the earlier ones."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from levelfield.space import Space
from levelfield.study import Study, digest
from levelfield.trial import Point


class Search:
    """The sequence of points of one optimizer of a study."""

    def __init__(self, study: Study, optimizer: str) -> None:
        self.space = study.optimizer(optimizer).space
        self.seed = study.seed
        self.size = self.space.size if study.search == "grid" else math.inf
        self._grid = study.search == "grid"
        # The scramble follows from what is searched, not from what the optimizer is called.
        definition = study.definition(optimizer)
        content = {key: definition[key] for key in ("seed", "rule", "schedule", "space")}
        self._scramble = int(digest(content), 16) % 2**63
        self._points = np.empty((0, len(self.space.free)))

    def point(self, index: int) -> Point:
        if not 0 <= index < self.size:
            raise IndexError(f"point {index} of {self.size}")
        unit = _grid_point(self.space, index) if self._grid else self._quasi_random(index)
        return Point(index, self.space.hyperparameters(unit), trial_seed(self.seed, index))

    def _quasi_random(self, index: int) -> np.ndarray:
        if index >= len(self._points) and self.space.free:
            # Whole powers of two keep Sobol' points balanced; the sequence's start never depends on its length.
            power = max(6, index.bit_length())
            from scipy.stats import qmc  # takes a second to import; most readers of a study draw no points

            self._points = qmc.Sobol(len(self.space.free), rng=self._scramble).random_base2(power)
        return self._points[index] if self.space.free else np.empty(0)


def _grid_point(space: Space, index: int) -> np.ndarray:
    """The index-th combination; the last axis moves fastest."""
    unit = []
    for one in reversed(space.free):
        size = int(one.dimension.size)  # finite: the study has checked it
        index, position = divmod(index, size)
        unit.append((position + 0.5) / size)
    return np.array(unit[::-1])


def trial_seed(study_seed: int, index: int) -> int:
    """The seed of a trial's initialisation and data order: 32 bits from the study's seed and the index."""
    return int.from_bytes(hashlib.sha256(f"{study_seed}:{index}".encode()).digest()[:4], "big")
