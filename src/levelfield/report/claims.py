"""What the page says about pairs of optimizers. Its scripts say the same for whatever the reader asks (testsOf)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from levelfield.analysis.intervals import PairTest
from levelfield.analysis.results import Results
from levelfield.report.narrative import TIED


@dataclass(frozen=True)
class Claim:
    """Two optimizers that can be compared, and whether the page may call one of them better."""

    better: str  # the one that wins more often, separated or not
    worse: str
    p_value: float
    separated: bool


def claims(results: Results, tests: Sequence[PairTest]) -> list[Claim]:
    """Return the tested pairs that can be compared. Those that tie in nearly all repetitions are not separated."""
    able = set(results.comparable())
    return [
        Claim(test.better, test.worse, test.p_value, test.separated and max(test.wins, test.losses) >= TIED)
        for test in tests
        if able.issuperset(test.names)
    ]
