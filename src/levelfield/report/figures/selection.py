"""The reported metric, had another metric selected the trial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from levelfield.analysis.results import Results
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.columns import PERCENTILES, reported_metric
from levelfield.report.figure import Figure, Panel, Part, estimate_fields, optimizer_names

PLACE = 90


def figure(results: Results, protocols: Sequence[Results]) -> Figure | None:
    names, report = optimizer_names(results), reported_metric(results)
    metrics = Names("selector", tuple(results.outcome(names.every[0]).metrics))
    if len(metrics.every) < 2:
        return None
    rows = [
        {
            "optimizer": number,
            "name": name,
            "selector": selector,
            "selectorName": metric,
            **estimate_fields(results.outcome(name).at(select=metric).best(results.k(), report)),
        }
        for number, name in names.items()
        for selector, metric in metrics.items()
    ]
    caption = f"The same trials, had another metric selected the best of K: mean and {PERCENTILES}."
    panel = Panel(_chart(names, metrics), rows, report, "report", live={})
    return Figure("Selected by another metric", caption, [Part([panel])], columns=1)


def _chart(names: Names, metrics: Names) -> Any:
    base = alt.Chart(charts.ROWS).encode(
        y=alt.Y("selector:N", title="selected by", axis=metrics.axis()),
        yOffset=alt.YOffset("optimizer:N"),
        color=names.color(),
        tooltip=[
            charts.name_tooltip(),
            charts.name_tooltip("selectorName", "selected by"),
            *charts.metric_tooltips(*charts.ESTIMATE),
        ],
    )
    height = len(metrics.numbers) * (20 + 10 * len(names.numbers))
    return charts.intervals(base, charts.metric_axis(alt.X, "low", padding=12)).properties(width=640, height=height)
