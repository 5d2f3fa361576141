"""An optimizer's outcome: what tuning it with K trials gives."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from levelfield.analysis.best_of import (
    LOW,
    NO_ESTIMATE,
    TOLERANCE,
    Estimate,
    Ties,
    check_k,
    estimate,
    probability_better,
    resample,
    weights,
)
from levelfield.analysis.curves import Curves, reaches
from levelfield.analysis.intervals import LEVEL, Chance, Interval, chance_of_any, interval
from levelfield.errors import UnknownName, UsageError
from levelfield.trial import Curve, Direction, StepTime, Target, Trial

_ROUNDING = 1e-9  # of a time that was a number of steps


@dataclass(frozen=True)
class Reached(Estimate):
    """Steps to the target in the repetitions that reach it, and the probability that one does."""

    probability: float = float("nan")


@dataclass(frozen=True, eq=False)
class Outcome:
    """An optimizer's pool and the exact distribution of the best of K trials from it."""

    name: str
    pool: Sequence[Trial]  # feasible trials
    tried: int  # number of trials run to get them, including infeasible ones
    metrics: dict[str, Direction]
    select: str
    target: Target | None = None
    step: int | None = None  # curves are read up to this step; None: to their end
    spent: int = 0  # trial-steps of all trials that were run
    replacement: bool = True  # how k trials are drawn from the pool; True as in the paper
    independent: bool = True  # False: a tuner or a person chose the points, so nothing bounds what others would give
    step_time: StepTime | None = None  # what a step of a trial takes, if it was measured

    def __repr__(self) -> str:
        return f"<Outcome of {self.name}: {len(self.pool)} of {self.tried} trials feasible, selected by {self.select}>"

    def at(self, *, select: str | None = None, step: int | None = None, target: Target | None = None) -> Outcome:
        """Return the same pool, selected by another metric, read at an earlier step, or with another target.

        Schedules were tuned for the full budget: trials trained with a shorter one would end better.
        """
        for metric in [*([select] if select else []), *([target.metric] if target else [])]:
            self._check_metric(metric)
        if step is not None and step < 0:
            raise UsageError(f"step = {step}: expected an integer of at least 0")
        changes: dict[str, Any] = {"select": select, "step": step, "target": target}
        view = replace(self, **{key: value for key, value in changes.items() if value is not None})
        view.__dict__["_curves"] = self._curves  # of the same pool
        return view

    def values(self, metric: str | None = None) -> np.ndarray:
        """Return a metric of each trial of the pool, at the last step or at the last evaluation up to ``step``."""
        name = metric or self.select
        self._check_metric(name)
        if name not in self._values:
            self._values[name] = self._curves.at(name, self.step)
            self._values[name].flags.writeable = False
        return self._values[name]

    def curve(self, trial: Trial) -> Curve:
        """Return a trial's curve, up to ``step``."""
        return trial.curve if self.step is None else trial.curve.until(self.step)

    def last(self, trial: Trial) -> int:
        """Return the last step of a trial's curve, up to ``step``."""
        return int(self.curve(trial).steps.max(initial=0))

    @cached_property
    def _values(self) -> dict[str, np.ndarray]:
        """Cache of metric → values, because analyses read the same metrics many times."""
        return {}

    @cached_property
    def _ties(self) -> Ties:
        return Ties.of(self.ranked())

    @cached_property
    def _curves(self) -> Curves:
        return Curves(self.pool)

    def _check_metric(self, metric: str) -> None:
        if metric not in self.metrics:
            raise UnknownName.of("metric", metric, self.metrics)

    def ranked(self, metric: str | None = None) -> np.ndarray:
        """Return the values with the sign that makes lower better; infinity for trials without a finite value."""
        values = self.values(metric) * self.metrics[metric or self.select].sign
        return np.where(np.isfinite(values), values, np.inf)

    def ranked_trials(self, trials: Sequence[Trial]) -> np.ndarray:
        """Return the selection metric of any trials, lower is better; infinity for infeasible ones."""
        feasible = np.array([trial.feasible for trial in trials], bool)
        return np.where(feasible, replace(self, pool=trials).ranked(), np.inf)

    def best(self, k: int, metric: str | None = None, *, bootstrap: int | None = None, seed: int = 0) -> Estimate:
        """Return the distribution of ``metric`` for the best of k trials by ``select``.

        The mean is taken over finite values, and is NaN if they make up less than 95% of repetitions.
        """
        if self.best_trial is None or not self.can_draw(k):
            return NO_ESTIMATE
        reported = self.values(metric)
        if bootstrap is not None:
            reported = reported[resample(self.ranked(), k, bootstrap, seed, self.replacement)]
        probabilities = np.ones(len(reported))
        if bootstrap is None:
            probabilities = self._ties.weights(k, self.replacement)
        with np.errstate(invalid="ignore"):  # ∞ − ∞
            overall, finite = estimate(reported, probabilities), np.isfinite(reported)
        # A single infinite value would dominate the mean, so such values count only toward percentiles. If they are
        # more than the percentiles leave out, no mean is reported.
        lost = probabilities[~finite].sum() / probabilities.sum()
        if not lost:
            return overall
        mean = estimate(reported[finite], probabilities[finite]).mean if lost <= LOW + TOLERANCE else np.nan
        return replace(overall, mean=mean)

    def interval(self, k: int, level: float = LEVEL) -> Interval:
        """Return the median best of k by ``select``, with its confidence interval for the whole search space."""
        return self._bounded(interval(self.ranked(), k, level)).times(self.metrics[self.select].sign)

    def _bounded(self, estimate: Interval) -> Interval:
        """Return an interval with open ends if the trials are not independent."""
        return estimate if self.independent else Interval(estimate.median, -np.inf, np.inf)

    def can_draw(self, k: int) -> bool:
        """Return whether k trials can be drawn: always with replacement, otherwise only if the pool has k trials."""
        check_k(k)
        return self.replacement or k <= len(self.pool)

    @cached_property
    def steps(self) -> np.ndarray:
        """The step at which each trial of the pool first reached the target; infinity if it did not."""
        if self.target is None:
            raise UsageError("the study has no target; add target = { metric = …, value = … }")
        sign = self.metrics[self.target.metric].sign
        steps = self._curves.first(self.target, sign)
        return steps if self.step is None else np.where(steps <= self.step, steps, np.inf)

    def steps_to_target(self, k: int, *, bootstrap: int | None = None, seed: int = 0) -> Reached:
        """Return the steps that the fastest of k trials takes to the target, given that one reaches it."""
        if not self.pool or not self.can_draw(k):
            return Reached(np.nan, np.nan, np.nan, np.nan)
        steps = self.steps
        reached = np.isfinite(steps)
        if bootstrap is not None:
            drawn = steps[resample(steps, k, bootstrap, seed, self.replacement)]
            fastest, probability = drawn[np.isfinite(drawn)], np.isfinite(drawn).mean()
            among_reached = estimate(fastest, np.ones(len(fastest)))
        else:
            probabilities = weights(steps, k, self.replacement)
            probability = probabilities[reached].sum()
            among_reached = estimate(steps[reached], probabilities[reached])
        return Reached(among_reached.mean, among_reached.low, among_reached.high, float(probability))

    def steps_interval(self, k: int, level: float = LEVEL) -> Interval:
        """Return the median steps to the target of the fastest of k, with its confidence interval.

        A trial that misses the target counts as infinitely slow, so the median is infinite if most repetitions miss.
        """
        return self._bounded(interval(self.steps, k, level))

    @property
    def step_seconds(self) -> float:
        """The seconds that a step of one trial takes on the device where it was measured."""
        if self.step_time is None:
            raise UsageError(f"{self.name}: how long its steps take was not measured; 'compare --seconds' measures it")
        return self.step_time.seconds

    def seconds_to_target(self, k: int) -> Reached:
        """Return the seconds that the fastest of k trials takes to the target, like ``steps_to_target``."""
        steps, step = self.steps_to_target(k), self.step_seconds
        return Reached(step * steps.mean, step * steps.low, step * steps.high, steps.probability)

    def seconds_interval(self, k: int, level: float = LEVEL) -> Interval:
        """Return the median seconds to the target of the fastest of k, like ``steps_interval``, without evaluations.

        The time of a step counts as known exactly.
        """
        return self.steps_interval(k, level).times(self.step_seconds)

    def within(self, seconds: float) -> Outcome:
        """Return the same pool, with each trial read after this many seconds of training, or less."""
        return self.at(step=math.floor(seconds / self.step_seconds * (1 + _ROUNDING)))

    def reached(self, k: int, level: float = LEVEL) -> Chance:
        """Return the probability that one of k trials reaches the target, with its confidence interval."""
        bounds = chance_of_any(int(np.isfinite(self.steps).sum()), len(self.pool), k, level)
        probability = self.steps_to_target(k).probability
        return replace(bounds, probability=probability) if self.independent else Chance(probability, 0.0, 1.0)

    @cached_property
    def transient(self) -> int:
        """How many of the trials that reached the target ended on the wrong side of it."""
        if self.target is None:
            return 0
        ended_there = reaches(self.values(self.target.metric), self.target, self.metrics[self.target.metric].sign)
        return int(np.sum(np.isfinite(self.steps) & ~ended_there))

    def beats(self, other: Outcome, k: int) -> float:
        """Return P(this optimizer's best of k is strictly better than the other's)."""
        check_k(k)
        fewest = min(len(self.pool), len(other.pool))
        if k > fewest > 0:
            raise UsageError(f"k = {k}: expected at most {fewest}, the number of feasible trials of each optimizer")
        return probability_better(self.ranked(), other.ranked(), k, self.replacement)

    @property
    def held_out_metric(self) -> str | None:
        """The metric to report: what ``select`` measures, on data that took no part in selecting the trial."""
        return held_out_metric(self.select, self.metrics)

    @cached_property
    def best_trial(self) -> Trial | None:
        """The first of the best trials of the pool; None if no trial has a finite selection metric."""
        ranked = self.ranked()
        return self.pool[int(np.argmin(ranked))] if np.isfinite(ranked).any() else None

    @property
    def infeasible_share(self) -> float:
        return 1 - len(self.pool) / self.tried if self.tried else float("nan")

    @property
    def seconds(self) -> float:
        """Mean device time of a feasible trial."""
        seconds = np.array([trial.seconds for trial in self.pool])
        taken = seconds * self._curves.last(self.step) / self._curves.last()
        return float(np.mean(taken)) if len(taken) else float("nan")

    def cost(self, k: int) -> float:
        """Return the trial-steps for k feasible trials, including those of the infeasible trials along the way."""
        return k * self.spent / len(self.pool) if self.pool else float("nan")


def held_out_metric(select: str, metrics: Collection[str]) -> str | None:
    """Return what ``select`` measures on the test set, or on the validation set if the test set selects.

    If the workload does not measure the same there, return its first metric there; None if there are no such data.
    """
    selecting, _, quantity = select.partition("_")
    for split in ("test", "valid"):
        measured = [metric for metric in metrics if metric.startswith(f"{split}_")]
        if measured and split != selecting:
            return same if (same := f"{split}_{quantity}") in measured else measured[0]
    return None
