"""Compare whole runs, with evaluation, the store, and refilled slots, to training alone.

    python benchmarks/end_to_end.py [--studies fashion_mini] [--pool 64] [--steps S] [--slots 32] [--precision bfloat16]

A run trains one optimizer of a study with an empty store in memory. Compilation is not counted: each program is
compiled before the clock starts. "training alone" is the rate of the same program without evaluation, over --stretches
evaluation intervals, measured before and after the run. With --rows FILE, a run that was cut off continues with the
rows that are missing. Download the data sets first, or measure with --random-data, which changes what is learned but
not the speed, as long as few trials diverge.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from pathlib import Path

import jax
import numpy as np
from aligned import Rows, isolated, positive
from data_sets import prepare

import levelfield as lf
from levelfield.executors._jax import JaxExecutor, job
from levelfield.run import run
from levelfield.search import Search
from levelfield.store import Store
from levelfield.training.program import Program, program


class Trials:
    """Trials that fill all slots of a program, without a store."""

    def __init__(self, compiled: Program, study: lf.Study, optimizer: str) -> None:
        self._program, self._steps = compiled, compiled.slots * min(study.eval_interval, study.steps)
        search, slots = Search(study, optimizer), compiled.slots
        points = [search.point(index) for index in range(slots)]
        seeds = np.array([point.seed for point in points], np.uint32)
        numbers = {name: np.array([point.hyperparameters[name] for point in points]) for name in compiled.job.traced}
        held = compiled.fill(compiled.empty(), np.ones(slots, bool), seeds, numbers)
        self._held, _ = compiled.advance(held)  # warm up

    def training_rate(self, stretches: int) -> float:
        """Return the trial-steps per second without evaluations."""
        jax.block_until_ready(self._held)
        begun = time.perf_counter()
        for _ in range(stretches):
            self._held = self._program.train(self._held)
        jax.block_until_ready(self._held)
        return stretches * self._steps / (time.perf_counter() - begun)

    def evaluation_seconds(self, times: int = 3) -> float:
        """Return how long an evaluation of all slots takes."""
        begun = time.perf_counter()
        for _ in range(times):
            self._program.evaluate(self._held)
        return (time.perf_counter() - begun) / times


def row(study: lf.Study, optimizer: str, slots: int | None, stretches: int) -> list[str]:
    executor = JaxExecutor(slots)
    executor.check(study)
    begun = time.perf_counter()
    count = executor.slots(study)
    choosing = time.perf_counter() - begun
    compiled = program(job(study, optimizer), count)
    compiling = time.perf_counter() - begun - choosing
    alone = Trials(compiled, study, optimizer)
    before, evaluation = alone.training_rate(stretches), alone.evaluation_seconds()
    with Store.open("sqlite://") as store:
        begun = time.perf_counter()
        run(study, store, executor)
        seconds = time.perf_counter() - begun
        trials = store.trials(study.identity(optimizer))
        steps = sum(int(trial.curve.steps[-1]) for trial in trials)
    rate = (before + alone.training_rate(stretches)) / 2
    training = compiled.slots * min(study.eval_interval, study.steps) / rate  # until an evaluation
    return [
        study.workload,
        optimizer,
        study.precision,
        f"{compiled.slots} ({choosing:.0f} s)",
        f"{compiling:.0f} s",
        f"{rate:,.1f}",
        f"{steps / seconds:,.1f}",
        f"{1e3 * evaluation / compiled.slots:.2f} ms",
        f"{evaluation / (training + evaluation):.1%}",
        f"{1 - steps / seconds / rate:.1%}",
        f"{len(trials)}, {seconds:.0f} s",
    ]


HEADINGS = [
    "workload",
    "optimizer",
    "precision",
    "slots (chosen in)",
    "compilation",
    "training alone",
    "whole run",
    "evaluation, per trial",
    "its share",
    "overhead in all",
    "trials, in",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", default="fashion_mini", help="comma-separated names")
    parser.add_argument("--optimizers", help="comma-separated, or 'all'; default: each study's last")
    parser.add_argument("--pool", type=int, default=64)
    parser.add_argument("--steps", type=int, help="default: the study's")
    parser.add_argument("--slots", type=positive, help="default: as a run chooses them")
    parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16"))
    parser.add_argument("--stretches", type=int, default=2)
    parser.add_argument("--random-data", action="store_true", help="in the place of missing data sets")
    parser.add_argument("--rows", type=Path, help="a file that keeps the rows, to continue a run that was cut off")
    arguments = parser.parse_args()
    names = arguments.studies.split(",")
    prepare((lf.load_study(name).workload for name in names), random=arguments.random_data)
    rows = Rows(HEADINGS, arguments.rows, f"jax {jax.__version__}, {os.cpu_count()} cores")
    for name in names:
        full = lf.load_study(name)
        optimizers = list(full.optimizers)
        if arguments.optimizers != "all":
            optimizers = arguments.optimizers.split(",") if arguments.optimizers else optimizers[-1:]
        for optimizer in optimizers:
            changes = {"steps": arguments.steps, "pool": arguments.pool, "trials": 1, "precision": arguments.precision}
            study = full.only([optimizer]).replace(**changes)
            given = f"{arguments.slots or 'measured'} slots, {study.pool} × {study.steps} steps, {study.precision}"
            measure = functools.partial(isolated, row, study, optimizer, arguments.slots, arguments.stretches)
            rows.add(f"{name}, {optimizer}, {given}", measure)
    rows.finish()


if __name__ == "__main__":
    main()
