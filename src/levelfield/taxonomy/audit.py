"""The audit after training: for each inclusion of a study, is the general optimizer at least as good?

If it is worse by more than chance, its tuning failed: the search missed its best hyperparameters, or its search space
does not contain them. The evidence shows which. A space that cannot express the special optimizer's makes the outcomes
say nothing about the inclusion, so every finding comes with its coverage.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from levelfield.analysis.best_of import check_k
from levelfield.analysis.boundaries import boundaries
from levelfield.analysis.health import MOST_INFEASIBLE, STILL_IMPROVING
from levelfield.analysis.intervals import one_sided_tests
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.permutation import holm
from levelfield.analysis.ranges import Place
from levelfield.analysis.results import Results
from levelfield.formatting import format_metric, format_range
from levelfield.taxonomy.coverage import Coverage, edge_coverage
from levelfield.taxonomy.order import Edge, inclusions

CLEAR = 0.95  # a general optimizer that is worse in at most 5% of repetitions is consistent with the inclusion
SIGNIFICANT = 0.05  # p-value below which the general optimizer is worse by more than chance
LEAST_COVERED = 0.05  # share of the special space below which the outcomes say nothing about the inclusion


class Verdict(StrEnum):
    CONSISTENT = "consistent"
    NO_SEPARATION = "no separation"
    VIOLATED = "violated"
    NOT_COVERED = "not covered"  # by the study's spaces
    UNKNOWN = "unknown"  # it was not tested


@dataclass(frozen=True)
class Finding:
    """What the pools say about an inclusion at K trials, and how much of it the search spaces cover."""

    edge: Edge
    k: int
    worse: float  # P(the general optimizer's best of K is worse)
    better: float  # P(it is better)
    p_value: float  # of the special optimizer's lead, corrected for the number of inclusions
    coverage: Coverage
    verdict: Verdict
    evidence: tuple[str, ...] = ()
    untested: str = ""  # why it was not tested

    @property
    def loses(self) -> bool:
        """Whether the general optimizer is worse by more than chance."""
        return _loses(self.worse, self.p_value)

    def as_dict(self) -> dict[str, Any]:
        names = {"special": self.edge.special, "general": self.edge.general, "k": self.k}
        numbers = {"worse": self.worse, "better": self.better, "p_value": self.p_value}
        coverage = {"coverage": self.coverage.share, "coverage_note": self.coverage.why}
        return names | numbers | coverage | {"verdict": self.verdict.value, "evidence": list(self.evidence)}

    def __str__(self) -> str:
        special, general = self.edge.special, self.edge.general
        if self.verdict is Verdict.UNKNOWN:
            return f"{special} ⊆ {general}: unknown ({self.untested})."
        rates = f"worse in {self.worse:.0%}, better in {self.better:.0%} of repetitions"
        numbers = f"{rates}; one-sided p = {self.p_value:.2g}"
        covered = f"coverage {self.coverage.text}"
        if not self.coverage.evaluated:
            covered += f": {self.coverage.obstacle}"
        verdict = "not covered by this study's spaces" if self.verdict is Verdict.NOT_COVERED else self.verdict
        sentence = f"{special} ⊆ {general}: {verdict} ({general} is {numbers}; {covered})."
        reasons = "; ".join(self.evidence)
        if self.verdict is Verdict.VIOLATED:
            sentence += f" {general} is probably under-tuned: {reasons or 'its search does not show why'}."
        elif self.verdict is Verdict.NOT_COVERED:
            start = f"{general} is worse than {special}, and " if self.loses else ""
            sentence += f" {start}{reasons}."
        return sentence

    def __repr__(self) -> str:
        return f"<{self}>"


@functools.lru_cache(maxsize=4)  # sentences, table and page all ask for the findings
def audit(results: Results, k: int) -> list[Finding]:
    """Return a finding for each inclusion between the study's optimizers."""
    check_k(k)
    edges = inclusions(results.study)
    outcomes = [(results.outcome(edge.special), results.outcome(edge.general)) for edge in edges]
    p_values = one_sided_tests([(special.ranked(), general.ranked()) for special, general in outcomes], k)
    untested = [_untested(special, general, k) for special, general in outcomes]
    raw = [math.nan if reason else p for p, reason in zip(p_values, untested, strict=True)]
    findings = []
    for edge, covered, p, reason in zip(edges, coverages(results), holm(raw), untested, strict=True):
        worse = better = math.nan
        if not math.isnan(p):
            worse, better = results.beats(edge.special, edge.general, k), results.beats(edge.general, edge.special, k)
        verdict = _verdict(worse, p, covered)
        evidence = []
        if verdict in (Verdict.VIOLATED, Verdict.NOT_COVERED) and covered.evaluated and not covered.whole:
            evidence.append(str(covered))
        if _loses(worse, p):
            evidence += _evidence(results, edge.general, k)
        findings.append(Finding(edge, k, worse, better, p, covered, verdict, tuple(evidence), reason))
    return findings


def _untested(special: Outcome, general: Outcome, k: int) -> str:
    """Return why the best of k of two pools cannot be tested against each other; "" if it can."""
    if not (special.independent and general.independent):
        return "the trials are not known to be independent"
    enough = min(len(special.pool), len(general.pool)) >= k
    return "" if enough and (special.best_trial or general.best_trial) else "too few feasible trials"


@functools.lru_cache(maxsize=4)  # it depends on the spaces alone, and the audit is asked at several K
def coverages(results: Results) -> tuple[Coverage, ...]:
    """Return how much of each inclusion the search spaces cover, in the order of the audit."""
    study, scale = results.study, results.gradient_scale
    return tuple(edge_coverage(study, edge, scale) for edge in inclusions(study))


def coverage_obstacles(findings: Iterable[Finding]) -> list[str]:
    """Return why the coverage of some inclusions is unknown."""
    return sorted({finding.coverage.obstacle for finding in findings if not finding.coverage.evaluated})


def _verdict(worse: float, p: float, coverage: Coverage) -> Verdict:
    if math.isnan(p):
        return Verdict.UNKNOWN
    if coverage.share is not None and coverage.share < LEAST_COVERED:
        return Verdict.NOT_COVERED
    if worse <= 1 - CLEAR:
        return Verdict.CONSISTENT
    return Verdict.VIOLATED if _loses(worse, p) else Verdict.NO_SEPARATION


def _loses(worse: float, p: float) -> bool:
    """Return whether the special optimizer leads. A lead that rarely shows does not count, even if significant."""
    return worse > 1 - CLEAR and p < SIGNIFICANT


def _evidence(results: Results, general: str, k: int) -> Iterator[str]:
    """Yield possible reasons, besides coverage, why the general optimizer's tuning failed."""
    study, outcome = results.study, results.outcome(general)
    for boundary in boundaries(results, k):
        if boundary.optimizer == general and boundary.place in (Place.LOWER, Place.UPPER):
            searched = format_range(boundary.axis.dimension)
            yield f"its good trials lie {boundary.place} of {boundary.axis.key} ({searched})"
    if outcome.infeasible_share > MOST_INFEASIBLE:
        yield f"{outcome.infeasible_share:.0%} of its trials are infeasible"
    n = len(outcome.pool)
    first, half, whole = (outcome.best(trials).mean for trials in (1, max(1, n // 2), n))
    if abs(half - whole) > STILL_IMPROVING * abs(first - whole):
        shown_half, shown_whole = (format_metric(study.select, mean) for mean in (half, whole))
        yield f"more trials would still improve it ({shown_half} at K = {max(1, n // 2)}, {shown_whole} at K = {n})"
