"""Stored trials as Optuna studies, for Optuna's dashboard and its plots."""

from __future__ import annotations

import math
import warnings
from typing import Any

from levelfield.errors import UsageError
from levelfield.space import Axis, Choice, Integer, Log, Uniform
from levelfield.store import Store
from levelfield.study import Study, workload_of
from levelfield.trial import Trial


def write_optuna(study: Study, store: Store, url: str) -> int:
    """Write all stored trials into an Optuna storage, one Optuna study for each optimizer; return their number.

    Parameters are the free axes of the search space, as it is searched. The selection metric is the objective, its
    curve the intermediate values; all else is in user attributes. Infeasible trials are marked as failed.
    """
    try:
        import optuna
    except ImportError:
        raise UsageError("Optuna is not installed; install it with: pip install 'levelfield[optuna]'") from None
    stored = {name: store.trials(study.identity(name)) for name in study.optimizers}
    if not any(stored.values()):
        raise UsageError(f"{study.name}: the store has no trials of this study with these settings; run it first")
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = optuna.storages.get_storage(url)
        taken = {each.study_name for each in optuna.get_all_study_summaries(storage, include_best_trial=False)}
        for name in stored:
            if f"{study.name}/{name}" in taken:
                raise UsageError(f"{url}: the storage has a study {study.name}/{name}; choose another storage")
        direction = optuna.study.StudyDirection[workload_of(study).metrics[study.select].name]
        for name, trials in stored.items():
            new = optuna.create_study(storage=storage, study_name=f"{study.name}/{name}", direction=direction)
            with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
                new.set_metric_names([study.select])
            new.add_trials(_frozen(study, name, trial) for trial in trials)
    except (ImportError, OSError, ValueError, optuna.exceptions.OptunaError) as error:
        raise UsageError(f"{url}: cannot write to this Optuna storage ({error})") from None
    except Exception as error:  # SQLAlchemy's own, which Optuna lets through
        if type(error).__module__.partition(".")[0] != "sqlalchemy":
            raise
        raise UsageError(f"{url}: cannot write to this Optuna storage ({str(error).splitlines()[0]})") from None
    finally:
        optuna.logging.set_verbosity(verbosity)
    return sum(map(len, stored.values()))


def _frozen(study: Study, optimizer: str, trial: Trial) -> Any:
    """Return a trial as Optuna has it."""
    import optuna

    axes = study.optimizer(optimizer).space.free
    final = trial.curve.final(study.select)
    finished = trial.feasible and math.isfinite(final)
    values = trial.curve.values[study.select]
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.COMPLETE if finished else optuna.trial.TrialState.FAIL,
        value=final if finished else None,
        params={axis.key: _coordinate(axis, trial) for axis in axes},
        distributions={axis.key: _distribution(axis) for axis in axes},
        intermediate_values={
            int(step): float(value)
            for step, value in zip(trial.curve.steps, values, strict=True)
            if math.isfinite(value)
        },
        user_attrs={
            "optimizer": optimizer,
            "rule": study.optimizer(optimizer).rule.name,
            "index": trial.point.index,
            "seed": trial.point.seed,
            "status": trial.status.value,
            **{f"hp_{name}": value for name, value in trial.point.hyperparameters.items()},
            **{metric: value for metric in trial.curve.values if math.isfinite(value := trial.curve.final(metric))},
        },
    )


def _coordinate(axis: Axis, trial: Trial) -> Any:
    """Return where a trial lies on an axis; rounding errors must not leave the range."""
    value = axis.coordinate(trial.point.hyperparameters)
    if isinstance(axis.dimension, Log | Uniform):
        return min(max(float(value), axis.dimension.low), axis.dimension.high)
    return value


def _distribution(axis: Axis) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    dimension = axis.dimension
    if isinstance(dimension, Log | Uniform):
        return FloatDistribution(dimension.low, dimension.high, log=isinstance(dimension, Log))
    if isinstance(dimension, Integer):
        return IntDistribution(dimension.low, dimension.high)
    assert isinstance(dimension, Choice)  # nothing else is free
    return CategoricalDistribution(dimension.values)
