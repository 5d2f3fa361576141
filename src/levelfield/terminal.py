"""A comparison in the terminal: the table, and what it says in words."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from levelfield.comparison import Comparison
from levelfield.words import show_hyperparameters, show_metric


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    console = console or Console()
    if not console.is_terminal:
        console.width = 120  # a pipe has no width of its own
    console.print(_table(comparison))
    console.print()
    for sentence in comparison.sentences():
        console.print(sentence, highlight=False, markup=False)


def _table(comparison: Comparison) -> Table:
    study = comparison.study
    rows = comparison.rows()
    test = comparison.outcome(rows[0]["optimizer"]).test_metric
    table = Table(title=f"{study.name}: best of {study.trials} trials by {study.select}", title_justify="left")
    table.add_column("optimizer", no_wrap=True)
    table.add_column(f"{study.select}\n5–95%", justify="right", no_wrap=True)
    if test:
        table.add_column(test, justify="right", no_wrap=True)
    if study.target:
        aim = show_metric(study.target.metric, study.target.value)
        table.add_column(f"steps to {aim}\n5–95%", justify="right", no_wrap=True)
        table.add_column("reached", justify="right", no_wrap=True)
    table.add_column("infeasible", justify="right", no_wrap=True)
    table.add_column("best hyperparameters")
    for row in rows:
        cells = [
            row["optimizer"],
            _with_range(*(show_metric(study.select, row[key]) for key in ("mean", "low", "high"))),
        ]
        if test:
            cells.append(show_metric(test, row[test]))
        if study.target:
            cells.append(_with_range(*(_count(row[f"steps_{key}"]) for key in ("mean", "low", "high"))))
            cells.append(_percent(row["steps_probability"]))
        cells += [_percent(row["infeasible_share"]), show_hyperparameters(row["best_hyperparameters"])]
        table.add_row(*cells)
    return table


def _with_range(mean: str, low: str, high: str) -> str:
    return mean if mean == "–" else f"{mean}\n{low} – {high}"


def _count(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}"


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0%}"
