"""Tuning protocols side by side: the ranking depends on which hyperparameters are tuned."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from levelfield.analysis.intervals import Contest, compare_all
from levelfield.analysis.outcomes import Outcome
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
    protocols, so the chance that any of two equal rules is called the leader is at most 5%. Two rules with different
    numbers of trials cannot be compared.
    """
    rules = list(dict.fromkeys(rule for column in columns.values() for rule in column))
    shared = {
        (a, b): [label for label, column in columns.items() if a in column and b in column]
        for a, b in itertools.combinations(rules, 2)
    }
    contests = [(label, contest) for label, column in columns.items() for contest in _contests(column)]
    tests = {
        (label, frozenset(test.names)): test
        for (label, _), found in zip(contests, compare_all([contest for _, contest in contests]), strict=True)
        for test in found
    }
    compared = []
    for (a, b), labels in shared.items():
        known = {label: test for label in labels if (test := tests.get((label, frozenset((a, b)))))}
        leaders = {label: test.better for label, test in known.items() if test.separated}
        outcomes = {label: (columns[label][a].outcome, columns[label][b].outcome) for label in known}
        beats = {label: ours.beats(theirs, columns[label][a].k) for label, (ours, theirs) in outcomes.items()}
        if labels:
            compared.append(Pair(a, b, leaders, beats, labels))
    return compared


def _contests(column: Mapping[str, Entry]) -> list[Contest]:
    """Return the rules of a protocol that can be compared with each other: those of the same number of trials."""
    contests = []
    for k in dict.fromkeys(entry.k for entry in column.values()):
        outcomes = {rule: entry.outcome for rule, entry in column.items() if entry.k == k <= len(entry.outcome.pool)}
        independent = all(outcome.independent for outcome in outcomes.values())
        contests.append(Contest.of({rule: outcome.ranked() for rule, outcome in outcomes.items()}, k, independent))
    return contests


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
