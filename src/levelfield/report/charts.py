"""The report's charts as Altair specifications: one specification serves the page and the figures of a paper."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np

from levelfield.analysis.outcomes import Outcome
from levelfield.space import Axis, Choice, Log
from levelfield.taxonomy.order import reduction
from levelfield.words import show_number

if TYPE_CHECKING:
    from levelfield.comparison import Comparison

# Okabe and Ito's palette, which colour-blind readers can tell apart; beyond eight it repeats.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444", "#B8A900")
_SHOWN_CURVES = 50  # of each optimizer, besides its best
_LOSS_SPAN = 3.0  # losses further than this factor from the median of the pools' finals are drawn at the border
_VERDICTS = {  # verdict → colour and dashes
    "consistent": ("#009E73", [1, 0]),
    "no separation": ("#999999", [6, 4]),
    "violated": ("#D55E00", [1, 0]),
    "unknown": ("#cccccc", [2, 3]),
}
_NUMBERS = {"worse": ".0%", "better": ".0%", "p_value": ".2g"}


def charts(comparison: Comparison) -> dict[str, Any]:
    """Name → chart, in the order in which the page shows them; only what there are trials for."""
    names = [name for name in comparison.study.optimizers if comparison.outcome(name).pool]
    if not names:
        return {}
    colours = alt.Scale(domain=names, range=[PALETTE[i % len(PALETTE)] for i in range(len(names))])
    found = {
        "outcomes": _outcomes(comparison, names, colours),
        "best-of-k": _best_of_k(comparison, names, colours),
        "curves": _curves(comparison, names, colours),
    }
    if comparison.audit():
        found["inclusions"] = _inclusions(comparison, colours)
    for name in names:
        if any(comparison.study.optimizer(name).space.free):
            found[f"hyperparameters-{name}"] = _hyperparameters(comparison, name, colours)
    return found


def _outcomes(comparison: Comparison, names: list[str], colours: Any) -> Any:
    """The selected trial's metric, mean and 5–95%: the selection metric and its test twin side by side."""
    study = comparison.study
    metrics = [metric for metric in (study.select, comparison.outcome(names[0]).test_metric) if metric]
    panels = []
    for metric in metrics:
        rows = [{"optimizer": name} | asdict(comparison.outcome(name).best(study.trials, metric)) for name in names]
        base = alt.Chart(alt.Data(values=rows)).encode(
            y=alt.Y("optimizer:N", sort=names, title=None),
            color=alt.Color("optimizer:N", scale=colours, legend=None),
            tooltip=["optimizer:N", *_estimate(metric)],
        )
        x = alt.X("low:Q", title=f"{metric}, best of {study.trials}", axis=_axis(metric), scale=alt.Scale(zero=False))
        bars = base.mark_rule(strokeWidth=3).encode(x=x, x2="high:Q")
        means = base.mark_point(filled=True, size=90, opacity=1).encode(x="mean:Q")
        panels.append((bars + means).properties(width=330))
    return alt.hconcat(*panels)


def _best_of_k(comparison: Comparison, names: list[str], colours: Any) -> Any:
    """What more trials would bring: mean and 5–95% of the best of K against K."""
    metric = comparison.study.select
    most = max(len(comparison.outcome(name).pool) for name in names)
    ks = sorted({round(k) for k in np.geomspace(1, most, 30)})
    rows = [{"optimizer": name, "k": k} | asdict(comparison.outcome(name).best(k)) for name in names for k in ks]
    picked = alt.selection_point(fields=["optimizer"], bind="legend")
    x = alt.X("k:Q", scale=alt.Scale(type="log", base=2, nice=False), title="K, number of trials")
    scale = _scale(metric, min(row["low"] for row in rows))
    y = alt.Y("mean:Q", title=f"best {metric}", axis=_axis(metric), scale=scale)
    legend = alt.Legend(title=None, symbolOpacity=1, symbolType="circle")
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=x, color=alt.Color("optimizer:N", scale=colours, sort=names, legend=legend)
    )
    band = base.mark_area().encode(y="low:Q", y2="high:Q", opacity=alt.condition(picked, alt.value(0.12), alt.value(0)))
    line = base.mark_line(strokeWidth=2.5).encode(
        y=y,
        opacity=alt.condition(picked, alt.value(1), alt.value(0.1)),
        tooltip=["optimizer:N", "k:Q", *_estimate(metric)],
    )
    return (band + line).add_params(picked).properties(width=700, height=300)


def _curves(comparison: Comparison, names: list[str], colours: Any) -> Any:
    """Learning curves: each optimizer's best trial over all the others of its pool."""
    metric = comparison.study.select
    rows = [row for name in names for row in _curve_rows(comparison.outcome(name), metric)]
    scale = _scale(metric, min(row["value"] for row in rows))
    scale.domainMax = _ceiling(comparison, names, metric)
    base = alt.Chart().encode(
        x=alt.X("step:Q", title="step"),
        y=alt.Y("value:Q", title=metric, axis=_axis(metric), scale=scale),
        detail="trial:N",
        tooltip=["trial:N", "step:Q", alt.Tooltip("value:Q", format=_format(metric))],
    )
    others = base.transform_filter("!datum.best").mark_line(color="#999", opacity=0.35, strokeWidth=1, clip=True)
    best = base.transform_filter("datum.best").mark_line(strokeWidth=3, point=True, clip=True)
    best = best.encode(color=alt.Color("optimizer:N", scale=colours, legend=None))
    return (
        alt.layer(others, best, data=alt.Data(values=rows))
        .properties(width=215, height=150)
        .facet(facet=alt.Facet("optimizer:N", sort=names, title=None), columns=3)
    )


def _inclusions(comparison: Comparison, colours: Any) -> Any:
    """The inclusion graph, each edge from the special to the general optimizer, coloured by the audit's verdict."""
    findings = {(each.edge.special, each.edge.general): each for each in comparison.audit()}
    drawn = reduction([each.edge for each in findings.values()])
    places = layout([(edge.special, edge.general) for edge in drawn])
    lines: list[dict[str, Any]] = []
    for edge in drawn:
        finding = findings[edge.special, edge.general]
        start, end = places[edge.special], places[edge.general]
        about = {"inclusion": f"{edge.special} ⊆ {edge.general}", "verdict": finding.verdict.value}
        numbers = {key: None if math.isnan(v) else v for key, v in finding.as_dict().items() if isinstance(v, float)}
        lines.append({"x": start[0], "y": start[1], "x2": end[0], "y2": end[1]} | about | numbers)
    nodes = [{"optimizer": name, "x": column, "y": row} for name, (column, row) in places.items()]
    x, y = (alt.X("x:Q", axis=None, scale=alt.Scale(padding=60)), alt.Y("y:Q", axis=None, scale=alt.Scale(padding=30)))
    verdicts = list(_VERDICTS)
    seen = [verdict for verdict in verdicts if any(line["verdict"] == verdict for line in lines)]
    edges = (
        alt.Chart(alt.Data(values=lines))
        .mark_rule(strokeWidth=3)
        .encode(
            x=x,
            y=y,
            x2="x2:Q",
            y2="y2:Q",
            color=alt.Color(
                "verdict:N",
                scale=alt.Scale(domain=verdicts, range=[_VERDICTS[verdict][0] for verdict in verdicts]),
                legend=alt.Legend(title=None, orient="bottom", symbolType="stroke", symbolStrokeWidth=3, values=seen),
            ),
            strokeDash=alt.StrokeDash(
                "verdict:N",
                scale=alt.Scale(domain=verdicts, range=[_VERDICTS[verdict][1] for verdict in verdicts]),
                legend=None,
            ),
            tooltip=["inclusion:N", "verdict:N"]
            + [alt.Tooltip(f"{key}:Q", format=form) for key, form in _NUMBERS.items()],
        )
    )
    base = alt.Chart(alt.Data(values=nodes)).encode(x="x:Q", y="y:Q")
    points = base.mark_circle(size=160, opacity=1).encode(
        color=alt.Color("optimizer:N", scale=colours, legend=None), tooltip="optimizer:N"
    )
    labels = base.mark_text(dy=-15, fontWeight="bold").encode(text="optimizer:N")
    height = 60 + 50 * len({y for _, y in places.values()})
    whole = alt.layer(edges, points + labels, view=alt.ViewConfig(stroke=None)).resolve_scale(color="independent")
    return whole.properties(width=700, height=height)


def layout(pairs: list[tuple[str, str]]) -> dict[str, tuple[float, float]]:
    """Where the optimizers stand: each to the right of all that it includes, those of a column spread evenly.

    >>> layout([("sgd", "momentum"), ("sgd", "nesterov"), ("momentum", "adam")])
    {'sgd': (0, 0.0), 'momentum': (1, 0.5), 'nesterov': (1, -0.5), 'adam': (2, 0.0)}
    """
    column = {name: 0 for pair in pairs for name in pair}
    for _ in column:  # longest paths; optimizers that include each other stop moving after that many rounds
        for special, general in pairs:
            if (general, special) not in pairs:
                column[general] = max(column[general], column[special] + 1)
    members = {place: [name for name in column if column[name] == place] for place in column.values()}
    middle = {place: (len(names) - 1) / 2 for place, names in members.items()}
    return {name: (place, middle[place] - members[place].index(name)) for name, place in column.items()}


def _curve_rows(outcome: Outcome, metric: str) -> Iterator[dict[str, Any]]:
    best = outcome.best_trial
    shown = [trial for trial in outcome.pool if trial is not best][:_SHOWN_CURVES]
    for trial in [*shown, best] if best else []:
        for step, value in zip(trial.curve.steps, trial.curve.values[metric], strict=True):
            if math.isfinite(value):
                row = {"step": int(step), "value": float(value), "best": trial is best}
                yield {"optimizer": outcome.name, "trial": trial.point.index} | row


def _ceiling(comparison: Comparison, names: list[str], metric: str) -> float:
    """Where to cut a metric's axis: bad trials should not flatten the good ones."""
    finals = np.concatenate([comparison.outcome(name).values(metric) for name in names])
    finals = finals[np.isfinite(finals)]
    if metric.endswith("_error"):
        return float(min(1.0, finals.max()))
    return float(min(finals.max(), _LOSS_SPAN * np.median(finals)))


def _hyperparameters(comparison: Comparison, name: str, colours: Any) -> Any:
    """The final metric against each hyperparameter that was searched, infeasible trials marked, borders drawn."""
    metric, free = comparison.study.select, comparison.study.optimizer(name).space.free
    ceiling = _ceiling(comparison, [name], metric)
    rows = []
    for trial in comparison.trials[name]:
        value = trial.curve.final(metric)
        rows.append(
            {
                "optimizer": name,
                "trial": trial.point.index,
                "feasible": trial.feasible,
                "value": min(value, ceiling) if trial.feasible and math.isfinite(value) else ceiling,
            }
            | {f"x{i}": one.coordinate(trial.point.hyperparameters) for i, one in enumerate(free)}
        )
    panels = [_panel(f"x{i}", one, metric if i % 4 == 0 else None, metric, colours) for i, one in enumerate(free)]
    return alt.concat(*panels, columns=4, data=alt.Data(values=rows), title=alt.Title(name, anchor="start"))


def _panel(field: str, one: Axis, y_title: str | None, metric: str, colours: Any) -> Any:
    base = alt.Chart().encode(
        x=_x_of(field, one),
        y=alt.Y("value:Q", title=y_title, axis=_axis(metric), scale=alt.Scale(zero=False)),
        tooltip=[
            "trial:Q",
            alt.Tooltip("value:Q", format=_format(metric)),
            alt.Tooltip(f"{field}:N", title=one.key),
        ],
    )
    feasible = base.transform_filter("datum.feasible").mark_circle(size=45, opacity=0.75)
    feasible = feasible.encode(color=alt.Color("optimizer:N", scale=colours, legend=None))
    infeasible = base.transform_filter("!datum.feasible").mark_point(shape="cross", angle=45, color="#999")
    layers = [feasible, infeasible]
    if not isinstance(one.dimension, Choice):
        borders = alt.Data(values=[{field: end} for end in one.dimension.ends])
        layers.append(alt.Chart(borders).mark_rule(strokeDash=[4, 3], color="#999").encode(x=f"{field}:Q"))
    return alt.layer(*layers).properties(width=150, height=130)


def _x_of(field: str, one: Axis) -> Any:
    """The axis of a hyperparameter: its range with a little room beyond the borders."""
    title = one.key.replace("one_minus_", "1 − ")
    if isinstance(one.dimension, Choice):
        return alt.X(f"{field}:O", title=title, sort=list(one.dimension.values), axis=alt.Axis(labelAngle=0))
    low, high = (float(end) for end in one.dimension.ends)
    if isinstance(one.dimension, Log):
        room = (high / low) ** 0.05
        scale, axis = (
            alt.Scale(type="log", domain=[low / room, high * room], nice=False),
            alt.Axis(format="~e", tickCount=4),
        )
    else:
        room = 0.05 * (high - low)
        scale, axis = (
            alt.Scale(domain=[low - room, high + room], nice=False),
            alt.Axis(format="~g", tickCount=4),
        )
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=axis)


def _format(metric: str) -> str:
    return ".1%" if metric.endswith("_error") else ".3~g"


def _scale(metric: str, lowest: float) -> Any:
    """Losses span decades, errors do not."""
    decades = lowest > 0 and not metric.endswith("_error")
    return alt.Scale(type="log" if decades else "linear", nice=False, zero=False)


def _axis(metric: str) -> Any:
    return alt.Axis(format=_format(metric))


def _estimate(metric: str) -> list[Any]:
    """Tooltips of an estimate's three numbers."""
    return [alt.Tooltip(f"{part}:Q", format=_format(metric)) for part in ("mean", "low", "high")]


def space_rows(comparison: Comparison) -> Iterator[dict[str, str]]:
    """The search spaces as text, one row for each axis."""
    for name, optimizer in comparison.study.optimizers.items():
        for one in optimizer.space:
            spec = one.dimension.spec()
            if isinstance(spec, dict):
                kind, content = next(iter(spec.items()))
                listed = ", ".join(show_number(value) for value in content)
                text = f"{kind} [{listed}]" if kind != "choice" else f"{{{listed}}}"
            else:
                text = show_number(spec)
            about = {"optimizer": name, "rule": optimizer.rule.name, "hyperparameter": one.key, "range": text}
            yield about | {"corrected": optimizer.corrected.get(one.key, "")}
