"""The columns of the outcome table, each declared once: its numbers, its heading and its text.

``rows`` returns the numbers (for JSON and polars); terminal, page and LaTeX show the texts. The page recomputes the
columns that columns.js knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from levelfield.analysis.best_of import HIGH, LOW
from levelfield.analysis.intervals import LEVEL, Interval
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.results import Results
from levelfield.analysis.step_times import differ
from levelfield.formatting import (
    MISSING,
    format_count,
    format_ends,
    format_hyperparameters,
    format_interval,
    format_metric,
    format_percent,
    format_seconds,
)

PERCENTILES = f"{100 * LOW:.0f}–{100 * HIGH:.0f}%"  # of a tuner's luck
CONFIDENCE = f"{100 * LEVEL:.0f}% CI"  # of the uncertainty of the pool


@dataclass(frozen=True)
class Text:
    """A heading or a cell: the main text, and a smaller one below it."""

    main: str
    small: str = ""


@dataclass(frozen=True)
class Column:
    key: str  # names the column's cells on the page
    heading: Callable[[Results], Text]
    text: Callable[[Results, Outcome, int], Text]
    numbers: Callable[[Results, Outcome, int], dict[str, Any]] = lambda results, outcome, k: {}
    shown: Callable[[Results], bool] = lambda results: True
    possible: Callable[[Results], bool] = lambda results: False  # hidden on the page until its reader asks for it
    is_number: bool = True
    is_long: bool = False  # too long for a table in the terminal or in LaTeX
    is_secondary: bool = False  # left out on a narrow terminal
    in_figure: bool = False  # left out on the page, which has a figure of it


def reported_metric(results: Results) -> str:
    """Return the metric shown next to the selection metric: one on data that did not select, if there is one."""
    outcome = next(iter(results.outcomes.values()))
    return outcome.held_out_metric or outcome.select


def rows(results: Results, k: int | None = None) -> list[dict[str, Any]]:
    """Return one row of numbers for each optimizer, in the study's order."""
    return [
        {name: value for column in COLUMNS for name, value in column.numbers(results, outcome, results.k(k)).items()}
        for outcome in results.outcomes.values()
    ]


def shown_columns(results: Results) -> list[Column]:
    return [column for column in COLUMNS if column.shown(results)]


def page_columns(results: Results) -> list[Column]:
    """Return the columns of the page, including those that its reader can ask for."""
    columns = [column for column in COLUMNS if not column.in_figure]
    return [column for column in columns if column.shown(results) or column.possible(results)]


def _median_text(results: Results, outcome: Outcome, k: int) -> Text:
    interval = outcome.interval(k)
    if not math.isfinite(interval.median):
        return Text(MISSING)
    return Text(
        format_metric(outcome.select, interval.median), format_interval(outcome.select, interval.low, interval.high)
    )


def _mean_text(outcome: Outcome, k: int, metric: str) -> Text:
    best = outcome.best(k, metric)
    if math.isnan(best.mean):
        return Text(MISSING)
    return Text(
        format_metric(metric, best.mean), f"{format_metric(metric, best.low)} – {format_metric(metric, best.high)}"
    )


def _median_numbers(results: Results, outcome: Outcome, k: int) -> dict[str, Any]:
    interval = outcome.interval(k)
    ends = {"median_low": interval.low, "median_high": interval.high}
    return {"metric": outcome.select, "k": k, "median": interval.median} | ends


def _test_numbers(results: Results, outcome: Outcome, k: int) -> dict[str, Any]:
    return {outcome.held_out_metric: outcome.best(k, outcome.held_out_metric).mean} if outcome.held_out_metric else {}


def _steps_numbers(results: Results, outcome: Outcome, k: int) -> dict[str, Any]:
    if not outcome.target:
        return {}
    median, reached = outcome.steps_interval(k), outcome.reached(k)
    return {f"steps_{name}": value for name, value in asdict(outcome.steps_to_target(k)).items()} | {
        "steps_median": median.median,
        "steps_median_low": median.low,
        "steps_median_high": median.high,
        "steps_probability_low": reached.low,
        "steps_probability_high": reached.high,
    }


def _target_heading(results: Results, quantity: str) -> Text:
    target = results.study.target
    assert target
    return Text(f"median {quantity} to {format_metric(target.metric, target.value)}", CONFIDENCE)


def _target_text(cost: Interval, shown: Callable[[float], str]) -> Text:
    if math.isnan(cost.median):
        return Text(MISSING)
    ends = format_ends(shown(cost.low), shown(cost.high), cost.low, cost.high)
    if cost.low == math.inf:  # too few trials reach the target for the median to be finite
        ends = "not reached"
    return Text("not reached" if math.isinf(cost.median) else shown(cost.median), ends)


def _seconds_numbers(results: Results, outcome: Outcome, k: int) -> dict[str, Any]:
    if not outcome.step_time:
        return {}
    numbers = {"seconds_per_step": outcome.step_seconds}
    if not outcome.target:
        return numbers
    seconds = outcome.seconds_interval(k)
    ends = {"seconds_to_target_low": seconds.low, "seconds_to_target_high": seconds.high}
    return numbers | {"seconds_to_target": seconds.median} | ends


def _reached_text(results: Results, outcome: Outcome, k: int) -> Text:
    reached = outcome.reached(k)
    if math.isnan(reached.probability):
        return Text(MISSING)
    return Text(format_percent(reached.probability), f"{format_percent(reached.low)} – {format_percent(reached.high)}")


def _has_target(results: Results) -> bool:
    return results.study.target is not None


def _has_seconds(results: Results) -> bool:
    """Return whether seconds to the target are known, and say something else than steps."""
    return _has_target(results) and differ(results.step_times)


def _trial_numbers(results: Results, outcome: Outcome, k: int) -> dict[str, Any]:
    return {
        "feasible": len(outcome.pool),
        "tried": outcome.tried,
        "infeasible_share": outcome.infeasible_share,
    }


def _best_hyperparameters(outcome: Outcome) -> dict[str, Any]:
    return dict(outcome.best_trial.point.hyperparameters) if outcome.best_trial else {}


COLUMNS = (
    Column(
        "optimizer",
        heading=lambda results: Text("optimizer"),
        text=lambda results, outcome, k: Text(outcome.name, results.study.optimizer(outcome.name).protocol),
        numbers=lambda results, outcome, k: {
            "optimizer": outcome.name,
            "protocol": results.study.optimizer(outcome.name).protocol,
        },
        is_number=False,
    ),
    Column(
        "select",
        heading=lambda results: Text(f"median {results.study.select}", CONFIDENCE),
        text=_median_text,
        numbers=_median_numbers,
    ),
    Column(
        "luck",
        heading=lambda results: Text(f"mean {results.study.select}", PERCENTILES),
        text=lambda results, outcome, k: _mean_text(outcome, k, outcome.select),
        numbers=lambda results, outcome, k: asdict(outcome.best(k)),
        is_secondary=True,
    ),
    Column(
        "report",
        heading=lambda results: Text(f"mean {reported_metric(results)}", PERCENTILES),
        text=lambda results, outcome, k: _mean_text(outcome, k, reported_metric(results)),
        numbers=_test_numbers,
        shown=lambda results: reported_metric(results) != results.study.select,
        possible=lambda results: len(next(iter(results.outcomes.values())).metrics) > 1,
    ),
    Column(
        "steps",
        heading=lambda results: _target_heading(results, "steps"),
        text=lambda results, outcome, k: _target_text(outcome.steps_interval(k), format_count),
        numbers=_steps_numbers,
        shown=_has_target,
    ),
    Column(
        "seconds",
        heading=lambda results: _target_heading(results, "time"),
        text=lambda results, outcome, k: _target_text(outcome.seconds_interval(k), format_seconds),
        numbers=_seconds_numbers,
        shown=_has_seconds,
        is_secondary=True,
        in_figure=True,
    ),
    Column("reached", heading=lambda results: Text("reached", CONFIDENCE), text=_reached_text, shown=_has_target),
    Column(
        "feasible",
        heading=lambda results: Text("feasible"),
        text=lambda results, outcome, k: Text(f"{len(outcome.pool):,} of {outcome.tried:,}"),
        numbers=_trial_numbers,
    ),
    Column(
        "hyperparameters",
        heading=lambda results: Text("best hyperparameters"),
        text=lambda results, outcome, k: Text(format_hyperparameters(_best_hyperparameters(outcome))),
        numbers=lambda results, outcome, k: {"best_hyperparameters": _best_hyperparameters(outcome)},
        is_number=False,
        is_long=True,
    ),
)
