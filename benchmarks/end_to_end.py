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

_EVALUATIONS = 3


def alone(compiled: Program, study: lf.Study, optimizer: str, stretches: int) -> tuple[float, float]:
    """Return the trial-steps per second of full slots without evaluations, and the seconds of an evaluation."""
    search, slots = Search(study, optimizer), compiled.slots
    points = [search.point(index) for index in range(slots)]
    seeds = np.array([point.seed for point in points], np.uint32)
    numbers = {name: np.array([point.hyperparameters[name] for point in points]) for name in compiled.job.traced}
    held = compiled.fill(compiled.empty(), np.ones(slots, bool), seeds, numbers)
    held, _ = compiled.advance(held)  # warm up
    begun = time.perf_counter()
    for _ in range(stretches):
        held = compiled.train(held)
    jax.block_until_ready(held)
    trained = time.perf_counter()
    for _ in range(_EVALUATIONS):
        compiled.evaluate(held)
    evaluated = time.perf_counter()
    steps = stretches * slots * min(study.eval_interval, study.steps)
    return steps / (trained - begun), (evaluated - trained) / _EVALUATIONS


def row(study: lf.Study, optimizer: str, slots: int | None, stretches: int) -> list[str]:
    executor = JaxExecutor(slots)
    executor.check(study)
    begun = time.perf_counter()
    count = executor.slots(study)
    choosing = time.perf_counter() - begun
    compiled = program(job(study, optimizer), count)
    compiling = time.perf_counter() - begun - choosing
    before, evaluation = alone(compiled, study, optimizer, stretches)
    with Store.open("sqlite://") as store:
        begun = time.perf_counter()
        run(study, store, executor)
        seconds = time.perf_counter() - begun
        trials = store.trials(study.identity(optimizer))
        steps = sum(int(trial.curve.steps[-1]) for trial in trials)
    after, _ = alone(compiled, study, optimizer, stretches)
    rate = (before + after) / 2
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
