"""The page of a summary: its sentences, its table, the ranks and ratios in each study, and the performance profiles."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import altair as alt
from altair.utils import schemapi

from levelfield.analysis.profiles import LIMIT, credit
from levelfield.analysis.summary import Place, Standings, StudyStanding
from levelfield.formatting import MISSING, format_metric, format_number
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.figure import Figure, Panel, Part, Rows, drawn_number, packed
from levelfield.report.page import source, template, write_page
from levelfield.report.payload import CONSTANTS, script_json
from levelfield.report.summary_text import caveats, columns, format_bounds, format_decimal, sentences, title
from levelfield.report.vega import vega_bundle

_SCRIPTS = ("charts.js", "tables.js", "summary.js")
_PALE, _DEEP = "#eef3f8", "#0072B2"  # of the worst and the best cell
_DARK = 0.6  # from this depth on, a cell's text is white


def write_summary(summary: Standings, path: Path) -> Path:
    """Write one self-contained HTML file."""
    return write_page(render(summary), path)


def render(summary: Standings) -> str:
    figures = summary_figures(summary)
    shown = columns(summary)
    panels = [
        {"figure": figure.name, "spec": panel.spec(), "rows": packed(panel.rows)}
        for figure in figures
        for panel in figure.panels
    ]
    return template("summary.html").render(
        title=title(summary),
        caveats=caveats(summary),
        sentences=sentences(summary)[len(caveats(summary)) :],
        columns=shown,
        rows=[
            {"color": charts.color(number), "cells": [column.text(row) for column in shown]}
            for number, row in enumerate(summary.optimizers)
        ],
        counted=bool(summary.counted),
        figures=figures,
        studies=[_study_cells(study) for study in summary.studies],
        data=script_json({"panels": panels}),
        vega=vega_bundle(),
        script="\n".join([f"const CONSTANTS = {script_json(CONSTANTS)};", *map(source, _SCRIPTS)]),
    )


def _study_cells(study: StudyStanding) -> dict[str, Any]:
    content = study.results.study
    target = content.target
    return {
        "name": study.name,
        "workload": content.workload,
        "optimizers": len(study.places),
        "k": study.k,
        "pool": content.pool,
        "metric": content.select,
        "target": f"{target.metric} {format_metric(target.metric, target.value)}" if target else MISSING,
        "steps": content.steps,
        "interval": study.first_evaluation,
    }


def summary_figures(summary: Standings) -> list[Figure]:
    """Return the ranks, and the ratios and profiles if there is a target that somebody reaches."""
    with schemapi.debug_mode(False):  # which would validate every part of every chart
        return [_ranks(summary), *([_ratios(summary), _profiles(summary)] if summary.counted else [])]


def _optimizers(summary: Standings) -> Names:
    return Names("optimizer", tuple(row.optimizer for row in summary.optimizers))


def _ranks(summary: Standings) -> Figure:
    def cell(study: StudyStanding, place: Place) -> dict[str, Any]:
        worst = max(len(study.places) - 1, 1)
        first = place.rank_probabilities[0]
        return {
            "text": format_decimal(place.rank.value),
            "small": format_bounds(place.rank),
            "depth": drawn_number(1 - (place.rank.value - 1) / worst),
            "first": drawn_number(first),
            "best": format_number(place.best.median),
        }

    empty = {"text": MISSING, "small": "", "depth": None, "first": None, "best": MISSING}
    names = Names("study", tuple(study.name for study in summary.studies))
    tooltips = [
        alt.Tooltip("text:N", title="rank"),
        alt.Tooltip("small:N", title="possible ranks"),
        alt.Tooltip("first:Q", title="first in repetitions", format=".0%"),
        alt.Tooltip("best:N", title="median best of K"),
    ]
    rows = _cells(summary, list(summary.studies), cell, empty)
    caption = (
        "The rank of each optimizer in each study by the median best of K, and below it the ranks that the trials "
        "leave possible: behind all optimizers that are separated as better, ahead of all that are separated as worse. "
        f"All these intervals hold together with 95% confidence. {MISSING}: not in the study, or too few trials."
    )
    panel = Panel(_heat_map(_optimizers(summary), names, tooltips), rows)
    return Figure("Ranks", caption, [Part([panel])], columns=1, name="ranks")


def _ratios(summary: Standings) -> Figure:
    def cell(study: StudyStanding, place: Place) -> dict[str, Any]:
        assert place.ratio
        assert place.steps
        missed = math.isinf(place.ratio.value)
        return {
            "text": "missed" if missed else format_decimal(place.ratio.value),
            "small": format_bounds(place.ratio),
            "depth": drawn_number(credit(place.ratio.value)),
            "steps": "missed" if missed else f"{place.steps.median:,.0f}",
        }

    names = Names("study", tuple(study.name for study in summary.counted))
    tooltips = [
        alt.Tooltip("text:N", title="ratio"),
        alt.Tooltip("small:N", title="90% interval"),
        alt.Tooltip("steps:N", title="median steps"),
    ]
    rows = _cells(summary, summary.counted, cell, {"text": MISSING, "small": "", "depth": None, "steps": MISSING})
    caption = (
        "The median steps of the fastest of K trials to the target, divided by the best optimizer's, and below them "
        "the 90% confidence interval. Missed: more than half of the repetitions do not reach the target. "
        f"{MISSING}: not in the study, or too few trials."
    )
    panel = Panel(_heat_map(_optimizers(summary), names, tooltips), rows)
    return Figure("Steps to target, relative to the best", caption, [Part([panel])], columns=1, name="ratios")


def _cells(summary: Standings, studies: list[StudyStanding], cell: Any, empty: dict[str, Any]) -> Rows:
    return [
        {"optimizer": number, "name": row.optimizer, "study": column, "studyName": study.name}
        | (cell(study, study.places[row.optimizer]) if row.optimizer in study.places else empty)
        for number, row in enumerate(summary.optimizers)
        for column, study in enumerate(studies)
    ]


def _heat_map(optimizers: Names, studies: Names, tooltips: list[alt.Tooltip]) -> Any:
    base = alt.Chart(charts.ROWS).encode(
        x=alt.X("study:N", title=None, axis=studies.axis(orient="top", labelAngle=-20, labelLimit=160, ticks=False)),
        y=alt.Y("optimizer:N", title=None, axis=optimizers.axis(labelLimit=150, ticks=False)),
        tooltip=[charts.name_tooltip(), charts.name_tooltip("studyName", "study"), *tooltips],
    )
    scale = alt.Scale(domain=[0, 1], range=[_PALE, _DEEP])
    known = base.transform_filter("isValid(datum.depth)")
    cells = known.mark_rect(stroke="white", strokeOpacity=0.5).encode(
        color=alt.Color("depth:Q", scale=scale, legend=None)
    )
    shade = charts.conditional(alt.ColorValue, "white", "black", test=f"datum.depth > {_DARK}")
    values = known.mark_text(fontSize=13, dy=-6, fontWeight=600).encode(text="text:N", color=shade)
    small = known.mark_text(fontSize=10, dy=9).encode(text="small:N", color=shade)
    missing = base.transform_filter("!isValid(datum.depth)").mark_text(fontSize=13).encode(text="text:N")
    return (cells + values + small + missing).properties(width=600, height=50 + 40 * len(optimizers.numbers))


def _profiles(summary: Standings) -> Figure:
    rows: Rows = []
    for number, row in enumerate(summary.optimizers):
        jumps = {ratio.value for ratio in row.ratios.values() if 1 < ratio.value < LIMIT}
        for tau in sorted({1.0, *jumps, LIMIT}):
            share = drawn_number(row.profile(tau))
            rows.append({"optimizer": number, "name": row.optimizer, "tau": drawn_number(tau), "share": share})
    caption = (
        f"The share of the {len(summary.counted)} studies in which an optimizer takes at most τ times the steps of the "
        "best one to the target. A missed target and a study without trials of the optimizer are never reached. The "
        "score is the mean height of the line. Click a name in the legend to highlight it."
    )
    return Figure(
        "Performance profiles", caption, [Part([Panel(_profile_chart(_optimizers(summary)), rows)])], 1, name="profiles"
    )


def _profile_chart(names: Names) -> Any:
    picked = alt.selection_point(name="picked", fields=["optimizer"], bind="legend")
    base = alt.Chart(charts.ROWS).encode(
        x=alt.X(
            "tau:Q",
            title="τ, times the fewest steps",
            scale=alt.Scale(domain=[1, LIMIT], nice=False),
            axis=alt.Axis(grid=False, tickCount=6),
        ),
        y=alt.Y(
            "share:Q",
            title="share of studies",
            scale=alt.Scale(domain=[0, 1.03], nice=False),
            axis=alt.Axis(format="%", values=[0, 0.25, 0.5, 0.75, 1]),
        ),
        color=names.color(),
        opacity=charts.conditional(alt.OpacityValue, 1, 0.1, param="picked"),
        tooltip=[
            charts.name_tooltip(),
            alt.Tooltip("tau:Q", title="τ", format=".2f"),
            alt.Tooltip("share:Q", format=".0%"),
        ],
    )
    lines = base.mark_line(strokeWidth=2.5, interpolate="step-after")
    points = base.mark_point(filled=True, size=35)
    return (lines + points).add_params(picked).properties(width=600, height=300)
