"""What the page computes with: the trials' final metrics, hyperparameters and cost, and the charts' templates."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from levelfield.analysis.best_of import CLEAR
from levelfield.analysis.permutation import ENOUGH, PERMUTATIONS
from levelfield.analysis.results import Results
from levelfield.formatting import format_hyperparameters
from levelfield.report import charts
from levelfield.report.columns import reported_metric
from levelfield.report.figures import Figure, Panel, Rows, coordinate, graph, shown_ks
from levelfield.space import Axis
from levelfield.taxonomy.audit import SIGNIFICANT, audit


def page_data(results: Results, figures: Sequence[Figure], version: str | None) -> dict[str, Any]:
    study = results.study
    number = {name: i for i, name in enumerate(study.optimizers)}
    lines, nodes = graph(results)
    panels = [panel for figure in figures for panel in figure.panels]
    return {
        "k": study.trials,
        "select": study.select,
        "report": reported_metric(results),
        "target": asdict(study.target) if study.target else None,
        "metrics": {name: way.value for name, way in results.outcome(next(iter(number))).metrics.items()},
        "ks": shown_ks(results) if any(results.outcome(name).pool for name in number) else [],
        "constants": {
            "clear": CLEAR,
            "significant": SIGNIFICANT,
            "permutations": PERMUTATIONS,
            "enough": ENOUGH,
        },
        "optimizers": [_optimizer(results, name) for name in number],
        "edges": [
            {"special": number[each.edge.special], "general": number[each.edge.general]}
            for each in audit(results, results.k())
        ],
        "graph": {
            "lines": [
                line | {"special": number[line["special"]], "general": number[line["general"]]} for line in lines
            ],
            "nodes": [node | {"optimizer": number[node["optimizer"]]} for node in nodes],
        },
        "panels": [_panel(panel, study.select, reported_metric(results)) for panel in panels],
        "version": version,
    }


def _optimizer(results: Results, name: str) -> dict[str, Any]:
    """An optimizer's trials, column by column."""
    outcome, trials = results.outcome(name), results.trials[name]
    axes = results.study.optimizer(name).space.free
    reached = iter(outcome.steps if outcome.target else [])
    return {
        "name": name,
        "axes": [_axis(one) for one in axes],
        "trial": [trial.point.index for trial in trials],
        "feasible": [int(trial.feasible) for trial in trials],
        "last": [outcome.last(trial) for trial in trials],
        "reached": [_whole(next(reached, math.inf)) if trial.feasible else None for trial in trials],
        "metrics": {metric: [_metric(t.curve.at(metric, outcome.step)) for t in trials] for metric in outcome.metrics},
        "x": [[coordinate(one.coordinate(trial.point.hyperparameters)) for trial in trials] for one in axes],
        "hyperparameters": [format_hyperparameters(trial.point.hyperparameters) for trial in trials],
    }


def _axis(one: Axis) -> dict[str, Any]:
    return {"title": charts.axis_title(one), "kind": kind(one), "ends": [coordinate(end) for end in one.dimension.ends]}


def kind(one: Axis) -> str:
    return next(iter(one.dimension.spec()))


def _metric(value: float) -> Any:
    """A float32 with as many digits as it takes to tell it from its neighbours."""
    if math.isnan(value):
        return None
    return float(str(np.float32(value))) if math.isfinite(value) else str(value)


def _whole(steps: float) -> int | None:
    return int(steps) if math.isfinite(steps) else None


def _panel(panel: Panel, select: str, report: str) -> dict[str, Any]:
    live = {select: "@select"} if panel.key else {}
    if panel.key in ("outcomes:report", "selection"):
        live = {report: "@report"}
    return {
        "key": panel.key,
        "metric": live.get(panel.metric or "", panel.metric),
        "spec": panel.template,
        "rows": None if panel.key else packed(panel.rows),
    }


def packed(rows: Rows) -> dict[str, Any]:
    """Rows column by column; text as numbers of names."""
    columns: dict[str, list[Any]] = {key: [row[key] for row in rows] for key in (rows[0] if rows else {})}
    names = {key: list(dict.fromkeys(found)) for key, found in columns.items() if isinstance(found[0], str)}
    for key, known in names.items():
        place = {name: i for i, name in enumerate(known)}
        columns[key] = [place[value] for value in columns[key]]
    return {"columns": columns, "names": names}


def script_json(content: Any) -> str:
    """JSON that is safe inside a script element, whatever names it holds."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
