"""The expected best against the number of trials, and against what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import altair as alt

from levelfield.analysis.ranking import several_ks
from levelfield.analysis.results import Results
from levelfield.analysis.step_times import differ
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.columns import PERCENTILES, reported_metric
from levelfield.report.figure import (
    Figure,
    Panel,
    Part,
    Rows,
    drawn_number,
    estimate_fields,
    is_maximized,
    optimizer_names,
)
from levelfield.report.narrative import step_time_source

PLACE = 30
_SHOWN_KS = 30
_FIRST_IN_SIGHT = 2  # trials: the best of fewer may be anything, and lie beyond the axis


def figure(results: Results, protocols: Sequence[Results]) -> Figure | None:
    names, study = optimizer_names(results), results.study
    if study.is_chosen:
        return None
    outcomes = [results.outcome(name) for _, name in names.items()]
    timed = differ(results.step_times)
    ks = several_ks(max(len(outcome.pool) for outcome in outcomes), _SHOWN_KS)

    def panel(metric: str, choice: Literal["select", "report"], cost: bool = False) -> Panel:
        rows = [
            {
                "optimizer": number,
                "name": name,
                "k": k,
                "cost": drawn_number(outcome.cost(k) * (outcome.step_seconds if timed else 1)),
                **estimate_fields(outcome.best(k, metric)),
            }
            for (number, name), outcome in zip(names.items(), outcomes, strict=True)
            for k in ks
        ]
        ends = _ends(rows, is_maximized(outcomes[0], metric))
        return Panel(_chart(names, cost, timed), rows, metric, choice, ends=ends, live={})

    panels = [panel(study.select, "select"), panel(study.select, "select", cost=True)]
    if (report := reported_metric(results)) != study.select:
        panels.append(panel(report, "report"))
    caption = (
        f"The best of K trials against K, and against their cost: mean (line) and {PERCENTILES} (band), "
        "the luck of a tuner. A band is not a confidence interval: bands that do not overlap may still be chance. "
        "A diverged trial costs the steps that it ran. The best of a single trial may lie outside the axis. "
        "Click a name in the legend to highlight it."
    )
    if timed:
        caption += f" Seconds are steps times what a step takes ({step_time_source(results.step_times)})."
    data = {"ks": ks, "firstInSight": _FIRST_IN_SIGHT, "timed": timed}
    return Figure("How many trials", caption, [Part(panels)], data=data)


def _ends(rows: Rows, maximized: bool) -> tuple[float | None, float | None]:
    """Return ends of the metric's axis that keep the worst optimizer's mean in sight."""
    means = [row["mean"] for row in rows if row["k"] >= _FIRST_IN_SIGHT and row["mean"] is not None]
    return (min(means, default=None), None) if maximized else (None, max(means, default=None))


def _chart(names: Names, cost: bool, timed: bool) -> Any:
    unit = "seconds of training" if timed else "trial-steps"
    x = alt.X(
        "cost:Q" if cost else "k:Q",
        title=f"{unit}, infeasible trials included" if cost else "K, number of trials",
        scale=alt.Scale(type="log", base=10 if cost else 2, nice=False),
        axis=alt.Axis(format=",~r" if timed and cost else "~s", grid=False, tickCount=6),
    )
    picked = alt.selection_point(name="picked", fields=["optimizer"], bind="legend")
    ends = {"domainMin": charts.LOWEST, "domainMax": charts.HIGHEST}
    base = alt.Chart(charts.ROWS).encode(x=x, color=names.color())
    band = base.mark_area(clip=True).encode(
        y=charts.metric_axis(alt.Y, "low", **ends),
        y2=alt.Y2("high:Q"),
        opacity=charts.conditional(alt.OpacityValue, 0.12, 0, param="picked"),
    )
    tooltips = [
        charts.name_tooltip(),
        *charts.tooltips("k"),
        *charts.tooltips("cost", format=",.3~g" if timed else ",.0f"),
    ]
    line = base.mark_line(strokeWidth=2.5, clip=True).encode(
        y=charts.metric_axis(alt.Y, "mean", **ends),
        opacity=charts.conditional(alt.OpacityValue, 1, 0.1, param="picked"),
        tooltip=[*tooltips, *charts.metric_tooltips(*charts.ESTIMATE)],
    )
    # A line through a single K has no length.
    points = line.transform_joinaggregate(ks="count()", groupby=["optimizer"]).transform_filter("datum.ks == 1")
    layers = band + line + points.mark_point(filled=True, size=60)
    return layers.add_params(picked).properties(width=400, height=280)
