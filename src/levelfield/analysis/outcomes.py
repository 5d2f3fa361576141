"""An optimizer's outcome: what a tuner with K trials would have got from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from levelfield.analysis.best_of import (
    LOW,
    NOTHING,
    TOLERANCE,
    Estimate,
    check_k,
    estimate,
    probability_better,
    resampled,
    weights,
)
from levelfield.errors import UnknownName, UsageError
from levelfield.trial import Curve, Direction, Target, Trial


@dataclass(frozen=True)
class Reached(Estimate):
    """Steps to the target among the outcomes that reach it, and the probability that one does."""

    probability: float = float("nan")


@dataclass(frozen=True, eq=False)
class Outcome:
    """The pool of one optimizer, and the exact distribution of the best of K trials from it."""

    name: str
    pool: Sequence[Trial]  # feasible trials
    tried: int  # how many trials it took to get them, infeasible ones included
    metrics: dict[str, Direction]
    select: str
    target: Target | None = None
    step: int | None = None  # where a curve is read; None: at its end
    spent: int = 0  # trial-steps of all that were tried

    def at(self, *, select: str | None = None, step: int | None = None, target: Target | None = None) -> Outcome:
        """The same pool, selected by another metric, read at an earlier step, with another target.

        Schedules were tuned for the full budget: a shorter one of their own would end better than its like here.
        """
        for metric in [*([select] if select else []), *([target.metric] if target else [])]:
            self._known(metric)
        if step is not None and step < 1:
            raise UsageError(f"step = {step}: give a step of the trials, from 1 on")
        changes: dict[str, Any] = {"select": select, "step": step, "target": target}
        return replace(self, **{key: value for key, value in changes.items() if value is not None})

    def values(self, metric: str | None = None) -> np.ndarray:
        """A metric of each trial of the pool, at its last step or the last evaluated up to ``step``."""
        name = self._known(metric or self.select)
        if name not in self._read:
            self._read[name] = np.array([trial.curve.at(name, self.step) for trial in self.pool], float)
            self._read[name].flags.writeable = False
        return self._read[name]

    def curve(self, trial: Trial) -> Curve:
        """A trial's curve, as far as it is read."""
        return trial.curve if self.step is None else trial.curve.until(self.step)

    def last(self, trial: Trial) -> int:
        """The last step of it that is read."""
        return int(self.curve(trial).steps.max(initial=0))

    @cached_property
    def _read(self) -> dict[str, np.ndarray]:
        """The values that were asked for: analyses ask again and again."""
        return {}

    def _known(self, metric: str) -> str:
        if metric not in self.metrics:
            raise UnknownName.of("metric", metric, self.metrics)
        return metric

    def ranked(self, metric: str | None = None) -> np.ndarray:
        """The same, such that lower is better; a trial without a finite value comes last."""
        values = self._sign(metric or self.select) * self.values(metric)
        return np.where(np.isfinite(values), values, np.inf)

    def _sign(self, metric: str) -> float:
        return -1.0 if self.metrics[metric] is Direction.MAXIMIZE else 1.0

    def best(self, k: int, metric: str | None = None, *, bootstrap: int | None = None, seed: int = 0) -> Estimate:
        """The metric of the trial that is selected from k: chosen by ``select``, reported by ``metric``.

        The mean is that of the finite ones; NaN where they are fewer than 95%.
        """
        check_k(k)
        if self.best_trial is None:
            return NOTHING
        reported = self.values(metric)
        if bootstrap is not None:
            reported = reported[resampled(self.ranked(), k, bootstrap, seed)]
        chances = weights(self.ranked(), k) if bootstrap is None else np.ones(len(reported))
        with np.errstate(invalid="ignore"):  # as between ∞ and −∞
            found, finite = estimate(reported, chances), np.isfinite(reported)
        # One trial without a finite value in a hundred would rule the mean: it counts for the percentiles alone. Where
        # that would leave out more than they do, there is no mean.
        lost = chances[~finite].sum() / chances.sum()
        if not lost:
            return found
        return replace(
            found, mean=estimate(reported[finite], chances[finite]).mean if lost <= LOW + TOLERANCE else np.nan
        )

    @cached_property
    def steps(self) -> np.ndarray:
        """The step at which each trial of the pool first reached the target; infinity where none did."""
        if self.target is None:
            raise UsageError("the study has no target: add target = { metric = …, value = … }")
        sign = self._sign(self.target.metric)
        steps = np.array([_first_step(trial, self.target, sign) for trial in self.pool])
        return steps if self.step is None else np.where(steps <= self.step, steps, np.inf)

    def steps_to_target(self, k: int, *, bootstrap: int | None = None, seed: int = 0) -> Reached:
        """Steps of the fastest of k trials to the target, given that one reaches it."""
        check_k(k)
        if not self.pool:
            return Reached(np.nan, np.nan, np.nan, np.nan)
        steps = self.steps
        reached = np.isfinite(steps)
        if bootstrap is not None:
            generator = np.random.default_rng(seed)
            drawn = steps[generator.integers(len(steps), size=(bootstrap, int(k)))].min(axis=1)
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
        """The best of the pool, the first of several; None where the selection metric of none is known."""
        ranked = self.ranked()
        return self.pool[int(np.argmin(ranked))] if np.isfinite(ranked).any() else None

    @property
    def infeasible_share(self) -> float:
        return 1 - len(self.pool) / self.tried if self.tried else float("nan")

    @property
    def seconds(self) -> float:
        """Device time for one trial, as the pool's took it; infeasible ones are not counted."""
        taken = [trial.seconds * self.last(trial) / int(trial.curve.steps[-1]) for trial in self.pool]
        return float(np.mean(taken)) if taken else float("nan")

    def cost(self, k: int) -> float:
        """Trial-steps for k feasible trials, what the infeasible ones among them cost included."""
        return k * self.spent / len(self.pool) if self.pool else float("nan")


def _first_step(trial: Trial, target: Target, sign: float) -> float:
    values = trial.curve.values.get(target.metric)
    if values is None:
        return np.inf
    # In float32, as curves are: 280 of 2,000 wrong is an error of 0.14 there, and of a little more in float64.
    reached = sign * values.astype(np.float32) <= sign * np.float32(target.value)
    return float(trial.curve.steps[np.argmax(reached)]) if reached.any() else np.inf
