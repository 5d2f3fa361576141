"""The best trials again with fresh seeds, as Wilson et al. 2017 report theirs: how much of a result is luck.

A rerun is a study in which nothing is free: each point of its pool is another seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from levelfield.analysis.results import Results
from levelfield.errors import UsageError
from levelfield.search import trial_seed
from levelfield.study import Study, optimizer_table
from levelfield.trial import Trial


def rerun_study(
    results: Results, optimizers: Sequence[str] | None = None, seeds: int = 1, index: int | None = None
) -> Study:
    """Return the study that trains each optimizer's best trial, or the one at an index, with fresh seeds.

    The best trial is that of these results: ``results.at(select="test_error")`` chooses by another metric.
    """
    if seeds < 1:
        raise UsageError(f"seeds = {seeds}: expected an integer of at least 1")
    study = results.study
    tables = {
        name: optimizer_table(study.optimizer(name), _chosen(results, name, index).point.hyperparameters)
        for name in optimizers or study.optimizers
    }
    seed = trial_seed(study.seed, -1)  # no trial of the study has a seed derived from this one
    changes = {"search": "quasirandom", "seed": seed, "trials": 1, "pool": seeds, "optimizers": tables}
    return study.replace(name=f"{study.name}_rerun", **changes)


def _chosen(results: Results, name: str, index: int | None) -> Trial:
    if index is None:
        outcome = results.outcome(name)
        if not outcome.tried:
            raise UsageError(f"{name} has no trial to rerun yet; run it first, or leave it out")
        if outcome.best_trial is None:
            raise UsageError(f"{name} has no feasible trial to rerun; lower its learning rate and run it again")
        return outcome.best_trial
    trial = next((trial for trial in results.trials[name] if trial.point.index == index), None)
    if trial is None:
        raise UsageError(f"{name} has no trial {index}; its pool holds {len(results.trials[name])} trials, from 0 on")
    if not trial.feasible:
        raise UsageError(f"{name}'s trial {index} is infeasible: its training loss did not stay finite; choose another")
    return trial
