"""The metric of the selected trial, by optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import altair as alt

from levelfield.analysis.results import Results
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.columns import PERCENTILES, reported_metric
from levelfield.report.figure import Figure, Panel, Part, estimate_fields, optimizer_names
from levelfield.report.narrative import rerun_sentences

PLACE = 10


def figure(results: Results, protocols: Sequence[Results]) -> Figure:
    names, study = optimizer_names(results), results.study

    def panel(metric: str, choice: Literal["select", "report"]) -> Panel:
        rows = [
            {"optimizer": number, "name": name, **estimate_fields(results.outcome(name).best(study.trials, metric))}
            for number, name in names.items()
        ]
        return Panel(_chart(names), rows, metric, choice, live={})

    panels = [panel(study.select, "select")]
    if reported_metric(results) != study.select:
        panels.append(panel(reported_metric(results), "report"))
    return Figure(
        "Outcomes",
        f"The trial that a tuner with K trials would select: mean (point) and {PERCENTILES} (bar).",
        [Part(panels, context={"reruns": rerun_sentences(results)})],
    )


def _chart(names: Names) -> Any:
    base = charts.by_optimizer(names, charts.metric_tooltips(*charts.ESTIMATE))
    return charts.intervals(base, charts.metric_axis(alt.X, "low", padding=12))
