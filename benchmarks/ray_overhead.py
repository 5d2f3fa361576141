"""Measure what the Ray executor costs: the same trials, trained by the local executor and through Ray on this machine.

    python benchmarks/ray_overhead.py [--steps 450_000] [--repeats 3]

Both executors use every core of this process and the same number of slots, write to a store, and train in turn. Each
trains a few trials first, so that starting Ray, importing JAX and compiling are not counted. If the machine is busy
with something else, the wall times vary more than they differ between the executors; the time in which no trial trains
is still informative.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from aligned import table

import levelfield as lf
from levelfield.executors import Executor, get_executor
from levelfield.run import run


class Times(NamedTuple):
    wall: float  # seconds
    training: float  # of them, in the program that trains and evaluates


def measure(study: lf.Study, executor: Executor, store: Path, slots: int) -> Times:
    """Return how long the study takes after the trials that fill the slots once."""
    with lf.Store.open(store) as opened:
        run(study.replace(pool=slots), opened, executor)
        begun = time.perf_counter()
        run(study, opened, executor)
        wall = time.perf_counter() - begun
        trials = [trial for name in study.optimizers for trial in opened.trials(study.identity(name))]
    return Times(wall, sum(trial.seconds for trial in trials if trial.point.index >= slots))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=450_000, help="steps per trial (default: 450,000, about 10 s)")
    parser.add_argument("--rounds", type=int, default=2, help="timed trials in each slot")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()

    slots = len(os.sched_getaffinity(0))
    study = lf.Study(
        workload="wilson",
        steps=arguments.steps,
        eval_interval=max(1, arguments.steps // 100),
        trials=1,
        pool=slots * (1 + arguments.rounds),
        optimizers={"momentum": {"learning_rate": {"log": [1e-4, 1e-2]}, "momentum": 0.9}},
    )
    executors = {name: get_executor(name, slots) for name in ("local", "ray")}
    measured: dict[str, list[Times]] = {name: [] for name in executors}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(arguments.repeats):
            for name in list(executors)[:: 1 if repeat % 2 == 0 else -1]:
                store = Path(folder) / f"{name}{repeat}.db"
                measured[name].append(measure(study, executors[name], store, slots))
    rows = [["", "local", "ray", "overhead"]]
    for repeat, (local, ray) in enumerate(zip(*measured.values(), strict=True), start=1):
        rows.append(
            [f"repeat {repeat}", f"{local.wall:.2f} s", f"{ray.wall:.2f} s", f"{ray.wall / local.wall - 1:+.1%}"]
        )
    local, ray = (min(times) for times in measured.values())
    rows.append(["best", f"{local.wall:.2f} s", f"{ray.wall:.2f} s", f"{ray.wall / local.wall - 1:+.1%}"])
    idle = [min(1 - training / wall for wall, training in times) for times in measured.values()]
    rows.append(["not training, best", *(f"{share:.2%}" for share in idle), f"{idle[1] - idle[0]:+.2%}"])
    print(f"{slots} slots, {arguments.rounds} trials in each, {local.wall / arguments.rounds:.1f} s a trial")
    print(table(rows))


if __name__ == "__main__":
    main()
