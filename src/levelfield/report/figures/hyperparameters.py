"""The final metric of every trial against each hyperparameter that was searched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from levelfield.analysis.results import Results
from levelfield.formatting import display_order, format_number
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.figure import (
    MOST_DRAWN,
    SPAN,
    Figure,
    Panel,
    Part,
    Rows,
    axis_coordinate,
    axis_end,
    drawn_number,
    drawn_positions,
    file_name,
    is_maximized,
    optimizer_names,
)
from levelfield.space import Axis

PLACE = 70


def figure(results: Results, protocols: Sequence[Results]) -> Figure | None:
    names = optimizer_names(results)
    parts = [_part(results, names, number, name) for number, name in names.items()]
    parts = [part for part in parts if part.panels]
    if not parts:
        return None
    caption = (
        "The final metric of every trial. Dashed lines: the borders of the range. Crosses: infeasible trials. For a "
        f"metric that is minimized, trials beyond {SPAN:g} times the median are drawn at the upper end. Good trials "
        "close to a border call for a wider range. To see what a smaller search space would have given, drag over a "
        "chart or enter a range below it."
    )
    if any(outcome.tried > MOST_DRAWN for outcome in results.outcomes.values()):
        caption += (
            f" Of an optimizer with more than {MOST_DRAWN:,} trials, the first {MOST_DRAWN:,} and the best by each "
            "metric are drawn; all numbers on this page are computed from all trials."
        )
    return Figure("Hyperparameters", caption, parts, columns=3, data={"span": SPAN})


def _part(results: Results, names: Names, number: int, name: str) -> Part:
    select, axes = results.study.select, results.study.optimizer(name).space.free
    rows = _rows(results, number, name, axes)
    panels = [
        Panel(_chart(f"x{i}", axis, names), rows, select, "select", live={"optimizer": number, "axis": i})
        for i, axis in sorted(enumerate(axes), key=lambda item: display_order(item[1].name))
    ]
    context = {
        "optimizer": number,
        "axes": [
            {
                "number": i,
                "title": charts.axis_title(axis),
                "choice": charts.is_choice(axis),
                "ends": [format_number(end) for end in axis.dimension.ends],
            }
            for i, axis in enumerate(axes)
        ],
    }
    return Part(panels, name, file_name(name, names.every), charts.color(number), context)


def _rows(results: Results, number: int, name: str, axes: Sequence[Axis]) -> Rows:
    select, outcome = results.study.select, results.outcome(name)
    border = axis_end(outcome, select)
    better = max if is_maximized(outcome, select) else min
    rows = []
    for position in drawn_positions(outcome, results.trials[name]):
        trial = results.trials[name][position]
        value = trial.curve.at(select, outcome.step)
        shown = better(value, border) if trial.feasible and math.isfinite(value) else border
        coordinates = {f"x{i}": axis_coordinate(axis, trial) for i, axis in enumerate(axes)}
        rows.append(
            {
                "optimizer": number,
                "name": name,
                "trial": trial.point.index,
                "feasible": trial.feasible,
                "kept": True,
                "value": drawn_number(shown),
                **coordinates,
            }
        )
    return rows


def _chart(field: str, axis: Axis, names: Names) -> Any:
    """Return a chart of trials. A range dragged over it ("range") keeps the trials inside; the others are pale."""
    coordinate = alt.Tooltip(f"{field}:Q", title=axis.key, format=".3~g")
    # Altair copies a chart for each call: encodings come last, there are many of these charts.
    encodings = {
        "x": charts.coordinate_axis(field, axis),
        "y": charts.metric_axis(alt.Y, "value"),
        "opacity": charts.conditional(alt.OpacityValue, 0.8, 0.12, test="datum.kept"),
        "tooltip": [
            *charts.tooltips("trial"),
            *charts.metric_tooltips("value"),
            *([] if charts.is_choice(axis) else [coordinate]),
        ],
    }
    feasible = alt.Chart(charts.ROWS).transform_filter("datum.feasible").mark_circle(size=45)
    infeasible = alt.Chart(charts.ROWS).transform_filter("!datum.feasible")
    layers = [infeasible.mark_point(shape="cross", angle=45, color=charts.GRAY).encode(**encodings)]
    if not charts.is_choice(axis):
        feasible = feasible.add_params(alt.selection_interval(name="range", encodings=["x"]))
        ends = alt.InlineData(values=[{field: end} for end in axis.dimension.ends])
        borders = alt.Chart(ends).mark_rule(strokeDash=[4, 3], color=charts.GRAY)
        layers.append(borders.encode(x=alt.X(f"{field}:Q")))
    points = feasible.encode(color=names.color(legend=False), **encodings)
    return alt.layer(points, *layers, width=190, height=140)
