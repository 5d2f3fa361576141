"""The final metric of every trial against each hyperparameter that was searched."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import altair as alt

from levelfield.analysis.results import Results
from levelfield.formatting import display_order, format_number
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.figure import (
    SPAN,
    Figure,
    Panel,
    Part,
    Rows,
    axis_coordinate,
    axis_end,
    drawn_number,
    is_maximized,
    optimizer_names,
)
from levelfield.space import Axis, Log

PLACE = 70
_ROOM = 0.05  # of a range, beyond its borders


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
    for trial in results.trials[name]:
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
        "x": _x(field, axis),
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


def _x(field: str, axis: Axis) -> alt.X:
    """Return the axis of a hyperparameter: its range with a little room beyond the borders."""
    title = charts.axis_title(axis)
    if charts.is_choice(axis):
        choices = Names(field, tuple(format_number(value) for value in axis.dimension.ends))
        scale = alt.Scale(domain=list(choices.numbers))
        return alt.X(f"{field}:N", title=title, scale=scale, axis=choices.axis(labelAngle=0))
    low, high = (float(end) for end in axis.dimension.ends)
    if isinstance(axis.dimension, Log):
        room = (high / low) ** _ROOM
        scale = alt.Scale(type="log", domain=[low / room, high * room], nice=False)
        return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(format="~e", tickCount=4, grid=False))
    room = _ROOM * (high - low)
    scale = alt.Scale(domain=[low - room, high + room], nice=False)
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(format="~g", tickCount=4, grid=False))


def file_name(name: str, names: Sequence[str]) -> str:
    """Return a name as part of a file's, different from those of the other names.

    >>> file_name("adam", ["adam", "a/b"]), file_name("a/b", ["a b", "a/b"])
    ('adam', 'a_b-1')
    """

    def plain(name: str) -> str:
        return re.sub(r"[^A-Za-z0-9.-]", "_", name)[:40]

    alike = [other for other in names if plain(other).lower() == plain(name).lower()]
    return plain(name) if len(alike) == 1 else f"{plain(name)}-{names.index(name)}"
