"""The page: one HTML file with everything in it, and the same charts as files."""

from __future__ import annotations

import json
import os
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from levelfield.errors import UsageError
from levelfield.report.charts import charts, space_rows
from levelfield.taxonomy.audit import Finding
from levelfield.words import seeded_sentences, show_hyperparameters, show_metric

if TYPE_CHECKING:
    from levelfield.comparison import Comparison

_TITLES = {
    "outcomes": (
        "Outcomes",
        "The trial that a tuner with K trials would select: mean and 5th to 95th percentile.",
    ),
    "best-of-k": ("How many trials", "The best of K trials against K. Click the legend to single one out."),
    "inclusions": (
        "Inclusions",
        "From left to right, each optimizer to those that can follow it: tuned well enough, they are never worse.",
    ),
    "curves": ("Learning curves", "Each optimizer's best trial over the others of its pool."),
}


def write_report(comparison: Comparison, path: Path) -> Path:
    page = render(comparison)
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


def write_figures(comparison: Comparison, folder: Path) -> list[Path]:
    """Every chart as PDF, SVG and PNG."""
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, chart in charts(comparison).items():
            for kind in ("pdf", "svg", "png"):
                paths.append(folder / f"{name}.{kind}")
                chart.save(paths[-1], **({"ppi": 144} if kind == "png" else {}))
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written ({error.strerror})") from None
    return paths


def render(comparison: Comparison) -> str:
    import vl_convert

    study = comparison.study
    found = charts(comparison)
    template = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    ).from_string((resources.files("levelfield.report") / "page.html").read_text("utf-8"))
    return template.render(
        study=study,
        sentences=comparison.sentences(),
        complete=comparison.complete,
        rows=[_shown(comparison, row) for row in comparison.rows()],
        charts=[name for name in _TITLES if name in found],
        findings=[_shown_finding(finding) for finding in comparison.audit()],
        seeded=seeded_sentences(comparison),
        panels=[name for name in found if name not in _TITLES],
        titles=_TITLES,
        specs=_script_json({name: chart.to_dict() for name, chart in found.items()}),
        spaces=list(space_rows(comparison)),
        provenance=comparison.provenance,
        toml=study.to_toml(),
        vega=vl_convert.javascript_bundle(None) if found else "",
    )


def _shown(comparison: Comparison, row: dict[str, Any]) -> dict[str, str]:
    metric = comparison.study.select
    low, high = show_metric(metric, row["low"]), show_metric(metric, row["high"])
    reached = row.get("steps_probability", 0.0)
    test = comparison.outcome(row["optimizer"]).test_metric
    return {
        "optimizer": row["optimizer"],
        "protocol": row["protocol"],
        "best": show_metric(metric, row["mean"]),
        "range": f"{low} – {high}" if row["feasible"] else "",
        "test": show_metric(test, row[test]) if test else "–",
        "steps": f"{row['steps_mean']:,.0f} ({reached:.0%})" if reached > 0 else "–",
        "trials": f"{row['feasible']} of {row['tried']}",
        "hyperparameters": show_hyperparameters(row["best_hyperparameters"]),
    }


def _shown_finding(finding: Finding) -> dict[str, str]:
    def percent(value: float) -> str:
        return "–" if value != value else f"{value:.0%}"

    return {
        "inclusion": f"{finding.edge.special} ⊆ {finding.edge.general}",
        "worse": percent(finding.worse),
        "better": percent(finding.better),
        "p": "–" if finding.p_value != finding.p_value else f"{finding.p_value:.2g}",
        "verdict": finding.verdict.value,
        "evidence": "; ".join(finding.evidence),
    }


def _script_json(content: Any) -> str:
    """JSON that is safe inside a script element, whatever names it holds."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
