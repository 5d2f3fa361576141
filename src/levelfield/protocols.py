"""Tuning protocols derived from a full study: the learning rate alone, then more and more of the rest.

Each rung holds every rule of the study with the hyperparameters of that rung free and the others at what those use
who do not tune them. The paper's Figures 3 and 4 are such ladders: the ranking depends on the rung.
"""

from __future__ import annotations

from typing import Any

from levelfield.errors import SpaceError, StudyError, UsageError
from levelfield.rules import Hyperparameter
from levelfield.space import Axis
from levelfield.study import SCHEDULES, Optimizer, Study

_MOMENTUM_LIKE = ("momentum", "beta1", "rho", "beta2", "b1", "b2", "decay")
_EPSILON_LIKE = ("epsilon", "eps", "eps_root")
_STEPS = (1e-5, 1e-1)  # learning rates of an adaptive rule: with a small ε, that is how far a step goes
RUNGS = ("learning rate", "+ schedule", "+ momentum", "+ epsilon", "everything")


def ladder(study: Study) -> Study:
    """One study of all rungs; rungs that give no rule anything new are left out.

    An optimizer that a rung gives nothing new has the trials of the rung below, which the store shares.
    """
    for name in study.optimizers:
        if not study.optimizer(name).space.free:
            raise UsageError(f"{name} has nothing free: a ladder takes away what a study tunes")
    tables: dict[str, Any] = {}
    last: dict[str, Any] = {}
    for rung in range(len(RUNGS)):
        tuned = {name: _at(study, study.optimizer(name), rung) for name in study.optimizers}
        if tuned == last:
            continue
        last = tuned
        for name, table in tuned.items():
            tables[f"{name} ({RUNGS[rung]})"] = table | {"protocol": RUNGS[rung]}
    try:
        return study.replace(name=f"{study.name}_ladder", optimizers=tables)
    except (StudyError, SpaceError):
        if study.search != "grid":
            raise
        raise UsageError("a ladder takes a quasi-random search: the rungs of this grid have too few points") from None


def _at(study: Study, optimizer: Optimizer, rung: int) -> dict[str, Any]:
    """An optimizer's table at a rung."""
    scheduled = rung >= 1
    table: dict[str, Any] = {"rule": optimizer.rule.name}
    schedule: dict[str, Any] = {"kind": optimizer.schedule if scheduled else "constant"}
    fixed = {one.name for one in optimizer.space if not _free(one, rung)}
    for one in optimizer.space:
        if one.name in SCHEDULES[optimizer.schedule]:
            if scheduled:
                schedule[one.key] = one.dimension.spec()
        elif one.name not in fixed:
            # A ratio to ε says nothing once ε is small: the rate itself takes its place.
            whole = one.divisor in fixed
            table[one.name if whole else one.key] = {"log": list(_STEPS)} if whole else one.dimension.spec()
        else:
            value = _usual(one, study.domain(optimizer.name, one.name))
            if value is not None:
                table[one.name] = value
    return table | {"schedule": schedule}


def _free(one: Axis, rung: int) -> bool:
    """Whether a rung tunes an axis that the study does; what the study has fixed stays as it is."""
    if not one.dimension.free or one.name == "learning_rate" or rung == len(RUNGS) - 1:
        return True
    return (one.name in _MOMENTUM_LIKE and rung >= 2) or (one.name in _EPSILON_LIKE and rung >= 3)


def _usual(one: Axis, about: Hyperparameter) -> Any:
    """A hyperparameter that is not tuned: its usual value, or None to leave it off."""
    if about.usual is not None:
        return about.usual
    if not about.required:
        return about.default
    raise UsageError(f"nobody has said what {one.name} usually is: fix it in the study, or give the rule a usual value")
