"""The loop on the host: slots are filled, trained to their next evaluation, emptied and refilled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from levelfield.training.program import Program, Slot
from levelfield.trial import Curve, Point, Status, Trial


@dataclass(frozen=True)
class Segment:
    """What one stretch of training between two evaluations brought."""

    finished: list[Trial]
    running: int  # trials still in flight
    trial_steps: int  # steps trained, over all slots that held a trial
    seconds: float
    note: str = ""  # what the user should know


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


def train(program: Program, take: Callable[[], Point | None]) -> Iterator[Segment]:
    """Train what ``take`` hands out, until it hands out nothing and no trial is in flight.

    ``take`` is asked for a point whenever a slot is free, after the caller has seen all that finished.
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
        finished, trained = [], 0
        for position, flight in enumerate(held):
            if flight is None:
                continue
            before = flight.steps[-1] if flight.steps else 0
            flight.steps.append(min(before + job.eval_interval, job.steps))
            flight.rows.append(rows[position])
            flight.seconds += elapsed / len(active)
            trained += flight.steps[-1] - before
            if not np.isfinite(rows[position][loss]):
                finished.append(flight.trial(metrics, Status.INFEASIBLE))
            elif flight.steps[-1] == job.steps:
                finished.append(flight.trial(metrics, Status.FEASIBLE))
            else:
                continue
            held[position] = None
            program.leave(position)
        yield Segment(finished, sum(flight is not None for flight in held), trained, elapsed)


def _refill(program: Program, slots: Slot, held: list[_InFlight | None], take: Callable[[], Point | None]) -> Slot:
    """Put the next points into the free slots."""
    fresh = np.zeros(program.slots, bool)
    for position, flight in enumerate(held):
        if flight is None and (point := take()):
            held[position] = _InFlight(point, time.time())
            fresh[position] = True
    if not fresh.any():
        return slots
    points = [flight.point if flight and new else None for flight, new in zip(held, fresh, strict=True)]
    template = next(point for point in points if point)
    seeds = np.array([(point or template).seed for point in points], np.uint32)
    numbers = {
        name: np.array([float((point or template).hyperparameters[name]) for point in points])
        for name in program.job.traced
    }
    return program.fill(slots, fresh, seeds, numbers)
