"""What a figure is: titled charts with their rows, ready for the page and for files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from levelfield.analysis.best_of import Estimate
from levelfield.analysis.intervals import Interval
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.results import Results
from levelfield.report import charts
from levelfield.report.charts import Names
from levelfield.space import Axis
from levelfield.trial import Direction, Trial

Rows = list[dict[str, Any]]
SPAN = 2.0  # trials that end beyond this many times the median do not stretch an axis
MOST_DRAWN = 2_000  # trials of an optimizer; nobody can tell more points apart
DRAWN_DIGITS = 7  # of a number in a chart; a float32 has no more, and the noise beyond would become ticks of an axis


@dataclass(frozen=True)
class Panel:
    """A chart and its rows."""

    chart: Any
    rows: Rows
    metric: str | None = None  # on one of its axes
    choice: Literal["", "select", "report"] = ""  # which of the reader's metrics that axis follows on the page
    fields: tuple[str, ...] = ("value", "low", "mean")  # of the rows, on that axis
    ends: tuple[float | None, float | None] = (None, None)  # of that axis, if the chart leaves them open
    live: Mapping[str, Any] | None = None  # what the figure's script needs to recompute the rows; None: they stay

    def spec(self) -> dict[str, Any]:
        """Return the whole chart, without its rows."""
        return charts.template(self.chart).fill(self.values())

    def values(self) -> dict[str, Any]:
        """Return what the slots of the chart hold."""
        if self.metric is None:
            return {}
        drawn = [row[key] for row in self.rows for key in self.fields if row.get(key) is not None]
        return charts.slot_values(self.metric, min(drawn, default=0.0), *self.ends)


@dataclass(frozen=True)
class Part:
    """Panels that are shown, and written to a file, together."""

    panels: Sequence[Panel]
    title: str = ""
    name: str = ""  # distinguishes its files from those of other parts
    color: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)  # for the HTML below its charts


@dataclass(frozen=True)
class Figure:
    """A section of the page. Its module may have a script (.js) and HTML below each part (.html) beside it."""

    title: str
    caption: str
    parts: Sequence[Part]
    columns: Literal[1, 2, 3] = 2
    data: Mapping[str, Any] = field(default_factory=dict)  # for its script
    name: str = ""
    script: str = ""
    html: str = ""

    @property
    def is_live(self) -> bool:
        """Whether the page recomputes any of it."""
        return any(panel.live is not None for panel in self.panels)

    @property
    def panels(self) -> list[Panel]:
        return [panel for part in self.parts for panel in part.panels]


def optimizer_names(results: Results) -> Names:
    """Return the study's optimizers; those without a single value of the selection metric are not drawn."""
    known = [np.isfinite(outcome.values()).any() for outcome in results.outcomes.values()]
    return Names("optimizer", tuple(results.outcomes), tuple(int(number) for number in np.flatnonzero(known)))


def estimate_fields(estimate: Estimate) -> dict[str, float | None]:
    """Return an estimate as fields of a row; what is not finite is missing."""
    return {key: drawn_number(value) for key, value in asdict(estimate).items()}


def interval_fields(interval: Interval) -> dict[str, float | None]:
    """Return a median and its confidence interval as fields of a row; an open end is missing."""
    names = {"median": "median", "low": "medianLow", "high": "medianHigh"}
    return {names[key]: drawn_number(value) for key, value in asdict(interval).items()}


def drawn_number(value: float) -> float | None:
    """
    >>> drawn_number(399.99999999999994), drawn_number(float("inf"))
    (400.0, None)
    """
    return float(f"{value:.{DRAWN_DIGITS}g}") if math.isfinite(value) else None


def short_number(value: Any) -> Any:
    """Return a number with the digits that it takes to draw it; anything else unchanged."""
    return float(f"{value:.{charts.COORDINATE_DIGITS}g}") if isinstance(value, float) else value


def axis_coordinate(axis: Axis, trial: Trial) -> Any:
    """Return where a trial lies on an axis; of a choice, its number."""
    value = axis.coordinate(trial.point.hyperparameters)
    if not charts.is_choice(axis):
        return short_number(value)
    return axis.dimension.ends.index(value) if value in axis.dimension.ends else None


def best_positions(outcome: Outcome, trials: Sequence[Trial]) -> list[int]:
    """Return where the best trial by each metric stands among the trials of a pool, infeasible ones included."""
    pool = np.flatnonzero([trial.feasible for trial in trials])
    ranked = (outcome.ranked(metric) for metric in outcome.metrics)
    return sorted({int(pool[values.argmin()]) for values in ranked if np.isfinite(values).any()})


def drawn_positions(outcome: Outcome, trials: Sequence[Trial]) -> list[int]:
    """Return which trials of a pool are drawn: all, or the first ones, which lie everywhere, and the best."""
    if len(trials) <= MOST_DRAWN:
        return list(range(len(trials)))
    return sorted({*range(MOST_DRAWN), *best_positions(outcome, trials)})


def is_maximized(outcome: Outcome, metric: str) -> bool:
    return outcome.metrics[metric] is Direction.MAXIMIZE


def axis_end(outcome: Outcome, metric: str) -> float:
    """Return where to end a metric's axis, so that bad trials do not flatten the good ones."""
    finals = outcome.values(metric)
    finals = finals[np.isfinite(finals)]
    if not len(finals):
        return math.nan
    if is_maximized(outcome, metric):
        return float(finals.min())
    median = float(np.median(finals))
    return min(float(finals.max()), SPAN * median if median > 0 else math.inf)


def file_name(name: str, names: Sequence[str]) -> str:
    """Return a name as part of a file's, different from those of the other names.

    >>> file_name("adam", ["adam", "a/b"]), file_name("a/b", ["a b", "a/b"])
    ('adam', 'a_b-1')
    """

    def plain(name: str) -> str:
        return re.sub(r"[^A-Za-z0-9.-]", "_", name)[:40]

    alike = [other for other in names if plain(other).lower() == plain(name).lower()]
    return plain(name) if len(alike) == 1 else f"{plain(name)}-{names.index(name)}"


def packed(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return rows column by column, and text as numbers of distinct texts: shorter in the page."""
    rows = list(rows)
    columns: dict[str, list[Any]] = {key: [row[key] for row in rows] for key in (rows[0] if rows else {})}
    texts = {key: list(dict.fromkeys(column)) for key, column in columns.items() if isinstance(column[0], str)}
    for key, distinct in texts.items():
        number = {text: i for i, text in enumerate(distinct)}
        columns[key] = [number[text] for text in columns[key]]
    return {"columns": columns, "texts": texts}
