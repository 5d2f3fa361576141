"""Tuning protocols side by side: which hyperparameters are tuned decides who wins."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from levelfield.analysis.outcomes import Outcome
from levelfield.trial import Direction

if TYPE_CHECKING:
    from levelfield.comparison import Comparison


@dataclass(frozen=True)
class Entry:
    """An optimizer's place in a protocol: its outcome, and the number of trials that protocol gives."""

    outcome: Outcome
    k: int


@dataclass(frozen=True)
class Flip:
    """Two rules whose order by expected best is another in the second protocol than in the first."""

    ours: str  # the better one before
    theirs: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.ours} leads {self.theirs} with {self.before}, and trails it with {self.after}."


Columns = Mapping[str, Mapping[str, Entry]]


def by_protocol(comparisons: Sequence[Comparison]) -> Columns:
    """Protocol → rule → entry. An optimizer without a protocol goes by its study's name.

    Where a protocol has two optimizers of one rule, each goes by its own name.
    """
    columns: dict[str, dict[str, Entry]] = {}
    for comparison in comparisons:
        study = comparison.study
        labels = {name: study.optimizer(name).protocol or study.name for name in study.optimizers}
        for name, label in labels.items():
            rule = study.optimizer(name).rule.name
            alike = [other for other in labels if labels[other] == label and study.optimizer(other).rule.name == rule]
            column = columns.setdefault(label, {})
            column[rule if len(alike) == 1 and rule not in column else name] = Entry(
                comparison.outcome(name), study.trials
            )
    return columns


def flips(columns: Columns) -> list[Flip]:
    """Every pair of rules whose order changes from one protocol to the next that has both."""
    found = []
    rules = list(dict.fromkeys(rule for column in columns.values() for rule in column))
    for a, b in itertools.combinations(rules, 2):
        last: tuple[str, bool] | None = None
        for label, column in columns.items():
            if a not in column or b not in column:
                continue
            ours, theirs = (_expected(column[rule]) for rule in (a, b))
            if ours == theirs or ours != ours or theirs != theirs:
                continue
            if last and last[1] != (ours < theirs):
                leader, trailer = (a, b) if last[1] else (b, a)
                found.append(Flip(leader, trailer, last[0], label))
            last = label, ours < theirs
    return found


def _expected(entry: Entry) -> float:
    sign = -1 if entry.outcome.metrics[entry.outcome.select] is Direction.MAXIMIZE else 1
    return sign * entry.outcome.best(entry.k).mean
