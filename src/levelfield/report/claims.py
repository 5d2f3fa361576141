"""What the page claims about pairs of optimizers. Its scripts claim the same for whatever the reader asks (testsOf)."""

from __future__ import annotations

from collections.abc import Sequence

from levelfield.analysis.intervals import PairTest
from levelfield.analysis.results import Results
from levelfield.report.narrative import TIED


def claims(results: Results, tests: Sequence[PairTest]) -> list[tuple[str, str]]:
    """Return the pairs (better, worse) that the tests separate, of optimizers that can be compared and do not tie."""
    able = set(results.comparable())
    return [
        (test.better, test.worse)
        for test in tests
        if test.separated and max(test.wins, test.losses) >= TIED and able.issuperset(test.names)
    ]
