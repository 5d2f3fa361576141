"""The results of a study: a frozen record of its stored trials and each optimizer's outcome.

Statistics, audit, narrative and report take a ``Results``. Views of it (another metric, an earlier step, part of the
search spaces) are new records.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from levelfield.analysis.best_of import check_k
from levelfield.analysis.curves import Curves
from levelfield.analysis.intervals import Contest, PairTest, compare_all
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.ranking import rank_probabilities, settles
from levelfield.errors import UnknownName
from levelfield.pool import PoolCount
from levelfield.space import Space
from levelfield.study import Study, workload_of
from levelfield.study_optimizer import Optimizer
from levelfield.trial import FailedTrial, StepTime, Target, Trial


@dataclass(frozen=True)
class Followed:
    """A special optimizer's best trial, and the general optimizer's trial that followed it."""

    special: str
    general: str
    followed: Trial
    trial: Trial

    def as_dict(self, metric: str) -> dict[str, Any]:
        names = {"special": self.special, "general": self.general, "metric": metric}
        return names | {"followed": self.followed.curve.final(metric), "seeded": self.trial.curve.final(metric)}


@dataclass(frozen=True)
class PoolState:
    """How full an optimizer's pool is, and what its trials are."""

    count: PoolCount
    best: float | None  # final value of the selection metric; None if no trial has a finite one
    codes: Sequence[str]  # digest of the custom code of each trial
    last_steps: Sequence[int]  # of each feasible trial
    failures: Sequence[FailedTrial] = ()


@dataclass(frozen=True, eq=False)
class Results:
    """The stored trials of a study and the outcome of each optimizer."""

    study: Study
    trials: Mapping[str, Sequence[Trial]]  # the trials of each optimizer's pool, including infeasible ones
    outcomes: Mapping[str, Outcome]
    provenance: Sequence[Mapping[str, Any]] = ()  # the distinct ways in which the trials were trained
    failures: Mapping[str, Sequence[FailedTrial]] = field(default_factory=dict)  # that the pools lack
    followed: Sequence[Followed] = ()  # extra trials that no statistic counts
    reruns: Mapping[str, Outcome] = field(default_factory=dict)  # optimizer → its best trial with new seeds
    narrowed_spaces: bool = False  # whether parts of the search spaces are left out
    overrides: Mapping[str, str] = field(default_factory=dict)  # settings that differ from the study's own, for titles
    step_times: Mapping[str, StepTime] = field(default_factory=dict)  # of all optimizers, on one device; or none

    def __repr__(self) -> str:
        trials = sum(map(len, self.trials.values()))
        return f"<Results of {self.study.name}: {trials} trials of {len(self.outcomes)} optimizers>"

    @classmethod
    def of(
        cls,
        study: Study,
        trials: Mapping[str, Sequence[Trial]],
        provenance: Sequence[Mapping[str, Any]] = (),
        failures: Mapping[str, Sequence[FailedTrial]] | None = None,
        step_times: Mapping[str, StepTime] | None = None,
    ) -> Results:
        """Return the results of a study's trials."""
        outcomes = outcomes_of(study, trials, step_times)
        return cls(study, trials, outcomes, provenance, failures or {}, step_times=step_times or {})

    @property
    def title(self) -> str:
        """The study's name, and what was changed in it."""
        return titled(self.study, self.overrides)

    def outcome(self, optimizer: str) -> Outcome:
        if optimizer not in self.outcomes:
            raise UnknownName.of("optimizer of this study", optimizer, self.outcomes)
        return self.outcomes[optimizer]

    def k(self, k: int | None = None) -> int:
        """Return the number of trials asked for, or the study's K.

        A grid whose points are all tried may have fewer than K feasible ones; then the study's K is their number.
        """
        if k is not None:
            check_k(k)
            return k
        return default_k(self.study, [self.count(name) for name in self.outcomes])

    def beats(self, ours: str, theirs: str, k: int | None = None) -> float:
        """Return P(one optimizer's best of k is strictly better than the other's)."""
        asked = ours, theirs, self.k(k)
        if asked not in self._win_rates:
            self._win_rates[asked] = self.outcome(ours).beats(self.outcome(theirs), self.k(k))
        return self._win_rates[asked]

    def comparable(self, k: int | None = None) -> list[str]:
        """Return the optimizers with at least k feasible trials and a finite selection metric among them."""
        fewest = self.k(k)
        return [name for name, outcome in self.outcomes.items() if len(outcome.pool) >= fewest and outcome.best_trial]

    def pair_tests(self, k: int | None = None) -> list[PairTest]:
        """Test every two optimizers against each other, with one correction over all pairs."""
        return self._tests(self.k(k), "select")

    def step_tests(self, k: int | None = None) -> list[PairTest]:
        """Test every two optimizers' steps to the target, where a miss counts as infinitely slow."""
        return self._tests(self.k(k), "steps")

    def _tests(self, k: int, quantity: str) -> list[PairTest]:
        if (k, quantity) not in self._pair_tests:
            outcomes = {name: self.outcome(name) for name in self.comparable(k)}
            values = {
                name: outcome.ranked() if quantity == "select" else outcome.steps for name, outcome in outcomes.items()
            }
            (tests,) = compare_all([Contest.of(values, k, self.study.is_tested)])
            self._pair_tests[k, quantity] = tests
        return self._pair_tests[k, quantity]

    def separated(self, k: int | None = None) -> list[tuple[str, str]]:
        """Return the pairs (better, worse) that the trials tell apart at k trials each."""
        return [(test.better, test.worse) for test in self.pair_tests(k) if test.separated]

    @functools.cached_property
    def _win_rates(self) -> dict[tuple[str, str, int], float]:
        """Cache of what ``beats`` returns: the sentences, the audit, and the figures need the same values."""
        return {}

    @functools.cached_property
    def _pair_tests(self) -> dict[tuple[int, str], list[PairTest]]:
        """Cache of the tests, because they take a while and several places need them."""
        return {}

    def rank_probabilities(self, k: int | None = None) -> dict[str, list[float]]:
        """Return P(an optimizer's best of k comes first, second, …); ties share the better place.

        NaN for optimizers with fewer than k feasible trials, which are left out.
        """
        names = self.comparable(k)
        ranked = [self.outcome(name).ranked() for name in names]
        probabilities = rank_probabilities(ranked, self.k(k), self.study.replacement)
        chances = {name: [float(p) for p in row] for name, row in zip(names, probabilities, strict=True)}
        left_out = len(self.outcomes) - len(names)
        unknown = [math.nan] * len(self.outcomes)
        return {name: [*chances[name], *[0.0] * left_out] if name in chances else unknown for name in self.outcomes}

    def ranking(self, k: int | None = None) -> list[str]:
        """Return the optimizers, the best median best of k first; those without one last."""

        k = self.k(k)

        def key(name: str) -> tuple[bool, float, float]:
            outcome = self.outcome(name)
            sign = outcome.metrics[outcome.select].sign
            median, mean = outcome.interval(k).median, outcome.best(k).mean
            return math.isnan(median), sign * median, math.inf if math.isnan(mean) else sign * mean

        return sorted(self.outcomes, key=key)

    def settles(self) -> int | None:
        """Return the number of trials from which the ranking by expected best stays the same as for the whole pools."""
        return settles([outcome.ranked() for outcome in self.outcomes.values()], self.study.replacement)

    def count(self, optimizer: str) -> PoolCount:
        """Return how full an optimizer's pool is."""
        outcome = self.outcome(optimizer)
        feasible = len(outcome.pool)
        return PoolCount(self.study.pool, feasible, outcome.tried - feasible, self.study.points(optimizer))

    @property
    def complete(self) -> bool:
        return all(self.count(name).full for name in self.outcomes)

    @functools.cached_property
    def states(self) -> dict[str, PoolState]:
        """How full each optimizer's pool is, and its best final value."""
        return {
            name: PoolState(
                self.count(name),
                outcome.best_trial.curve.final(self.study.select) if outcome.best_trial else None,
                [trial.code for trial in self.trials[name]],
                [int(trial.curve.steps[-1:].sum()) for trial in outcome.pool],  # 0 if it has none
                self.failures.get(name, ()),
            )
            for name, outcome in self.outcomes.items()
        }

    @property
    def gradient_scale(self) -> float | None:
        """The size of the gradients at the start of training, as measured by a run; None if no run stored it."""
        scales = (entry.get("gradient_scale") for entry in self.provenance)
        return next((float(scale) for scale in scales if scale is not None), None)

    def at(self, *, select: str | None = None, step: int | None = None, target: Target | None = None) -> Results:
        """Return the same trials, selected by another metric, read at an earlier step, or with another target.

        Schedules were tuned for the full budget: trials trained with a shorter one would end better.
        """
        outcomes = {
            name: with_cost(outcome.at(select=select, step=step, target=target), self.trials[name])
            for name, outcome in self.outcomes.items()
        }
        return self._view(self.study.replace(select=select, target=target), self.trials, outcomes)

    def narrowed(self, ranges: Mapping[str, Mapping[str, Any]]) -> Results:
        """Return what the results would be with smaller search spaces.

        ``ranges``: optimizer → axis → (low, high), or the choices to keep. Only the trials inside are kept: the
        quasi-random points that fall into that part of the space.
        """
        optimizers, trials = dict(self.study.optimizers), dict(self.trials)
        for name, axes in ranges.items():
            optimizer = self.study.optimizer(name)
            narrow = {axis.key: axis for axis in optimizer.space}
            free = [axis.key for axis in optimizer.space.free]
            for key, kept in axes.items():
                if key not in free:
                    raise UnknownName.of(f"free axis of {name}", key, free)
                narrow[key] = narrow[key].narrowed(kept)
                trials[name] = [trial for trial in trials[name] if narrow[key].holds(trial.point.hyperparameters)]
            optimizers[name] = replace(optimizer, space=Space(tuple(narrow.values())))
        study = self.study.replace(optimizers=optimizers, **self._counts_within(optimizers))
        outcomes = {
            name: with_cost(outcome.at(step=self.outcome(name).step), trials[name])
            for name, outcome in outcomes_of(study, trials, self.step_times).items()
        }
        return replace(self._view(study, trials, outcomes), narrowed_spaces=True)

    def _counts_within(self, optimizers: Mapping[str, Optimizer]) -> dict[str, int]:
        """Return K and N, reduced to the number of points of the smallest grid."""
        if self.study.search != "grid":
            return {}
        points = int(min(optimizer.space.size for optimizer in optimizers.values()))
        return {"trials": min(self.study.trials, points), "pool": min(self.study.pool, points)}

    def _view(self, study: Study, trials: Mapping[str, Sequence[Trial]], outcomes: Mapping[str, Outcome]) -> Results:
        """Return a view that keeps only the followed trials and reruns of what are still the best trials."""
        return replace(
            self,
            study=study,
            trials=trials,
            outcomes=outcomes,
            followed=[pair for pair in self.followed if pair.followed is outcomes[pair.special].best_trial],
            reruns={
                name: rerun.at(select=outcomes[name].select, step=outcomes[name].step)
                for name, rerun in self.reruns.items()
                if outcomes[name].best_trial is self.outcome(name).best_trial
            },
        )


def titled(study: Study, overrides: Mapping[str, str]) -> str:
    """Return a study's name, and what was changed in it."""
    changes = [f"{setting} = {value}" for setting, value in overrides.items()]
    return f"{study.name} with {', '.join(changes)}" if changes else study.name


def default_k(study: Study, pools: Iterable[PoolCount]) -> int:
    """Return the study's K, or the number of feasible points of a grid that has fewer."""
    return min([study.trials, *(count.feasible for count in pools if count.exhausted and count.feasible)])


def outcomes_of(
    study: Study, trials: Mapping[str, Sequence[Trial]], step_times: Mapping[str, StepTime] | None = None
) -> dict[str, Outcome]:
    """Return the outcome of each optimizer from the trials of its pool, including infeasible ones."""
    metrics, times = dict(workload_of(study).metrics), step_times or {}

    def outcome(name: str, tried: Sequence[Trial]) -> Outcome:
        pool = [trial for trial in tried if trial.feasible]
        about = Outcome(name, pool, len(tried), metrics, study.select, study.target, replacement=study.replacement)
        return with_cost(replace(about, independent=study.is_tested, step_time=times.get(name)), tried)

    return {name: outcome(name, tried) for name, tried in trials.items()}


def with_cost(outcome: Outcome, tried: Sequence[Trial]) -> Outcome:
    """Return the outcome with the trial-steps of all trials that were run, up to its ``step``."""
    return replace(outcome, spent=int(Curves(tried).last(outcome.step).sum()))
