"""The progress of a run: a live table in a terminal, plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from levelfield.formatting import format_metric, pluralize
from levelfield.listener import Best
from levelfield.pool import PoolCount
from levelfield.study import Study, workload_of
from levelfield.trial import Direction, Progress, Trial
from levelfield.workload import Workload

_PLAIN_INTERVAL = 10.0  # seconds between plain lines


@dataclass
class _Row:
    feasible: int = 0
    infeasible: int = 0
    running: int = 0
    best: float = math.nan  # over the stored trials and those of this run
    trained: bool = False  # in this run
    printed: _Row | None = field(default=None, compare=False)  # the state that was printed last


class RunProgress:
    """Shows what a run reports. Use it as a context manager around the run."""

    def __init__(
        self, study: Study, store: str = "the store", console: Console | None = None, *, reads_best: bool = True
    ) -> None:
        self._study = study
        self._store = store  # its name
        self._reads_best = reads_best  # whether the best of stored trials is shown, too, not only that of this run
        self._console = console or Console(stderr=True)
        self._rows = {name: _Row() for name in study.optimizers}
        workload = workload_of(study)
        self._start = "compiling" if isinstance(workload, Workload) else "starting"  # what comes before the training
        maximize = workload.metrics[study.select] is Direction.MAXIMIZE
        self._better = max if maximize else min
        self._trial_steps = 0
        self._unfinished_steps = 0  # the part of them that belongs to trials that have not finished
        self._training = 0.0  # seconds
        self._begun = time.perf_counter()
        self._printed = self._begun
        self._live: Live | None = None
        self._ended = False
        self.finished = 0

    def __enter__(self) -> RunProgress:
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._live:
            self._live.__exit__(*exception)

    def begin(self, study: Study, counts: Mapping[str, PoolCount], best: Best) -> None:
        self._ended = False
        if study is not self._study:  # the next round of a refinement, or reruns
            self._study, self._rows = study, {}
        values = best() if self._reads_best else {}
        for optimizer, count in counts.items():
            row = self._rows.setdefault(optimizer, _Row())
            row.feasible, row.infeasible = count.feasible, count.infeasible
            row.best = values.get(optimizer, row.best)

    def advance(self, progress: Progress) -> None:
        optimizer = progress.optimizer
        row = self._rows[optimizer]
        if progress.note:
            self.note(f"{optimizer}: {progress.note}")
        row.running, row.trained = progress.running, True
        self._trial_steps += progress.trial_steps
        self._unfinished_steps += progress.trial_steps + progress.resumed_steps
        self._unfinished_steps -= sum(int(trial.curve.steps[-1]) for trial in progress.finished)
        self._training += progress.seconds
        for trial in progress.finished:
            self.finished += 1
            self._count(row, trial)
        for failure in progress.failed:
            self.note(f"{optimizer}: trial {failure.point.index} failed: {failure.reason}")
        now = time.perf_counter()
        if not self._live and (now - self._printed >= _PLAIN_INTERVAL or self._is_full(optimizer)):
            self._print(optimizer)

    def end(self) -> None:
        self._ended = True
        for optimizer, row in self._rows.items():
            row.running = 0
            if not self._live:
                self._print(optimizer)

    def stalled(self, message: str) -> None:
        """Say so and end the process, because a thread that hangs cannot be stopped in another way."""
        self.note(f"levelfield: {message} {self.saved}")
        os._exit(1)

    @property
    def saved(self) -> str:
        """Which trials of this run are safe, as a sentence."""
        are = "is" if self.finished == 1 else "are"
        return f"{pluralize(self.finished, 'trial')} of this run {are} saved in {self._store}."

    def note(self, message: str) -> None:
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)

    def _print(self, optimizer: str) -> None:
        """Print an optimizer's line, unless nothing has changed since the last time."""
        row = self._rows[optimizer]
        if row != row.printed:
            row.printed = replace(row, printed=None)
            self._printed = time.perf_counter()
            self.note(self._line(optimizer))

    def _count(self, row: _Row, trial: Trial) -> None:
        row.infeasible += not trial.feasible
        row.feasible += trial.feasible
        value = trial.curve.final(self._study.select)
        if trial.feasible and not math.isnan(value):
            row.best = value if math.isnan(row.best) else self._better(row.best, value)

    def _line(self, optimizer: str) -> str:
        row = self._rows[optimizer]
        shows_best = self._reads_best and not math.isnan(row.best)
        best = f", best {format_metric(self._study.select, row.best)}" if shows_best else ""
        return (
            f"{optimizer}: {row.feasible}/{self._study.pool} feasible, {row.infeasible} infeasible, "
            f"{row.running} running{best}; {self._speed() if row.trained else 'nothing to run'}"
        )

    def _speed(self) -> str:
        missing = sum(self._study.pool - row.feasible for name, row in self._rows.items() if not self._is_full(name))
        if not self._trial_steps:
            return "nothing to run" if not missing else "stopped" if self._ended else self._start
        rate = self._trial_steps / self._training
        left = max(missing * self._study.steps - self._unfinished_steps, 0) / rate
        elapsed = time.perf_counter() - self._begun
        speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        return f"{speed} trial-steps/s, {_clock(elapsed)} elapsed, about {_clock(left)} left"

    def _is_full(self, optimizer: str) -> bool:
        row = self._rows[optimizer]
        return PoolCount(self._study.pool, row.feasible, row.infeasible, self._study.points(optimizer)).full

    def _render(self) -> Table:
        table = Table(title=None, caption=self._speed(), caption_justify="left", box=None, pad_edge=False)
        for heading in ("optimizer", "feasible", "infeasible", "running", f"best {self._study.select}"):
            table.add_column(heading, justify="left" if heading == "optimizer" else "right")
        for name, row in self._rows.items():
            done = self._is_full(name)
            table.add_row(
                Text(f"{'✓' if done else '·'} {name}"),
                f"{row.feasible}/{self._study.pool}",
                str(row.infeasible),
                str(row.running),
                format_metric(self._study.select, row.best),
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
