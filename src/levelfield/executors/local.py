"""Trains on this machine: JAX workloads in this process, other training code in worker processes."""

from __future__ import annotations

import functools
from collections.abc import Generator
from dataclasses import dataclass

from levelfield.errors import UsageError
from levelfield.executors.base import Executor, Speed, Take, check_slots
from levelfield.study import Study, workload_of
from levelfield.training.checkpoints import CheckpointFolder
from levelfield.training_code import Trainable
from levelfield.trial import Progress
from levelfield.workload import Workload


@dataclass(eq=False)
class LocalExecutor:
    """Trains trials side by side on this machine, in the way that the study's workload needs."""

    slots: int | None = None
    checkpoints: CheckpointFolder | None = None

    def __post_init__(self) -> None:
        check_slots(self.slots)

    def check(self, study: Study) -> None:
        self._executor(study).check(study)

    def train(self, study: Study, take: Take) -> Generator[Progress]:
        return self._executor(study).train(study, take)

    def gradient_scale(self, study: Study) -> float | None:
        return self._executor(study).gradient_scale(study)

    def _executor(self, study: Study) -> Executor:
        workload = workload_of(study)
        if isinstance(workload, Workload):
            return self._jax
        if isinstance(workload, Trainable):
            return self._workers
        raise UsageError(
            f"{study.name}: the study declares its metrics and no command, as for trials that were imported, so "
            f"levelfield cannot train more of them; give it command = …, or code = … without metrics"
        )

    @functools.cached_property
    def _jax(self) -> Executor:
        from levelfield.executors._jax import JaxExecutor

        return JaxExecutor(self.slots, self.checkpoints)

    @functools.cached_property
    def _workers(self) -> Executor:
        from levelfield.executors._workers import WorkerExecutor

        return WorkerExecutor(self.slots)


def measure_speed(study: Study, optimizer: str, slots: int | None = None) -> Speed:
    """Measure how fast an optimizer trains here, by training some of its trials for a moment."""
    if isinstance(workload_of(study), Workload):
        from levelfield.executors._jax import measure_speed as measure
    else:
        from levelfield.executors._workers import measure_speed as measure
    return measure(study, optimizer, slots)


def parts_of(study: Study, optimizer: str) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return which parameters, with their shapes, each part of an optimizer's rule updates.

    Nothing is returned for a rule that treats all parameters alike, or that JAX does not train.
    """
    if not isinstance(workload_of(study), Workload):
        return {}
    from levelfield.executors._jax import parts_of as of_jax

    return of_jax(study, optimizer)


EXECUTOR = LocalExecutor
