"""Smaller budgets of steps, and other targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from levelfield.analysis.results import Results
from levelfield.analysis.step_times import differ
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.columns import PERCENTILES
from levelfield.report.figure import (
    Figure,
    Panel,
    Part,
    Rows,
    estimate_fields,
    is_maximized,
    optimizer_names,
    short_number,
)
from levelfield.trial import Target

PLACE = 100
_POINTS = 8  # budgets, and targets
_SPAN = 10  # times the worst mean at the end, beyond which others are not in sight


def figure(results: Results, protocols: Sequence[Results]) -> Figure | None:
    names, study = optimizer_names(results), results.study
    steps = _steps(results, names)
    if len(steps) < 2:
        return None
    metric = study.target.metric if study.target else study.select
    rows = _budget_rows(results, names, steps)
    ends = None, _highest(rows, is_maximized(results.outcome(names.every[0]), study.select))
    panels = [Panel(_budgets(names, charts.step_axis("budget, steps")), rows, study.select, ends=ends)]
    if differ(results.step_times):
        timed = [row | {"seconds": short_number(row["step"] * results.step_times[row["name"]].seconds)} for row in rows]
        panels.append(Panel(_budgets(names, _seconds_axis()), timed, study.select, ends=ends))
    if rows := _target_rows(results, names, metric):
        maximized = is_maximized(results.outcome(names.every[0]), metric)
        panels.append(Panel(_targets(names, maximized), rows, metric, fields=("target",)))
    caption = (
        f"At K = {results.k()}: the same trials after fewer steps, and the steps to other targets in the "
        f"repetitions that reach them (mean and {PERCENTILES}). "
        "Schedules were tuned for all steps, so trials trained with a smaller budget would usually end better."
    )
    if ends[1]:
        caption += " Much larger means than at the end lie outside the axis."
    return Figure("Other budgets and targets", caption, [Part(panels)])


def _steps(results: Results, names: Names) -> list[int]:
    """Return some of the steps at which trials were evaluated."""
    outcome = results.outcome(names.every[names.numbers[0]])
    evaluated = outcome.curve(outcome.pool[0]).steps
    return [int(evaluated[i]) for i in np.unique(np.geomspace(1, len(evaluated), _POINTS).round().astype(int) - 1)]


def _budget_rows(results: Results, names: Names, steps: Sequence[int]) -> Rows:
    rows = [
        {
            "optimizer": number,
            "name": name,
            "step": step,
            **estimate_fields(results.outcome(name).at(step=step).best(results.k())),
        }
        for number, name in names.items()
        for step in steps
    ]
    return [row for row in rows if row["mean"] is not None]


def _highest(rows: Rows, maximized: bool) -> float | None:
    """Return where to end the metric's axis, so that a loss that explodes for a while does not flatten the others."""
    means = [row["mean"] for row in rows]
    last = max((row["step"] for row in rows), default=0)
    border = _SPAN * max((row["mean"] for row in rows if row["step"] == last), default=0.0)
    return border if not maximized and 0 < border < max(means) else None


def _target_rows(results: Results, names: Names, metric: str) -> Rows:
    rows = [
        {
            "optimizer": number,
            "name": name,
            "target": value,
            **estimate_fields(results.outcome(name).at(target=Target(metric, value)).steps_to_target(results.k())),
        }
        for value in _target_values(results, names, metric)
        for number, name in names.items()
    ]
    return [row for row in rows if row["mean"] is not None]


def _target_values(results: Results, names: Names, metric: str) -> list[float]:
    """Return targets between what half of all trials reach in the end and what only the best reach."""
    outcomes = [results.outcome(name).at(select=metric) for _, name in names.items()]
    ranked = np.concatenate([outcome.ranked() for outcome in outcomes])
    ranked = ranked[np.isfinite(ranked)]
    if not len(ranked):
        return []
    low, high = (float(end) for end in np.quantile(ranked, [0.02, 0.5]))
    values = np.geomspace(low, high, _POINTS) if low > 0 else np.linspace(low, high, _POINTS)
    return [float(f"{outcomes[0].metrics[metric].sign * value:.3g}") for value in values]


def _budgets(names: Names, x: alt.X) -> Any:
    y = charts.metric_axis(alt.Y, "mean", domainMax=charts.HIGHEST)
    return charts.sweep(names, x, y, charts.metric_tooltips(*charts.ESTIMATE))


def _seconds_axis() -> alt.X:
    axis = alt.Axis(format=",.3~g", grid=False, tickCount=5)
    return alt.X("seconds:Q", title="budget of a trial, seconds", axis=axis)


def _targets(names: Names, maximized: bool) -> Any:
    """Harder targets are further right."""
    x = charts.metric_axis(alt.X, "target", reverse=not maximized)
    x.axis = alt.Axis(format=charts.TICKS, grid=False, tickCount=4)
    y = alt.Y("mean:Q", title="steps to the target", axis=alt.Axis(format=",.0f"))
    return charts.sweep(names, x, y, charts.tooltips(*charts.ESTIMATE, format=",.0f"))
