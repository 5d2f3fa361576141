"""How often each optimizer beats each other, and which rank it takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import altair as alt

from levelfield.analysis.intervals import SIGNIFICANCE, PairTest
from levelfield.analysis.results import Results
from levelfield.formatting import format_percent
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.figure import Figure, Panel, Part, drawn_number, optimizer_names

PLACE = 40
_WRITTEN = 10  # optimizers whose win rates fit as text into the cells
_DARK = 0.7  # from this lead on, a cell's text is white
_PALE = 0.3  # how much of its color a cell keeps if its two are not separated
_BETTER, _WORSE, _OPEN = "clearly better", "clearly worse", "not clearly different"


def figure(results: Results, protocols: Sequence[Results]) -> Figure | None:
    names = optimizer_names(results)
    if len(names.numbers) < 2:
        return None
    able = results.comparable()
    compared = [(number, name) for number, name in names.items() if name in able]
    tested = {frozenset(test.names): test for test in results.pair_tests()}
    wins = [
        {
            "row": row,
            "column": column,
            "ours": ours,
            "theirs": theirs,
            "chance": drawn_number(chance),
            "lead": drawn_number(chance - results.beats(theirs, ours)),
            "p": drawn_number(tested[frozenset((ours, theirs))].p_value),
            "verdict": _verdict(tested[frozenset((ours, theirs))], ours),
        }
        for row, ours in compared
        for column, theirs in compared
        if row != column
        for chance in [results.beats(ours, theirs)]
    ]
    probabilities = results.rank_probabilities()
    ranks = [
        {"optimizer": number, "name": name, "rank": rank + 1, "chance": drawn_number(probabilities[name][rank])}
        for number, name in compared
        for rank in range(len(compared))
    ]
    panels = [
        Panel(_wins(names), wins, live={"chart": "wins"}),
        Panel(_ranks(names), ranks, live={"chart": "ranks"}),
    ]
    tests = "Nothing is tested, so all colors are pale. "
    if results.study.is_tested:
        tests = (
            "Strong colors: the two are separated, by permutation tests with a chance of at most "
            f"{format_percent(SIGNIFICANCE)} that any claim is false; ★ marks the better one. Pale cells: not clearly "
            "different, however often one of them wins. "
        )
    caption = (
        f"Left: in how many repetitions the row's optimizer is strictly better than the column's. {tests}"
        "Right: how often each ranks first, second, and so on in these pools; ties share the better rank. "
        "Optimizers with fewer than K feasible trials are left out."
    )
    data = {"better": _BETTER, "worse": _WORSE, "open": _OPEN, "testing": "testing …"}
    return Figure("Who beats whom", caption, [Part(panels)], data=data)


def _verdict(test: PairTest, ours: str) -> str:
    if not test.separated:
        return _OPEN
    return _BETTER if test.better == ours else _WORSE


def _wins(names: Names) -> Any:
    base = alt.Chart(charts.ROWS).encode(
        x=alt.X("column:N", title=None, axis=names.axis(orient="top", labelAngle=40)),
        y=alt.Y("row:N", title=None, axis=names.axis()),
        tooltip=[
            charts.name_tooltip("ours", "row"),
            charts.name_tooltip("theirs", "column"),
            alt.Tooltip("chance:Q", title="wins", format=".1%"),
            alt.Tooltip("verdict:N", title="row's optimizer"),
            alt.Tooltip("p:Q", title="p, corrected", format=".2g"),
        ],
    )
    separated = f"indexof({json.dumps([_BETTER, _WORSE])}, datum.verdict) >= 0"
    base = base.transform_calculate(
        shade=f"{separated} ? datum.lead : {_PALE} * datum.lead",
        label=f"format(datum.chance, '.0%') + (datum.verdict === {json.dumps(_BETTER)} ? ' ★' : '')",
    )
    scale = alt.Scale(domain=[-1, 0, 1], range=["#D55E00", "#f5f5f5", "#0072B2"])
    cells = base.mark_rect().encode(color=alt.Color("shade:Q", scale=scale, legend=None))
    if len(names.numbers) > _WRITTEN:
        return cells.properties(width=320, height=40 + 20 * len(names.numbers))
    color = charts.conditional(alt.ColorValue, "white", "black", test=f"abs(datum.shade) > {_DARK}")
    texts = base.mark_text(fontSize=11).encode(text=alt.Text("label:N"), color=color)
    strong = base.transform_filter(separated).mark_text(fontSize=11, fontWeight="bold")
    texts = texts.transform_filter(f"!({separated})") + strong.encode(text=alt.Text("label:N"), color=color)
    return (cells + texts).properties(width=320, height=40 + 34 * len(names.numbers))


def _ranks(names: Names) -> Any:
    ranks = list(range(1, len(names.numbers) + 1))
    return (
        alt.Chart(charts.ROWS)
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            y=alt.Y("optimizer:N", title=None, axis=names.axis()),
            x=alt.X(
                "chance:Q",
                title="probability of a rank",
                axis=alt.Axis(format="%", tickCount=5),
                scale=alt.Scale(nice=False),
            ),
            color=alt.Color(
                "rank:O",
                scale=alt.Scale(scheme="blues", reverse=True, domain=ranks),
                legend=alt.Legend(title="rank", orient="bottom", direction="horizontal", columns=8),
            ),
            order=alt.Order("rank:O"),
            tooltip=[charts.name_tooltip(), alt.Tooltip("rank:O"), *charts.tooltips("chance", format=".1%")],
        )
        .properties(width=320, height=40 + 34 * len(names.numbers))
    )
