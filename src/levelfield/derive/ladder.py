"""Tuning protocols derived from a full study: the learning rate alone, then more and more hyperparameters.

Each rung holds every optimizer of the study with the hyperparameters of that rung free and the others at their usual
values. The paper's Figures 3 and 4 are such ladders: the ranking depends on the rung.
"""

from __future__ import annotations

from typing import Any

from levelfield.errors import SpaceError, StudyError, UsageError
from levelfield.rules import Hyperparameter
from levelfield.space import Axis
from levelfield.study import SCHEDULES, Optimizer, Study, optimizer_table

_MOMENTUM_LIKE = ("momentum", "beta1", "rho", "beta2", "b1", "b2", "decay")
_EPSILON_LIKE = ("epsilon", "eps", "eps_root")
_STEPS = (1e-5, 1e-1)  # learning rates of an adaptive rule: with a small ε, that is how far a step goes
RUNGS = ("learning rate", "+ schedule", "+ momentum", "+ epsilon", "everything")


def ladder(study: Study) -> Study:
    """Return one study of all rungs; a rung that gives no optimizer anything new is left out.

    An optimizer that a rung gives nothing new has the same trials as on the rung below, which the store shares.
    """
    for name in study.optimizers:
        if not study.optimizer(name).space.free:
            raise UsageError(f"{name} has no free hyperparameters; a ladder needs some to fix")
    tables: dict[str, Any] = {}
    last: dict[str, Any] = {}
    for rung, label in enumerate(RUNGS):
        tuned = {name: _table(study, study.optimizer(name), rung) for name in study.optimizers}
        if tuned == last:
            continue
        last = tuned
        tables |= {f"{name} ({label})": table | {"protocol": label} for name, table in tuned.items()}
    try:
        return study.replace(name=f"{study.name}_ladder", optimizers=tables)
    except (StudyError, SpaceError):
        if study.search != "grid":
            raise
        raise UsageError("a ladder needs a quasi-random search; some rungs of this grid have too few points") from None


def _table(study: Study, optimizer: Optimizer, rung: int) -> dict[str, Any]:
    """Return an optimizer's table on a rung."""
    fixed = {axis.name for axis in optimizer.space if not _is_free(axis, rung)}
    values: dict[str, Any] = {}
    for axis in optimizer.space:
        if axis.name in SCHEDULES[optimizer.schedule] or (axis.name not in fixed and axis.divisor not in fixed):
            values[axis.key] = axis.dimension.spec()
        elif axis.name not in fixed:
            # A ratio to ε says nothing once ε is small: search the rate itself.
            values[axis.name] = {"log": list(_STEPS)}
        elif (usual := _usual(axis, study.domain(optimizer.name, axis.name))) is not None:
            values[axis.name] = usual
    return optimizer_table(optimizer, values, None if rung >= 1 else "constant", protocol="")


def _is_free(axis: Axis, rung: int) -> bool:
    """Return whether a rung tunes an axis that the study tunes; what the study fixes stays fixed."""
    if not axis.dimension.free or axis.name == "learning_rate" or rung == len(RUNGS) - 1:
        return True
    return (axis.name in _MOMENTUM_LIKE and rung >= 2) or (axis.name in _EPSILON_LIKE and rung >= 3)


def _usual(axis: Axis, domain: Hyperparameter) -> Any:
    """Return the value of a hyperparameter that is not tuned, or None to leave it out."""
    if domain.usual is not None:
        return domain.usual
    if not domain.required:
        return domain.default
    raise UsageError(
        f"No usual value is known for {axis.name}; set usual= in its Hyperparameter, or fix it in the study"
    )
