"""What levelfield costs on top of custom training code: its runs against the same training in plain processes.

    python benchmarks/training_code.py [--seconds 10] [--trials 4] [--rounds 3] [--workers 2]

Both train the same trials with as many processes; the training multiplies matrices for about --seconds and reports 20
times. They take turns, and the table shows the median over the rounds. levelfield's time includes everything from the
start of the run to its end; the start of its workers (imports, once per worker) is also shown by itself. On a machine
that others use as well, the processor time says more than the wall-clock time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # levelfield's workers share the cores in the same way

import numpy as np
from aligned import table

import levelfield as lf

REPORTS = 20


@lf.trainable(metrics={"train_loss": "minimize"}, select="train_loss", eval_interval=1)
def matrices(trial: lf.TrialRun) -> None:
    for step in range(1, trial.steps + 1):
        trial.report(step, train_loss=work(trial.batch_size))


def work(products: int) -> float:
    """Multiply matrices this many times."""
    matrix = np.full((200, 200), 1 / 200)
    for _ in range(products):
        matrix = matrix @ matrix
    return float(matrix[0, 0])


def products_for(seconds: float) -> int:
    """Return how many products take this many seconds on one core."""
    begun, count = time.process_time(), 0
    while (elapsed := time.process_time() - begun) < 1:
        work(10)
        count += 10
    return max(1, round(count * seconds / elapsed))


def train_plainly(trials: int, products: int) -> None:
    for _ in range(trials * REPORTS):
        work(products)


def used() -> float:
    """Return the processor time, in seconds, of this process and of its child processes that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@contextmanager
def measured() -> Iterator[list[float]]:
    """Measure the wall-clock time and the processor time, in seconds."""
    begun, spent, result = time.perf_counter(), used(), list[float]()
    yield result
    result += [time.perf_counter() - begun, used() - spent]


def plain(trials: int, products: int, workers: int) -> list[float]:
    """Return the seconds that plain processes take for this many trials each."""
    with measured() as seconds:
        processes = [multiprocessing.Process(target=train_plainly, args=(trials, products)) for _ in range(workers)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    return seconds


def levelfield(trials: int, products: int, workers: int) -> list[float]:
    """Return the seconds that levelfield takes for the same trials, in a new store."""
    with tempfile.TemporaryDirectory() as folder:
        study = lf.Study(
            workload="matrices",
            batch_size=products,  # a number that the training code is given
            steps=REPORTS,
            trials=1,
            pool=trials * workers,
            optimizers={"sgd": {"learning_rate": {"log": [1e-3, 1e0]}}},
        )
        with measured() as seconds:
            lf.compare(study, store=str(Path(folder, "trials.db")), slots=workers)
        return seconds


def medians(runs: list[list[float]]) -> np.ndarray:
    return np.array([statistics.median(each) for each in zip(*runs, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--trials", type=int, default=4, help="of each worker")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    products = products_for(arguments.seconds / REPORTS)
    start = medians([levelfield(1, 1, arguments.workers) for _ in range(arguments.rounds)])
    turns = [
        [run(arguments.trials, products, arguments.workers) for run in (plain, levelfield)]
        for _ in range(arguments.rounds)
    ]
    bare, ours = (medians(list(runs)) for runs in zip(*turns, strict=True))
    rows = [["", "clock", "overhead", "cores", "overhead"]]
    for name, seconds in {
        "plain processes": bare,
        "levelfield": ours,
        "levelfield, without its start": ours - start,
    }.items():
        shown = [[f"{own:.2f} s", f"{own / base - 1:+.1%}"] for own, base in zip(seconds, bare, strict=True)]
        rows.append([name, *(cell for pair in shown for cell in pair)])
    print(f"{arguments.workers} workers, {arguments.trials} trials of {bare[0] / arguments.trials:.1f} s each:")
    print(table(rows))


if __name__ == "__main__":
    main()
