"""Tuning protocols side by side: which hyperparameters are tuned decides who wins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.results import Results
from levelfield.trial import Direction


@dataclass(frozen=True)
class Entry:
    """An optimizer's place in a protocol: its outcome, and the number of trials that protocol gives."""

    outcome: Outcome
    k: int


@dataclass(frozen=True)
class Flip:
    """Two rules of which another one is the better one more often in the second protocol than in the first."""

    ours: str  # the better one before
    theirs: str
    before: str
    after: str
    led: float  # P(ours is strictly better), before; NaN where the two have unlike numbers of trials
    leads: float  # and after

    def __str__(self) -> str:
        led, leads = ("" if math.isnan(each) else f" ({each:.0%})" for each in (self.led, self.leads))
        return f"{self.ours} leads {self.theirs} with {self.before}{led}, and trails it with {self.after}{leads}."


_LEAD = 0.1  # by which share of the repetitions one is to be the better one more often than the other

Columns = Mapping[str, Mapping[str, Entry]]


def by_protocol(studies: Sequence[Results]) -> Columns:
    """Protocol → rule → entry. An optimizer without a protocol goes by its study's name.

    Where two studies have a protocol of the same name, it goes by the study's, too. Where a protocol has two
    optimizers of one rule, each goes by its own name.
    """
    columns: dict[str, dict[str, Entry]] = {}
    for results in studies:
        study, taken = results.study, set(columns)
        labels = {name: study.optimizer(name).protocol or study.name for name in study.optimizers}
        while clashes := taken & set(labels.values()):
            labels = {name: f"{one} ({study.name})" if one in clashes else one for name, one in labels.items()}
        for name, label in labels.items():
            rule = study.optimizer(name).rule.name
            alike = [other for other in labels if labels[other] == label and study.optimizer(other).rule.name == rule]
            column = columns.setdefault(label, {})
            own = name.removesuffix(f" ({label})")  # as a ladder calls its rungs' optimizers
            key = rule if len(alike) == 1 and rule not in column else own
            key = key if key not in column else f"{name} ({study.name})"
            column[key] = Entry(results.outcome(name), study.trials)
    return columns


@dataclass(frozen=True)
class Pair:
    """How two rules stand to each other, protocol by protocol."""

    ours: str
    theirs: str
    leaders: dict[str, str]  # protocol → who is the better one more often; those that nearly tie are left out
    beats: dict[str, float]  # protocol → P(ours is strictly better)
    protocols: list[str]  # that have both

    @property
    def settles(self) -> str | None:
        """From which protocol on the same one leads in all of them; None if that never changes, or is not so."""
        labels = list(self.leaders)
        last = [i for i in range(1, len(labels)) if self.leaders[labels[i]] != self.leaders[labels[i - 1]]]
        if not last:
            return None
        label = labels[last[-1]]
        return label if set(self.protocols[self.protocols.index(label) :]) <= self.leaders.keys() else None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"settles": self.settles}


def pairs(columns: Columns) -> list[Pair]:
    """Every two rules that share a protocol."""
    rules = list(dict.fromkeys(rule for column in columns.values() for rule in column))
    found = []
    for a, b in itertools.combinations(rules, 2):
        both = {label: (column[a], column[b]) for label, column in columns.items() if a in column and b in column}
        leaders, beats = {}, {}
        for label, (ours, theirs) in both.items():
            if abs(lead := _lead(ours, theirs)) > (_LEAD if ours.k == theirs.k else 0):
                leaders[label] = a if lead > 0 else b
            if ours.k == theirs.k:
                beats[label] = ours.outcome.beats(theirs.outcome, ours.k)
        if both:
            found.append(Pair(a, b, leaders, beats, list(both)))
    return found


def flips(columns: Columns) -> list[Flip]:
    """Every pair of rules whose order changes from one protocol to the next that has both."""
    found = []
    for pair in pairs(columns):
        for before, after in itertools.pairwise(pair.leaders):
            if (leader := pair.leaders[before]) != pair.leaders[after]:
                trailer = pair.theirs if leader == pair.ours else pair.ours
                chances = (
                    column[leader].outcome.beats(column[trailer].outcome, column[leader].k)
                    if column[leader].k == column[trailer].k
                    else math.nan
                    for column in (columns[before], columns[after])
                )
                found.append(Flip(leader, trailer, before, after, *chances))
    return found


def _lead(ours: Entry, theirs: Entry) -> float:
    """Above 0 if ours is the better one more often than theirs; with unlike numbers of trials, on average."""
    if ours.k != theirs.k:
        return _expected(theirs) - _expected(ours)
    return ours.outcome.beats(theirs.outcome, ours.k) - theirs.outcome.beats(ours.outcome, ours.k)


def _expected(entry: Entry) -> float:
    sign = -1 if entry.outcome.metrics[entry.outcome.select] is Direction.MAXIMIZE else 1
    return sign * entry.outcome.best(entry.k).mean
