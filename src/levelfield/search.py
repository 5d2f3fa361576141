"""The points of an optimizer's space, stable by index: drawing more points never changes the earlier ones."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from levelfield.study import Study, digest
from levelfield.trial import Point


class Search:
    """The sequence of points of one optimizer of a study."""

    def __init__(self, study: Study, optimizer: str) -> None:
        self.space = study.optimizer(optimizer).space
        self.seed = study.seed
        self.size = self.space.size if study.search == "grid" else math.inf
        self._grid = study.search == "grid"
        # The scrambling depends on what is searched, not on the optimizer's name.
        definition = study.definition(optimizer)
        content = {key: definition[key] for key in ("seed", "rule", "schedule", "space")}
        self._scramble = int(digest(content), 16) % 2**63
        self._points = np.empty((0, len(self.space.free)))
        self._order = np.empty(0, int)  # of a grid's points

    def point(self, index: int) -> Point:
        if not 0 <= index < self.size:
            raise IndexError(f"point {index}: expected an index from 0 to {self.size - 1}")
        unit = self._grid_point(index) if self._grid else self._quasi_random(index)
        return Point(index, self.space.hyperparameters(unit), trial_seed(self.seed, index))

    def _quasi_random(self, index: int) -> np.ndarray:
        if index >= len(self._points) and self.space.free:
            # Sobol' points are balanced for powers of two; a longer sequence starts with the same points.
            power = max(6, index.bit_length())
            from scipy.stats import qmc  # takes a second to import; most readers of a study draw no points

            self._points = qmc.Sobol(len(self.space.free), rng=self._scramble).random_base2(power)
        return self._points[index] if self.space.free else np.empty(0)

    def _grid_point(self, index: int) -> np.ndarray:
        """Return a combination. They come in random order, so that a pool of some of them represents all."""
        if not len(self._order):
            self._order = np.random.default_rng(self._scramble).permutation(int(self.size))
        sizes = [int(axis.dimension.size) for axis in self.space.free]  # finite: the study has checked it
        positions = np.unravel_index(self._order[index], sizes) if sizes else ()
        return (np.array(positions, float) + 0.5) / sizes if sizes else np.empty(0)


def trial_seed(study_seed: int, index: int) -> int:
    """Return the seed of a trial's initialization and data order: 32 bits from the study's seed and the index."""
    return int.from_bytes(hashlib.sha256(f"{study_seed}:{index}".encode()).digest()[:4], "big")
