"""How many trials, and of which optimizer: the expected best against the budget, from a finished pool."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from levelfield.analysis.best_of import CLEAR
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.ranking import expected_best, several_ks
from levelfield.errors import UsageError
from levelfield.formatting import format_duration, format_metric, join_words, pluralize
from levelfield.trial import Direction


@dataclass(frozen=True)
class Stretch:
    """From ``first`` to ``last`` trials, one optimizer is expected to do best."""

    optimizer: str
    first: int
    last: int
    rivals: list[str] = field(default_factory=list, compare=False)  # which are not told apart from it, at its last
    ahead: list[str] = field(default_factory=list, compare=False)  # which clearly beat it there, but for bad trials

    @property
    def named(self) -> str:
        said = [f"with {self.last}, not told apart from {join_words(self.rivals)}"] if self.rivals else []
        said += [f"mostly beaten by {join_words(self.ahead)}, but better on average"] if self.ahead else []
        return f"{self.optimizer} ({'; '.join(said)})" if said else self.optimizer


@dataclass(frozen=True)
class Choice:
    """What an optimizer is expected to reach within a budget."""

    optimizer: str
    trials: int  # feasible ones that fit into it, at most the pool
    expected: float  # NaN if not one fits
    hours: float  # of one trial
    enough: bool  # whether the pool is large enough to tell


@dataclass(frozen=True)
class Plan:
    select: str
    stretches: list[Stretch]  # by number of trials, the same for all
    choices: list[Choice]  # within the budget, best first; empty where none is given
    gpu_hours: float | None = None
    unknown: list[str] = field(default_factory=list)  # optimizers without a feasible trial

    def as_dict(self) -> dict[str, Any]:
        return {
            "select": self.select,
            "by_trials": [vars(each) for each in self.stretches],
            "gpu_hours": self.gpu_hours,
            "without_trials": self.unknown,
            "within_budget": [vars(each) for each in self.choices],
        }

    def sentences(self) -> list[str]:
        said = []
        if self.unknown:
            said.append(f"Of {join_words(self.unknown)} there is no trial to judge by.")
        if len(self.stretches) == 1:
            only = self.stretches[0]
            several = f"however many trials from {only.first} to {only.last}"
            many = several if only.first < only.last else pluralize(only.last, "trial")
            said.append(f"Tune {only.named}, with {many}.")
        for i, each in enumerate(self.stretches if len(self.stretches) > 1 else []):
            if i == 0:
                said.append(f"With {each.last} trial{'s' if each.last > 1 else ''} or fewer, tune {each.named};")
            else:
                said.append(f"from {each.first} on, {each.named};")
        if len(self.stretches) > 1:
            said[-1] = said[-1][:-1] + f" (up to {self.stretches[-1].last}, the size of the pools)."
        if self.gpu_hours is not None:
            said += [
                f"With {self.gpu_hours:g} hour{'s' if self.gpu_hours != 1 else ''} of this device:",
                *map(self._shown, self.choices),
            ]
        return said

    def _shown(self, choice: Choice) -> str:
        each = f"{format_duration(3600 * choice.hours)} a trial"
        if not choice.trials:
            return f"  {choice.optimizer}: not one trial ({each})"
        more = "" if choice.enough else ", all of the pool; more trials would fit"
        return (
            f"  {choice.optimizer}: {format_metric(self.select, choice.expected)} expected, "
            f"the best of {pluralize(choice.trials, 'trial')} ({each}{more})"
        )


def plan(outcomes: Mapping[str, Outcome], gpu_hours: float | None = None) -> Plan:
    """Optimizers without a feasible trial take no part."""
    if gpu_hours is not None and not 0 < gpu_hours < math.inf:
        raise UsageError(f"gpu_hours = {gpu_hours:g}: expected a number above 0")
    ready = {name: outcome for name, outcome in outcomes.items() if np.isfinite(outcome.ranked()).any()}
    select = next(iter(outcomes.values())).select
    unknown = [name for name in outcomes if name not in ready]
    stretches = _stretches(ready) if ready else []
    if gpu_hours is None:
        return Plan(select, stretches, [], unknown=unknown)
    choices = [_choice(name, outcome, gpu_hours) for name, outcome in ready.items()]
    sign = -1 if ready and next(iter(ready.values())).metrics[select] is Direction.MAXIMIZE else 1
    choices.sort(key=lambda each: (math.isnan(each.expected), sign * each.expected))
    return Plan(select, stretches, choices, gpu_hours, unknown)


def _stretches(outcomes: Mapping[str, Outcome]) -> list[Stretch]:
    names = list(outcomes)
    ks = several_ks(min(len(outcome.pool) for outcome in outcomes.values()))
    means = np.array([expected_best(outcome.ranked(), ks) for outcome in outcomes.values()])
    found: list[Stretch] = []
    for k, column in zip(ks, means.T, strict=True):
        if np.isnan(column).all():
            continue
        name = names[int(np.argmin(np.where(np.isnan(column), np.inf, column)))]
        first = found.pop().first if found and found[-1].optimizer == name else k
        found.append(Stretch(name, first, k))
    return [_with_rivals(each, outcomes) for each in found]


def _with_rivals(stretch: Stretch, outcomes: Mapping[str, Outcome]) -> Stretch:
    own, others = outcomes[stretch.optimizer], [name for name in outcomes if name != stretch.optimizer]
    ahead = [name for name in others if outcomes[name].beats(own, stretch.last) >= CLEAR]
    rivals = [name for name in others if own.beats(outcomes[name], stretch.last) < CLEAR and name not in ahead]
    return replace(stretch, rivals=rivals, ahead=ahead)


def _choice(name: str, outcome: Outcome, gpu_hours: float) -> Choice:
    # Infeasible trials cost as many steps as they ran, at the speed of the others.
    steps = max(1, *map(outcome.last, outcome.pool))
    hours = outcome.seconds * outcome.cost(1) / steps / 3600
    fitting = gpu_hours / hours if hours else math.inf
    trials = int(min(fitting, len(outcome.pool)))
    expected = outcome.best(trials).mean if trials else math.nan
    return Choice(name, trials, expected, hours, fitting < len(outcome.pool) + 1)
