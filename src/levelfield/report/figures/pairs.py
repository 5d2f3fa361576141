"""How often each optimizer beats each other, and which rank it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from levelfield.analysis.results import Results
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.figure import Figure, Panel, Part, drawn_number, optimizer_names

PLACE = 40
_WRITTEN = 10  # optimizers whose win rates fit as text into the cells
_DARK = 0.7  # from this lead on, a cell's text is white


def figure(results: Results, protocols: Sequence[Results]) -> Figure | None:
    names = optimizer_names(results)
    if len(names.numbers) < 2:
        return None
    wins = [
        {
            "row": row,
            "column": column,
            "ours": ours,
            "theirs": theirs,
            "chance": drawn_number(chance),
            "lead": drawn_number(chance - results.beats(theirs, ours)),
        }
        for row, ours in names.items()
        for column, theirs in names.items()
        if row != column
        for chance in [results.beats(ours, theirs)]
    ]
    probabilities = results.rank_probabilities()
    ranks = [
        {"optimizer": number, "name": name, "rank": rank + 1, "chance": drawn_number(probabilities[name][rank])}
        for number, name in names.items()
        for rank in range(len(names.numbers))
    ]
    panels = [
        Panel(_wins(names), wins, live={"chart": "wins"}),
        Panel(_ranks(names), ranks, live={"chart": "ranks"}),
    ]
    caption = (
        "Left: how often the row's optimizer is strictly better than the column's; pale cells: neither leads. "
        "Right: how often each ranks first, second, and so on; ties share the better rank."
    )
    return Figure("Who beats whom", caption, [Part(panels)])


def _wins(names: Names) -> Any:
    base = alt.Chart(charts.ROWS).encode(
        x=alt.X("column:N", title=None, axis=names.axis(orient="top", labelAngle=-40)),
        y=alt.Y("row:N", title=None, axis=names.axis()),
        tooltip=[
            charts.name_tooltip("ours", "row"),
            charts.name_tooltip("theirs", "column"),
            alt.Tooltip("chance:Q", title="wins", format=".1%"),
        ],
    )
    scale = alt.Scale(domain=[-1, 0, 1], range=["#D55E00", "#f5f5f5", "#0072B2"])
    cells = base.mark_rect().encode(color=alt.Color("lead:Q", scale=scale, legend=None))
    if len(names.numbers) > _WRITTEN:
        return cells.properties(width=320, height=40 + 20 * len(names.numbers))
    shade = charts.conditional(alt.ColorValue, "white", "black", test=f"abs(datum.lead) > {_DARK}")
    texts = base.mark_text(fontSize=11).encode(text=alt.Text("chance:Q", format=".0%"), color=shade)
    return (cells + texts).properties(width=320, height=40 + 34 * len(names.numbers))


def _ranks(names: Names) -> Any:
    ranks = list(range(1, len(names.numbers) + 1))
    return (
        alt.Chart(charts.ROWS)
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            y=alt.Y("optimizer:N", title=None, axis=names.axis()),
            x=alt.X("chance:Q", title="probability of a rank", axis=alt.Axis(format="%"), scale=alt.Scale(nice=False)),
            color=alt.Color(
                "rank:O",
                scale=alt.Scale(scheme="blues", reverse=True, domain=ranks),
                legend=alt.Legend(title="rank", orient="bottom", direction="horizontal"),
            ),
            order=alt.Order("rank:O"),
            tooltip=[charts.name_tooltip(), alt.Tooltip("rank:O"), *charts.tooltips("chance", format=".1%")],
        )
        .properties(width=320, height=40 + 34 * len(names.numbers))
    )
