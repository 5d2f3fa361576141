"""Steps and seconds to the target, where misses count as infinitely slow, and how often it is reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.results import Results
from levelfield.analysis.step_times import differ
from levelfield.formatting import format_metric
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.columns import CONFIDENCE
from levelfield.report.figure import Figure, Panel, Part, Rows, drawn_number, interval_fields, optimizer_names
from levelfield.report.narrative import step_time_source

PLACE = 20


def figure(results: Results, protocols: Sequence[Results]) -> Figure | None:
    names, target, k = optimizer_names(results), results.study.target, results.k()
    outcomes = [(number, name, results.outcome(name)) for number, name in names.items()]
    if not target or not any(np.isfinite(outcome.steps).any() for *_, outcome in outcomes):
        return None
    rows: Rows = [
        {"optimizer": number, "name": name, **interval_fields(outcome.steps_interval(k)), **_reached(outcome, k)}
        for number, name, outcome in outcomes
    ]
    panels = [Panel(_chart(names, "steps"), rows, live={})]
    caption = (
        f"Steps that the fastest of K trials takes to {target.metric} {format_metric(target.metric, target.value)}: "
        f"the median (diamond) and its {CONFIDENCE} (bar; a dashed arrow is an open end). A repetition that misses the "
        "target counts as infinitely slow, so an optimizer that misses it in most repetitions has no median. Above "
        f"each bar: the share of repetitions that reach the target, and its {CONFIDENCE}."
    )
    if differ(results.step_times):
        timed = [
            row | interval_fields(outcome.seconds_interval(k))
            for row, (*_, outcome) in zip(rows, outcomes, strict=True)
        ]
        panels.append(Panel(_chart(names, "seconds"), timed, live={"seconds": True}))
        caption += f" Seconds are steps times what a step takes ({step_time_source(results.step_times)})."
    return Figure("Steps to the target", caption, [Part(panels)], columns=1)


def _reached(outcome: Outcome, k: int) -> dict[str, float | None]:
    chance = outcome.reached(k)
    fields = {"reached": chance.probability, "reachedLow": chance.low, "reachedHigh": chance.high}
    return {name: drawn_number(value) for name, value in fields.items()}


def _chart(names: Names, unit: str) -> Any:
    numbers = ",.0f" if unit == "steps" else ",.3~g"
    ends = charts.interval_tooltips(CONFIDENCE, format=numbers)
    base = charts.by_optimizer(names, [*ends, *charts.tooltips("reached", format=".0%")])
    x = alt.X(
        "median:Q",
        title=f"{unit} to the target",
        axis=alt.Axis(format=numbers, tickCount=6),
        scale=alt.Scale(zero=False, padding=14),
    )
    percent = "format(datum.{}, '.0%')"
    share = " + '–' + ".join(percent.format(field) for field in ("reachedLow", "reachedHigh"))
    label = f"isValid(datum.reached) ? {percent.format('reached')} + ' reach it (' + {share} + ')' : ''"
    shares = base.transform_calculate(label=label).mark_text(align="left", dy=-5, fontSize=10, xOffset=4)
    shares = shares.encode(x=alt.value(0), text=alt.Text("label:N"), color=alt.ColorValue(charts.GRAY))
    return alt.layer(*charts.confidence_intervals(base, x, offset=8), shares)
