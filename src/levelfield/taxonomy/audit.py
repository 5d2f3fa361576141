"""The audit after training: for each inclusion of a study, is the general optimizer at least as good?

If it is worse by more than chance, its tuning failed: the search missed its best hyperparameters, or its search space
does not contain them. The evidence shows which.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from levelfield.analysis.best_of import CLEAR, check_k
from levelfield.analysis.boundaries import Place, boundaries
from levelfield.analysis.health import MOST_INFEASIBLE, STILL_IMPROVING
from levelfield.analysis.permutation import holm, p_value
from levelfield.analysis.results import Results
from levelfield.formatting import format_metric, format_range
from levelfield.taxonomy.coverage import edge_coverage
from levelfield.taxonomy.order import Edge, inclusions

SIGNIFICANT = 0.05  # p-value below which the general optimizer is worse by more than chance


class Verdict(StrEnum):
    CONSISTENT = "consistent"
    NO_SEPARATION = "no separation"
    VIOLATED = "violated"
    UNKNOWN = "unknown"  # a pool has fewer than K trials, or no trial has a finite value


@dataclass(frozen=True)
class Finding:
    """What the pools say about an inclusion at K trials."""

    edge: Edge
    k: int
    worse: float  # P(the general optimizer's best of K is worse)
    better: float  # P(it is better)
    p_value: float  # of the special optimizer's lead, corrected for the number of inclusions
    verdict: Verdict
    evidence: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        names = {"special": self.edge.special, "general": self.edge.general, "k": self.k}
        numbers = {"worse": self.worse, "better": self.better, "p_value": self.p_value}
        return names | numbers | {"verdict": self.verdict.value, "evidence": list(self.evidence)}

    def __str__(self) -> str:
        special, general = self.edge.special, self.edge.general
        if self.verdict is Verdict.UNKNOWN:
            return f"{special} ⊆ {general}: unknown (too few feasible trials)."
        numbers = f"worse in {self.worse:.0%}, better in {self.better:.0%} of repetitions; p = {self.p_value:.2g}"
        sentence = f"{special} ⊆ {general}: {self.verdict} ({general} is {numbers})."
        if self.verdict is Verdict.VIOLATED:
            reasons = "; ".join(self.evidence) or "its search does not show why"
            sentence += f" {general} is under-tuned: {reasons}."
        return sentence

    def __repr__(self) -> str:
        return f"<{self}>"


@functools.lru_cache(maxsize=4)  # sentences, table and page all ask for the findings
def audit(results: Results, k: int) -> list[Finding]:
    """Return a finding for each inclusion between the study's optimizers."""
    check_k(k)
    edges = inclusions(results.study)
    raw, able = [], [name for name, outcome in results.outcomes.items() if len(outcome.pool) >= k]
    for edge in edges:
        special, general = results.outcome(edge.special), results.outcome(edge.general)
        known = {edge.special, edge.general} <= {*able} and (special.best_trial or general.best_trial)
        raw.append(p_value(special.ranked(), general.ranked(), k) if known else math.nan)
    findings = []
    for edge, p in zip(edges, holm(raw), strict=True):
        worse = better = math.nan
        if not math.isnan(p):
            worse, better = results.beats(edge.special, edge.general, k), results.beats(edge.general, edge.special, k)
        verdict = _verdict(worse, p)
        evidence = tuple(_evidence(results, edge, k)) if verdict is Verdict.VIOLATED else ()
        findings.append(Finding(edge, k, worse, better, p, verdict, evidence))
    return findings


def _verdict(worse: float, p: float) -> Verdict:
    if math.isnan(p):
        return Verdict.UNKNOWN
    if worse <= 1 - CLEAR:  # a lead that rarely shows does not count, even if it is significant
        return Verdict.CONSISTENT
    return Verdict.VIOLATED if p < SIGNIFICANT else Verdict.NO_SEPARATION


def _evidence(results: Results, edge: Edge, k: int) -> Iterator[str]:
    """Yield possible reasons why the general optimizer's tuning failed."""
    study, outcome = results.study, results.outcome(edge.general)
    covered = edge_coverage(study, edge, results.gradient_scale)
    if not covered.whole:
        yield str(covered)
    for boundary in boundaries(results, k):
        if boundary.optimizer == edge.general and boundary.place in (Place.LOWER, Place.UPPER):
            searched = format_range(boundary.axis.dimension)
            yield f"its good trials lie {boundary.place} of {boundary.axis.key} ({searched})"
    if outcome.infeasible_share > MOST_INFEASIBLE:
        yield f"{outcome.infeasible_share:.0%} of its trials are infeasible"
    n = len(outcome.pool)
    first, half, whole = (outcome.best(trials).mean for trials in (1, max(1, n // 2), n))
    if abs(half - whole) > STILL_IMPROVING * abs(first - whole):
        shown_half, shown_whole = (format_metric(study.select, mean) for mean in (half, whole))
        yield f"more trials would still improve it ({shown_half} at K = {max(1, n // 2)}, {shown_whole} at K = {n})"
