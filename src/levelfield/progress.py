"""Progress of a run: a live table in a terminal, plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from levelfield.executors import Progress
from levelfield.runner import pool_window
from levelfield.study import Study
from levelfield.trial import Direction, Status, Trial
from levelfield.words import show_metric
from levelfield.workloads import get_workload

_PLAIN_INTERVAL = 10.0  # seconds between plain lines


@dataclass
class _Row:
    feasible: int = 0
    infeasible: int = 0
    running: int = 0
    best: float = math.nan  # of this run
    trained: bool = False  # in this run


class RunProgress:
    """Hears the runner and shows what it hears. Use as a context manager around a run."""

    def __init__(self, study: Study, console: Console | None = None) -> None:
        self._study = study
        self._console = console or Console(stderr=True)
        self._rows = {name: _Row() for name in study.optimizers}
        maximize = get_workload(study.workload).metrics[study.select] is Direction.MAXIMIZE
        self._better = max if maximize else min
        self._trial_steps = 0
        self._underway = 0  # of them, those of trials that have not finished
        self._training = 0.0  # seconds
        self._begun = time.perf_counter()
        self._printed, self._said = self._begun, ""
        self._live: Live | None = None
        self.finished = 0

    def __enter__(self) -> RunProgress:
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._live:
            self._live.__exit__(*exception)

    def begin(self, stored: Mapping[str, Mapping[int, Status]]) -> None:
        for optimizer, statuses in stored.items():
            row, window = self._rows[optimizer], pool_window(statuses, self._study.pool)
            found = [status for index, status in statuses.items() if index in window]
            row.feasible, row.infeasible = found.count(Status.FEASIBLE), found.count(Status.INFEASIBLE)

    def advance(self, optimizer: str, progress: Progress) -> None:
        row = self._rows[optimizer]
        if progress.note:
            self.say(f"{optimizer}: {progress.note}")
        row.running, row.trained = progress.running, True
        self._trial_steps += progress.trial_steps
        self._underway += progress.trial_steps - sum(int(trial.curve.steps[-1]) for trial in progress.finished)
        self._training += progress.seconds
        for trial in progress.finished:
            self._finish(row, trial)
        now = time.perf_counter()
        if not self._live and now - self._printed >= _PLAIN_INTERVAL:
            self._print(self._line(optimizer))

    def end(self, optimizer: str) -> None:
        self._rows[optimizer].running = 0
        if not self._live:
            self._print(self._line(optimizer))

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _print(self, line: str) -> None:
        self._printed = time.perf_counter()
        if line != self._said:
            self._said = line
            self.say(line)

    def _finish(self, row: _Row, trial: Trial) -> None:
        self.finished += 1
        row.infeasible += not trial.feasible
        row.feasible += trial.feasible
        value = trial.curve.final(self._study.select)
        if trial.feasible and not math.isnan(value):
            row.best = value if math.isnan(row.best) else self._better(row.best, value)

    def _line(self, optimizer: str) -> str:
        row = self._rows[optimizer]
        best = "" if math.isnan(row.best) else f", best {show_metric(self._study.select, row.best)}"
        return (
            f"{optimizer}: {row.feasible}/{self._study.pool} feasible, {row.infeasible} infeasible, "
            f"{row.running} running{best}; {self._speed() if row.trained else 'nothing to run'}"
        )

    def _speed(self) -> str:
        missing = sum(self._study.pool - row.feasible for name, row in self._rows.items() if not self._full(name))
        if not self._trial_steps:
            return "compiling" if missing else "nothing to run"
        rate = self._trial_steps / self._training
        left = max(missing * self._study.steps - self._underway, 0) / rate
        elapsed = time.perf_counter() - self._begun
        speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        return f"{speed} trial-steps/s, {_clock(elapsed)} elapsed, about {_clock(left)} left"

    def _full(self, optimizer: str) -> bool:
        row = self._rows[optimizer]
        return self._study.full(optimizer, row.feasible, row.feasible + row.infeasible)

    def _render(self) -> Table:
        table = Table(title=None, caption=self._speed(), caption_justify="left", box=None, pad_edge=False)
        for heading in ("optimizer", "feasible", "infeasible", "running", f"best {self._study.select}"):
            table.add_column(heading, justify="left" if heading == "optimizer" else "right")
        for name, row in self._rows.items():
            done = self._full(name)
            table.add_row(
                Text(f"{'✓' if done else '·'} {name}"),
                f"{row.feasible}/{self._study.pool}",
                str(row.infeasible),
                str(row.running),
                show_metric(self._study.select, row.best),
                style="green" if done else "bold" if row.running else "dim",
            )
        return table


def _clock(seconds: float) -> str:
    """
    >>> _clock(75), _clock(3700)
    ('1:15', '1:01:40')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
