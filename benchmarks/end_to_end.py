"""Compare whole runs, with evaluation, the store, and refilled slots, to training alone.

    python benchmarks/end_to_end.py [--studies fashion_mini] [--pool 64] [--steps S] [--slots 32] [--precision bfloat16]

A run trains the last optimizer of a study with an empty store in memory. Compilation is not counted: each program is
compiled before the clock starts. "training alone" is the rate of the same program without evaluation, over --stretches
evaluation intervals, measured before and after the run.
"""

from __future__ import annotations

import argparse
import time

import jax
import numpy as np
from aligned import table

import levelfield as lf
from levelfield.executors._jax import JaxExecutor, job
from levelfield.run import run
from levelfield.search import Search
from levelfield.store import Store
from levelfield.training.program import Program, program


def alone(compiled: Program, study: lf.Study, optimizer: str, stretches: int, *, evaluate: bool = False) -> float:
    """Return the trial-steps per second of full slots."""
    search, slots = Search(study, optimizer), compiled.slots
    points = [search.point(index) for index in range(slots)]
    seeds = np.array([point.seed for point in points], np.uint32)
    numbers = {name: np.array([point.hyperparameters[name] for point in points]) for name in compiled.job.traced}
    held = compiled.fill(compiled.empty(), np.ones(slots, bool), seeds, numbers)
    held, _ = compiled.advance(held)  # warm up
    jax.block_until_ready(held)
    begun = time.perf_counter()
    for _ in range(stretches):
        held = compiled.advance(held)[0] if evaluate else compiled.train(held)
    jax.block_until_ready(held)
    return stretches * slots * min(study.eval_interval, study.steps) / (time.perf_counter() - begun)


def row(study: lf.Study, optimizer: str, slots: int | None, stretches: int) -> list[str]:
    executor = JaxExecutor(slots)
    executor.check(study)
    compiled = program(job(study, optimizer), executor.slots(study))
    before = alone(compiled, study, optimizer, stretches)
    evaluated = alone(compiled, study, optimizer, stretches, evaluate=True)
    with Store.open("sqlite://") as store:
        begun = time.perf_counter()
        run(study, store, executor)
        seconds = time.perf_counter() - begun
        steps = sum(int(trial.curve.steps[-1]) for trial in store.trials(study.identity(optimizer)))
    bare = (before + alone(compiled, study, optimizer, stretches)) / 2
    rates = [f"{rate:,.1f}" for rate in (bare, evaluated, steps / seconds)]
    return [
        study.workload,
        str(compiled.slots),
        *rates,
        f"{1 - evaluated / bare:.1%}",
        f"{1 - steps / seconds / bare:.1%}",
    ]


HEADINGS = ["workload", "slots", "training alone", "with evaluation", "whole run", "evaluation", "overhead in all"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", default="fashion_mini", help="comma-separated names")
    parser.add_argument("--pool", type=int, default=64)
    parser.add_argument("--steps", type=int, help="default: the study's")
    parser.add_argument("--slots", type=int, help="default: as a run chooses them")
    parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16"))
    parser.add_argument("--stretches", type=int, default=2)
    arguments = parser.parse_args()
    rows = [HEADINGS]
    for name in arguments.studies.split(","):
        full = lf.load_study(name)
        optimizer = list(full.optimizers)[-1]
        changes = {"steps": arguments.steps, "pool": arguments.pool, "trials": 1, "precision": arguments.precision}
        study = full.only([optimizer]).replace(**changes)
        rows.append(row(study, optimizer, arguments.slots, arguments.stretches))
        print(", ".join(rows[-1]), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
