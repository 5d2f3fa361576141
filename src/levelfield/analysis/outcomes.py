"""An optimizer's outcome: what a tuner with K trials would have got from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from levelfield.analysis.best_of import (
    NOTHING,
    Estimate,
    bootstrap_best,
    check_k,
    estimate,
    probability_better,
    weights,
)
from levelfield.errors import UnknownName, UsageError
from levelfield.trial import Direction, Trial


@dataclass(frozen=True)
class Reached(Estimate):
    """Steps to the target among the outcomes that reach it, and the probability that one does."""

    probability: float = float("nan")


@dataclass(frozen=True)
class Target:
    metric: str
    value: float


@dataclass(frozen=True, eq=False)
class Outcome:
    """The pool of one optimizer, and the exact distribution of the best of K trials from it."""

    name: str
    pool: Sequence[Trial]  # feasible trials
    tried: int  # how many trials it took to get them, infeasible ones included
    metrics: dict[str, Direction]
    select: str
    target: Target | None = None

    def values(self, metric: str | None = None) -> np.ndarray:
        """A metric of each trial of the pool at its last step."""
        name = metric or self.select
        if name not in self.metrics:
            raise UnknownName.of("metric", name, self.metrics)
        return np.array([trial.curve.final(name) for trial in self.pool], float)

    def ranked(self, metric: str | None = None) -> np.ndarray:
        """The same, such that lower is better; a trial without a finite value comes last."""
        values = self._sign(metric or self.select) * self.values(metric)
        return np.where(np.isnan(values), np.inf, values)

    def _sign(self, metric: str) -> float:
        return -1.0 if self.metrics[metric] is Direction.MAXIMIZE else 1.0

    def best(self, k: int, metric: str | None = None, *, bootstrap: int | None = None, seed: int = 0) -> Estimate:
        """The metric of the trial that is selected from k: chosen by ``select``, reported by ``metric``."""
        check_k(k)
        if not self.pool:
            return NOTHING
        reported = self.values(metric)
        if bootstrap is not None:
            return bootstrap_best(self.ranked(), reported, k, bootstrap, seed)
        return estimate(reported, weights(self.ranked(), k))

    @cached_property
    def steps(self) -> np.ndarray:
        """The step at which each trial of the pool first reached the target; infinity where none did."""
        if self.target is None:
            raise UsageError("the study has no target: add target = { metric = …, value = … }")
        sign = self._sign(self.target.metric)
        return np.array([_first_step(trial, self.target, sign) for trial in self.pool])

    def steps_to_target(self, k: int, *, bootstrap: int | None = None, seed: int = 0) -> Reached:
        """Steps of the fastest of k trials to the target, given that one reaches it."""
        check_k(k)
        if not self.pool:
            return Reached(np.nan, np.nan, np.nan, np.nan)
        steps = self.steps
        reached = np.isfinite(steps)
        if bootstrap is not None:
            generator = np.random.default_rng(seed)
            drawn = steps[generator.integers(len(steps), size=(bootstrap, k))].min(axis=1)
            fastest, chance = drawn[np.isfinite(drawn)], np.isfinite(drawn).mean()
            found = estimate(fastest, np.ones(len(fastest)))
        else:
            chances = weights(steps, k)
            chance = chances[reached].sum()
            found = estimate(steps[reached], chances[reached])
        return Reached(found.mean, found.low, found.high, float(chance))

    def beats(self, other: Outcome, k: int) -> float:
        """P(this optimizer's best of k is strictly better than the other's)."""
        return probability_better(self.ranked(), other.ranked(), k)

    @property
    def test_metric(self) -> str | None:
        """What the selection metric is called on the test set, if it is measured there."""
        name = f"test_{self.select.partition('_')[2]}"
        return name if name in self.metrics and name != self.select else None

    @property
    def best_trial(self) -> Trial | None:
        """The best of the pool; the first of several."""
        return self.pool[int(np.argmin(self.ranked()))] if self.pool else None

    @property
    def infeasible_share(self) -> float:
        return 1 - len(self.pool) / self.tried if self.tried else float("nan")


def _first_step(trial: Trial, target: Target, sign: float) -> float:
    reached = sign * trial.curve.values[target.metric] <= sign * target.value
    return float(trial.curve.steps[np.argmax(reached)]) if reached.any() else np.inf
