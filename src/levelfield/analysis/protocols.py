"""Tuning protocols side by side: the ranking depends on which hyperparameters are tuned."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from levelfield.analysis.intervals import SIGNIFICANCE, family_tests
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.permutation import lead
from levelfield.analysis.results import Results


@dataclass(frozen=True)
class Entry:
    """A rule's outcome under a protocol, and the protocol's number of trials."""

    outcome: Outcome
    k: int


Columns = Mapping[str, Mapping[str, Entry]]  # protocol → rule → entry


@dataclass(frozen=True)
class Flip:
    """Two rules whose order changes from one protocol to a later one, by more than chance in both."""

    ours: str  # leads before
    theirs: str
    before: str
    after: str
    led: float  # P(ours is strictly better) before
    leads: float  # P(ours is strictly better) after

    def __str__(self) -> str:
        return (
            f"{self.ours} leads {self.theirs} under “{self.before}” ({self.led:.0%}) but trails it under "
            f"“{self.after}” ({self.leads:.0%})."
        )


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
            column[key] = Entry(results.outcome(name), results.k())
    return columns


@dataclass(frozen=True)
class Pair:
    """Two rules compared under every protocol that has both."""

    ours: str
    theirs: str
    leaders: dict[str, str]  # protocol → the rule that is better by more than chance; other protocols are left out
    beats: dict[str, float]  # protocol → P(ours is strictly better)
    protocols: list[str]  # all protocols that have both

    @property
    def settles(self) -> str | None:
        """The protocol from which the leader stays the same; None if it never changes or a tie follows."""
        labels = list(self.leaders)
        changes = [i for i in range(1, len(labels)) if self.leaders[labels[i]] != self.leaders[labels[i - 1]]]
        if not changes:
            return None
        label = labels[changes[-1]]
        return label if set(self.protocols[self.protocols.index(label) :]) <= self.leaders.keys() else None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"settles": self.settles}


def pairs(columns: Columns) -> list[Pair]:
    """Return every two rules that share a protocol, with who leads under which one.

    A leader is claimed only if a permutation test rejects chance. Holm's correction covers all pairs under all
    protocols, so the chance that any leader is wrongly named is at most 5%. Two rules with different numbers of trials
    cannot be compared.
    """
    rules = list(dict.fromkeys(rule for column in columns.values() for rule in column))
    shared = {
        (a, b): [label for label, column in columns.items() if a in column and b in column]
        for a, b in itertools.combinations(rules, 2)
    }
    tested = [
        (a, b, label)
        for (a, b), labels in shared.items()
        for label in labels
        if _can_compare(columns[label][a], columns[label][b])
    ]
    pools = [
        (columns[label][a].outcome.ranked(), columns[label][b].outcome.ranked(), columns[label][a].k)
        for a, b, label in tested
    ]
    separated = {key for key, (p, _) in zip(tested, family_tests(pools), strict=True) if p < SIGNIFICANCE}
    compared = []
    for (a, b), labels in shared.items():
        leaders, beats = {}, {}
        for label in labels:
            ours, theirs = columns[label][a], columns[label][b]
            if (a, b, label) in separated:
                leaders[label] = a if lead(ours.outcome.ranked(), theirs.outcome.ranked(), ours.k) > 0 else b
            if (a, b, label) in tested:
                beats[label] = ours.outcome.beats(theirs.outcome, ours.k)
        if labels:
            compared.append(Pair(a, b, leaders, beats, labels))
    return compared


def _can_compare(ours: Entry, theirs: Entry) -> bool:
    return ours.k == theirs.k <= min(len(ours.outcome.pool), len(theirs.outcome.pool))


def flips(columns: Columns) -> list[Flip]:
    """Return every change of leader between two rules, from one protocol that has one to the next."""
    changes = []
    for pair in pairs(columns):
        for before, after in itertools.pairwise(pair.leaders):
            if (leader := pair.leaders[before]) != pair.leaders[after]:
                trailer = pair.theirs if leader == pair.ours else pair.ours
                led, leads = (
                    columns[label][leader].outcome.beats(columns[label][trailer].outcome, columns[label][leader].k)
                    for label in (before, after)
                )
                changes.append(Flip(leader, trailer, before, after, led, leads))
    return changes
