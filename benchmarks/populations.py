"""Populations of trials whose truth is known, for benchmarks/calibration.py.

A population yields pools: the trials of an optimizer up to the N-th feasible one, with NaN for infeasible trials. Its
``trials`` are the whole population, in order, so that every statistic of a pool has a true value. Lower is better.
"""

from __future__ import annotations

import csv
import json
import lzma
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

Map = Callable[[np.ndarray], np.ndarray]  # from uniform numbers to values

_GRID = (np.arange(1 << 19) + 0.5) / (1 << 19)
_FASHION_MINI = Path(__file__).parent / "data" / "fashion_mini.csv"
_RATES = 0.0, 0.2, 0.4, 0.6  # of infeasible trials, where they differ between optimizers
_TAIL = float(ndtr(-1.0))  # one standard deviation below the mean of a normal distribution


@dataclass(frozen=True)
class Population:
    """All trials in order, and how to draw the pool of the i-th optimizer."""

    name: str
    trials: np.ndarray = field(repr=False)
    pool: Callable[[np.random.Generator, int, int], np.ndarray] = field(repr=False)

    def median_best(self, k: int) -> float:
        """The true median best of k: the smallest x with 1 − (1 − F(x))^k ≥ 1/2."""
        q = 1 - 0.5 ** (1 / k)
        return float(self.trials[math.ceil(q * len(self.trials) - 1e-9) - 1])

    @property
    def deviation(self) -> float:
        """Half the distance between the 16% and 84% quantiles: the standard deviation of a normal distribution."""
        low, high = np.quantile(self.trials, [_TAIL, 1 - _TAIL])
        return float(high - low) / 2


def drawn(name: str, values: Map, infeasible: Sequence[float] = (0.0,)) -> Population:
    """Return a population of independent trials whose i-th optimizer has its own share of infeasible trials."""

    def pool(random: np.random.Generator, n: int, optimizer: int) -> np.ndarray:
        rate = infeasible[optimizer % len(infeasible)]
        feasible = values(random.random(n))
        if not rate:
            return feasible
        gaps = random.geometric(1 - rate, n)  # the trials up to each feasible one
        trials = np.full(int(gaps.sum()), np.nan)
        trials[np.cumsum(gaps) - 1] = feasible
        return trials

    return Population(name, np.sort(values(_GRID)), pool)


def recorded(name: str, values: Sequence[float] | np.ndarray) -> Population:
    """Return a population of recorded trials, drawn with replacement; NaN is infeasible."""
    array = np.asarray(values, float)
    feasible = np.sort(array[~np.isnan(array)])
    rate = 1 - len(feasible) / len(array)
    drawing = drawn(name, lambda u: feasible[(u * len(feasible)).astype(int)], (rate,))
    return Population(name, feasible, drawing.pool)


def mixture(u: np.ndarray) -> np.ndarray:
    """One trial in ten is good."""
    good = u < 0.1
    normal: np.ndarray = ndtri(np.where(good, u / 0.1, (u - 0.1) / 0.9))
    return normal - 5 * good


def searched(name: str, sobol: bool) -> Population:
    """Return a population of points in a space of four hyperparameters, with a bowl as the logarithm of the error.

    The points are independent, or the beginning of a scrambled Sobol' sequence as in levelfield's own search.
    """
    center, curvature = np.array([0.3, 0.6, 0.5, 0.8]), np.array([6.0, 2.0, 0.5, 0.1])

    def error(points: np.ndarray, noise: np.ndarray) -> np.ndarray:
        offset = points - center
        bowl = np.sum(curvature * offset**2, axis=1) + 2 * offset[:, 0] * offset[:, 1]
        values: np.ndarray = np.exp(bowl + 0.05 * noise)
        return values

    def points(random: np.random.Generator, n: int) -> np.ndarray:
        if not sobol:
            return random.random((n, 4))
        sequence: np.ndarray = qmc.Sobol(4, rng=random).random_base2(max(6, (n - 1).bit_length()))
        return sequence[:n]

    def pool(random: np.random.Generator, n: int, optimizer: int) -> np.ndarray:
        return error(points(random, n), random.normal(size=n))

    random = np.random.default_rng(0)
    everything = error(qmc.Sobol(4, rng=random).random_base2(19), random.normal(size=1 << 19))
    return Population(name, np.sort(everything), pool)


def steps(name: str, reached: float, evaluations: int) -> Population:
    """Return steps to a target that a share of the trials reaches, on a grid of evaluations; ∞ is a miss."""

    def values(u: np.ndarray) -> np.ndarray:
        within = np.minimum(u / reached, 1 - 1e-12)
        return np.where(u < reached, np.ceil(evaluations * within**0.5), np.inf)

    return drawn(name, values)


SYNTHETIC: tuple[Population, ...] = (
    drawn("normal", ndtri),
    drawn("log-normal", lambda u: np.exp(ndtri(u))),
    drawn("heavy-tailed (Cauchy)", lambda u: np.tan(np.pi * (u - 0.5))),
    drawn("with ties (rounded)", lambda u: np.round(ndtri(u), 1)),
    drawn("bimodal (1 in 10 good)", mixture),
    drawn("infeasible (30%)", ndtri, (0.3,)),
    drawn("infeasible (0% to 60%)", ndtri, _RATES),
    searched("search, independent", sobol=False),
    searched("search, Sobol'", sobol=True),
)
STEPS: tuple[Population, ...] = (
    steps("5% reach it, 20 evaluations", 0.05, 20),
    steps("50% reach it, 20 evaluations", 0.5, 20),
    steps("50% reach it, 4 evaluations", 0.5, 4),
)


def fashion_mini() -> Iterator[Population]:
    """Yield the final validation errors of fashion_mini's own trials, if fashion_mini_pool.py has been run."""
    if not _FASHION_MINI.exists():
        return
    with _FASHION_MINI.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for name in dict.fromkeys(row["optimizer"] for row in rows):
        errors = [float(row["valid_error"]) for row in rows if row["optimizer"] == name]
        yield recorded(f"fashion_mini, {name}", errors)


def published(folder: Path) -> tuple[list[Population], list[Population]]:
    """Return other people's trials: their final losses or errors, and their steps to a target that one in five reaches.

    The folder holds ``taskset/*.json.xz`` (Metz et al. 2020, in the format of DPL) and
    ``deberta/deberta-v3-base.results.jsonl.xz`` (Lourie et al. 2023).
    """
    finals, reached = [], []
    for file in sorted((folder / "taskset").glob("*.json.xz")):
        name = f"TaskSet {file.name.split('_')[3]}"
        curves = [np.array(trial["valid"]["loss"], float) for trial in _read(file)]
        feasible = [curve for curve in curves if np.isfinite(curve[-1])]
        finals.append(recorded(name, [curve[-1] if np.isfinite(curve[-1]) else np.nan for curve in curves]))
        reached.append(recorded(name, first_steps([(np.arange(len(curve)), curve) for curve in feasible])))
    for file in sorted((folder / "deberta").glob("*.jsonl.xz")):
        curves = [np.array(trial["learning_curves"]["matched"]) for trial in _read(file)]
        errors = [(curve[:, 0], 1 - curve[:, 1]) for curve in curves]
        finals.append(recorded("DeBERTaV3", [error[-1] for _, error in errors]))
        reached.append(recorded("DeBERTaV3", first_steps(errors)))
    return finals, reached


def first_steps(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """Return when each curve first reaches the target that one in five reaches; ∞ if it does not."""
    target = np.quantile([np.nanmin(values) for _, values in curves], 0.2)
    reaching = [np.flatnonzero(values <= target) for _, values in curves]
    return [float(at[first[0]]) if len(first) else np.inf for (at, _), first in zip(curves, reaching, strict=True)]


def _read(file: Path) -> list[dict[str, Any]]:
    with lzma.open(file, "rt") as stream:
        trials: list[dict[str, Any]] = (
            json.load(stream) if file.name.endswith(".json.xz") else [json.loads(line) for line in stream]
        )
    return trials
