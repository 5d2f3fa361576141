"""The same rules under several tuning protocols: those of one study, or of several studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from levelfield.analysis.protocols import by_protocol, flips, pairs
from levelfield.analysis.results import Results
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.columns import reported_metric
from levelfield.report.figure import Figure, Panel, Part, Rows, estimate_fields

PLACE = 60


def figure(results: Results, protocols: Sequence[Results]) -> Figure | None:
    columns = by_protocol(protocols)
    tuned = [rule for column in columns.values() for rule in column]
    rules = Names("rule", tuple(dict.fromkeys(tuned)))
    if len(rules.every) == len(tuned):  # no rule has two protocols
        return None
    labels = Names("protocol", tuple(columns))
    first = protocols[0]

    def rows(metric: str) -> Rows:
        return [
            {
                "rule": rules.every.index(rule),
                "ruleName": rule,
                "name": entry.outcome.name,
                "protocol": protocol,
                "protocolName": label,
                "k": entry.k,
                **estimate_fields(entry.outcome.best(entry.k, metric)),
            }
            for protocol, (label, column) in enumerate(columns.items())
            for rule, entry in column.items()
            if entry.outcome.pool
        ]

    metrics = dict.fromkeys([first.study.select, reported_metric(first)])
    panels = [Panel(_chart(rules, labels), rows(metric), metric) for metric in metrics]
    context = {
        "flips": [str(flip) for flip in flips(columns)],
        "shared": any(len(pair.protocols) > 1 for pair in pairs(columns)),
    }
    caption = (
        "The mean of each rule under each tuning protocol. Where lines cross, the means change places. A rank change "
        "is listed below only if the trials separate the two rules under both protocols."
    )
    return Figure("Tuning protocols", caption, [Part(panels, context=context)])


def _chart(rules: Names, labels: Names) -> Any:
    base = alt.Chart(charts.ROWS).encode(
        x=alt.X("protocol:N", title=None, axis=labels.axis(labelAngle=0, labelLimit=170, labelOverlap=False)),
        xOffset=alt.XOffset("rule:N"),
        color=rules.color(),
    )
    y = charts.metric_axis(alt.Y, "mean")
    marks = base.encode(
        tooltip=[
            charts.name_tooltip(),
            charts.name_tooltip("protocolName", "protocol"),
            *charts.tooltips("k"),
            *charts.metric_tooltips(*charts.ESTIMATE),
        ]
    )
    lines = base.mark_line(opacity=0.6).encode(y=y)
    bars = marks.mark_rule(strokeWidth=2.5).encode(y=charts.metric_axis(alt.Y, "low"), y2=alt.Y2("high:Q"))
    points = marks.mark_point(filled=True, size=80, opacity=1).encode(y=y)
    return (lines + bars + points).properties(width=330, height=260)
