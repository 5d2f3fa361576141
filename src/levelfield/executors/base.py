"""The contract of executors: where and how trials are trained. ``levelfield.run`` asks nothing else of them."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Protocol

from levelfield.errors import UsageError
from levelfield.study import Study
from levelfield.trial import Batch, Point, Progress


class Take(Protocol):
    """Hands out points to train."""

    def __call__(self, count: int, optimizer: str | None = None) -> Batch | None:
        """Return up to ``count`` points of an optimizer, or None if there is nothing to train now.

        A worker that holds trials of an optimizer, or has compiled it, names it; one that is free names none and is
        told which optimizer needs it most.
        """


class Executor(Protocol):
    """Trains the points that it is given.

    What every executor must do (``tests/test_executor_contract.py`` holds each to it):

    - ``train`` calls ``take`` whenever it has room for more trials, and trains every point that it was given, until
      nothing is in flight and ``take`` returns None without being asked for a certain optimizer. ``take`` may return
      points again after it has returned None: when a trial ends infeasible, the pool needs one more.
    - Each point is reported exactly once. ``Progress.finished`` has it as a Trial with the same point, whose curve has
      every metric of the workload at each evaluation, up to the study's steps; an infeasible trial's curve ends at the
      evaluation where its training loss was no longer finite. ``Progress.failed`` has it if something else than the
      training ended it, such as an exception in custom code; the other trials go on.
    - A trial depends only on its point, the study and the optimizer: not on its neighbors, the order of points, or how
      many trials train side by side.
    - ``Progress.provenance`` has the versions, device and precision to store with the finished trials.
    - ``train`` is a generator. The caller stores the finished trials of one Progress before it asks for the next, and
      may close the generator at any time; no trial is reported before it has finished.
    - The store is the caller's. An executor writes nothing but checkpoints of trials in flight.
    """

    def check(self, study: Study) -> None:
        """Raise a UsageError if the study cannot be trained here, before anything is written."""

    def train(self, study: Study, take: Take) -> Generator[Progress]:
        """Train the points that ``take`` hands out, and report as they advance."""

    def gradient_scale(self, study: Study) -> float | None:
        """Measure the size of the study's gradients where training starts; None if that is impossible here.

        It is stored with the trials: the audit judges limits by it, and reading results must not train anything.
        """


@dataclass(frozen=True)
class Speed:
    """How fast a study trains here."""

    trial_steps_per_second: float  # evaluation included
    compilation: float = 0.0  # seconds for each optimizer

    def seconds(self, study: Study) -> float:
        """Estimate the time for the whole study, if every trial is feasible."""
        return study.cost()["trial_steps"] / self.trial_steps_per_second + self.compilation * len(study.optimizers)


def check_slots(slots: object) -> None:
    """Raise unless this is a number of slots, or None for the fastest one."""
    if slots is not None and (not isinstance(slots, Integral) or isinstance(slots, bool) or slots < 1):
        raise UsageError(f"slots = {slots!r}: expected an integer of at least 1, or None for the fastest number")


def hand_out(name: str, points: Iterable[Point]) -> Take:
    """Return a Take that hands out these points of one optimizer."""
    waiting = iter(points)

    def take(count: int, optimizer: str | None = None) -> Batch | None:
        chosen = list(islice(waiting, count)) if optimizer in (None, name) else []
        return Batch(name, chosen) if chosen else None

    return take
