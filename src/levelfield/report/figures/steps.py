"""Steps to the target, where misses count as infinitely slow, and how often it is reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from levelfield.analysis.results import Results
from levelfield.formatting import format_metric
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.columns import CONFIDENCE
from levelfield.report.figure import Figure, Panel, Part, drawn_number, interval_fields, optimizer_names

PLACE = 20


def figure(results: Results, protocols: Sequence[Results]) -> Figure | None:
    names, target, k = optimizer_names(results), results.study.target, results.k()
    outcomes = [(number, name, results.outcome(name)) for number, name in names.items()]
    if not target or not any(np.isfinite(outcome.steps).any() for *_, outcome in outcomes):
        return None
    rows = [
        {
            "optimizer": number,
            "name": name,
            **interval_fields(outcome.steps_interval(k)),
            "reached": drawn_number(outcome.reached(k).probability),
            "reachedLow": drawn_number(outcome.reached(k).low),
            "reachedHigh": drawn_number(outcome.reached(k).high),
        }
        for number, name, outcome in outcomes
    ]
    caption = (
        f"Steps that the fastest of K trials takes to {target.metric} {format_metric(target.metric, target.value)}: "
        f"the median (diamond) and its {CONFIDENCE} (bar; a dashed arrow is an open end). A repetition that misses the "
        "target counts as infinitely slow, so an optimizer that misses it in most repetitions has no median. Above "
        f"each bar: the share of repetitions that reach the target, and its {CONFIDENCE}."
    )
    return Figure("Steps to the target", caption, [Part([Panel(_chart(names), rows, live={})])], columns=1)


def _chart(names: Names) -> Any:
    steps = charts.interval_tooltips(CONFIDENCE, format=",.0f")
    base = charts.by_optimizer(names, [*steps, *charts.tooltips("reached", format=".0%")])
    x = alt.X(
        "median:Q",
        title="steps to the target",
        axis=alt.Axis(format=",.0f", tickCount=6),
        scale=alt.Scale(zero=False, padding=14),
    )
    percent = "format(datum.{}, '.0%')"
    ends = " + '–' + ".join(percent.format(field) for field in ("reachedLow", "reachedHigh"))
    label = f"isValid(datum.reached) ? {percent.format('reached')} + ' reach it (' + {ends} + ')' : ''"
    shares = base.transform_calculate(label=label).mark_text(align="left", dy=-5, fontSize=10, xOffset=4)
    shares = shares.encode(x=alt.value(0), text=alt.Text("label:N"), color=alt.ColorValue(charts.GRAY))
    return alt.layer(*charts.confidence_intervals(base, x, offset=8), shares)
