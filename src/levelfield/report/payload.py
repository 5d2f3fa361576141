"""What the page computes with: constants, the trials' final metrics and hyperparameters, and the charts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from levelfield.analysis.best_of import HIGH, LOW, TOLERANCE
from levelfield.analysis.curves import Curves
from levelfield.analysis.intervals import (
    FEWEST_PERMUTATIONS,
    LEVEL,
    MANY,
    MARGIN,
    ONE_SIDED_MARGIN,
    PERMUTATIONS_PER_CLAIM,
    SIGNIFICANCE,
    TIED,
)
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.permutation import ENOUGH, HASH_MULTIPLIERS, NEGLIGIBLE, PERMUTATIONS
from levelfield.analysis.results import Results
from levelfield.formatting import (
    METRIC_DIGITS,
    MISSING,
    P_VALUE_DIGITS,
    SHARE_DECIMALS,
    format_hyperparameters,
    format_number,
    is_share,
)
from levelfield.report import charts
from levelfield.report.columns import reported_metric
from levelfield.report.compression import ROUNDED_DIGITS, compressed, rounded
from levelfield.report.figure import (
    DRAWN_DIGITS,
    MOST_DRAWN,
    Figure,
    Panel,
    axis_coordinate,
    best_positions,
    is_maximized,
    packed,
    short_number,
)
from levelfield.space import Axis
from levelfield.trial import Trial

CONSTANTS = {
    "low": LOW,
    "high": HIGH,
    "tolerance": TOLERANCE,
    "level": LEVEL,
    "significance": SIGNIFICANCE,
    "tied": TIED,
    "permutations": PERMUTATIONS,
    "enough": ENOUGH,
    "margin": MARGIN,
    "oneSidedMargin": ONE_SIDED_MARGIN,
    "many": MANY,
    "fewestPermutations": FEWEST_PERMUTATIONS,
    "permutationsPerClaim": PERMUTATIONS_PER_CLAIM,
    "negligible": NEGLIGIBLE,
    "multipliers": HASH_MULTIPLIERS,
    "drawnDigits": DRAWN_DIGITS,
    "mostDrawn": MOST_DRAWN,
    "coordinateDigits": charts.COORDINATE_DIGITS,
    "shareDecimals": SHARE_DECIMALS,
    "metricDigits": METRIC_DIGITS,
    "pValueDigits": P_VALUE_DIGITS,
    "missing": MISSING,
}


def page_data(results: Results, figures: Sequence[Figure], version: str | None) -> dict[str, Any]:
    """Return the data of the page. Optimizers and metrics go by number, so that no name is ever a key."""
    study = results.study
    outcome = next(iter(results.outcomes.values()))
    metrics = list(outcome.metrics)
    return {
        "k": results.k(),
        "replacement": study.replacement,
        "independent": study.is_tested,
        "target": study.target is not None,
        "select": metrics.index(study.select),
        "report": metrics.index(reported_metric(results)),
        "metrics": [
            {
                "name": metric,
                "maximized": is_maximized(outcome, metric),
                "share": is_share(metric),
                **charts.metric_formats(metric),
            }
            for metric in metrics
        ],
        "tests": _tests(results),
        "optimizers": [_optimizer(results, name, metrics) for name in results.outcomes],
        "figures": [[figure.name, figure.data] for figure in figures],
        "panels": [_panel(figure, panel) for figure in figures for panel in figure.panels],
        "version": version,
    }


def _tests(results: Results) -> dict[str, list[dict[str, Any]]]:
    """Return what the tests say with the study's settings; the page itself tests what its reader asks."""
    number = {name: i for i, name in enumerate(results.outcomes)}
    tests = {"best": results.pair_tests(), "steps": results.step_tests() if results.study.target else []}
    return {
        quantity: [
            {
                "better": number[test.better],
                "worse": number[test.worse],
                "p": test.p_value,
                "separated": test.separated,
            }
            for test in compared
        ]
        for quantity, compared in tests.items()
    }


def _optimizer(results: Results, name: str, metrics: Sequence[str]) -> dict[str, Any]:
    """Return an optimizer's trials, column by column."""
    outcome, trials = results.outcome(name), results.trials[name]
    axes = results.study.optimizer(name).space.free
    if len(trials) > MOST_DRAWN:
        return _many_trials(outcome, trials, axes, metrics)
    steps = iter(outcome.steps if outcome.target else [])
    return {
        "name": name,
        "axes": [_axis(axis) for axis in axes],
        "trial": [trial.point.index for trial in trials],
        "feasible": [int(trial.feasible) for trial in trials],
        "last": [outcome.last(trial) for trial in trials],
        "reached": [_step(next(steps, math.inf)) if trial.feasible else None for trial in trials],
        "finals": [[_final(trial.curve.at(metric, outcome.step)) for trial in trials] for metric in metrics],
        "coordinates": [[axis_coordinate(axis, trial) for trial in trials] for axis in axes],
        "hyperparameters": [format_hyperparameters(trial.point.hyperparameters) for trial in trials],
        "stepSeconds": _step_seconds(outcome),
    }


def _many_trials(
    outcome: Outcome, trials: Sequence[Trial], axes: Sequence[Axis], metrics: Sequence[str]
) -> dict[str, Any]:
    """Return the same columns compressed, with rounded coordinates, and only the best trials' hyperparameters."""
    curves = Curves(trials)
    feasible = np.array([trial.feasible for trial in trials])
    reached = np.full(len(trials), np.nan)
    if outcome.target:
        reached[feasible] = np.where(np.isfinite(outcome.steps), outcome.steps, np.nan)
    return {
        "name": outcome.name,
        "axes": [_axis(axis) for axis in axes],
        "trial": compressed(np.array([trial.point.index for trial in trials], float)),
        "feasible": compressed(feasible.astype(float)),
        "last": compressed(curves.last(outcome.step)),
        "reached": compressed(reached),
        "finals": [compressed(curves.at(metric, outcome.step).astype(np.float32)) for metric in metrics],
        "coordinates": [compressed(rounded(_coordinates(axis, trials))) for axis in axes],
        "coordinateDigits": ROUNDED_DIGITS,
        "hyperparameters": {
            position: format_hyperparameters(trials[position].point.hyperparameters)
            for position in best_positions(outcome, trials)
        },
        "stepSeconds": _step_seconds(outcome),
    }


def _step_seconds(outcome: Outcome) -> float | None:
    return outcome.step_time.seconds if outcome.step_time else None


def _coordinates(axis: Axis, trials: Sequence[Trial]) -> np.ndarray:
    """Return where trials lie on an axis; of a choice, its number."""
    coordinates = axis.coordinates([trial.point.hyperparameters for trial in trials])
    if charts.is_choice(axis):
        numbers = {value: number for number, value in enumerate(axis.dimension.ends)}
        return np.array([numbers.get(value, math.nan) for value in coordinates], np.float32)
    return np.array(coordinates, np.float32)


def _axis(axis: Axis) -> dict[str, Any]:
    title, ends = charts.axis_title(axis), axis.dimension.ends
    if charts.is_choice(axis):
        return {"title": title, "choices": [format_number(value) for value in ends]}
    return {"title": title, "ends": [short_number(end) for end in ends]}


def _final(value: float) -> Any:
    """Return a float32 with as many digits as tell it from its neighbors."""
    if math.isnan(value):
        return None
    return float(str(np.float32(value))) if math.isfinite(value) else str(value)


def _step(step: float) -> int | None:
    return int(step) if math.isfinite(step) else None


def _panel(figure: Figure, panel: Panel) -> dict[str, Any]:
    """Return a live panel with its slots, or a static one with its rows."""
    if panel.live is None:
        return {"figure": figure.name, "spec": panel.spec(), "rows": packed(panel.rows)}
    template = charts.template(panel.chart)
    return {
        "figure": figure.name,
        "spec": template.spec,
        "slots": template.slots,
        "choice": panel.choice,
        "fields": panel.fields,
        "live": panel.live,
    }


def script_json(content: Any) -> str:
    """Return JSON that is safe inside a script element, whatever names it holds."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
