"""An executor that computes trials from a formula instead of training them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Generator, Mapping, Sequence

import numpy as np

import levelfield as lf
from levelfield.executors.base import Take
from levelfield.trial import Curve, Point, Progress, Status, StepTime, Trial

NOWHERE = {"devices": 1, "device": "none", "backend": "none", "precision": "none", "versions": {"levelfield": "0"}}

Loss = Callable[[str, Point], float]  # optimizer and point → final loss; infinity makes the trial infeasible


class Interrupted(BaseException):
    """Ctrl-C, a crash or a power cut."""


class FormulaExecutor:
    """Trials whose final training loss is a formula and is 9 before; they finish in random order.

    ``stretches``: how many stretches of training to yield before raising Interrupted. ``step_seconds``: optimizer →
    what its steps seem to take in each stretch, over and over.
    """

    def __init__(
        self,
        loss: Loss,
        *,
        slots: int = 1,
        seed: int = 0,
        stretches: int | None = None,
        step_seconds: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.clocks = {name: itertools.cycle(seconds) for name, seconds in (step_seconds or {}).items()}
        self.loss, self.slots, self.stretches = loss, slots, stretches
        self.random = random.Random(seed)
        self.asked: list[str] = []  # optimizers that it was asked to train
        self.started: list[tuple[str, Point]] = []
        self.finished: list[tuple[str, int]] = []
        self.trained: list[tuple[str, str, int]] = []  # study, optimizer and index of each finished trial

    def check(self, study: lf.Study) -> None: ...

    def train(self, study: lf.Study, take: Take) -> Generator[Progress]:
        while batch := take(self.slots):
            yield from self._train(study, batch.optimizer, batch.points, take)

    def _train(self, study: lf.Study, optimizer: str, held: list[Point], take: Take) -> Generator[Progress]:
        self.asked.append(optimizer)
        self.started += [(optimizer, point) for point in held]
        while held:
            if self.stretches is not None:
                self.stretches -= 1
                if self.stretches < 0:
                    raise Interrupted
            done = self.random.sample(held, self.random.randint(self.slots == 1, len(held)))
            held = [point for point in held if point not in done]
            self.finished += [(optimizer, point.index) for point in done]
            self.trained += [(study.name, optimizer, point.index) for point in done]
            trials = [self._trial(study, optimizer, point) for point in done]
            steps = study.steps * len(done)
            clock = self.clocks.get(optimizer)
            timed = StepTime(next(clock), self.slots, "1 × none") if clock else None
            yield Progress(optimizer, trials, [], len(held), steps, seconds=0.1, provenance=NOWHERE, step_time=timed)
            if free := self.slots - len(held):
                batch = take(free, optimizer)
                held += batch.points if batch else []
                self.started += [(optimizer, point) for point in batch.points] if batch else []

    def _trial(self, study: lf.Study, optimizer: str, point: Point) -> Trial:
        loss = self.loss(optimizer, point)
        steps = np.unique([*range(study.eval_interval, study.steps + 1, study.eval_interval), study.steps])
        losses = np.full(len(steps), 9.0, np.float32)
        losses[-1] = loss
        status = Status.FEASIBLE if math.isfinite(loss) else Status.INFEASIBLE
        return Trial(point, status, Curve(steps, {"train_loss": losses}))

    def gradient_scale(self, study: lf.Study) -> float:
        return 1.0
