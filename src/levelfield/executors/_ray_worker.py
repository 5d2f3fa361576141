"""The workers of the Ray executor: actors that run the local executor. JAX is imported here, never in the driver."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from levelfield.errors import LevelfieldError, UnknownName, UsageError
from levelfield.executors.local import LocalExecutor
from levelfield.study import Study, workload_of
from levelfield.training.checkpoints import CheckpointFolder
from levelfield.trial import Batch, Progress
from levelfield.user_code import failure_line, place_code
from levelfield.workload import Workload

REPORT = 1.0  # seconds after which a worker reports, even if no trial has ended


class Worker:
    """An actor that runs the local executor on the points that it is sent."""

    def __init__(self, slots: int | None, checkpoints: CheckpointFolder | None, cpus: int | None) -> None:
        """``cpus``: how many to use, or None if it has a GPU."""
        self._slots, self._checkpoints, self._cpus = slots, checkpoints, cpus
        self._executor: Any = None
        self._code = ""  # where the study's code lies here
        self._sent = Batch("", [])  # what the executor has not taken yet
        self._held: set[int] = set()
        self._room = 0  # slots, known once the executor asks for points

    def open(self, content: dict[str, Any], code: dict[str, bytes]) -> int:
        """Load and check a study; return how many slots it trains with."""
        with _plain_errors():
            if code:
                self._code = self._code or place_code(content["code"], code)
                content = content | {"code": self._code}
            try:
                study = Study(**content)
            except UnknownName as error:
                raise UsageError(f"{error}; workers know what the study's code file registers: code = …") from None
            if self._executor is None:
                self._executor = self._start(study)
            self._executor.check(study)
            for _ in self._executor.train(study, self._take):  # asks for points, gets none, and ends
                pass
            self._study, self._stretches = study, self._executor.train(study, self._take)
        return self._room

    def _start(self, study: Study) -> Any:
        """Return the local executor, with JAX, if the study needs it, on what Ray has assigned to this worker."""
        if not isinstance(workload_of(study), Workload):
            return LocalExecutor(self._slots)
        if self._cpus:
            os.environ["JAX_PLATFORMS"] = "cpu"
            os.environ["NPROC"] = str(self._cpus)  # XLA's number of threads
            flags = os.environ.get("XLA_FLAGS", "")
            os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={self._cpus}"
        from levelfield.training.devices import check_accelerator

        executor = LocalExecutor(self._slots, self._checkpoints)
        if not self._cpus:
            check_accelerator()
        return executor

    def advance(self, batch: Batch | None) -> tuple[Progress, int]:
        """Train until trials end or it is time to report; return the report and the number of slots."""
        if batch:
            self._sent = Batch(batch.optimizer, self._sent.points + batch.points)
        with _plain_errors():
            begun, steps, seconds = time.monotonic(), 0, 0.0
            while True:
                progress = next(self._stretches)
                steps, seconds = steps + progress.trial_steps, seconds + progress.seconds
                self._held.difference_update(progress.ended)
                if progress.ended or progress.note or time.monotonic() - begun > REPORT:
                    # Other workers may train at the same time, so steps are not timed here.
                    quiet = replace(progress, trial_steps=steps, seconds=seconds, error=None, step_time=None)
                    return quiet, self._room

    def _take(self, count: int, optimizer: str | None = None) -> Batch | None:
        self._room = count + len(self._held)
        name, waiting = self._sent
        if not waiting or optimizer not in (None, name):
            return None
        points, self._sent = waiting[:count], Batch(name, waiting[count:])
        self._held |= {point.index for point in points}
        return Batch(name, points)

    def gradient_scale(self) -> float | None:
        with _plain_errors():
            return self._executor.gradient_scale(self._study)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn errors into levelfield's own: those of custom code may not be known to the driver."""
    try:
        yield
    except LevelfieldError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(failure_line(error)) from None
