"""The winner's curse: a selected trial's own metrics against those of the same point with new seeds.

The best of many trials is partly the luckiest, so its own metric is better than what its hyperparameters give again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from levelfield.analysis.results import Results


@dataclass(frozen=True)
class SeedSpread:
    """A metric of the selected trial, and of its reruns that have a finite one."""

    selected: float
    mean: float
    min: float
    max: float


@dataclass(frozen=True)
class Rerun:
    """A trial that was selected, and how the same hyperparameters do with new seeds."""

    optimizer: str
    seeds: int
    feasible: int
    metrics: Mapping[str, SeedSpread]  # those that a rerun has

    def as_dict(self) -> dict[str, Any]:
        spreads = {metric: asdict(spread) for metric, spread in self.metrics.items()}
        return {"seeds": self.seeds, "feasible": self.feasible} | spreads


def reruns(results: Results, index: int | None = None) -> list[Rerun]:
    """Return the reruns of each optimizer's best trial, or of its trial at an index, where it was rerun."""
    answers = []
    for name, outcome in results.reruns.items():
        pool = results.outcome(name)
        same = (trial for trial in results.trials[name] if trial.point.index == index)
        selected = pool.best_trial if index is None else next(same)
        assert selected
        spreads = {}
        for metric in outcome.metrics:
            values = [float(value) for value in outcome.values(metric) if math.isfinite(value)]
            if values:
                own = selected.curve.at(metric, pool.step)
                spreads[metric] = SeedSpread(own, math.fsum(values) / len(values), min(values), max(values))
        answers.append(Rerun(name, outcome.tried, len(outcome.pool), spreads))
    return answers
