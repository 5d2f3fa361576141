"""The page: one HTML file with everything in it, and the same charts as files."""

from __future__ import annotations

import functools
import math
import os
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from levelfield.analysis.boundaries import Place, boundaries
from levelfield.analysis.health import health
from levelfield.analysis.protocols import by_protocol, flips, pairs
from levelfield.analysis.results import Results
from levelfield.errors import UsageError
from levelfield.formatting import (
    format_duration,
    format_hyperparameters,
    format_metric,
    format_number,
    format_range,
)
from levelfield.report import charts
from levelfield.report.columns import reported_metric, rows
from levelfield.report.figures import Figure, figures
from levelfield.report.narrative import followed_sentences, rerun_sentences, sentences
from levelfield.report.payload import kind, page_data, script_json
from levelfield.report.tables import latex_tables, space_rows
from levelfield.taxonomy.audit import Finding, audit

_FILE_CONFIG = {"view": {"stroke": None}, "axis": {"gridColor": "#e4e4e4"}}


def write_report(results: Results, path: Path, protocols: Sequence[Results] = ()) -> Path:
    page = render(results, protocols)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written beside its place and moved there, so that a reader never meets half a page.
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            file.write(page)
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def write_figures(results: Results, folder: Path, protocols: Sequence[Results] = ()) -> list[Path]:
    """Every figure as PDF, SVG and PNG, and the tables in LaTeX."""
    import vl_convert

    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures(results, protocols):
            spec = _together(figure)
            drawn = {
                "pdf": vl_convert.vegalite_to_pdf(spec),
                "svg": vl_convert.vegalite_to_svg(spec).encode(),
                "png": vl_convert.vegalite_to_png(spec, ppi=200),
            }
            for form, content in drawn.items():
                paths.append(folder / f"{figure.name}.{form}")
                paths[-1].write_bytes(content)
        for name, text in latex_tables(results).items():
            paths.append(folder / f"{name}.tex")
            paths[-1].write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written ({error.strerror})") from None
    return paths


def _together(figure: Figure) -> dict[str, Any]:
    """A figure's panels in one specification, each with its rows."""
    specs = [panel.spec() for panel in figure.panels]
    rows, parts = {}, []
    for i, spec in enumerate(specs):
        rows[f"rows{i}"] = spec.pop("datasets")["rows"]
        parts.append(_still(spec, f"rows{i}"))
    apart = {"resolve": {"scale": {"color": "independent", "strokeDash": "independent"}}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "config": _FILE_CONFIG,
        "datasets": rows,
        **(parts[0] if len(parts) == 1 else {"concat": parts, "columns": figure.columns} | apart),
    }


def _still(part: Any, rows: str) -> Any:
    """A panel's part as paper shows it, with nothing to select; its rows under a name of their own."""
    if isinstance(part, list):
        return [_still(each, rows) for each in part]
    if not isinstance(part, dict):
        return part
    if "param" in part.get("condition", {}):
        return {"value": part["condition"]["value"]}
    own = {key: _still(each, rows) for key, each in part.items() if key != "params"}
    return own | {"name": rows} if own.get("name") == "rows" else own


@functools.cache
def _template() -> jinja2.Template:
    folder = resources.files("levelfield.report")
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text("utf-8")),
    )
    environment.filters |= {"number": format_number, "count": lambda value: f"{value:,.0f}"}
    return environment.get_template("page.html")


@functools.cache
def _vega() -> str:
    import vl_convert

    bundle: str = vl_convert.javascript_bundle(None)
    return bundle


def render(results: Results, protocols: Sequence[Results] = (), version: str | None = None) -> str:
    """The page. With a version of the trials, it asks the server for newer ones."""
    study = results.study
    found = figures(results, protocols)
    columns = by_protocol(protocols or [results])
    names = list(study.optimizers)
    metrics = list(results.outcome(names[0]).metrics)
    folder = resources.files("levelfield.report")
    return _template().render(
        study=study,
        sentences=sentences(results),
        complete=results.complete,
        narrow=results.narrowed_spaces,
        report=reported_metric(results),
        metrics=metrics,
        lone=len(metrics) == 1,  # then there is nothing else to show
        colours=charts.shades(names),
        rows=[_shown(results, row) for row in rows(results)],
        largest=max((len(results.outcome(name).pool) for name in names), default=0),
        figures=_numbered(found),
        findings=[_shown_finding(finding) for finding in audit(results, results.k())],
        seeded=followed_sentences(results),
        reruns=rerun_sentences(results),
        boundaries=[each for each in boundaries(results) if each.place not in (Place.FIXED, Place.UNKNOWN)],
        checks=health(results),
        format_range=format_range,
        flips=[str(each) for each in flips(columns)],
        shared=any(len(each.protocols) > 1 for each in pairs(columns)),
        axes={
            name: [(one, charts.axis_title(one), kind(one)) for one in study.optimizer(name).space.free]
            for name in names
        },
        spaces=list(space_rows(results)),
        cost=_cost(results),
        provenance=results.provenance,
        toml=study.to_toml(),
        data=script_json(page_data(results, found, version)),
        version=version,
        vega=_vega(),
        script="\n".join((folder / name).read_text("utf-8") for name in ("statistics.js", "page.js")),
    )


def _numbered(found: Sequence[Figure]) -> dict[str, list[tuple[Figure, list[int]]]]:
    """Sections of the page: figures with the numbers of their panels; hyperparameters are one section."""
    sections: dict[str, list[tuple[Figure, list[int]]]] = {}
    number = 0
    for figure in found:
        numbers = list(range(number, number + len(figure.panels)))
        sections.setdefault(figure.name.partition("-")[0] if figure.columns == 3 else figure.name, []).append(
            (figure, numbers)
        )
        number += len(numbers)
    return sections


def _shown(results: Results, row: dict[str, Any]) -> dict[str, str]:
    study, outcome = results.study, results.outcome(row["optimizer"])
    reached = row.get("steps_probability", 0.0)
    texts = {"optimizer": row["optimizer"], "protocol": row["protocol"]}
    for key, metric in (("select", study.select), ("report", reported_metric(results))):
        found = outcome.best(study.trials, metric)
        known = not math.isnan(found.mean)
        texts[key] = format_metric(metric, found.mean)
        texts[f"{key}_range"] = (
            f"{format_metric(metric, found.low)} – {format_metric(metric, found.high)}" if known else ""
        )
    return texts | {
        "steps": f"{row['steps_mean']:,.0f} ({reached:.0%})" if reached > 0 else "–",
        "trials": f"{row['feasible']} of {row['tried']}",
        "feasible": str(row["feasible"]),
        "hyperparameters": format_hyperparameters(row["best_hyperparameters"]),
    }


def _shown_finding(finding: Finding) -> dict[str, str]:
    def percent(value: float) -> str:
        return "–" if math.isnan(value) else f"{value:.0%}"

    return {
        "inclusion": f"{finding.edge.special} ⊆ {finding.edge.general}",
        "worse": percent(finding.worse),
        "better": percent(finding.better),
        "p": "–" if math.isnan(finding.p_value) else f"{finding.p_value:.2g}",
        "verdict": finding.verdict.value,
        "evidence": "; ".join(finding.evidence),
    }


def _cost(results: Results) -> list[dict[str, Any]]:
    found = []
    for name, trials in results.trials.items():
        outcome = results.outcome(name)
        seconds = sum(trial.seconds for trial in trials)
        found.append(
            {
                "optimizer": name,
                "tried": outcome.tried,
                "infeasible": outcome.tried - len(outcome.pool),
                "steps": outcome.spent,
                "time": format_duration(seconds),
            }
        )
    return found
