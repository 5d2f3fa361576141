"""How long the reading commands take and how much memory they need, and how soon a run starts training.

    python benchmarks/startup.py [--runs 5]
    python benchmarks/startup.py --training fashion_mini,tolstoi_gpt [--precision bfloat16]

The reading commands are measured from process start to exit, after a small pool of fashion_mini was trained in a
temporary folder. Each command runs in a process of its own; the table shows the median over the runs and the largest
resident set.

With --training, the table shows the seconds from the start of "levelfield run" to the first step of training: of a
first run, with an empty cache, which compiles and, on a GPU, measures slots; and the median of later runs, with other
seeds and stores. The runs train the last optimizer of the study for a few steps.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aligned import Rows, table
from data_sets import prepare

import levelfield as lf

SMALL = ["--pool", "6", "--trials", "3", "--steps", "40"]
COMMANDS = {
    "status": ["status", "fashion_mini", *SMALL],
    "studies": ["studies"],
    "workloads": ["workloads"],
    "data list": ["data", "list"],
    "plan": ["plan", "fashion_mini", *SMALL],
    "refine": ["refine", "fashion_mini", *SMALL, "--json", "-o", "new.toml"],
    "export": ["export", "fashion_mini", *SMALL],
    "report": ["report", "fashion_mini", *SMALL],
    "check": ["check", "fashion_mini"],
}


def measure(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Run a command; return its seconds and its peak memory in MB."""
    for file in folder.glob("new.toml"):
        file.unlink()
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "levelfield", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"levelfield {' '.join(arguments)} failed")
    return elapsed, usage.ru_maxrss / 1024


_STEPS = 20  # of each trial: only its start counts


def until_training(study: lf.Study, cache: Path) -> float:
    """Run a study in a process of its own; return the seconds until its first trial started."""
    (optimizer,) = study.optimizers
    options = {name: getattr(study, name) for name in ("steps", "trials", "pool", "seed", "precision")}
    program = [sys.executable, "-m", "levelfield", "run", study.name, "--optimizers", optimizer]
    program += [f"--{name}={value}" for name, value in options.items()]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"LEVELFIELD_CACHE": str(cache)}
        begun = time.time()
        done = subprocess.run([*program, "--out", folder], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        with lf.Store.open(Path(folder, "trials.db")) as store:
            return min(trial.started for trial in store.trials(study.identity(optimizer))) - begun


def training_row(study: lf.Study, runs: int) -> list[str]:
    with tempfile.TemporaryDirectory() as cache:
        first, *later = (until_training(study.replace(seed=seed), Path(cache)) for seed in range(1 + runs))
    return [study.workload, study.precision, f"{first:.1f}", f"{statistics.median(later):.1f}"]


def measure_training(names: list[str], precision: str, pool: int, runs: int, file: Path | None) -> None:
    studies = [lf.load_study(name) for name in names]
    rows = Rows(["workload", "precision", "first run", "later runs"], file, f"{os.cpu_count()} cores, {runs} runs")
    for full in studies:
        study = full.only([list(full.optimizers)[-1]])
        study = study.replace(steps=min(_STEPS, full.eval_interval), trials=1, pool=pool, precision=precision)
        rows.add(f"{study.name}, {precision}, {pool} trials", functools.partial(training_row, study, runs))
    rows.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of each command; after the first one, of each study")
    parser.add_argument("--training", help="comma-separated studies")
    parser.add_argument("--precision", default="tf32", choices=("float32", "tf32", "bfloat16"))
    pool = 32 if shutil.which("nvidia-smi") else 2
    parser.add_argument(
        "--pool", type=int, default=pool, help="trials per run with --training; default: 32 on a GPU, 2"
    )
    parser.add_argument("--random-data", action="store_true", help="in the place of missing data sets")
    parser.add_argument("--rows", type=Path, help="a file that keeps the rows of --training, to continue later")
    arguments = parser.parse_args()
    runs = arguments.runs
    if arguments.training:
        studies = arguments.training.split(",")
        prepare((lf.load_study(name).workload for name in studies), random=arguments.random_data)
        measure_training(studies, arguments.precision, arguments.pool, runs, arguments.rows)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure(["run", "fashion_mini", *SMALL], folder)
        rows = [["command", "seconds", "MB"]]
        for command, arguments in COMMANDS.items():
            times, peaks = zip(*(measure(arguments, folder) for _ in range(runs)), strict=True)
            rows.append([command, f"{statistics.median(times):.2f}", f"{max(peaks):.0f}"])
    print(table(rows))


if __name__ == "__main__":
    main()
