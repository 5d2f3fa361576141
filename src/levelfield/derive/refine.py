"""From an initial search space to a final one: replace each range that the trials call into question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from levelfield.analysis.boundaries import FEWEST, Boundary, boundaries
from levelfield.analysis.results import Results
from levelfield.errors import UsageError
from levelfield.study import Refined, Study, optimizer_table


@dataclass(frozen=True)
class Refinement:
    """The verdict on each range of a study, and the study with better ranges (the same study if all can stay)."""

    results: Results
    boundaries: list[Boundary]
    study: Study

    @property
    def changes(self) -> list[Boundary]:
        """The ranges to change."""
        return [boundary for boundary in self.boundaries if not boundary.settled]

    def __repr__(self) -> str:
        return f"<Refinement of {self.results.study.name}: {self.changes or 'all ranges can stay'}>"


def refine(results: Results, name: str | None = None, *, propose: bool = True) -> Refinement:
    """Judge all ranges and propose better ones; ``propose=False`` only judges them. Every pool must be full."""
    study = results.study
    check_pool(study)
    for optimizer in study.optimizers:
        _check_full(results, optimizer)
    refinement = Refinement(results, boundaries(results), study)
    if not refinement.changes or not propose:
        return refinement
    ranges = {optimizer: study.optimizer(optimizer).space.spec() for optimizer in study.optimizers}
    log = list(study.refined)
    for boundary in refinement.changes:
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
    refined = _with_spaces(study, tables).replace(name=name or _next_name(study.name), refined=log)
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


def _with_spaces(study: Study, tables: Mapping[str, Any]) -> Study:
    """Return the study with other spaces. A pool that was the whole grid is the whole new grid."""
    if study.search != "grid":
        return study.replace(optimizers=tables)
    before, after = (
        int(min(optimizer.space.size for optimizer in version.optimizers.values()))
        for version in (study, study.replace(search="quasirandom", optimizers=tables))
    )
    pool = after if study.pool == before else min(study.pool, after)
    return study.replace(optimizers=tables, pool=pool, trials=min(study.trials, pool))


def _next_name(name: str) -> str:
    """
    >>> _next_name("mine"), _next_name("mine_refined"), _next_name("mine_refined2")
    ('mine_refined', 'mine_refined2', 'mine_refined3')
    """
    base, mark, number = name.rpartition("_refined")
    if not mark or not (number.isdigit() or not number):
        return f"{name}_refined"
    return f"{base}_refined{int(number or 1) + 1}"
