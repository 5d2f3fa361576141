"""Tuning protocols side by side: the ranking depends on which hyperparameters are tuned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.results import Results

_LEAD = 0.1  # a rule leads another if its win rate is higher by more than this


@dataclass(frozen=True)
class Entry:
    """A rule's outcome under a protocol, and the protocol's number of trials."""

    outcome: Outcome
    k: int


Columns = Mapping[str, Mapping[str, Entry]]  # protocol → rule → entry


@dataclass(frozen=True)
class Flip:
    """Two rules whose order changes from one protocol to the next."""

    ours: str  # leads before
    theirs: str
    before: str
    after: str
    led: float  # P(ours is strictly better) before; NaN if the two have different numbers of trials
    leads: float  # P(ours is strictly better) after

    def __str__(self) -> str:
        led, leads = ("" if math.isnan(rate) else f" ({rate:.0%})" for rate in (self.led, self.leads))
        return f"{self.ours} leads {self.theirs} under “{self.before}”{led} but trails it under “{self.after}”{leads}."


def by_protocol(studies: Sequence[Results]) -> Columns:
    """Return protocol → rule → entry; the study's name stands in for an optimizer without a protocol.

    If two studies have a protocol of the same name, the study's name is added to it. If a protocol has two optimizers
    of the same rule, they are listed by their own names.
    """
    columns: dict[str, dict[str, Entry]] = {}
    for results in studies:
        study, taken = results.study, set(columns)
        labels = {name: study.optimizer(name).protocol or study.name for name in study.optimizers}
        while clashes := taken & set(labels.values()):
            labels = {name: f"{label} ({study.name})" if label in clashes else label for name, label in labels.items()}
        for name, label in labels.items():
            rule = study.optimizer(name).rule.name
            same = [other for other in labels if labels[other] == label and study.optimizer(other).rule.name == rule]
            column = columns.setdefault(label, {})
            own_name = name.removesuffix(f" ({label})")  # a ladder adds the rung to the names of its optimizers
            key = rule if len(same) == 1 and rule not in column else own_name
            key = key if key not in column else f"{name} ({study.name})"
            column[key] = Entry(results.outcome(name), study.trials)
    return columns


@dataclass(frozen=True)
class Pair:
    """Two rules compared under every protocol that has both."""

    ours: str
    theirs: str
    leaders: dict[str, str]  # protocol → the rule that wins more often; near ties are left out
    beats: dict[str, float]  # protocol → P(ours is strictly better)
    protocols: list[str]  # all protocols that have both

    @property
    def settles(self) -> str | None:
        """The protocol from which on the leader stays the same; None if it never changes or a tie follows."""
        labels = list(self.leaders)
        changes = [i for i in range(1, len(labels)) if self.leaders[labels[i]] != self.leaders[labels[i - 1]]]
        if not changes:
            return None
        label = labels[changes[-1]]
        return label if set(self.protocols[self.protocols.index(label) :]) <= self.leaders.keys() else None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"settles": self.settles}


def pairs(columns: Columns) -> list[Pair]:
    """Return every two rules that share a protocol."""
    rules = list(dict.fromkeys(rule for column in columns.values() for rule in column))
    compared = []
    for a, b in itertools.combinations(rules, 2):
        shared = {label: (column[a], column[b]) for label, column in columns.items() if a in column and b in column}
        leaders, beats = {}, {}
        for label, (ours, theirs) in shared.items():
            if abs(lead := _lead(ours, theirs)) > (_LEAD if ours.k == theirs.k else 0):
                leaders[label] = a if lead > 0 else b
            if ours.k == theirs.k:
                beats[label] = ours.outcome.beats(theirs.outcome, ours.k)
        if shared:
            compared.append(Pair(a, b, leaders, beats, list(shared)))
    return compared


def flips(columns: Columns) -> list[Flip]:
    """Return every change of order between two rules, from one protocol that has both to the next."""
    changes = []
    for pair in pairs(columns):
        for before, after in itertools.pairwise(pair.leaders):
            if (leader := pair.leaders[before]) != pair.leaders[after]:
                trailer = pair.theirs if leader == pair.ours else pair.ours
                led, leads = (_win_rate(columns[label], leader, trailer) for label in (before, after))
                changes.append(Flip(leader, trailer, before, after, led, leads))
    return changes


def _win_rate(column: Mapping[str, Entry], leader: str, trailer: str) -> float:
    """Return P(the leader is strictly better); NaN if the two have different numbers of trials."""
    ours, theirs = column[leader], column[trailer]
    return ours.outcome.beats(theirs.outcome, ours.k) if ours.k == theirs.k else math.nan


def _lead(ours: Entry, theirs: Entry) -> float:
    """Return the difference of the win rates, or of the means if the two have different numbers of trials."""
    if ours.k != theirs.k:
        return _expected(theirs) - _expected(ours)
    return ours.outcome.beats(theirs.outcome, ours.k) - theirs.outcome.beats(ours.outcome, ours.k)


def _expected(entry: Entry) -> float:
    """Return the expected best, with the sign that makes lower better."""
    outcome = entry.outcome
    return outcome.best(entry.k).mean * outcome.metrics[outcome.select].sign
