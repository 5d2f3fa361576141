"""The path of each search range over the rounds of a refinement, and the log that explains it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from levelfield.analysis.results import Results
from levelfield.formatting import MISSING, display_order, format_count, format_range
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.report.figure import Figure, Panel, Part, Rows, file_name, short_number
from levelfield.space import Axis, Choice, Dimension, Fixed, Log, Value, dimension
from levelfield.study import Refined, Study

PLACE = 75
_HEIGHT = 24  # of a round, in pixels
_STAYED = "not changed"
_TOLD = ("verdict", "trials", "outside", "evidence")  # about a change, in tooltips

Round = list[Refined]


@dataclass(frozen=True)
class Step:
    """The range of an axis in one study, and how it was changed afterward, if it was."""

    dimension: Dimension
    change: Refined | None = None


def figure(results: Results, protocols: Sequence[Results]) -> Figure | None:
    study, names = results.study, list(results.outcomes)
    rounds = _rounds(change for change in study.refined if change.optimizer in study.optimizers)
    if not rounds:
        return None
    parts = []
    for number, name in enumerate(names):
        keys = {change.axis: None for changes in rounds for change in changes if change.optimizer == name}
        ordered = sorted(keys, key=lambda key: display_order(key.partition("/")[0]))
        panels = [_panel(results, rounds, number, key) for key in ordered]
        if panels:
            parts.append(Part(panels, name, file_name(name, names), charts.color(number), {"log": None}))
    parts[-1] = replace(parts[-1], context={"log": _log(rounds), "stayed": _stayed(study, rounds)})
    caption = "Each range that was changed, from the first search (top) to this study (bottom). The log below says why."
    if any(change.outside is not None for changes in rounds for change in changes):
        caption += " Thin bars: a wider range in which more trials were run before the range was changed."
    return Figure("How the search ranges changed", caption, parts, columns=3)


# ---------------------------------------------------------------------------- the path of a range


def _rounds(log: Iterable[Refined]) -> list[Round]:
    """Group the log by round. A new one begins with another study, or where the same range is changed again."""
    rounds: list[Round] = []
    for change in log:
        if not rounds or rounds[-1][0].study != change.study or _of(rounds[-1], change.optimizer, change.axis):
            rounds.append([])
        rounds[-1].append(change)
    return rounds


def _of(changes: Round, optimizer: str, key: str) -> Refined | None:
    """Return what a round has changed about an axis, if anything."""
    return next((change for change in changes if (change.optimizer, change.axis) == (optimizer, key)), None)


def path(study: Study, rounds: Sequence[Round], optimizer: str, key: str) -> list[Step]:
    """Return the range of an axis in each round and, if the study still has that axis, in the study itself."""
    changes = [_of(round, optimizer, key) for round in rounds]
    current = next(change.before for change in changes if change)
    steps = []
    for change in changes:
        steps.append(Step(dimension(change.before if change else current), change))
        current = change.after if change else current
    final = [Step(axis.dimension) for axis in study.optimizer(optimizer).space if axis.key == key]
    return steps + final


def _span(dimensions: Sequence[Dimension]) -> Dimension:
    """Return a range that holds all of these, or, if none of them is a range, a choice of all their values."""
    values = list(dict.fromkeys(end for each in dimensions for end in each.ends))
    numbers = sorted(_numbers(values))
    kinds = {type(each) for each in dimensions}
    if kinds <= {Choice, Fixed}:
        return Choice(tuple(numbers if len(numbers) == len(values) else values))
    whole = all(isinstance(number, int) for number in numbers)
    kind = "log" if Log in kinds and numbers[0] > 0 else "integer" if whole else "uniform"
    return dimension({kind: [numbers[0], numbers[-1]]})


def _ends(shown: Dimension, span: Dimension) -> list[tuple[Any, Any]]:
    """Return where to draw a dimension: from one end to the other, or at each value of a choice."""
    if isinstance(span, Choice):
        return [(number, number) for number in map(span.values.index, shown.ends)]
    if isinstance(shown, Choice | Fixed):
        return [(number, number) for number in map(short_number, _numbers(shown.ends))]
    low, high = map(short_number, shown.ends)
    return [(low, high)]


def _numbers(values: Iterable[Value]) -> list[float]:
    return [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]


# ---------------------------------------------------------------------------- charts


def _panel(results: Results, rounds: Sequence[Round], number: int, key: str) -> Panel:
    study, names = results.study, Names("optimizer", tuple(results.outcomes))
    name = names.every[number]
    steps = path(study, rounds, name, key)
    outside = [dimension(step.change.outside) for step in steps if step.change and step.change.outside is not None]
    span = _span([step.dimension for step in steps] + outside)
    labels = [*_labels(rounds), "final"]
    studies = [*(changes[0].study for changes in rounds), study.name]
    rows: Rows = []
    for i, step in enumerate(steps):
        trials = results.outcome(name).tried if i == len(rounds) else None
        common = {
            "optimizer": number,
            "name": name,
            "round": i,
            "label": labels[i],
            "study": studies[i],
            "range": format_range(step.dimension),
            **_texts(step, trials),
        }
        rows += _step_rows(common, step, span)
    return Panel(_chart(Axis(key, span, key), names, Names("round", tuple(labels[: len(steps)]))), rows)


def _labels(rounds: Sequence[Round]) -> list[str]:
    return ["initial", *(f"round {i}" for i in range(2, len(rounds) + 1))]


def _texts(step: Step, trials: int | None) -> dict[str, str]:
    """Return what a tooltip says about a change. ``trials``: those of the study itself, which has none."""
    if step.change:
        known = _change_texts(step.change)
    else:
        known = {"verdict": _STAYED} if trials is None else {"trials": format_count(trials)}
    return dict.fromkeys(_TOLD, MISSING) | {key: text for key, text in known.items() if text}


def _change_texts(change: Refined) -> dict[str, str]:
    return {
        "verdict": change.verdict,
        "trials": format_count(change.trials),
        "outside": _outside(change),
        "evidence": change.evidence,
    }


def _outside(change: Refined) -> str:
    """Return how many trials were run in which wider range; nothing if none were."""
    if change.outside is None:
        return ""
    return f"{format_count(change.outside_trials)} in {format_range(dimension(change.outside))}"


def _step_rows(common: dict[str, Any], step: Step, span: Dimension) -> Rows:
    drawn = {True: step.dimension}
    if step.change and step.change.outside is not None:
        drawn[False] = dimension(step.change.outside)
    return [
        common | {"inside": inside, "low": low, "high": high}
        for inside, shown in drawn.items()
        for low, high in _ends(shown, span)
    ]


def _chart(axis: Axis, names: Names, rounds: Names) -> Any:
    base = alt.Chart(charts.ROWS).encode(
        x=charts.coordinate_axis("low", axis),
        y=alt.Y("round:N", title=None, scale=alt.Scale(domain=list(rounds.numbers)), axis=rounds.axis()),
        color=names.color(legend=False),
        tooltip=[
            charts.name_tooltip(),
            charts.name_tooltip("label", "round"),
            *(charts.name_tooltip(field, field) for field in ("study", "range", *_TOLD)),
        ],
    )
    layers = []
    for test, bar, tick, opacity in (("!datum.inside", 4, 2, 0.45), ("datum.inside", 10, 3, 1.0)):
        drawn = base.transform_filter(test)
        if not charts.is_choice(axis):
            rules = drawn.transform_filter("datum.low < datum.high")
            layers.append(rules.mark_rule(strokeWidth=bar, opacity=opacity).encode(x2=alt.X2("high:Q")))
            drawn = drawn.transform_filter("datum.low === datum.high")
        layers.append(drawn.mark_tick(orient="vertical", thickness=tick, size=14, opacity=opacity))
    return alt.layer(*layers, width=190, height=_HEIGHT * len(rounds.every))


# ---------------------------------------------------------------------------- text


def _log(rounds: Sequence[Round]) -> list[dict[str, str]]:
    """Return the cells of the log's rows."""
    return [
        {
            "round": label,
            "study": change.study,
            "optimizer": change.optimizer,
            "hyperparameter": change.axis,
            "before": format_range(dimension(change.before)),
            "after": format_range(dimension(change.after)),
            **_change_texts(change),
        }
        for label, changes in zip(_labels(rounds), rounds, strict=True)
        for change in changes
    ]


def _stayed(study: Study, rounds: Sequence[Round]) -> str:
    """Return the ranges that no round has changed, by optimizer."""
    changed = {(change.optimizer, change.axis) for changes in rounds for change in changes}
    stayed = {
        name: [axis.key for axis in optimizer.space.free if (name, axis.key) not in changed]
        for name, optimizer in study.optimizers.items()
    }
    return "; ".join(f"{name}: {', '.join(keys)}" for name, keys in stayed.items() if keys)
