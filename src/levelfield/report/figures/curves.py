"""Learning curves: each optimizer's best trial over others of its pool."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import numpy as np

from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.results import Results
from levelfield.report import charts
from levelfield.report.figure import (
    Figure,
    Panel,
    Part,
    axis_end,
    is_maximized,
    optimizer_names,
    short_number,
)

PLACE = 80
_SHOWN_CURVES = 60  # of each optimizer, besides its best
_SHOWN_POINTS = 25  # of a curve


def figure(results: Results, protocols: Sequence[Results]) -> Figure | None:
    names, select = optimizer_names(results), results.study.select
    outcomes = {number: results.outcome(name) for number, name in names.items()}
    if not any(len(outcome.curve(trial).steps) > 1 for outcome in outcomes.values() for trial in outcome.pool):
        return None
    in_sight = [value for outcome in outcomes.values() for value in _in_sight(outcome, select)]
    maximized = is_maximized(next(iter(outcomes.values())), select)
    ends = (short_number(min(in_sight)), None) if maximized else (None, short_number(max(in_sight)))
    panels = [
        Panel(_chart(outcome.name, charts.color(number)), list(_rows(outcome, select)), select, ends=ends)
        for number, outcome in outcomes.items()
    ]
    caption = f"The best trial of each optimizer, and up to {_SHOWN_CURVES} others of its pool in gray."
    return Figure("Learning curves", caption, [Part(panels)], columns=3)


def _in_sight(outcome: Outcome, metric: str) -> Iterator[float]:
    """Yield what the axis has to show: good final values, and the last three quarters of the best trial."""
    yield axis_end(outcome, metric)
    if outcome.best_trial:
        values = outcome.curve(outcome.best_trial).values.get(metric, np.empty(0))
        yield from (float(value) for value in values[len(values) // 4 :] if math.isfinite(value))


def _rows(outcome: Outcome, metric: str) -> Iterator[dict[str, Any]]:
    best = outcome.best_trial
    if best is None:
        return
    others = [trial for trial in outcome.pool if trial is not best][:_SHOWN_CURVES]
    for trial in [*others, best]:
        curve = outcome.curve(trial)
        values = curve.values.get(metric, np.empty(0))
        if not len(values):
            continue
        for i in np.unique(np.linspace(0, len(curve.steps) - 1, _SHOWN_POINTS).round().astype(int)):
            if math.isfinite(values[i]):
                point = {"step": int(curve.steps[i]), "value": short_number(float(values[i]))}
                yield {"trial": trial.point.index, **point, "best": trial is best}


def _chart(name: str, color: str) -> Any:
    base = alt.Chart(charts.ROWS).encode(
        x=charts.step_axis("step"),
        y=charts.metric_axis(alt.Y, "value", domainMin=charts.LOWEST, domainMax=charts.HIGHEST),
        detail=alt.Detail("trial:N"),
        tooltip=[*charts.tooltips("trial", "step"), *charts.metric_tooltips("value")],
    )
    others = base.transform_filter("!datum.best").mark_line(color=charts.GRAY, opacity=0.3, strokeWidth=1, clip=True)
    best = base.transform_filter("datum.best").mark_line(strokeWidth=3, point={"color": color}, clip=True, color=color)
    return (others + best).properties(width=215, height=150, title=charts.title(name))
