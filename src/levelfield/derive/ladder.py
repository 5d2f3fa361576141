"""Tuning protocols derived from a full study: first only the learning rate, then more and more hyperparameters.

On each rung, every optimizer of the study tunes the hyperparameters of that rung and keeps the others at their usual
values. The paper's Figures 3 and 4 are such ladders: the ranking depends on the rung.
"""

from __future__ import annotations

from typing import Any

from levelfield.errors import SpaceError, StudyError, UsageError
from levelfield.hyperparameters import GROUPS, Hyperparameter
from levelfield.rules import STEP_SIZE
from levelfield.space import Axis
from levelfield.study import Study
from levelfield.study_optimizer import Optimizer, optimizer_table

RUNGS = ("learning rate", "+ schedule", "+ momentum", "+ epsilon", "everything")  # each frees one of GROUPS


def ladder(study: Study) -> Study:
    """Return a study of all rungs, without rungs that change nothing.

    An optimizer that a rung does not change has the same trials as on the rung below; the store keeps them once.
    """
    for name in study.optimizers:
        if not study.optimizer(name).space.free:
            raise UsageError(f"{name} has no free hyperparameters; a ladder needs at least one to fix")
    tables: dict[str, Any] = {}
    previous: dict[str, Any] = {}
    for rung, label in enumerate(RUNGS):
        tuned = {name: _table(study, study.optimizer(name), rung) for name in study.optimizers}
        if tuned == previous:
            continue
        previous = tuned
        tables |= {f"{name} ({label})": table | {"protocol": label} for name, table in tuned.items()}
    try:
        return study.replace(name=f"{study.name}_ladder", optimizers=tables)
    except (StudyError, SpaceError):
        if study.search != "grid":
            raise
        raise UsageError(
            'some rungs of this grid have fewer points than the pool; use search = "quasirandom" for a ladder'
        ) from None


def _table(study: Study, optimizer: Optimizer, rung: int) -> dict[str, Any]:
    """Return an optimizer's table on a rung."""
    domains = {axis.name: study.domain(optimizer.name, axis.name) for axis in optimizer.space}
    fixed = {axis.name for axis in optimizer.space if not _is_free(axis, domains[axis.name], rung)}
    values: dict[str, Any] = {}
    for axis in optimizer.space:
        if axis.name in optimizer.scheduled:
            values |= {axis.key: axis.dimension.spec()} if rung >= 1 else {}
        elif axis.name not in fixed and axis.divisor not in fixed:
            values[axis.key] = axis.dimension.spec()
        elif axis.name not in fixed:
            # A ratio to ε says nothing once ε is small: search the rate itself.
            values[axis.name] = _usual_range(axis, domains[axis.name])
        elif (usual := _usual(axis, domains[axis.name])) is not None:
            values[axis.name] = usual
    return optimizer_table(optimizer, values, None if rung >= 1 else "constant", protocol="")


def _is_free(axis: Axis, domain: Hyperparameter, rung: int) -> bool:
    """Return whether a rung tunes an axis that the study tunes; what the study fixes stays fixed."""
    return not axis.dimension.free or GROUPS.index(domain.group) <= rung


def _usual(axis: Axis, domain: Hyperparameter) -> Any:
    """Return the value of a hyperparameter that is not tuned, or None to leave it out."""
    if domain.usual is not None:
        return domain.usual
    if not domain.required:
        return domain.default
    raise UsageError(
        f"No usual value is known for {axis.name}; set usual= in its Hyperparameter, or fix it in the study"
    )


def _usual_range(axis: Axis, domain: Hyperparameter) -> dict[str, list[float]]:
    """Return the range to search if the study's own is a ratio to something that is now fixed."""
    usual = domain.usual_range or (STEP_SIZE.usual_range if axis.name == "learning_rate" else None)
    if usual is None or usual[0] <= 0:
        raise UsageError(
            f"No usual range above 0 is known for {axis.name}; set usual_range= in its Hyperparameter, or search it "
            f"directly"
        )
    return {"log": list(usual)}
