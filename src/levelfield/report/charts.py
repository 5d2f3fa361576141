"""What the charts of all figures share: colors, names, axes and marks, and slots for what is not known yet.

A chart reads rows called "rows". An axis that shows a metric has slots for the metric's name, number formats and kind
of scale; the page (charts.js) fills them again whenever its reader chooses another metric.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from levelfield.formatting import METRIC_DIGITS, SHARE_DECIMALS, format_number, is_share
from levelfield.space import Axis, Choice, Integer, Log

# Okabe and Ito's palette, which color-blind readers can tell apart on white and on black; it repeats after eight.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8a8a8a", "#B8A900")
GRAY = "#8a8a8a"
ROWS = alt.NamedData(name="rows")
COORDINATE_DIGITS = 6  # of a hyperparameter on an axis
ESTIMATE = ("mean", "low", "high")
_ROOM = 0.05  # of a range, beyond its borders
_LEGEND_WIDTH, _SYMBOL_WIDTH, _CHARACTER_WIDTH = 360, 25, 6  # pixels


def color(number: int) -> str:
    """Return the color of the optimizer with a number, the same in every chart and table."""
    return PALETTE[number % len(PALETTE)]


# ---------------------------------------------------------------------------- names


@dataclass(frozen=True)
class Names:
    """The names behind the numbers in a field of the rows.

    Charts group and scale by number, because Vega keeps groups in plain objects, in which names like "constructor"
    are taken.
    """

    field: str
    every: tuple[str, ...]
    shown: tuple[int, ...] | None = None  # numbers; None: all of them

    def items(self) -> Iterator[tuple[int, str]]:
        """Yield the number and the name of each that is shown."""
        return ((number, self.every[number]) for number in self.numbers)

    @property
    def numbers(self) -> Sequence[int]:
        return range(len(self.every)) if self.shown is None else self.shown

    @property
    def label(self) -> str:
        """The name behind datum.value, for axes and legends."""
        return text_expression(f"{json.dumps([f' {name}' for name in self.every])}[datum.value]")

    def axis(self, **properties: Any) -> alt.Axis:
        return alt.Axis(labelExpr=self.label, **properties)

    def color(self, legend: bool = True) -> alt.Color:
        scale = alt.Scale(domain=list(self.numbers), range=[color(number) for number in self.numbers])
        longest = max(len(name) for _, name in self.items())
        columns = min(4, _LEGEND_WIDTH // (_SYMBOL_WIDTH + _CHARACTER_WIDTH * longest))
        drawn = alt.Legend(
            title=None,
            orient="bottom",
            columns=max(1, columns),
            symbolType="circle",
            symbolOpacity=1,
            labelExpr=self.label,
        )
        return alt.Color(f"{self.field}:N", scale=scale, legend=drawn if legend else None)


def text_expression(literal: str) -> str:
    """Return a Vega expression for a literal text that begins with a space, without that space.

    Vega looks up texts in plain objects as well: a literal "constructor" makes it fail.
    """
    return f"slice({literal}, 1)"


def title(text: str) -> alt.Title:
    """Return a title that may be any text."""
    return alt.Title(alt.ExprRef(text_expression(json.dumps(f" {text}"))), anchor="start", fontSize=12)


# ---------------------------------------------------------------------------- slots

_MARK = "\0"  # begins a slot; names are printable, so that none looks like one


def _slot(word: str) -> Any:
    return _MARK + word


METRIC, FORMAT, TICKS = map(_slot, ("metric", "format", "ticks"))
LOWEST, HIGHEST = map(_slot, ("lowest", "highest"))  # the ends of an axis, if it has any
_SCALE, _ZERO = map(_slot, ("scale", "zero"))

Slot = tuple[tuple[str | int, ...], str]  # the path to a place in a specification, and what belongs there


@dataclass(frozen=True)
class Template:
    """A Vega-Lite specification with slots."""

    spec: dict[str, Any]
    slots: tuple[Slot, ...]

    def fill(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the specification with values in its slots; None takes the slot's key away."""
        spec = copy.deepcopy(self.spec)
        for (*parents, key), word in self.slots:
            parent: Any = spec
            for step in parents:
                parent = parent[step]
            if values[word] is None:
                del parent[key]
            else:
                parent[key] = values[word]
        return spec


def template(chart: Any) -> Template:
    spec = chart.to_dict(validate=False)  # tests validate: it takes seconds
    spec = {key: value for key, value in spec.items() if key not in ("config", "$schema")}
    return Template(spec, tuple(_slots(spec, ())))


def _slots(part: Any, path: tuple[str | int, ...]) -> Iterator[Slot]:
    """Find the slots in a part of a specification, and empty them."""
    if not isinstance(part, dict | list):
        return
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        if isinstance(value, str) and value.startswith(_MARK):
            yield (*path, key), value.removeprefix(_MARK)
            part[key] = None
        else:
            yield from _slots(value, (*path, key))


def slot_values(
    metric: str, drawn_from: float, lowest: float | None = None, highest: float | None = None
) -> dict[str, Any]:
    """Return what belongs into the slots for a metric, given the lowest value that is drawn.

    Losses span decades, and are drawn on a log scale; shares are not.
    """
    log = drawn_from > 0 and not is_share(metric)
    return {
        **metric_formats(metric),
        "metric": metric,
        "scale": "log" if log else "linear",
        "zero": None if log else False,  # a log scale has none
        "lowest": lowest,
        "highest": highest,
    }


def metric_formats(metric: str) -> dict[str, str]:
    """Return the d3 formats of a metric, as a number and at the ticks of an axis."""
    share = is_share(metric)
    return {
        "format": f".{SHARE_DECIMALS}%" if share else f".{METRIC_DIGITS}~g",
        "ticks": "~%" if share else ".6~g",  # without precision, Vega writes out up to 12 digits
    }


# ---------------------------------------------------------------------------- parts of charts


def metric_axis(channel: Any, field: str, **scale: Any) -> Any:
    """Return an axis for a metric that is not known yet."""
    properties: dict[str, Any] = {"type": _SCALE, "zero": _ZERO, "nice": False} | scale
    return channel(f"{field}:Q", title=METRIC, axis=alt.Axis(format=TICKS, tickCount=5), scale=alt.Scale(**properties))


def metric_tooltips(*fields: str) -> list[alt.Tooltip]:
    return tooltips(*fields, format=FORMAT)


def tooltips(*fields: str, **properties: Any) -> list[alt.Tooltip]:
    return [alt.Tooltip(field if ":" in field else f"{field}:Q", **properties) for field in fields]


def interval_tooltips(confidence: str, **properties: Any) -> list[alt.Tooltip]:
    titles = {"median": "median", "medianLow": f"{confidence}, from", "medianHigh": f"{confidence}, to"}
    return [alt.Tooltip(f"{field}:Q", title=title, **properties) for field, title in titles.items()]


def name_tooltip(field: str = "name", title: str = "optimizer") -> alt.Tooltip:
    return alt.Tooltip(f"{field}:N", title=title)


def conditional(channel: Any, value: Any, otherwise: Any, **condition: str) -> Any:
    """Return a value that depends on a ``test`` or a ``param``; alt.condition does the same, but takes much longer."""
    return channel(otherwise, condition={**condition, "value": value})


def step_axis(title: str) -> alt.X:
    return alt.X("step:Q", title=title, axis=alt.Axis(format=",.0f", grid=False, tickCount=5))


def by_optimizer(names: Names, tooltip: Sequence[alt.Tooltip]) -> alt.Chart:
    """Return a chart with one line for each optimizer."""
    return (
        alt.Chart(ROWS)
        .encode(
            y=alt.Y("optimizer:N", title=None, axis=names.axis(labelLimit=150)),
            color=names.color(legend=False),
            tooltip=[name_tooltip(), *tooltip],
        )
        .properties(width=320, height=38 * len(names.numbers))
    )


def intervals(base: alt.Chart, x: alt.X) -> Any:
    """Return bars from low to high with points at the means."""
    bars = base.mark_rule(strokeWidth=3).encode(x=x, x2=alt.X2("high:Q"))
    return bars + base.mark_point(filled=True, size=80, opacity=1).encode(x=alt.X("mean:Q"))


def confidence_intervals(base: alt.Chart, x: alt.X, offset: float = 0.0) -> list[Any]:
    """Return bars over confidence intervals, with diamonds at the medians; an open end is a dashed arrow.

    ``x`` is the axis, of the field "median"; the ends are in "medianLow" and "medianHigh".
    """
    ends = {
        "start": "isValid(datum.medianLow) ? datum.medianLow : datum.median",
        "stop": "isValid(datum.medianHigh) ? datum.medianHigh : datum.median",
        "middle": "isValid(datum.median) ? datum.median : isValid(datum.start) ? datum.start : datum.stop",
    }
    base = base.transform_calculate(**ends)
    bars = base.transform_filter("isValid(datum.start) && isValid(datum.stop)")
    layers = [
        bars.mark_rule(yOffset=offset, strokeWidth=7, opacity=0.45).encode(x=_at("start", x), x2=alt.X2("stop:Q"))
    ]
    for end, side, border, inside in (("medianLow", "left", 0, 5), ("medianHigh", "right", "width", -5)):
        drawn = base.transform_filter(f"!isValid(datum.{end}) && isValid(datum.middle)")
        dashes = drawn.mark_rule(yOffset=offset, strokeWidth=2, strokeDash=[4, 3])
        layers.append(dashes.encode(x=_at("middle", x), x2=alt.value(border)))
        arrow = drawn.mark_point(
            shape=f"triangle-{side}", xOffset=inside, yOffset=offset, filled=True, size=60, opacity=1
        )
        layers.append(arrow.encode(x=alt.value(border)))
    return [*layers, base.mark_point(filled=True, size=90, opacity=1, yOffset=offset, shape="diamond").encode(x=x)]


def _at(field: str, x: alt.X) -> alt.X:
    """Return the same axis for another field."""
    copied = x.copy()
    copied.shorthand = f"{field}:Q"
    return copied


def sweep(names: Names, x: alt.X, y: alt.Y, tooltip: Sequence[alt.Tooltip]) -> Any:
    """Return means along an axis with lines between them, and bars from low to high."""
    base = alt.Chart(ROWS).encode(x=x, y=y, color=names.color())
    bars = base.mark_rule(opacity=0.35, clip=True).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    lines = base.mark_line(strokeWidth=2, point=True, clip=True).encode(tooltip=[name_tooltip(), *tooltip])
    return (bars + lines).properties(width=320, height=230)


def coordinate_axis(field: str, axis: Axis) -> alt.X:
    """Return the axis of a hyperparameter: its range with a little room beyond the borders, or its choices."""
    title = axis_title(axis)
    if is_choice(axis):
        choices = Names(field, tuple(format_number(value) for value in axis.dimension.ends))
        scale = alt.Scale(domain=list(choices.numbers))
        return alt.X(f"{field}:N", title=title, scale=scale, axis=choices.axis(labelAngle=0, labelOverlap=True))
    low, high = (float(end) for end in axis.dimension.ends)
    if isinstance(axis.dimension, Log):
        room = (high / low) ** _ROOM
        scale = alt.Scale(type="log", domain=[low / room, high * room], nice=False)
        return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(format="~e", tickCount=4, grid=False))
    room = _ROOM * (high - low)
    scale = alt.Scale(domain=[low - room, high + room], nice=False)
    least = 1 if isinstance(axis.dimension, Integer) else alt.Undefined
    ticks = alt.Axis(format="~g", tickCount=4, tickMinStep=least, grid=False)
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=ticks)


def axis_title(axis: Axis) -> str:
    return axis.key.replace("one_minus_", "1 − ")


def is_choice(axis: Axis) -> bool:
    return isinstance(axis.dimension, Choice)
