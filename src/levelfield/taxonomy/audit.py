"""The audit, after training: for each inclusion of a study, is the general optimizer's best no worse?

If it is worse by more than chance, tuning has failed it: its best hyperparameters were not found, or its search
space does not hold them. The evidence says which.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from levelfield.analysis.best_of import check_k
from levelfield.analysis.boundaries import Place
from levelfield.analysis.permutation import holm, p_value
from levelfield.errors import DataError
from levelfield.taxonomy.coverage import edge_coverage, gradient_scale
from levelfield.taxonomy.order import Edge, inclusions
from levelfield.words import CLEAR, show_metric, show_range

if TYPE_CHECKING:
    from levelfield.comparison import Comparison

SIGNIFICANT = 0.05
_FALLING = 0.05  # of what N trials gain over one: if the second half of them brings more, more would help


class Verdict(StrEnum):
    CONSISTENT = "consistent"
    NO_SEPARATION = "no separation"
    VIOLATED = "violated"
    UNKNOWN = "unknown"  # one of the pools is empty, or neither has a value to go by


@dataclass(frozen=True)
class Finding:
    """What the pools say of one inclusion, at K trials."""

    edge: Edge
    k: int
    worse: float  # P(the general optimizer's best of K is worse)
    better: float  # P(it is better)
    p_value: float  # of the special one's lead, corrected for the number of inclusions
    verdict: Verdict
    evidence: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        about = {"special": self.edge.special, "general": self.edge.general, "k": self.k}
        numbers = {"worse": self.worse, "better": self.better, "p_value": self.p_value}
        return about | numbers | {"verdict": self.verdict.value, "evidence": list(self.evidence)}

    def __str__(self) -> str:
        special, general = self.edge.special, self.edge.general
        if self.verdict is Verdict.UNKNOWN:
            return f"{special} ⊆ {general}: no feasible trials to judge by."
        numbers = f"worse in {self.worse:.0%}, better in {self.better:.0%} of repetitions; p = {self.p_value:.2g}"
        said = f"{special} ⊆ {general}: {self.verdict} ({general} is {numbers})."
        if self.verdict is Verdict.VIOLATED:
            said += f" {general} is under-tuned: {'; '.join(self.evidence) or 'nothing in its search tells why'}."
        return said


def audit(comparison: Comparison, k: int) -> list[Finding]:
    """A finding for each inclusion between the study's optimizers."""
    check_k(k)
    scale = functools.cache(lambda: gradient_scale(comparison.study))  # measured once, if it is needed at all
    found = inclusions(comparison.study)
    raw = []
    for edge in found:
        special, general = comparison.outcome(edge.special), comparison.outcome(edge.general)
        known = special.best_trial or general.best_trial
        raw.append(p_value(special.ranked(), general.ranked(), k) if known else math.nan)
    findings = []
    for edge, p in zip(found, holm(raw), strict=True):
        worse = comparison.beats(edge.special, edge.general, k)
        better = comparison.beats(edge.general, edge.special, k)
        verdict = _verdict(worse, p)
        evidence = tuple(_evidence(comparison, edge, k, scale)) if verdict is Verdict.VIOLATED else ()
        findings.append(Finding(edge, k, worse, better, p, verdict, evidence))
    return findings


def _verdict(worse: float, p: float) -> Verdict:
    if p != p:
        return Verdict.UNKNOWN
    if worse <= 1 - CLEAR:  # a lead that hardly ever shows is none, however certain
        return Verdict.CONSISTENT
    return Verdict.VIOLATED if p < SIGNIFICANT else Verdict.NO_SEPARATION


def _evidence(comparison: Comparison, edge: Edge, k: int, scale: Callable[[], float]) -> Iterator[str]:
    """What may have kept the general optimizer from its best."""
    study, outcome = comparison.study, comparison.outcome(edge.general)
    try:
        covered = edge_coverage(study, edge, scale() if any(way.limit for way in edge.ways) else 0.0)
        if not covered.whole:
            yield str(covered)
    except DataError:
        yield "whether its space can express the other is not known here, without the data"
    for found in comparison.boundaries(k):
        if found.optimizer == edge.general and found.place in (Place.LOWER, Place.UPPER):
            yield f"its good trials lie {found.place} of {found.axis.key} ({show_range(found.axis.dimension)})"
    if outcome.infeasible_share > 0.5:
        yield f"{outcome.infeasible_share:.0%} of its trials are infeasible"
    n = len(outcome.pool)
    first, half, whole = (outcome.best(each).mean for each in (1, max(1, n // 2), n))
    if abs(half - whole) > _FALLING * abs(first - whole):
        said = f"{show_metric(study.select, half)} at K = {max(1, n // 2)}, {show_metric(study.select, whole)} at {n}"
        yield f"more trials would still improve it ({said})"
