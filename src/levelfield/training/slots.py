"""The loop on the host: fill slots, train them to their next evaluation, empty and refill them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from levelfield.training.program import Program, Slot
from levelfield.trial import Curve, Failure, Point, Progress, Status, Trial


@dataclass
class _InFlight:
    point: Point
    started: float
    seconds: float = 0.0
    steps: list[int] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)

    def trial(self, metrics: tuple[str, ...], status: Status) -> Trial:
        values = np.array(self.rows, np.float32).T
        curve = Curve(np.array(self.steps), dict(zip(metrics, values, strict=True)))
        return Trial(self.point, status, curve, self.started, self.seconds)


def train(program: Program, optimizer: str, take: Callable[[int], list[Point]]) -> Iterator[Progress]:
    """Train the points that ``take`` hands out, until it hands out none and no trial is in flight.

    ``take`` is called with the number of free slots, after the caller has seen all finished trials.
    """
    job, metrics = program.job, program.metrics
    loss = metrics.index("train_loss")
    slots = program.empty()
    held: list[_InFlight | None] = [None] * program.slots
    while True:
        clock = time.perf_counter()
        slots = _refill(program, slots, held, take)
        active = [flight for flight in held if flight]
        if not active:
            return
        slots, rows = program.advance(slots)
        elapsed = time.perf_counter() - clock
        finished, failed, trained = [], [], 0
        for position, flight in enumerate(held):
            if flight is None:
                continue
            before = flight.steps[-1] if flight.steps else 0
            flight.steps.append(min(before + job.eval_interval, job.steps))
            flight.rows.append(rows[position])
            flight.seconds += elapsed / len(active)
            trained += flight.steps[-1] - before
            if reason := program.failures.get(position):
                failed.append(Failure(flight.point, reason))
            elif not np.isfinite(rows[position][loss]):
                finished.append(flight.trial(metrics, Status.INFEASIBLE))
            elif flight.steps[-1] == job.steps:
                finished.append(flight.trial(metrics, Status.FEASIBLE))
            else:
                continue
            held[position] = None
            program.leave(position)
        yield Progress(optimizer, finished, failed, sum(flight is not None for flight in held), trained, elapsed)


def _refill(program: Program, slots: Slot, held: list[_InFlight | None], take: Callable[[int], list[Point]]) -> Slot:
    """Put the next points into the free slots."""
    free = [position for position, flight in enumerate(held) if flight is None]
    started = take(len(free)) if free else []
    if not started:
        return slots
    fresh = np.zeros(program.slots, bool)
    for position, point in zip(free, started, strict=False):
        held[position] = _InFlight(point, time.time())
        fresh[position] = True
    # The other slots keep what they hold, so any point serves as their argument.
    points = [flight.point if flight and is_fresh else started[0] for flight, is_fresh in zip(held, fresh, strict=True)]
    seeds = np.array([point.seed for point in points], np.uint32)
    numbers = {name: np.array([float(point.hyperparameters[name]) for point in points]) for name in program.job.traced}
    return program.fill(slots, fresh, seeds, numbers)
