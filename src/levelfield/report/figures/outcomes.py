"""The metric of the selected trial, by optimizer: the median with its uncertainty, the mean with its luck."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from levelfield.analysis.results import Results
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.columns import CONFIDENCE, PERCENTILES, reported_metric
from levelfield.report.figure import Figure, Panel, Part, estimate_fields, interval_fields, optimizer_names
from levelfield.report.narrative import rerun_sentences

PLACE = 10
_MEDIAN, _MEAN = f"median, {CONFIDENCE}", f"mean, {PERCENTILES}"  # in the legend
_APART = 7  # pixels from an optimizer's line to each of its two marks


def figure(results: Results, protocols: Sequence[Results]) -> Figure:
    names, study, k = optimizer_names(results), results.study, results.k()
    report = reported_metric(results)
    outcomes = [(number, name, results.outcome(name)) for number, name in names.items()]
    luck = [
        {"optimizer": number, "name": name, **estimate_fields(outcome.best(k, report))}
        for number, name, outcome in outcomes
    ]
    rows = [
        {
            "optimizer": number,
            "name": name,
            **interval_fields(outcome.interval(k)),
            **estimate_fields(outcome.best(k)),
        }
        for number, name, outcome in outcomes
    ]
    fields = ("median", "medianLow", "mean", "low")
    panels = [Panel(_both(names), rows, study.select, "select", fields=fields, live={})]
    if report != study.select:
        panels.append(Panel(_luck(names), luck, report, "report", live={}))
    caption = (
        f"The trial that a tuner with K trials would select. Diamonds and thick bars: the median and its {CONFIDENCE} "
        "(confidence interval), which shrinks as the pools grow; a dashed arrow is an end that these trials do not "
        f"bound. Circles and thin bars: the mean and {PERCENTILES} of repetitions, the luck of a tuner, which "
        "larger pools do not shrink."
    )
    return Figure("Outcomes", caption, [Part(panels, context={"reruns": rerun_sentences(results)})])


def _both(names: Names) -> Any:
    tooltip = charts.interval_tooltips(CONFIDENCE, format=charts.FORMAT) + charts.metric_tooltips(*charts.ESTIMATE)
    base = charts.by_optimizer(names, tooltip)
    shape = alt.Shape(
        "quantity:N",
        scale=alt.Scale(domain=[_MEDIAN, _MEAN], range=["diamond", "circle"]),
        legend=alt.Legend(title=None, orient="bottom", symbolFillColor=charts.GRAY, symbolStrokeColor=charts.GRAY),
    )
    axis = charts.metric_axis(alt.X, "median", padding=12)
    *bars, points = charts.confidence_intervals(base, axis, -_APART)
    points = points.transform_calculate(quantity=f"'{_MEDIAN}'").encode(shape=shape)
    mean = base.transform_calculate(quantity=f"'{_MEAN}'").mark_point(filled=True, size=45, opacity=1, yOffset=_APART)
    mean = mean.encode(x=alt.X("mean:Q"), shape=shape)
    spread = base.mark_rule(strokeWidth=1.5, yOffset=_APART).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"))
    return alt.layer(*bars, points, spread, mean)


def _luck(names: Names) -> Any:
    base = charts.by_optimizer(names, charts.metric_tooltips(*charts.ESTIMATE))
    bars = base.mark_rule(strokeWidth=1.5).encode(x=charts.metric_axis(alt.X, "low", padding=12), x2=alt.X2("high:Q"))
    return bars + base.mark_point(filled=True, size=45, opacity=1).encode(x=alt.X("mean:Q"))
