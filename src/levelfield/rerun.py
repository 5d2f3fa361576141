"""The best trials again with fresh seeds, as Wilson et al. 2017 report theirs: how much of a result is luck.

A rerun is a study of its own in which nothing is free: each point of its pool is another seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from levelfield.errors import UsageError
from levelfield.schedules import SCHEDULES
from levelfield.search import trial_seed
from levelfield.study import Study
from levelfield.trial import Trial

if TYPE_CHECKING:
    from levelfield.comparison import Comparison


def rerun_study(
    comparison: Comparison, optimizers: Sequence[str] | None = None, seeds: int = 1, index: int | None = None
) -> Study:
    """The study that trains each optimizer's best trial anew, or the one at an index, with so many seeds.

    The best is that of the comparison: ``comparison.at(select="test_error")`` chooses by another metric.
    """
    study = comparison.study
    tables: dict[str, Any] = {}
    for name in optimizers or study.optimizers:
        optimizer = study.optimizer(name)
        values = dict(_chosen(comparison, name, index).point.hyperparameters)
        schedule = {key: values.pop(key) for key in SCHEDULES[optimizer.schedule]}
        about = {"rule": optimizer.rule.name} | ({"protocol": optimizer.protocol} if optimizer.protocol else {})
        tables[name] = about | values | {"schedule": {"kind": optimizer.schedule} | schedule}
    seed = trial_seed(study.seed, -1)  # so that no seed is one that a trial of the study has had
    changes = {"search": "quasirandom", "seed": seed, "trials": 1, "pool": seeds, "optimizers": tables}
    return study.replace(name=f"{study.name}_rerun", **changes)


def _chosen(comparison: Comparison, name: str, index: int | None) -> Trial:
    if index is None:
        outcome = comparison.outcome(name)
        if not outcome.tried:
            raise UsageError(f"{name} has no trial to rerun yet: run it first, or leave it out with --optimizers")
        if outcome.best_trial is None:
            raise UsageError(f"{name} has no feasible trial to rerun: lower its learning rate and run it again")
        return outcome.best_trial
    found = next((trial for trial in comparison.trials[name] if trial.point.index == index), None)
    if found is None:
        raise UsageError(f"{name} has no trial {index}: its pool holds {len(comparison.trials[name])}")
    if not found.feasible:
        raise UsageError(f"{name}'s trial {index} is infeasible: its training loss did not stay finite; choose another")
    return found
