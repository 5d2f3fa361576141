"""From an initial search space to a final one: replace each range that the trials call into question."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from levelfield.analysis.boundaries import FEWEST, Boundary, boundaries
from levelfield.analysis.intervals import Interval
from levelfield.analysis.results import Results
from levelfield.errors import UsageError
from levelfield.formatting import P_VALUE_DIGITS, format_metric, format_range, join_words, pluralize
from levelfield.space import Dimension
from levelfield.study import Refined, Study
from levelfield.study_optimizer import optimizer_table


@dataclass(frozen=True)
class Attempt:
    """What a round tried for an optimizer outside its present ranges, and what it gave."""

    optimizer: str
    ranges: Mapping[str, Dimension]  # that were tried instead of the present ones, by axis; empty for none
    outside: int  # trials in wider ranges
    decades: float  # by which log ranges were widened for them
    kept: bool = False
    p_value: float = math.nan  # of the lead of the new ranges over the present ones
    k: int = 0
    metric: str = ""
    before: Interval | None = None  # the median best of k with the present ranges
    after: Interval | None = None

    @property
    def outcome(self) -> str:
        """What the trials showed, in words."""
        decades = f"{self.decades:g} decade{'s' if self.decades != 1 else ''}"
        searched = f"{pluralize(self.outside, 'trial')} up to {decades} beyond the ranges"
        if not self.before or not self.after:
            return f"{searched} gave nothing to try"
        was, now = (format_metric(self.metric, median) for median in (self.before.median, self.after.median))
        chance = "" if math.isnan(self.p_value) else f" (p = {self.p_value:.{P_VALUE_DIGITS}g})"
        return f"median best of {self.k} {was} → {now}{chance}, after {searched}"

    def __str__(self) -> str:
        if not self.ranges:
            return f"{self.optimizer}: {self.outcome}."
        tried = join_words([f"{key} = {format_range(range_)}" for key, range_ in self.ranges.items()])
        return f"{self.optimizer}: {'changed to' if self.kept else 'tried, but not kept:'} {tried}: {self.outcome}."

    def as_dict(self) -> dict[str, Any]:
        ends = {"before": self.before, "after": self.after}
        return {
            "optimizer": self.optimizer,
            "ranges": {key: range_.spec() for key, range_ in self.ranges.items()},
            "outside": self.outside,
            "decades": self.decades,
            "kept": self.kept,
            "p_value": self.p_value,
        } | {name: vars(end) if end else None for name, end in ends.items()}


@dataclass(frozen=True)
class Refinement:
    """The verdict on each range of a study, and the study with better ranges (the same study if all can stay)."""

    results: Results
    boundaries: list[Boundary]
    study: Study
    attempts: Sequence[Attempt] = ()  # what a round tried outside the ranges

    @property
    def changes(self) -> list[Boundary]:
        """The verdicts on the ranges that the new study changes."""
        before, after = self.results.study, self.study
        if after is before:
            return []
        specs = {name: after.optimizer(name).space.spec() for name in after.optimizers}
        return [
            boundary
            for boundary in self.boundaries
            if specs[boundary.optimizer][boundary.axis.key] != boundary.axis.dimension.spec()
        ]

    def __repr__(self) -> str:
        return f"<Refinement of {self.results.study.name}: {self.changes or 'all ranges can stay'}>"


def refine(results: Results, name: str | None = None, *, propose: bool = True) -> Refinement:
    """Judge all ranges and propose better ones; ``propose=False`` only judges them. Every pool must be full."""
    study = results.study
    check_pool(study)
    for optimizer in study.optimizers:
        _check_full(results, optimizer)
    refinement = Refinement(results, boundaries(results), study)
    proposals = [boundary for boundary in refinement.boundaries if boundary.proposal]
    if not proposals or not propose:
        return refinement
    ranges = {optimizer: study.optimizer(optimizer).space.spec() for optimizer in study.optimizers}
    log = list(study.refined)
    for boundary in proposals:
        assert boundary.proposal
        key, after = boundary.axis.key, boundary.proposal.spec()
        ranges[boundary.optimizer][key] = after
        log.append(
            Refined(
                study=study.name,
                optimizer=boundary.optimizer,
                axis=key,
                before=boundary.axis.dimension.spec(),
                after=after,
                verdict=boundary.place.value,
                trials=results.outcome(boundary.optimizer).tried,
            )
        )
    tables = {optimizer: optimizer_table(study.optimizer(optimizer), ranges[optimizer]) for optimizer in ranges}
    refined = with_spaces(study, tables).replace(name=name or next_name(study.name), refined=log, inferred=False)
    return replace(refinement, study=refined)


def check_pool(study: Study) -> None:
    """Raise if the pool is too small to judge ranges by."""
    if study.pool < FEWEST:
        raise UsageError(f"pool = {study.pool}: expected at least {FEWEST} trials to judge ranges by; raise pool")


def _check_full(results: Results, optimizer: str) -> None:
    count = results.count(optimizer)
    if count.tried and not count.feasible:
        raise UsageError(
            f"{optimizer}: all {count.tried} trials are infeasible, so they cannot show where to search; "
            f"lower its learning rates by a few decades"
        )
    if not count.full:
        raise UsageError(
            f"{optimizer}: its pool has {count.feasible} of {count.n} feasible trials ({count.tried} tried); "
            f"run the study to completion first"
        )


def with_spaces(study: Study, tables: Mapping[str, Any]) -> Study:
    """Return the study with other spaces. A pool that was the whole grid is the whole new grid."""
    if study.search != "grid":
        return study.replace(optimizers=tables)
    before, after = (
        int(min(optimizer.space.size for optimizer in version.optimizers.values()))
        for version in (study, study.replace(search="quasirandom", optimizers=tables))
    )
    pool = after if study.pool == before else min(study.pool, after)
    return study.replace(optimizers=tables, pool=pool, trials=min(study.trials, pool))


def next_name(name: str) -> str:
    """
    >>> next_name("mine"), next_name("mine_refined"), next_name("mine_refined2")
    ('mine_refined', 'mine_refined2', 'mine_refined3')
    """
    base, mark, number = name.rpartition("_refined")
    if not mark or not (number.isdigit() or not number):
        return f"{name}_refined"
    return f"{base}_refined{int(number or 1) + 1}"
