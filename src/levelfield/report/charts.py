"""The charts as Altair specifications without data: the page fills them as its reader asks, a figure as it is written.

A chart reads rows called "rows". Where a metric is drawn, its axis is titled "@metric": ``for_metric`` (here, and in
page.js) puts the metric's name, number formats and scale there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from levelfield.formatting import is_share
from levelfield.space import Axis, Choice, Log

# Okabe and Ito's palette, which colour-blind readers can tell apart, on white and on black; beyond eight it repeats.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8a8a8a", "#B8A900")
GREY = "#8a8a8a"
VERDICTS = {  # verdict → colour and dashes
    "consistent": ("#009E73", [1, 0]),
    "no separation": (GREY, [6, 4]),
    "violated": ("#D55E00", [1, 0]),
    "unknown": ("#bbbbbb", [2, 3]),
}
_METRIC, _TICKS, _FORMAT, _BOTTOM, _TOP = "@metric", "@ticks", "@format", "@bottom", "@top"
_WRITTEN = 10  # optimizers whose chances against each other fit into a table of cells
_ROWS = alt.NamedData(name="rows")

Names = Mapping[str, str]  # optimizers in order, each with its colour


def colours(names: Names) -> Any:
    """One colour an optimizer, in every chart."""
    return alt.Scale(domain=list(names), range=list(names.values()))


def shades(names: Iterable[str]) -> dict[str, str]:
    """A colour for each, by its place among all."""
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def metric_format(metric: str) -> str:
    return ".2%" if is_share(metric) else ".4~g"


def for_metric(
    spec: dict[str, Any], metric: str, lowest: float, bottom: float | None = None, top: float | None = None
) -> dict[str, Any]:
    """The chart for a metric whose lowest value that is drawn is known: losses span decades, shares do not.

    Where a chart asks for it, its axis ends at the bottom and the top.
    """
    share = is_share(metric)
    words = {_METRIC: metric, _FORMAT: metric_format(metric), _TICKS: "~%" if share else "~g"}
    words |= {
        word: "null" if end is None else str(end) for word, end in ((_BOTTOM, bottom), (_TOP, top))
    }  # expressions

    def filled(part: Any) -> Any:
        if isinstance(part, list):
            return [filled(each) for each in part]
        if not isinstance(part, dict):
            return words.get(part, part) if isinstance(part, str) else part
        content = {key: filled(each) for key, each in part.items()}
        if part.get("title") == _METRIC and "scale" in part:
            content["scale"]["type"] = "log" if lowest > 0 and not share else "linear"
            if content["scale"]["type"] == "log":
                content["scale"].pop("zero", None)  # which a log scale cannot show
        return content

    found: dict[str, Any] = filled(spec)
    return found


def with_rows(spec: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The chart with its data in it, for a file."""
    return copy.deepcopy(spec) | {"datasets": {"rows": list(rows)}}


# ---------------------------------------------------------------------------- charts of outcomes


def outcomes(names: Names) -> Any:
    """The selected trial's metric, mean and 5–95%."""
    base = _by_optimizer(names, [alt.Tooltip(f"{part}:Q", format=_FORMAT) for part in ("mean", "low", "high")])
    return _intervals(base, _metric(alt.X, "low", padding=12))


def steps(names: Names) -> Any:
    """Steps to the target, and how often it is reached."""
    tooltip = [alt.Tooltip(f"{part}:Q", format=",.0f") for part in ("mean", "low", "high")]
    base = _by_optimizer(names, [*tooltip, alt.Tooltip("probability:Q", title="reached", format=".0%")])
    x = alt.X(
        "low:Q",
        title="steps to the target",
        axis=alt.Axis(format="~s", tickCount=6),
        scale=alt.Scale(zero=False, padding=14),
    )
    reached = base.mark_text(dy=-11, fontSize=10).encode(x="mean:Q", text=alt.Text("probability:Q", format=".0%"))
    return _intervals(base, x) + reached


def best_of_k(names: Names, cost: bool) -> Any:
    """The expected best against the number of trials, or against what they cost, with 5–95% bands."""
    axis = alt.Axis(format="~s", grid=False, tickCount=6)
    scale = alt.Scale(type="log", base=10 if cost else 2, nice=False)
    title = "trial-steps, infeasible trials included" if cost else "K, number of trials"
    x = alt.X("cost:Q" if cost else "k:Q", title=title, scale=scale, axis=axis)
    legend = alt.Legend(title=None, symbolOpacity=1, symbolType="circle", orient="bottom", columns=4)
    picked = alt.selection_point(name="picked", fields=["optimizer"], bind="legend")
    base = alt.Chart(_ROWS).encode(
        x=x, color=alt.Color("optimizer:N", scale=colours(names), sort=list(names), legend=legend)
    )
    ends = {"domainMin": {"expr": _BOTTOM}, "domainMax": {"expr": _TOP}}
    band = base.mark_area(clip=True).encode(
        y=_metric(alt.Y, "low", **ends),
        y2="high:Q",
        opacity=alt.condition(picked, alt.value(0.12), alt.value(0)),
    )
    numbers = [alt.Tooltip(f"{part}:Q", format=_FORMAT) for part in ("mean", "low", "high")]
    line = base.mark_line(strokeWidth=2.5, clip=True).encode(
        y=_metric(alt.Y, "mean", **ends),
        opacity=alt.condition(picked, alt.value(1), alt.value(0.1)),
        tooltip=["optimizer:N", "k:Q", alt.Tooltip("cost:Q", format=",.0f"), *numbers],
    )
    alone = line.transform_joinaggregate(ks="count()", groupby=["optimizer"]).transform_filter("datum.ks == 1")
    return (band + line + alone.mark_point(filled=True, size=60)).add_params(picked).properties(width=400, height=280)


def beats(names: Names) -> Any:
    """P(the row's best of K is better than the column's)."""
    base = alt.Chart(_ROWS).encode(
        x=alt.X("theirs:N", sort=list(names), title=None, axis=alt.Axis(orient="top", labelAngle=-40)),
        y=alt.Y("ours:N", sort=list(names), title=None),
        tooltip=["ours:N", "theirs:N", alt.Tooltip("chance:Q", format=".1%")],
    )
    scale = alt.Scale(domain=[-1, 0, 1], range=["#D55E00", "#f5f5f5", "#0072B2"])
    cells = base.mark_rect().encode(color=alt.Color("lead:Q", scale=scale, legend=None))
    if len(names) > _WRITTEN:
        return cells.properties(width=320, height=40 + 20 * len(names))
    dark = "abs(datum.lead) > 0.7"
    numbers = base.mark_text(fontSize=11).encode(
        text=alt.Text("chance:Q", format=".0%"), color=alt.condition(dark, alt.value("white"), alt.value("black"))
    )
    return (cells + numbers).properties(width=320, height=40 + 34 * len(names))


def ranks(names: Names) -> Any:
    """P(first, second, … place)."""
    return (
        alt.Chart(_ROWS)
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            y=alt.Y("optimizer:N", sort=list(names), title=None),
            x=alt.X("chance:Q", title="probability of a place", axis=alt.Axis(format="%"), scale=alt.Scale(nice=False)),
            color=alt.Color(
                "place:O",
                scale=alt.Scale(scheme="blues", reverse=True, domain=list(range(1, len(names) + 1))),
                legend=alt.Legend(title="place", orient="bottom", direction="horizontal"),
            ),
            order=alt.Order("place:O"),
            tooltip=["optimizer:N", "place:O", alt.Tooltip("chance:Q", format=".1%")],
        )
        .properties(width=320, height=40 + 34 * len(names))
    )


def selection(names: Names, selectors: Sequence[str]) -> Any:
    """The reported metric, for each metric that might have selected the trial."""
    numbers = [alt.Tooltip(f"{part}:Q", format=_FORMAT) for part in ("mean", "low", "high")]
    base = alt.Chart(_ROWS).encode(
        y=alt.Y("selector:N", sort=list(selectors), title="selected by"),
        yOffset=alt.YOffset("optimizer:N", sort=list(names)),
        color=_legend(names),
        tooltip=["optimizer:N", "selector:N", *numbers],
    )
    return _intervals(base, _metric(alt.X, "low", padding=12)).properties(
        width=640, height=len(selectors) * (20 + 10 * len(names))
    )


def inclusions(names: Names) -> Any:
    """The inclusion graph, each edge from the special to the general optimizer, coloured by the audit's verdict."""
    verdicts = list(VERDICTS)
    x = alt.X("x:Q", axis=None, scale=alt.Scale(padding=60))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(padding=30))
    base = alt.Chart(_ROWS)
    edges = (
        base.transform_filter("datum.verdict")
        .mark_rule(strokeWidth=3)
        .encode(
            x=x,
            y=y,
            x2="x2:Q",
            y2="y2:Q",
            color=alt.Color(
                "verdict:N",
                scale=alt.Scale(domain=verdicts, range=[VERDICTS[verdict][0] for verdict in verdicts]),
                legend=alt.Legend(title=None, orient="bottom", symbolType="stroke", symbolStrokeWidth=3, columns=4),
            ),
            strokeDash=alt.StrokeDash(
                "verdict:N",
                scale=alt.Scale(domain=verdicts, range=[VERDICTS[verdict][1] for verdict in verdicts]),
                legend=None,
            ),
            tooltip=[
                "inclusion:N",
                "verdict:N",
                alt.Tooltip("worse:Q", format=".0%"),
                alt.Tooltip("better:Q", format=".0%"),
                alt.Tooltip("p_value:Q", format=".2g"),
            ],
        )
    )
    nodes = base.transform_filter("datum.optimizer").encode(x="x:Q", y="y:Q")
    points = nodes.mark_circle(size=160, opacity=1).encode(
        color=alt.Color("optimizer:N", scale=colours(names), legend=None), tooltip="optimizer:N"
    )
    labels = nodes.mark_text(dy=-15, fontWeight="bold").encode(text="optimizer:N")
    whole = alt.layer(edges, points + labels, view=alt.ViewConfig(stroke=None)).resolve_scale(color="independent")
    return whole.properties(width=640)


# ---------------------------------------------------------------------------- charts of trials


def hyperparameter(field: str, one: Axis, names: Names) -> Any:
    """The metric of every trial against one hyperparameter: infeasible ones marked, the range's borders drawn.

    A range dragged over it ("range") keeps the trials inside; what another range excludes is pale.
    """
    base = alt.Chart(_ROWS).encode(
        x=_x_of(field, one),
        y=_metric(alt.Y, "value"),
        opacity=alt.condition("datum.kept", alt.value(0.8), alt.value(0.12)),
        tooltip=[
            "trial:Q",
            alt.Tooltip("value:Q", format=_FORMAT),
            alt.Tooltip(f"{field}:N", title=one.key),
        ],
    )
    feasible = base.transform_filter("datum.feasible").mark_circle(size=45)
    feasible = feasible.encode(color=alt.Color("optimizer:N", scale=colours(names), legend=None))
    layers = [feasible, base.transform_filter("!datum.feasible").mark_point(shape="cross", angle=45, color=GREY)]
    if not isinstance(one.dimension, Choice):
        borders = alt.Data(values=[{field: end} for end in one.dimension.ends])
        layers.append(alt.Chart(borders).mark_rule(strokeDash=[4, 3], color=GREY).encode(x=f"{field}:Q"))
        layers[0] = layers[0].add_params(alt.selection_interval(name="range", encodings=["x"]))
    return alt.layer(*layers).properties(width=190, height=140)


def curves(name: str, names: Names, **ends: float) -> Any:
    """Learning curves: an optimizer's best trial over the others of its pool, on an axis with a given end."""
    base = alt.Chart(_ROWS).encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(format="~s", grid=False, tickCount=5)),
        y=_metric(alt.Y, "value", **ends),
        detail="trial:N",
        tooltip=["trial:N", "step:Q", alt.Tooltip("value:Q", format=_FORMAT)],
    )
    others = base.transform_filter("!datum.best").mark_line(color=GREY, opacity=0.3, strokeWidth=1, clip=True)
    colour = names[name]
    best = base.transform_filter("datum.best").mark_line(
        strokeWidth=3, point={"color": colour}, clip=True, color=colour
    )
    return (others + best).properties(width=215, height=150, title=alt.Title(name, anchor="start", fontSize=12))


def budgets(names: Names) -> Any:
    """The expected best if the trials had been read earlier."""
    x = alt.X("step:Q", title="budget, steps", axis=alt.Axis(format="~s", grid=False, tickCount=5))
    return _sweep(names, x, _metric(alt.Y, "mean"), _FORMAT)


def targets(names: Names, upwards: bool) -> Any:
    """Steps to other targets, the harder the further right."""
    scale = alt.Scale(zero=False, nice=False, reverse=not upwards)
    x = alt.X("target:Q", title=_METRIC, axis=alt.Axis(format=_TICKS, grid=False, tickCount=4), scale=scale)
    y = alt.Y("mean:Q", title="steps to the target", axis=alt.Axis(format="~s"))
    return _sweep(names, x, y, ",.0f")


def protocols(rules: Sequence[str], labels: Sequence[str]) -> Any:
    """The outcome under each tuning protocol; lines follow a rule from one to the next."""
    numbers = [alt.Tooltip(f"{part}:Q", format=_FORMAT) for part in ("mean", "low", "high")]
    axis = alt.Axis(labelAngle=0, labelLimit=170, labelOverlap=False)
    legend = alt.Legend(title=None, orient="bottom", columns=4, symbolType="circle", symbolOpacity=1)
    base = alt.Chart(_ROWS).encode(
        x=alt.X("protocol:N", sort=list(labels), title=None, axis=axis),
        color=alt.Color("rule:N", scale=colours(shades(dict.fromkeys(rules))), legend=legend),
    )
    y = _metric(alt.Y, "mean")
    lines = base.mark_line(opacity=0.6).encode(y=y, xOffset="rule:N")
    marks = base.encode(tooltip=["optimizer:N", "protocol:N", "k:Q", *numbers])
    bars = marks.mark_rule(strokeWidth=2.5).encode(y=_metric(alt.Y, "low"), y2="high:Q", xOffset="rule:N")
    points = marks.mark_point(filled=True, size=80, opacity=1).encode(y=y, xOffset="rule:N")
    return (lines + bars + points).properties(width=330, height=260)


# ---------------------------------------------------------------------------- parts


def _metric(channel: Any, field: str, **scale: Any) -> Any:
    """An axis for a metric that is not known yet."""
    axis, scale = alt.Axis(format=_TICKS, tickCount=5), {"zero": False, "nice": False} | scale
    return channel(f"{field}:Q", title=_METRIC, axis=axis, scale=scale)


def _legend(names: Names) -> Any:
    legend = alt.Legend(title=None, orient="bottom", columns=4, symbolType="circle", symbolOpacity=1)
    return alt.Color("optimizer:N", scale=colours(names), sort=list(names), legend=legend)


def _by_optimizer(names: Names, tooltip: list[Any]) -> Any:
    return (
        alt.Chart(_ROWS)
        .encode(
            y=alt.Y("optimizer:N", sort=list(names), title=None, axis=alt.Axis(labelLimit=150)),
            color=alt.Color("optimizer:N", scale=colours(names), legend=None),
            tooltip=["optimizer:N", *tooltip],
        )
        .properties(width=320, height=30 * len(names))
    )


def _intervals(base: Any, x: Any) -> Any:
    """A bar from low to high and a point at the mean."""
    bars = base.mark_rule(strokeWidth=3).encode(x=x, x2="high:Q")
    means = base.mark_point(filled=True, size=80, opacity=1).encode(x="mean:Q")
    return bars + means


def _sweep(names: Names, x: Any, y: Any, number: str) -> Any:
    base = alt.Chart(_ROWS).encode(x=x, y=y, color=_legend(names))
    tooltip = ["optimizer:N", *(alt.Tooltip(f"{part}:Q", format=number) for part in ("mean", "low", "high"))]
    bars = base.mark_rule(opacity=0.35).encode(y=alt.Y("low:Q"), y2="high:Q")
    return (bars + base.mark_line(strokeWidth=2, point=True).encode(tooltip=tooltip)).properties(width=320, height=230)


def axis_title(one: Axis) -> str:
    return one.key.replace("one_minus_", "1 − ")


def _x_of(field: str, one: Axis) -> Any:
    """The axis of a hyperparameter: its range with a little room beyond the borders."""
    title = axis_title(one)
    if isinstance(one.dimension, Choice):
        return alt.X(f"{field}:O", title=title, sort=list(one.dimension.values), axis=alt.Axis(labelAngle=0))
    low, high = (float(end) for end in one.dimension.ends)
    if isinstance(one.dimension, Log):
        room = (high / low) ** 0.05
        scale = alt.Scale(type="log", domain=[low / room, high * room], nice=False)
        return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(format="~e", tickCount=4, grid=False))
    room = 0.05 * (high - low)
    scale = alt.Scale(domain=[low - room, high + room], nice=False)
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(format="~g", tickCount=4, grid=False))
