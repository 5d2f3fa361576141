"""Trains many small studies at once: what they need at the same time is trained side by side, in one program."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, TypeVar

import jax

from levelfield.errors import TrialFailed
from levelfield.executors._jax import JaxExecutor, job
from levelfield.executors.base import Take, hand_out
from levelfield.study import Study
from levelfield.trial import Point, Progress, Trial

T = TypeVar("T")
ON_CPU, ON_GPU = 16, 256  # slots
PART = 8  # a small batch has at most this part of the slots, or as many points as a CPU has slots


@dataclass(frozen=True, eq=False)
class Request:
    """Points that a task waits for."""

    study: Study
    optimizer: str
    points: Sequence[Point]
    trials: Future[list[Trial]] = field(default_factory=Future)


class CombiningExecutor:
    """An executor for one of several tasks (see ``Dispatcher``). It remembers what it has trained."""

    def __init__(self, local: JaxExecutor, requests: SimpleQueue[Request | None]) -> None:
        self.trained: list[Trial] = []
        self.check, self.gradient_scale = local.check, local.gradient_scale
        self._requests = requests

    def train(self, study: Study, take: Take) -> Generator[Progress]:
        while batch := take(study.pool):
            trials = self.train_points(study, batch.optimizer, batch.points)
            yield Progress(batch.optimizer, trials, trial_steps=sum(int(trial.curve.steps[-1]) for trial in trials))

    def train_points(self, study: Study, optimizer: str, points: Sequence[Point]) -> list[Trial]:
        """Return the trials of these points, in this order."""
        request = Request(study, optimizer, points)
        self._requests.put(request)
        trials = request.trials.result()
        self.trained += trials
        return trials


class Dispatcher:
    """Runs tasks in threads, and trains their points when all remaining tasks are waiting for some.

    Each job is compiled for a fixed number of slots, and once more for small batches.
    """

    def __init__(self, slots: int | None = None) -> None:
        self._local = JaxExecutor()  # comes first, because it gives JAX all cores
        slots = slots or (ON_CPU if jax.default_backend() == "cpu" else ON_GPU)
        small = min(slots, max(ON_CPU, slots // PART))
        self._executors = {count: JaxExecutor(count) for count in (small, slots)}
        self._stretches = 0

    def run(self, tasks: Mapping[str, Callable[[CombiningExecutor], T]]) -> dict[str, T]:
        """Return what each task returns; raise the error of one that fails."""
        requests: SimpleQueue[Request | None] = SimpleQueue()
        results: dict[str, Future[T]] = {name: Future() for name in tasks}

        def body(name: str) -> None:
            try:
                results[name].set_result(tasks[name](CombiningExecutor(self._local, requests)))
            except BaseException as error:
                results[name].set_exception(error)
            finally:
                requests.put(None)

        for name in tasks:
            threading.Thread(target=body, args=[name], daemon=True).start()
        live, waiting = len(tasks), list[Request]()
        while live:
            request = requests.get()
            if request:
                waiting.append(request)
            else:
                live -= 1
            if waiting and len(waiting) == live:
                self._train(waiting)
                waiting = []
        return {name: result.result() for name, result in results.items()}

    def _train(self, requests: Sequence[Request]) -> None:
        start, points = time.perf_counter(), sum(len(request.points) for request in requests)
        groups: defaultdict[Any, list[Request]] = defaultdict(list)
        for request in requests:
            groups[job(request.study, request.optimizer)].append(request)
        for group in groups.values():
            try:
                trials = self._train_together(group)
            except Exception as error:
                for request in group:
                    request.trials.set_exception(error)
            else:
                for request in group:
                    request.trials.set_result([next(trials) for _ in request.points])
        self._stretches += 1
        seconds = time.perf_counter() - start
        print(
            f"{self._stretches}: {points} trials for {len(requests)} tasks, {len(groups)} jobs, {seconds:.1f} s",
            file=sys.stderr,
        )

    def _train_together(self, requests: Sequence[Request]) -> Iterator[Trial]:
        """Return the trials of requests with equal jobs, one request after the other."""
        points = [point for request in requests for point in request.points]
        slots = next((count for count in self._executors if len(points) <= count), max(self._executors))
        first = requests[0]
        study = first.study.replace(pool=max(slots, first.study.trials))  # an executor uses no more slots than that
        numbered = (replace(point, index=index) for index, point in enumerate(points))
        trials: dict[int, Trial] = {}
        for progress in self._executors[slots].train(study, hand_out(first.optimizer, numbered)):
            if progress.failed:
                raise progress.error or TrialFailed(progress.failed[0].reason)
            trials |= {trial.point.index: trial for trial in progress.finished}
        return iter([replace(trials[index], point=point) for index, point in enumerate(points)])
