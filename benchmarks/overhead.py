"""Measure levelfield's overhead: its share of a run's wall time, and how fast it starts.

    python benchmarks/overhead.py [--steps 200] [--pool 8] [--studies fashion_mini,wilson]

The benchmark wraps the parts of a run to time them: compilation, the executor's segments (training and evaluation), and
everything in between (store, points, and progress). Each run starts with an empty store in a temporary
folder.
"""

from __future__ import annotations

import argparse
import io
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aligned import table
from rich.console import Console

import levelfield as lf
from levelfield.cli.progress import RunProgress
from levelfield.executors import Executor, get_executor
from levelfield.executors.base import Take
from levelfield.run import run
from levelfield.store import Store
from levelfield.trial import Progress


class Clock:
    """Seconds spent on each part. Time in a nested part counts only for that part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._switch()
        self._open.append(name)
        try:
            yield
        finally:
            self._switch()
            self._open.pop()

    def _switch(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            with self.part(name):
                return function(*arguments, **options)

        return timed


class TimedExecutor:
    """An executor that records the time of compilation and training."""

    def __init__(self, executor: Executor, clock: Clock) -> None:
        self._executor, self._clock = executor, clock
        self.segments = 0

    def train(self, study: lf.Study, take: Take) -> Generator[Progress]:
        with self._clock.part("compilation"):
            segments = self._executor.train(study, self._clock.wrap("points", take))
        while True:
            with self._clock.part("training"):
                segment = next(segments, None)
            if segment is None:
                return
            self.segments += 1
            yield segment


class TimedStore(Store):
    """A store that records the time of its methods."""

    def time(self, clock: Clock) -> None:
        for name in ("add", "statuses"):
            setattr(self, name, clock.wrap("store", getattr(self, name)))


PARTS = ("store", "points", "progress", "rest")


def run_row(study: lf.Study, folder: Path) -> list[str]:
    """Run a study and return its row of the table."""
    clock = Clock()
    executor = TimedExecutor(get_executor("local", None), clock)
    # Draw the live table as in a terminal, but discard it.
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with TimedStore.open(folder / f"{study.name}.db") as store, RunProgress(study, console=console) as progress:
        store.time(clock)  # type: ignore[attr-defined]
        for name in ("begin", "advance", "end"):
            setattr(progress, name, clock.wrap("progress", getattr(progress, name)))
        start = time.perf_counter()
        with clock.part("rest"):
            run(study, store, executor, progress)
        total = time.perf_counter() - start
        trials = sum(len(store.statuses(study.identity(name))) for name in study.optimizers)
    overhead = sum(clock.seconds[part] for part in PARTS)
    return [
        f"{study.name} ({study.steps} steps)",
        str(trials),
        str(executor.segments),
        f"{total:.1f} s",
        f"{clock.seconds['compilation']:.1f} s",
        f"{clock.seconds['training']:.1f} s",
        f"{overhead:.2f} s",
        *(f"{1000 * clock.seconds[part]:.0f} ms" for part in PARTS),
        f"{overhead / total:.1%}",
        f"{overhead / (total - clock.seconds['compilation']):.1%}",
    ]


RUN_HEADINGS = [
    "study",
    "trials",
    "segments",
    "total",
    "compilation",
    "training",
    "overhead",
    *PARTS,
    "share",
    "without compilation",
]


def start_row(name: str, command: list[str], times: int = 5) -> list[str]:
    """Run a command several times and return its row of the table."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        process = subprocess.run(command, capture_output=True, text=True)
        seconds.append(time.perf_counter() - start)
        if process.returncode:
            return [name, "failed: " + (process.stderr.strip().splitlines() or ["no message"])[-1]]
    return [name, f"{statistics.median(seconds):.2f} s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", default="fashion_mini,wilson", help="comma-separated names")
    parser.add_argument("--steps", type=int, help="steps per trial (default: the study's)")
    parser.add_argument("--pool", type=int, help="trials per optimizer (default: the study's)")
    arguments = parser.parse_args()

    rows = [RUN_HEADINGS]
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.studies.split(","):
            study = lf.load_study(name)
            trials = min(study.trials, arguments.pool or study.pool)
            rows.append(run_row(study.replace(steps=arguments.steps, pool=arguments.pool, trials=trials), Path(folder)))
    print(table(rows), end="\n\n")

    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        'python -c "import levelfield"': [sys.executable, "-c", "import levelfield"],
        "levelfield --help": [str(Path(sys.executable).parent / "levelfield"), "--help"],
    }
    print(table([["start", "median"], *(start_row(name, command) for name, command in commands.items())]))


if __name__ == "__main__":
    main()
