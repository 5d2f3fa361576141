"""How long the commands that read a store take, how much memory they need, and how large their files are.

    python benchmarks/store_scale.py [--trials 100000] [--points 50] [--folder DIR]

Nothing is trained. The study has the six optimizers of fashion_mnist; its trials are synthetic: their curves fall to a
final value that depends on the learning rate, and one trial in twenty is infeasible. Each command runs in a process of
its own. With --folder, the store stays there, and the next measurement with the same options reuses it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from aligned import table

import levelfield as lf
from levelfield.search import Search
from levelfield.trial import Curve, Status, Trial
from levelfield.workloads import get_workload

PROVENANCE = {"devices": 0, "device": "none", "backend": "none", "precision": "none", "versions": {}}
INFEASIBLE = 20  # every 20th trial is
EXAMPLES = 2_000  # of which an error is a share
BATCH = 2_000  # trials in a transaction
COMMANDS = {
    "status": (["status"], None),
    "run, nothing missing": (["run"], None),
    "report": (["report"], "report.html"),
    "export": (["export", "--force", "-o", "trials.parquet"], "trials.parquet"),
    "export --curves": (["export", "--force", "--curves", "-o", "curves.parquet"], "curves.parquet"),
    "export --curves to CSV": (["export", "--force", "--curves", "-o", "curves.csv"], "curves.csv"),
}


def large_study(trials: int, points: int) -> lf.Study:
    """Return a study whose pools are full with this many trials in total, infeasible ones included."""
    study = lf.load_study("fashion_mnist")
    tried = trials // len(study.optimizers)
    pool = tried - tried // INFEASIBLE
    interval = max(1, study.steps // points)
    return study.replace(
        name="large", workload="fashion_mini", pool=pool, eval_interval=interval, steps=interval * points
    )


def synthetic_trials(study: lf.Study, name: str, tried: int) -> Iterator[Trial]:
    """Yield trials whose errors are shares of the examples, so that many are tied."""
    metrics = list(get_workload(study.workload).metrics)
    generator = np.random.default_rng(list(study.optimizers).index(name))
    steps = np.arange(study.eval_interval, study.steps + 1, study.eval_interval)
    search = Search(study, name)
    for index in range(tried):
        point = search.point(index)
        distance = np.log10(point.hyperparameters["learning_rate"]) + 2.5
        ends = 0.08 + 0.03 * distance**2 + 0.02 * generator.random((len(metrics), 1))
        values = ends + 0.5 * np.exp(-6 * steps / study.steps) + 0.004 * generator.random((len(metrics), len(steps)))
        curve = {
            metric: np.round(EXAMPLES * np.minimum(value, 0.9)) / EXAMPLES if metric.endswith("error") else 3 * value
            for metric, value in zip(metrics, values, strict=True)
        }
        feasible = (index + 1) % INFEASIBLE > 0
        length = len(steps) if feasible else generator.integers(1, len(steps) + 1)
        yield Trial(
            point,
            Status.FEASIBLE if feasible else Status.INFEASIBLE,
            Curve(steps[:length], {metric: value[:length] for metric, value in curve.items()}),
            started=1.7e9 + index,
            seconds=float(length),
        )


def fill(study: lf.Study, store: lf.Store, tried: int) -> None:
    """Add the trials of each optimizer to the store."""
    metrics = get_workload(study.workload).metrics
    for name in study.optimizers:
        remaining = synthetic_trials(study, name, tried)
        while trials := list(islice(remaining, BATCH)):
            store.add(study.identity(name), study.definition(name), metrics, trials, PROVENANCE)


def measure(arguments: list[str], folder: Path) -> tuple[float, float, float]:
    """Run a command on the large study; return its seconds, those of the CPU, and its peak memory in MB."""
    command, *options = arguments
    call = [sys.executable, "-m", "levelfield", command, "large.toml", "--store", "trials.db", *options]
    started = time.perf_counter()
    process = subprocess.Popen(call, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr
    message = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"levelfield {' '.join(arguments)} failed: {message.decode()}")
    return elapsed, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def benchmark(folder: Path, trials: int, points: int, commands: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    study = large_study(trials, points)
    tried = trials // len(study.optimizers)
    (folder / "large.toml").write_text(study.to_toml())
    started = time.perf_counter()
    with lf.Store.open(folder / "trials.db") as store:
        if not store.statuses(study.identity(list(study.optimizers)[-1])):
            fill(study, store, tried)
            print(f"filled the store in {time.perf_counter() - started:.1f} s")
    size = (folder / "trials.db").stat().st_size / 1e6
    print(f"{len(study.optimizers)} optimizers × {tried:,} trials, {points} points, store of {size:,.0f} MB\n")
    rows = [["command", "seconds", "CPU s", "peak MB", "file MB"]]
    for name in commands:
        arguments, file = COMMANDS[name]
        out = ["--out", "."] if name == "report" else []
        seconds, cpu, peak = measure([*arguments, *out], folder)
        written = f"{(folder / file).stat().st_size / 1e6:.1f}" if file else ""
        rows.append([name, f"{seconds:.1f}", f"{cpu:.1f}", f"{peak:,.0f}", written])
    print(table(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100_000, help="in total, infeasible ones included")
    parser.add_argument("--points", type=int, default=50, help="per curve")
    parser.add_argument("--folder", type=Path, help="where the store stays  [default: a temporary folder]")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS), help="which to measure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        benchmark(folder, arguments.trials, arguments.points, arguments.commands)


if __name__ == "__main__":
    main()
