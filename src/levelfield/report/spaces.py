"""Search spaces as text."""

from __future__ import annotations

from dataclasses import dataclass

from levelfield.formatting import format_range
from levelfield.space import dimension
from levelfield.study import Study, built_in_studies, load_study

_INITIAL = "_initial"


@dataclass(frozen=True)
class SpaceRow:
    """One axis of an optimizer's search space."""

    hyperparameter: str
    range: str
    initial: str  # before the study was refined, if that is known
    corrected: str  # what the paper printed instead, if that was an error


@dataclass(frozen=True)
class SpaceTable:
    optimizer: str
    rule: str
    rows: tuple[SpaceRow, ...]


def space_tables(study: Study) -> list[SpaceTable]:
    """Return the search space of each optimizer."""
    tables = []
    for name, optimizer in study.optimizers.items():
        initial = _initial_ranges(study, name)
        rows = [
            SpaceRow(
                axis.key,
                format_range(axis.dimension),
                initial.get(axis.name, ""),
                optimizer.corrected.get(axis.key, ""),
            )
            for axis in optimizer.space
        ]
        tables.append(SpaceTable(name, optimizer.rule.name, tuple(rows)))
    return tables


def is_refined(tables: list[SpaceTable]) -> bool:
    """Return whether the initial range of any axis is known."""
    return any(row.initial for table in tables for row in table.rows)


def _initial_ranges(study: Study, name: str) -> dict[str, str]:
    """Return each hyperparameter's range before the study was refined, from its log or the built-in initial study."""
    space = study.optimizer(name).space
    if study.refined:
        first = {step.axis: step.before for step in reversed(study.refined) if step.optimizer == name}
        return {axis.name: format_range(dimension(first.get(axis.key, axis.dimension.spec()))) for axis in space}
    built_in = built_in_studies()
    if study.name not in built_in or f"{study.name}{_INITIAL}" not in built_in:
        return {}
    original = load_study(study.name).optimizers.get(name)  # a user's study may have the same name
    if not original or original.space != space:
        return {}
    before = load_study(f"{study.name}{_INITIAL}").optimizers.get(name)
    keys = {axis.key for axis in space}
    return {
        axis.name: ("" if axis.key in keys else f"{axis.key} ") + format_range(axis.dimension)
        for axis in (before.space if before else ())
    }
