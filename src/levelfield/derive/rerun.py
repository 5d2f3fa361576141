"""The best trials again with new seeds, as in Wilson et al. 2017: how much of a result is luck?

A rerun is a study without free hyperparameters: the points of its pool differ only by their seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levelfield.analysis.results import Results
from levelfield.errors import UsageError
from levelfield.search import trial_seed
from levelfield.space import Hyperparameters
from levelfield.study import Study
from levelfield.study_optimizer import optimizer_table
from levelfield.trial import Trial


def rerun_study(
    results: Results, optimizers: Sequence[str] | None = None, seeds: int = 1, index: int | None = None
) -> Study:
    """Return the study that trains each optimizer's best trial, or the trial at an index, with new seeds.

    To choose the best trial by another metric, pass ``results.at(select="test_error")``.
    """
    if seeds < 1:
        raise UsageError(f"seeds = {seeds}: expected an integer of at least 1")
    names = optimizers or results.study.optimizers
    points = {name: _chosen(results, name, index).point.hyperparameters for name in names}
    return reruns_of(results.study, points, seeds)


def reruns_of(study: Study, points: Mapping[str, Hyperparameters], seeds: int) -> Study:
    """Return the study that trains one point of each of some optimizers with new seeds."""
    tables = {name: optimizer_table(study.optimizer(name), point) for name, point in points.items()}
    seed = trial_seed(study.seed, -1)  # no trial of the study has a seed derived from this one
    changes: dict[str, Any] = {"seed": seed, "trials": 1, "pool": seeds, "optimizers": tables}
    changes |= {"search": "imported"} if study.sampling else {"search": "quasirandom"}
    return study.replace(name=f"{study.name}_rerun", **changes)


def _chosen(results: Results, name: str, index: int | None) -> Trial:
    if index is None:
        outcome = results.outcome(name)
        if not outcome.tried:
            raise UsageError(f"{name} has no trials to rerun yet; run it first, or leave it out")
        if outcome.best_trial is None:
            raise UsageError(f"{name} has no feasible trials to rerun; lower its learning rates and run it again")
        return outcome.best_trial
    trial = next((trial for trial in results.trials[name] if trial.point.index == index), None)
    if trial is None:
        raise UsageError(f"{name} has no trial {index}; expected an index from 0 to {len(results.trials[name]) - 1}")
    if not trial.feasible:
        raise UsageError(f"trial {index} of {name} is infeasible (its training loss is not finite); choose another")
    return trial
