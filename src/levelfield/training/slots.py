"""The loop on the host: fill slots, train them to their next evaluation, empty and refill them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

import numpy as np

from levelfield.formatting import pluralize
from levelfield.training.checkpoints import Checkpoints, InFlight
from levelfield.training.program import Program
from levelfield.training.step import Slot
from levelfield.trial import Failure, Point, Progress, Status, StepTime, Trial


def train(
    program: Program, optimizer: str, take: Callable[[int], list[Point]], checkpoints: Checkpoints | None = None
) -> Generator[Progress]:
    """Train the points that ``take`` hands out, until it hands out none and no trial is in flight.

    ``take`` is called with the number of free slots, after the caller has seen all finished trials. Points that
    ``checkpoints`` have continue from there.
    """
    slots = program.empty()
    held: list[InFlight | None] = [None] * program.slots
    warm = False
    while True:
        clock = time.perf_counter()
        slots, resumed = _refill(program, slots, held, take, checkpoints)
        active = [trial for trial in held if trial]
        if resumed:
            continuing = f"continuing {pluralize(len(resumed), 'trial')} from a checkpoint"
            steps = sum(trial.step for trial in resumed)
            yield Progress(optimizer, running=len(active), note=continuing, resumed_steps=steps)
        if checkpoints:
            while checkpoints.notes:
                yield Progress(optimizer, running=len(active), note=checkpoints.notes.pop(0))
        if not active:
            return
        before = sum(trial.step for trial in active)
        slots, rows = program.advance(slots)
        elapsed = time.perf_counter() - clock
        for position, flight in enumerate(held):
            if flight:
                flight.steps.append(min(flight.step + program.job.eval_interval, program.job.steps))
                flight.rows.append(rows[position])
                flight.seconds += elapsed / len(active)
        trained = sum(trial.step for trial in active) - before
        finished, failed = _take_ended(program, held)
        in_flight = {position: flight for position, flight in enumerate(held) if flight}
        step_time = StepTime(program.step_seconds, program.slots) if warm else None
        progress = Progress(optimizer, finished, failed, len(in_flight), trained, elapsed, step_time=step_time)
        warm = True
        try:
            yield progress
        except GeneratorExit:  # the run is stopped
            if checkpoints and checkpoints.due(in_flight.values(), ending=True):
                checkpoints.save(in_flight, program.snapshot(slots))
            raise
        if checkpoints:  # the caller has stored what has finished
            checkpoints.settle(progress.ended)
            if checkpoints.due(in_flight.values()):
                checkpoints.save(in_flight, program.snapshot(slots))


def _refill(
    program: Program,
    slots: Slot,
    held: list[InFlight | None],
    take: Callable[[int], list[Point]],
    checkpoints: Checkpoints | None,
) -> tuple[Slot, list[InFlight]]:
    """Put the next points into the free slots; also return those that continue from a checkpoint."""
    free = [position for position, flight in enumerate(held) if flight is None]
    points = dict(zip(free, take(len(free)) if free else [], strict=False))
    found = checkpoints.find(list(points.values())) if checkpoints else {}
    saved = {position: found[point.index] for position, point in points.items() if point.index in found}
    fresh = {position: point for position, point in points.items() if position not in saved}
    for position, point in fresh.items():
        held[position] = InFlight(point, time.time())
    for position, (trial, _) in saved.items():
        held[position] = trial
    if fresh:
        slots = _start(program, slots, fresh)
    if saved:
        slots = program.restore(slots, {position: state for position, (_, state) in saved.items()})
    return slots, [trial for trial, _ in saved.values()]


def _take_ended(program: Program, held: list[InFlight | None]) -> tuple[list[Trial], list[Failure]]:
    """Take the trials that have ended out of their slots; return those that finished and those that failed."""
    finished, failed = [], []
    loss = program.metrics.index("train_loss")
    for position, flight in enumerate(held):
        if flight is None:
            continue
        if failure := program.failures.get(position):
            failed.append(Failure(flight.point, *failure))
        elif not np.isfinite(flight.rows[-1][loss]):
            finished.append(flight.trial(program.metrics, Status.INFEASIBLE))
        elif flight.step == program.job.steps:
            finished.append(flight.trial(program.metrics, Status.FEASIBLE))
        else:
            continue
        held[position] = None
        program.leave(position)
    return finished, failed


def _start(program: Program, slots: Slot, fresh: dict[int, Point]) -> Slot:
    """Start trials in some slots."""
    # The other slots keep what they hold, so any point serves as their argument.
    anything = next(iter(fresh.values()))
    points = [fresh.get(position, anything) for position in range(program.slots)]
    seeds = np.array([point.seed for point in points], np.uint32)
    numbers = {name: np.array([float(point.hyperparameters[name]) for point in points]) for name in program.job.traced}
    return program.fill(slots, np.isin(np.arange(program.slots), list(fresh)), seeds, numbers)
