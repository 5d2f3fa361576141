"""From an initial search space to a final one: each range that the trials object to is replaced, with the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from levelfield.analysis.boundaries import FEWEST, Boundary
from levelfield.comparison import Comparison
from levelfield.errors import UsageError
from levelfield.executors import Executor
from levelfield.runner import Listener, run
from levelfield.store import Store
from levelfield.study import Refined, Study


@dataclass(frozen=True)
class Refinement:
    """A study, what its trials said of its ranges, and the study with better ones (the same if all can stay)."""

    comparison: Comparison
    boundaries: list[Boundary]
    study: Study

    @property
    def changes(self) -> list[Boundary]:
        return [each for each in self.boundaries if not each.settled]


def refine(comparison: Comparison, name: str | None = None) -> Refinement:
    """Propose better ranges. Every optimizer's pool must be full; one without a good trial says what to do."""
    study = comparison.study
    _check_pool(study)
    for optimizer in study.optimizers:
        outcome = comparison.outcome(optimizer)
        if outcome.tried and not outcome.pool:
            raise UsageError(
                f"{optimizer}: all {outcome.tried} trials are infeasible, so nothing tells where to search; "
                f"lower its learning rate by a few decades"
            )
        if not study.full(optimizer, len(outcome.pool), outcome.tried):
            raise UsageError(
                f"{optimizer}: its pool has {len(outcome.pool)} of {study.pool} feasible trials "
                f"({outcome.tried} tried); 'levelfield run' completes it, or says why it cannot"
            )
    found = comparison.boundaries()
    changes = [each for each in found if not each.settled]
    if not changes:
        return Refinement(comparison, found, study)
    tables: dict[str, Any] = {each: dict(study.optimizer(each).spec()) for each in study.optimizers}
    log = list(study.refined)
    for each in changes:
        assert each.proposal
        table, key = tables[each.optimizer], each.axis.key
        table["schedule"] = dict(table["schedule"])
        (table["schedule"] if key in table["schedule"] else table)[key] = each.proposal.spec()
        table.get("corrected", {}).pop(key, None)  # a misprint no longer
        log.append(
            Refined(
                study=study.name,
                optimizer=each.optimizer,
                axis=key,
                before=each.axis.dimension.spec(),
                after=each.proposal.spec(),
                verdict=each.place.value,
                trials=comparison.outcome(each.optimizer).tried,
            )
        )
    refined = _with_spaces(study, tables).replace(name=name or _next_name(study.name), refined=log)
    return Refinement(comparison, found, refined)


def _with_spaces(study: Study, tables: Mapping[str, Any]) -> Study:
    """The study with other spaces. The pool of a grid is as many of its points as before, or all of them."""
    if study.search != "grid":
        return study.replace(optimizers=tables)
    before, after = (
        int(min(each.space.size for each in of.optimizers.values()))
        for of in (study, study.replace(search="quasirandom", optimizers=tables))
    )
    pool = after if study.pool == before else min(study.pool, after)
    return study.replace(optimizers=tables, pool=pool, trials=min(study.trials, pool))


def _check_pool(study: Study) -> None:
    if study.pool < FEWEST:
        raise UsageError(f"pool = {study.pool}: ranges are judged by at least {FEWEST} trials; raise pool")


def _next_name(name: str) -> str:
    """
    >>> _next_name("mine"), _next_name("mine_refined"), _next_name("mine_refined2")
    ('mine_refined', 'mine_refined2', 'mine_refined3')
    """
    base, mark, number = name.rpartition("_refined")
    if not mark or not (number.isdigit() or not number):
        return f"{name}_refined"
    return f"{base}_refined{int(number or 1) + 1}"


def rounds(
    study: Study, most: int, store: Store, executor: Executor, listener: Listener | None = None
) -> Iterator[Refinement]:
    """Search and refine in turn, until all ranges can stay or so many refinements are spent; the last is searched.

    An optimizer whose ranges can all stay keeps its trials: the store has them.
    """
    if most < 1:
        raise UsageError(f"--rounds {most}: give a whole number of at least 1")
    _check_pool(study)
    for number in range(most + 1):
        run(study, store, executor, listener)
        comparison = Comparison(study, store)
        if number == most:
            yield Refinement(comparison, comparison.boundaries(), study)
            return
        found = refine(comparison)
        yield found
        if found.study is study:
            return
        study = found.study
