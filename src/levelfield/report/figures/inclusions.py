"""The inclusion graph, its edges colored by the verdict of the audit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from levelfield.analysis.results import Results
from levelfield.formatting import format_p_value, format_percent
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.figure import Figure, Panel, Part, Rows, drawn_number, optimizer_names
from levelfield.report.narrative import followed_sentences
from levelfield.taxonomy.audit import CLEAR, LEAST_COVERED, SIGNIFICANT, Finding, Verdict, audit, coverage_obstacles
from levelfield.taxonomy.order import reduction

PLACE = 50
_LABEL_WIDTH = 150  # pixels
_VERDICTS = {  # color and dashes
    Verdict.CONSISTENT: ("#009E73", [1, 0]),
    Verdict.NO_SEPARATION: (charts.GRAY, [6, 4]),
    Verdict.VIOLATED: ("#D55E00", [1, 0]),
    Verdict.NOT_COVERED: ("#CC79A7", [2, 3]),
    Verdict.UNKNOWN: ("#bbbbbb", [2, 3]),
}


def figure(results: Results, protocols: Sequence[Results]) -> Figure | None:
    findings = audit(results, results.k())
    if not findings:
        return None
    names = optimizer_names(results)
    number = {name: i for i, name in enumerate(names.every)}
    edges, nodes = _graph(findings, number)
    by_edge = {(number[finding.edge.special], number[finding.edge.general]): finding for finding in findings}
    lines = [edge | _finding_fields(by_edge[edge["special"], edge["general"]]) for edge in edges]
    chart = _chart(Names("optimizer", names.every)).properties(height=60 + 50 * len({node["y"] for node in nodes}))
    caption = (
        "Each edge leads from an optimizer to one that includes it, on its right. "
        "If tuned well enough, the general optimizer is never worse."
    )
    data = {
        "inclusions": [
            {
                "special": special,
                "general": general,
                "p": None if math.isnan(finding.p_value) else finding.p_value,
                "share": finding.coverage.share,
                "coverage": finding.coverage.text,
            }
            for (special, general), finding in by_edge.items()
        ],
        "edges": edges,
        "nodes": nodes,
        "clear": CLEAR,
        "significant": SIGNIFICANT,
        "leastCovered": LEAST_COVERED,
        "verdicts": {verdict.name: verdict.value for verdict in Verdict},
    }
    context = {
        "findings": [_texts(finding) for finding in findings],
        "followed": followed_sentences(results),
        "unclear": format_percent(1 - CLEAR),
        "least_covered": format_percent(LEAST_COVERED),
        "obstacles": coverage_obstacles(findings),
    }
    part = Part([Panel(chart, [*lines, *nodes], live={})], context=context)
    return Figure("Inclusions", caption, [part], columns=1, data=data)


def _finding_fields(finding: Finding) -> dict[str, Any]:
    return {
        "inclusion": f"{finding.edge.special} ⊆ {finding.edge.general}",
        "verdict": finding.verdict.value,
        "worse": drawn_number(finding.worse),
        "better": drawn_number(finding.better),
        "p": drawn_number(finding.p_value),
        "coverage": finding.coverage.text,
    }


def _texts(finding: Finding) -> dict[str, str]:
    """Return the cells of a finding's row in the table."""
    return {
        "inclusion": f"{finding.edge.special} ⊆ {finding.edge.general}",
        "worse": format_percent(finding.worse),
        "better": format_percent(finding.better),
        "p": format_p_value(finding.p_value),
        "coverage": finding.coverage.text,
        "verdict": finding.verdict.value,
        "evidence": "; ".join(finding.evidence),
    }


def _graph(findings: Sequence[Finding], number: dict[str, int]) -> tuple[Rows, Rows]:
    """Return the edges, without those that follow from others, and the nodes of the inclusion graph."""
    drawn = reduction([finding.edge for finding in findings])
    places = layout([(edge.special, edge.general) for edge in drawn])
    edges = [
        {"special": number[edge.special], "general": number[edge.general]}
        | {"x": start[0], "y": start[1], "x2": end[0], "y2": end[1]}
        for edge in drawn
        for start, end in [(places[edge.special], places[edge.general])]
    ]
    return edges, [{"optimizer": number[name], "name": name, "x": x, "y": y} for name, (x, y) in places.items()]


def layout(pairs: list[tuple[str, str]]) -> dict[str, tuple[float, float]]:
    """Place each optimizer to the right of all that it includes, and spread those of a column evenly.

    >>> layout([("sgd", "momentum"), ("sgd", "nesterov"), ("momentum", "adam")])
    {'sgd': (0, 0.0), 'momentum': (1, 0.5), 'nesterov': (1, -0.5), 'adam': (2, 0.0)}
    """
    column = {name: 0 for pair in pairs for name in pair}
    for _ in column:  # longest paths; the limit is for optimizers that include each other
        for special, general in pairs:
            if (general, special) not in pairs:
                column[general] = max(column[general], column[special] + 1)
    members = {place: [name for name in column if column[name] == place] for place in column.values()}
    middle = {place: (len(names) - 1) / 2 for place, names in members.items()}
    return {name: (place, middle[place] - members[place].index(name)) for name, place in column.items()}


def _chart(names: Names) -> Any:
    verdicts = [verdict.value for verdict in _VERDICTS]
    colors, dashes = zip(*_VERDICTS.values(), strict=True)
    x = alt.X("x:Q", axis=None, scale=alt.Scale(padding=60))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(padding=30))
    base = alt.Chart(charts.ROWS)
    edges = (
        base.transform_filter("isValid(datum.verdict)")
        .mark_rule(strokeWidth=3)
        .encode(
            x=x,
            y=y,
            x2=alt.X2("x2:Q"),
            y2=alt.Y2("y2:Q"),
            color=alt.Color(
                "verdict:N",
                scale=alt.Scale(domain=verdicts, range=list(colors)),
                legend=alt.Legend(title=None, orient="bottom", symbolType="stroke", symbolStrokeWidth=3, columns=5),
            ),
            strokeDash=alt.StrokeDash("verdict:N", scale=alt.Scale(domain=verdicts, range=list(dashes)), legend=None),
            tooltip=[
                alt.Tooltip("inclusion:N"),
                alt.Tooltip("verdict:N"),
                alt.Tooltip("coverage:N"),
                *charts.tooltips("worse", "better", format=".0%"),
                *charts.tooltips("p", format=".2g"),
            ],
        )
    )
    nodes = base.transform_filter("isValid(datum.optimizer)").encode(x=alt.X("x:Q"), y=alt.Y("y:Q"))
    points = nodes.mark_circle(size=160, opacity=1).encode(
        color=names.color(legend=False), tooltip=[charts.name_tooltip()]
    )
    labels = nodes.mark_text(dy=-15, fontWeight="bold", limit=_LABEL_WIDTH).encode(text=alt.Text("name:N"))
    layers = alt.layer(edges, points + labels, view=alt.ViewConfig(stroke=None))
    return layers.resolve_scale(color="independent").properties(width=640)
