"""Steps to the target, and how often it is reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from levelfield.analysis.results import Results
from levelfield.formatting import format_metric
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.figure import Figure, Panel, Part, estimate_fields, optimizer_names

PLACE = 20


def figure(results: Results, protocols: Sequence[Results]) -> Figure | None:
    names, target = optimizer_names(results), results.study.target
    if not target:
        return None
    rows = [
        {
            "optimizer": number,
            "name": name,
            **estimate_fields(results.outcome(name).steps_to_target(results.study.trials)),
        }
        for number, name in names.items()
    ]
    rows = [row for row in rows if row["mean"] is not None]
    if not rows:
        return None
    caption = (
        f"Steps that the fastest of K trials takes to {target.metric} {format_metric(target.metric, target.value)}, "
        "among the repetitions that reach it. Above each bar: how many do."
    )
    return Figure("Steps to the target", caption, [Part([Panel(_chart(names), rows, live={})])], columns=1)


def _chart(names: Names) -> Any:
    reached = alt.Tooltip("probability:Q", title="reached", format=".0%")
    base = charts.by_optimizer(names, [*charts.tooltips(*charts.ESTIMATE, format=",.0f"), reached])
    x = alt.X(
        "low:Q",
        title="steps to the target",
        axis=alt.Axis(format=",.0f", tickCount=6),
        scale=alt.Scale(zero=False, padding=14),
    )
    shares = base.mark_text(dy=-11, fontSize=10).encode(x=alt.X("mean:Q"), text=alt.Text("probability:Q", format=".0%"))
    return charts.intervals(base, x) + shares
