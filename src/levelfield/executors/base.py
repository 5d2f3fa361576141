"""The contract of executors: where and how trials are trained. ``levelfield.run`` asks nothing else of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from levelfield.study import Study
from levelfield.trial import Point, Progress


class Executor(Protocol):
    """Trains the points that it is handed.

    What every executor must do (``tests/test_executor_contract.py`` holds each to it):

    - ``train`` calls ``take`` whenever it has room for another trial, and trains every point that it was handed, until
      ``take`` returns None and nothing is in flight. ``take`` may return a point again after it has returned None:
      when a trial ends infeasible, the pool needs one more.
    - Each point is reported exactly once, in ``Progress.finished``, as a Trial with the same point. The trial's curve
      has every metric of the workload at each evaluation, up to the study's steps; an infeasible trial's curve ends at
      the evaluation where its training loss was no longer finite.
    - A trial depends only on its point, the study and the optimizer: not on its neighbors, the order of points, or how
      many trials train side by side.
    - ``train`` is a generator. The caller stores the finished trials of one Progress before it asks for the next, and
      may close the generator at any time; no trial is reported before it has finished.
    - Nothing is written by an executor; the store is the caller's.
    """

    def check(self, study: Study) -> None:
        """Raise a UsageError if the study cannot be trained here, before anything is written."""

    def train(self, study: Study, optimizer: str, take: Callable[[], Point | None]) -> Iterator[Progress]:
        """Train the points that ``take`` hands out, and report as they advance."""

    def provenance(self) -> Mapping[str, Any]:
        """Return the versions, device and precision to store with every trial."""

    def gradient_scale(self, study: Study) -> float | None:
        """Measure the size of the study's gradients where training starts; None if that is impossible here.

        It is stored with the trials: the audit judges limits by it, and reading results must not train anything.
        """
