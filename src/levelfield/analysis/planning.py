"""Which optimizer to tune, and with how many trials: the expected best against the budget, from finished pools."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from levelfield.analysis.intervals import SIGNIFICANCE, Contest, compare_all, two_sided_tests
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.permutation import lead
from levelfield.analysis.ranking import expected_best, several_ks
from levelfield.errors import UsageError
from levelfield.formatting import format_duration, format_metric, join_words, pluralize


@dataclass(frozen=True)
class Stretch:
    """A range of numbers of trials for which the same optimizer is the one to tune."""

    optimizer: str
    first: int
    last: int
    rivals: list[str] = field(default_factory=list, compare=False)  # not clearly different from it with ``last`` trials
    ahead: list[str] = field(default_factory=list, compare=False)  # clearly beat it there, despite their worse mean

    @property
    def recommendation(self) -> str:
        """The optimizer, with what is uncertain about it in parentheses."""
        caveats = []
        if self.rivals:
            caveats.append(f"not clearly different from {join_words(self.rivals, 'or')}")
        if self.ahead:
            win, has = ("wins", "has") if len(self.ahead) == 1 else ("win", "have")
            caveats.append(f"{join_words(self.ahead)} {win} more often but {has} the worse mean")
        if not caveats:
            return self.optimizer
        where = f"with {pluralize(self.last, 'trial')}, " if self.first < self.last else ""
        return f"{self.optimizer} ({where}{'; '.join(caveats)})"


@dataclass(frozen=True)
class Choice:
    """What an optimizer is expected to reach within a budget."""

    optimizer: str
    trials: int  # feasible trials that fit into the budget, at most the size of the pool
    expected: float  # NaN if no trial fits
    reported: float | None  # the expected metric to report of the selected trial; None if there is none
    hours: float  # per trial
    enough: bool  # whether the pool has as many trials as the budget allows


@dataclass(frozen=True)
class Plan:
    """Which optimizer to tune for each number of trials, and within a budget."""

    select: str
    candidates: list[str]  # optimizers with feasible trials
    stretches: list[Stretch]  # by the number of trials, the same for all optimizers
    choices: list[Choice]  # within the budget, best first; empty without a budget
    gpu_hours: float | None = None
    unknown: list[str] = field(default_factory=list)  # optimizers without feasible trials
    report: str | None = None  # the metric to report, on data that did not select
    independent: bool = True  # False: nothing follows from the trials, because a tuner or a person chose the points
    device: str = ""  # on which the steps of all optimizers were measured; "" if hours are those of the trials

    def as_dict(self) -> dict[str, Any]:
        return {
            "select": self.select,
            "report": self.report,
            "by_trials": [vars(stretch) for stretch in self.stretches],
            "gpu_hours": self.gpu_hours,
            "independent": self.independent,
            "device": self.device,
            "without_trials": self.unknown,
            "within_budget": [vars(choice) for choice in self.choices],
        }

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    def __repr__(self) -> str:
        return str(self)

    def sentences(self) -> list[str]:
        """Return the plan in words."""
        if not self.independent:
            return ["These trials do not tell which optimizer to tune, because they are not known to be independent."]
        lines = self._by_trials()
        if self.gpu_hours is not None and self.choices:
            where = f"on {self.device}, without evaluations" if self.device else "at the speed of these trials"
            lines.append(f"Within {self.gpu_hours:g} hour{'s' if self.gpu_hours != 1 else ''} {where}:")
            lines += [self._describe(choice) for choice in self.choices]
        return lines

    def _by_trials(self) -> list[str]:
        if len(self.candidates) == 1:
            (only,) = self.candidates
            if self.unknown:
                return [f"Only {only} has feasible trials; run the other optimizers to compare them."]
            return [f"{only} is the only optimizer; there is nothing to compare it with."]
        lines = []
        if self.unknown:
            lines.append(
                f"{join_words(self.unknown)} {'has' if len(self.unknown) == 1 else 'have'} no feasible trials."
            )
        if len(self.stretches) == 1:
            (stretch,) = self.stretches
            trials = f"any number of trials from {stretch.first} to {stretch.last}"
            if stretch.first == stretch.last:
                trials = pluralize(stretch.last, "trial")
            return [*lines, self._advice(trials, stretch)]
        for stretch in self.stretches:
            trials = pluralize(stretch.last, "trial")
            if stretch.first < stretch.last:
                trials = f"{stretch.first} {'or' if stretch.last == stretch.first + 1 else 'to'} {trials}"
            limit = " (the size of the pools)" if stretch is self.stretches[-1] else ""
            lines.append(self._advice(f"{trials}{limit}", stretch))
        return lines

    def _advice(self, trials: str, stretch: Stretch) -> str:
        if stretch is self.stretches[-1] and len(stretch.rivals) == len(self.candidates) - 1:
            where = f"with {pluralize(stretch.last, 'trial')}, " if stretch.first < stretch.last else ""
            others = "the other one" if len(stretch.rivals) == 1 else "any other"
            return (
                f"With {trials}, {stretch.optimizer} has the best expected {self.select}; {where}it is not clearly "
                f"different from {others}."
            )
        return f"With {trials}, tune {stretch.recommendation}."

    def _describe(self, choice: Choice) -> str:
        duration = f"{format_duration(3600 * choice.hours)} per trial"
        if not choice.trials:
            return f"  {choice.optimizer}: no trial fits ({duration})"
        expected = format_metric(self.select, choice.expected)
        if self.report and choice.reported is not None:
            expected += f" and {self.report} {format_metric(self.report, choice.reported)}"
        more = "" if choice.enough else "; the budget allows more than the pool has"
        return (
            f"  {choice.optimizer}: expected {self.select} {expected} with {pluralize(choice.trials, 'trial')} "
            f"({duration}{more})"
        )


def plan(outcomes: Mapping[str, Outcome], gpu_hours: float | None = None) -> Plan:
    """Plan from the pools of several optimizers; those without feasible trials are left out."""
    if gpu_hours is not None and not 0 < gpu_hours < math.inf:
        raise UsageError(f"gpu_hours = {gpu_hours:g}: expected a finite number above 0")
    ready = {name: outcome for name, outcome in outcomes.items() if np.isfinite(outcome.ranked()).any()}
    first = next(iter(outcomes.values()))
    sign = first.metrics[first.select].sign
    usable = ready if first.independent else {}
    choices = [] if gpu_hours is None else [_choice(name, outcome, gpu_hours) for name, outcome in usable.items()]
    return Plan(
        select=first.select,
        candidates=list(ready),
        stretches=_stretches(usable) if usable else [],
        choices=sorted(choices, key=lambda choice: (math.isnan(choice.expected), sign * choice.expected)),
        gpu_hours=gpu_hours,
        unknown=[name for name in outcomes if name not in ready],
        report=first.held_out_metric,
        independent=first.independent,
        device=first.step_time.device if first.step_time else "",
    )


def _stretches(outcomes: Mapping[str, Outcome]) -> list[Stretch]:
    names = list(outcomes)
    ks = several_ks(min(len(outcome.pool) for outcome in outcomes.values()))
    means = np.array([expected_best(outcome.ranked(), ks, outcome.replacement) for outcome in outcomes.values()])
    stretches: list[Stretch] = []
    for k, column in zip(ks, means.T, strict=True):
        if np.isnan(column).all():
            continue
        name = names[int(np.argmin(np.where(np.isnan(column), np.inf, column)))]
        first = stretches.pop().first if stretches and stretches[-1].optimizer == name else k
        stretches.append(Stretch(name, first, k))
    return [_with_rivals(stretch, outcomes) for stretch in _tested(stretches, outcomes)]


def _tested(stretches: Sequence[Stretch], outcomes: Mapping[str, Outcome]) -> list[Stretch]:
    """Merge a stretch into the next one unless its optimizer clearly beats that one at its first number of trials.

    Without this, a crossing of two nearly equal means would read as advice.
    """
    pairs = math.comb(len(outcomes), 2)
    kept = list(stretches[-1:])
    for stretch in reversed(stretches[:-1]):
        ours, theirs = (outcomes[name].ranked() for name in (stretch.optimizer, kept[0].optimizer))
        ((p, _),) = two_sided_tests([(ours, theirs)], stretch.first, family=pairs)
        clear = pairs * p < SIGNIFICANCE and lead(ours, theirs, stretch.first) > 0
        if clear and _can_test(outcomes):
            kept.insert(0, stretch)
        else:
            kept[0] = replace(kept[0], first=stretch.first)
    return kept


def _can_test(outcomes: Mapping[str, Outcome]) -> bool:
    return all(outcome.independent for outcome in outcomes.values())


def _with_rivals(stretch: Stretch, outcomes: Mapping[str, Outcome]) -> Stretch:
    best, others = stretch.optimizer, [name for name in outcomes if name != stretch.optimizer]
    ranked = {name: outcome.ranked() for name, outcome in outcomes.items()}
    (tests,) = compare_all([Contest.of(ranked, stretch.last, _can_test(outcomes))])
    pairs = [(test.better, test.worse) for test in tests if test.separated]
    ahead = [name for name in others if (name, best) in pairs]
    rivals = [name for name in others if (best, name) not in pairs and name not in ahead]
    return replace(stretch, rivals=rivals, ahead=ahead)


def _choice(name: str, outcome: Outcome, gpu_hours: float) -> Choice:
    # Infeasible trials cost the steps that they ran, at the speed of the feasible ones.
    if outcome.step_time:
        hours = outcome.step_seconds * outcome.cost(1) / 3600
    else:
        hours = outcome.seconds * outcome.cost(1) / max(1, *map(outcome.last, outcome.pool)) / 3600
    if not hours:
        raise UsageError(f"{name}: the store has no times of its trials, so they cannot be planned by the hour")
    fitting = gpu_hours / hours
    trials = int(min(fitting, len(outcome.pool)))
    expected = outcome.best(trials).mean if trials else math.nan
    reported = outcome.best(trials, outcome.held_out_metric).mean if trials and outcome.held_out_metric else None
    return Choice(name, trials, expected, reported, hours, fitting < len(outcome.pool) + 1)
