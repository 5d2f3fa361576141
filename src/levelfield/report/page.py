"""The report: one HTML file with everything in it, and the same charts and tables as files for a paper."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from levelfield.analysis.boundaries import Boundary, boundaries
from levelfield.analysis.health import Check, health
from levelfield.analysis.ranges import Place
from levelfield.analysis.results import Results
from levelfield.errors import UsageError
from levelfield.files import replacing
from levelfield.formatting import (
    MISSING,
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_range,
    join_words,
    pluralize,
)
from levelfield.report import charts
from levelfield.report.caveats import caveats, provenance_sentences
from levelfield.report.columns import Text, page_columns, reported_metric
from levelfield.report.figure import Figure, Part
from levelfield.report.figures import figures
from levelfield.report.latex import latex_tables
from levelfield.report.methods import methods
from levelfield.report.narrative import sentences
from levelfield.report.payload import CONSTANTS, page_data, script_json
from levelfield.report.spaces import is_refined, space_tables
from levelfield.report.vega import vega_bundle
from levelfield.usual import Departure, departures

# The constants come first, then the figures; page.js, which starts everything, last.
_SCRIPTS = ("formatting.js", "statistics.js", "outcomes.js", "charts.js", "tables.js", "columns.js")
_FILE_CONFIG = {"view": {"stroke": None}, "axis": {"gridColor": "#e4e4e4"}}


# ---------------------------------------------------------------------------- files


def write_report(results: Results, path: Path, protocols: Sequence[Results] = ()) -> Path:
    """Write the report of a study."""
    return write_page(render(results, protocols), path)


def write_page(page: str, path: Path) -> Path:
    """Write a page. A reader never sees half of it."""
    try:
        with replacing(path) as temporary:
            temporary.write_text(page, "utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def write_figures(results: Results, folder: Path, protocols: Sequence[Results] = ()) -> list[Path]:
    """Write every figure as PDF, SVG and PNG, the tables in LaTeX, and a methods section."""
    import vl_convert

    paths: list[Path] = []

    def write(name: str, content: bytes) -> None:
        paths.append(folder / name)
        with replacing(paths[-1]) as temporary:
            temporary.write_bytes(content)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures(results, protocols):
            for part in figure.parts:
                name = f"{figure.name}-{part.name}" if part.name else figure.name
                spec = file_spec(part, figure.columns)
                write(f"{name}.pdf", vl_convert.vegalite_to_pdf(spec))
                write(f"{name}.svg", vl_convert.vegalite_to_svg(spec).encode())
                write(f"{name}.png", vl_convert.vegalite_to_png(spec, ppi=200))
        for name, table in latex_tables(results).items():
            write(f"{name}.tex", table.encode())
        for name, text in methods(results).items():
            write(name, text.encode())
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written ({error.strerror})") from None
    return paths


def file_spec(part: Part, columns: int) -> dict[str, Any]:
    """Return the panels of a part as one specification, with their rows."""
    datasets: dict[str, Any] = {}
    views = []
    for i, panel in enumerate(part.panels):
        view = _without_selections(panel.spec(), f"rows{i}")
        datasets |= {f"rows{i}": panel.rows} | view.pop("datasets", {})
        views.append(view)
    scales = {"resolve": {"scale": {"color": "independent", "strokeDash": "independent"}}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "config": _FILE_CONFIG,
        "datasets": datasets,
        **(views[0] if len(views) == 1 else {"concat": views, "columns": columns} | scales),
    }


def _without_selections(part: Any, rows: str) -> Any:
    """Return a part of a specification as paper shows it, reading rows of a name of its own."""
    if isinstance(part, list):
        return [_without_selections(item, rows) for item in part]
    if not isinstance(part, dict):
        return part
    if "param" in part.get("condition", {}):
        return {"value": part["condition"]["value"]}
    kept = {key: _without_selections(value, rows) for key, value in part.items() if key != "params"}
    return kept | {"name": rows} if kept.get("name") == charts.ROWS.name else kept


# ---------------------------------------------------------------------------- the page


def render(results: Results, protocols: Sequence[Results] = (), version: str | None = None) -> str:
    """Return the page. With a version of the trials, it asks its server for newer ones."""
    study = results.study
    drawn = figures(results, protocols)
    numbers = {name: number for number, name in enumerate(results.outcomes)}
    tables = space_tables(study)
    first = caveats(results)
    everywhere = dict.fromkeys([*first, *(sentence for other in protocols for sentence in caveats(other))])
    return template("page.html").render(
        study=study,
        k=results.k(),
        title=results.title,
        caveats=list(everywhere),
        sentences=sentences(results)[len(first) :],
        complete=results.complete,
        narrowed=results.narrowed_spaces,
        report=reported_metric(results),
        metrics=list(next(iter(results.outcomes.values())).metrics),
        colors={name: charts.color(number) for name, number in numbers.items()},
        headings=[_Heading(column, results) for column in page_columns(results)],
        rows=[_Row(name, numbers[name], results) for name in results.ranking()],
        maximized=next(iter(results.outcomes.values())).metrics[study.select].sign < 0,
        counts=[results.count(name) for name in results.outcomes],
        largest_pool=max(len(outcome.pool) for outcome in results.outcomes.values()),
        figures=drawn,
        below={figure.name: _environment().from_string(figure.html) for figure in drawn},
        searches=_searches(results),
        checks=len(health(results)),
        spaces=tables,
        refined=is_refined(tables),
        costs=list(_costs(results)),
        provenance=provenance_sentences(results),
        toml=study.to_toml(),
        data=script_json(page_data(results, drawn, version)),
        version=version,
        vega=vega_bundle(),
        script=_script(drawn),
    )


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(source),
    )
    filters: dict[str, Callable[..., str]] = {"number": format_number, "count": format_count, "pluralize": pluralize}
    environment.filters |= filters
    return environment


@functools.cache
def template(name: str) -> jinja2.Template:
    """Return one of the templates next to this file."""
    return _environment().get_template(name)


def source(name: str) -> str:
    """Return a file next to this one."""
    return (resources.files(__package__) / name).read_text("utf-8")


def _script(drawn: Iterable[Figure]) -> str:
    """Return the page's own script. Each figure's is in a block, so that its names stay its own."""
    parts = [f"const CONSTANTS = {script_json(CONSTANTS)};", *map(source, _SCRIPTS)]
    parts += [f"{{\n{figure.script}}}" for figure in drawn if figure.script]
    return "\n".join([*parts, source("page.js")])


class _Heading:
    """The heading of a column of the outcome table."""

    def __init__(self, column: Any, results: Results) -> None:
        self.key = column.key
        self.text: Text = column.heading(results)
        self.label = f"{self.text.main} ({self.text.small})" if self.text.small else self.text.main  # on a phone
        self.hidden = not column.shown(results)
        self.classes = " ".join(["number"] * column.is_number + ["long"] * column.is_long)


class _Row:
    """An optimizer's row of the outcome table."""

    def __init__(self, name: str, number: int, results: Results) -> None:
        self.name = name
        self.number = number
        outcome = results.outcome(name)
        self.cells = [column.text(results, outcome, results.k()) for column in page_columns(results)]


@dataclass(frozen=True)
class _Search:
    """What is known about one optimizer's search, from common sense and from its trials."""

    optimizer: str
    unusual: list[Departure]
    failed: list[Check]
    ranges: list[dict[str, str]]
    summary: str
    is_sound: bool


def _searches(results: Results) -> list[_Search]:
    searches = []
    judged = [axis for axis in boundaries(results) if axis.place is not Place.FIXED and results.trials[axis.optimizer]]
    checks, departing = health(results), departures(results.study)
    for name in results.outcomes:
        unusual = [departure for departure in departing if departure.optimizer == name]
        failed = [check for check in checks if check.optimizer == name and not check.healthy]
        ranges = [axis for axis in judged if axis.optimizer == name]
        poor = sum(not axis.settled for axis in ranges)
        if not unusual and not ranges and not any(check.optimizer == name for check in checks):
            continue
        problems = [pluralize(len(unusual), "unusual setting")] * bool(unusual)
        problems += [f"{pluralize(len(failed), 'check')} failed"] * bool(failed)
        problems += [f"{pluralize(poor, 'range')} to change"] * bool(poor)
        unknown = sum(axis.place is Place.UNKNOWN for axis in ranges)
        summary = join_words(problems) if problems else "no problem found"
        summary += f"; {pluralize(unknown, 'range')} unknown" * bool(unknown)
        texts = [_range_texts(axis) for axis in ranges]
        searches.append(_Search(name, unusual, failed, texts, summary, not problems))
    return searches


def _range_texts(boundary: Boundary) -> dict[str, str]:
    """Return the cells of a hyperparameter's row."""
    known = boundary.lower == boundary.lower
    return {
        "hyperparameter": boundary.axis.key,
        "range": format_range(boundary.axis.dimension),
        "good": " … ".join(format_number(end) for end in boundary.good),
        "borders": f"{format_percent(boundary.lower)}, {format_percent(boundary.upper)}" if known else MISSING,
        "verdict": boundary.unknown if boundary.place is Place.UNKNOWN else boundary.place.value,
        "proposal": format_range(boundary.proposal) if boundary.proposal else "",
    }


def _costs(results: Results) -> Iterable[dict[str, Any]]:
    for name, outcome in results.outcomes.items():
        seconds = sum(trial.seconds for trial in results.trials[name])
        yield {
            "optimizer": name,
            "tried": outcome.tried,
            "infeasible": outcome.tried - len(outcome.pool),
            "steps": outcome.spent,
            "time": format_duration(seconds) if seconds else MISSING,
        }
