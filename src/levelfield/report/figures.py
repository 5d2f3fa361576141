"""The figures of a results: charts with their rows. The page recomputes those that are live (page.js)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.protocols import by_protocol
from levelfield.analysis.ranking import several_ks
from levelfield.analysis.results import Results
from levelfield.formatting import display_order
from levelfield.report import charts
from levelfield.report.columns import reported_metric
from levelfield.taxonomy.audit import audit
from levelfield.taxonomy.order import reduction
from levelfield.trial import Direction, Target

Rows = list[dict[str, Any]]
_SHOWN_CURVES = 60  # of each optimizer, besides its best
_SHOWN_POINTS = 25  # of a curve
_SHOWN_KS = 30
_SWEEP = 8  # budgets, and targets
_SPAN = 2.0  # trials further than this factor from the median of the pool's finals are drawn at the border


@dataclass(frozen=True)
class Panel:
    """A chart and its rows. ``key`` tells the page how to compute them; an empty one, that they stay."""

    chart: Any
    rows: Rows
    metric: str | None = None
    key: str = ""
    upwards: bool = False  # the metric is the better the higher

    @property
    def template(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.chart.to_dict(validate=False)  # tests do; it takes seconds
        return {key: value for key, value in spec.items() if key not in ("config", "$schema")}

    def spec(self) -> dict[str, Any]:
        """The whole chart, for a file."""
        spec = self.template
        if self.metric:
            spec = charts.for_metric(spec, self.metric, lowest(self.rows), *cut(self.rows, self.upwards))
        return charts.with_rows(spec, self.rows)


@dataclass(frozen=True)
class Figure:
    name: str
    title: str
    caption: str
    panels: list[Panel] = field(default_factory=list)
    columns: int = 2


def lowest(rows: Rows) -> float:
    """The lowest number that a metric's axis has to show."""
    metric = ("target",) if any("target" in row for row in rows) else ("value", "low", "mean")
    drawn = [row[part] for row in rows for part in metric if row.get(part) is not None]
    return min(drawn, default=math.nan)


def cut(rows: Rows, upwards: bool) -> tuple[float | None, float | None]:
    """Ends for the axis of the best of K: what two trials give the worst optimizer; one alone may give anything."""
    means = [row["mean"] for row in rows if row.get("k", 0) > 1 and row["mean"] is not None]
    return (min(means, default=None), None) if upwards else (None, max(means, default=None))


def figures(results: Results, protocols: Sequence[Results] = ()) -> list[Figure]:
    """All there are trials for, in the order in which the page shows them.

    ``protocols``: whose tuning protocols are shown side by side, if not those of the results alone.
    """
    names = shown_optimizers(results)
    if not names:
        return []
    found = [
        _outcomes(results, names),
        _steps(results, names),
        _best_of_k(results, names),
        _pairs(results, names),
        _inclusions(results, names),
        _protocols(protocols or [results]),
        *(_hyperparameters(results, name, names) for name in names),
        _curves(results, names),
        _selection(results, names),
        _sweeps(results, names),
    ]
    return [figure for figure in found if figure]


def shown_optimizers(results: Results) -> charts.Names:
    """Those with a trial of which the selection metric is known."""
    shades = charts.shades(results.study.optimizers)
    return {name: shades[name] for name in shades if np.isfinite(results.outcome(name).values()).any()}


# ---------------------------------------------------------------------------- outcomes


def _outcomes(results: Results, names: charts.Names) -> Figure:
    k, select, report = results.study.trials, results.study.select, reported_metric(results)

    def panel(metric: str, key: str) -> Panel:
        rows = [{"optimizer": name, **estimate(results.outcome(name).best(k, metric))} for name in names]
        return Panel(charts.outcomes(names), rows, metric, key)

    panels = [panel(select, "outcomes:select"), panel(report, "outcomes:report")]
    caption = "The trial that a tuner with K trials would select: mean and 5th to 95th percentile."
    return Figure("outcomes", "Outcomes", caption, panels[: 1 if report == select else 2])


def _steps(results: Results, names: charts.Names) -> Figure | None:
    study = results.study
    if not study.target:
        return None
    rows = [{"optimizer": name, **estimate(results.outcome(name).steps_to_target(study.trials))} for name in names]
    rows = [row for row in rows if row["mean"] is not None]
    if not rows:
        return None
    caption = (
        f"Steps of the fastest of K trials to {study.target.metric} "
        f"{format(study.target.value, charts.metric_format(study.target.metric).replace('~', ''))}, "
        "among the repetitions that reach it; above each, how many do."
    )
    return Figure("steps", "Steps to the target", caption, [Panel(charts.steps(names), rows, key="steps")], 1)


def _best_of_k(results: Results, names: charts.Names) -> Figure:
    ks = shown_ks(results)
    rows = [
        {"optimizer": name, "k": k, "cost": outcome.cost(k), **estimate(outcome.best(k))}
        for name in names
        for outcome in [results.outcome(name)]
        for k in ks
    ]
    select, outcome = results.study.select, results.outcome(next(iter(names)))
    panels = [
        Panel(charts.best_of_k(names, cost), rows, select, "best_of_k", _upwards(outcome, select))
        for cost in (False, True)
    ]
    caption = (
        "The best of K trials against K, and against what they cost: a diverged trial costs the steps it ran. The axis "
        "takes in what two trials give, of the worst optimizer, too; one trial may lie beyond. "
        "Click the legend to single one out."
    )
    return Figure("best-of-k", "How many trials", caption, panels)


def shown_ks(results: Results) -> list[int]:
    return several_ks(max(len(results.outcome(name).pool) for name in results.study.optimizers), _SHOWN_KS)


def _pairs(results: Results, names: charts.Names) -> Figure | None:
    if len(names) < 2:
        return None
    won = [
        {"ours": ours, "theirs": theirs, "chance": chance, "lead": chance - results.beats(theirs, ours)}
        for ours in names
        for theirs in names
        if ours != theirs
        for chance in [results.beats(ours, theirs)]
    ]
    ranks = results.rank_probabilities()
    places = [
        {"optimizer": name, "place": place + 1, "chance": ranks[name][place]}
        for name in names
        for place in range(len(names))
    ]
    panels = [Panel(charts.beats(names), won, key="beats"), Panel(charts.ranks(names), places, key="ranks")]
    caption = (
        "Left: how often the optimizer of the row is strictly better than that of the column; pale: neither leads. "
        "Right: how often each comes first, second, …; those that tie share the better place."
    )
    return Figure("pairs", "Who beats whom", caption, panels)


def _selection(results: Results, names: charts.Names) -> Figure:
    report = reported_metric(results)
    selectors = list(results.outcome(next(iter(names))).metrics)
    rows = [
        {
            "optimizer": name,
            "selector": selector,
            **estimate(results.outcome(name).at(select=selector).best(results.study.trials, report)),
        }
        for name in names
        for selector in selectors
    ]
    caption = "The same trials, had another metric selected the best of K."
    panel = Panel(charts.selection(names, selectors), rows, report, "selection")
    return Figure("selection", "Selected by another metric", caption, [panel], 1)


# ---------------------------------------------------------------------------- inclusions


def _inclusions(results: Results, names: charts.Names) -> Figure | None:
    if not audit(results, results.k()):
        return None
    findings = {(each.edge.special, each.edge.general): each for each in audit(results, results.k())}
    lines, nodes = graph(results)
    for line in lines:
        finding = findings[line["special"], line["general"]]
        numbers = {key: number(getattr(finding, key)) for key in ("worse", "better", "p_value")}
        line |= {"inclusion": f"{finding.edge.special} ⊆ {finding.edge.general}", "verdict": finding.verdict.value}
        line |= numbers
    chart = charts.inclusions(charts.shades(results.study.optimizers))
    chart = chart.properties(height=60 + 50 * len({node["y"] for node in nodes}))
    caption = "From left to right, each optimizer to those that can follow it: tuned well enough, they are never worse."
    return Figure("inclusions", "Inclusions", caption, [Panel(chart, [*lines, *nodes], key="inclusions")], 1)


def graph(results: Results) -> tuple[Rows, Rows]:
    """Lines (without those that follow from others) and nodes of the inclusion graph."""
    drawn = reduction([each.edge for each in audit(results, results.k())])
    places = layout([(edge.special, edge.general) for edge in drawn])
    lines = [
        {"special": edge.special, "general": edge.general, "x": start[0], "y": start[1], "x2": end[0], "y2": end[1]}
        for edge in drawn
        for start, end in [(places[edge.special], places[edge.general])]
    ]
    return lines, [{"optimizer": name, "x": column, "y": row} for name, (column, row) in places.items()]


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


# ---------------------------------------------------------------------------- protocols


def _protocols(resultss: Sequence[Results]) -> Figure | None:
    """Tuning protocols side by side: those of one study, or several studies."""
    first = resultss[0]
    columns = by_protocol(resultss)
    rules = [rule for column in columns.values() for rule in column]
    if len(set(rules)) == len(rules):  # none has two protocols
        return None
    panels = []
    for metric in dict.fromkeys([first.study.select, reported_metric(first)]):
        rows = [
            {
                "rule": rule,
                "optimizer": entry.outcome.name,
                "protocol": label,
                "k": entry.k,
                **estimate(entry.outcome.best(entry.k, metric)),
            }
            for label, column in columns.items()
            for rule, entry in column.items()
            if entry.outcome.pool
        ]
        shown = [str(row["rule"]) for row in rows]
        panels.append(Panel(charts.protocols(shown, list(columns)), rows, metric))
    caption = "The same rules under each tuning protocol: means. Lines that cross: who has the best mean changes."
    return Figure("protocols", "Tuning protocols", caption, panels)


# ---------------------------------------------------------------------------- trials


def _hyperparameters(results: Results, name: str, names: charts.Names) -> Figure | None:
    """The final metric against each hyperparameter that was searched."""
    study, free = results.study, results.study.optimizer(name).space.free
    if not free:
        return None
    border = worst(results.outcome(name), study.select)
    better = max if _upwards(results.outcome(name), study.select) else min
    rows = []
    for trial in results.trials[name]:
        value = trial.curve.at(study.select, results.outcome(name).step)
        rows.append(
            {
                "optimizer": name,
                "trial": trial.point.index,
                "feasible": trial.feasible,
                "kept": True,
                "value": better(value, border) if trial.feasible and math.isfinite(value) else border,
            }
            | {f"x{i}": coordinate(one.coordinate(trial.point.hyperparameters)) for i, one in enumerate(free)}
        )
    number = list(study.optimizers).index(name)
    panels = [
        Panel(charts.hyperparameter(f"x{i}", one, names), rows, study.select, f"trials:{number}:{i}")
        for i, one in sorted(enumerate(free), key=lambda each: display_order(each[1].name))
    ]
    return Figure(f"hyperparameters-{_file_name(name, list(study.optimizers))}", name, "", panels, 3)


def _file_name(name: str, names: list[str]) -> str:
    """A name as part of a file's, told from the others'.

    >>> _file_name("adam", ["adam", "a/b"]), _file_name("a/b", ["a b", "a/b"])
    ('adam', 'a_b-1')
    """

    def plain(name: str) -> str:
        return re.sub(r"[^A-Za-z0-9.-]", "_", name)[:40]

    alike = [other for other in names if plain(other).lower() == plain(name).lower()]
    return plain(name) if len(alike) == 1 else f"{plain(name)}-{names.index(name)}"


def _upwards(outcome: Outcome, metric: str) -> bool:
    """Whether the metric is the better the higher."""
    return outcome.metrics[metric] is Direction.MAXIMIZE


def worst(outcome: Outcome, metric: str) -> float:
    """Where to cut a metric's axis: bad trials should not flatten the good ones."""
    finals = outcome.values(metric)
    finals = finals[np.isfinite(finals)]
    if not len(finals):
        return math.nan
    if _upwards(outcome, metric):
        return float(finals.min())
    median = float(np.median(finals))
    return min(float(finals.max()), _SPAN * median if median > 0 else math.inf)


def coordinate(value: Any) -> Any:
    """Six digits: enough to draw, and short in a page."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _curves(results: Results, names: charts.Names) -> Figure:
    metric = results.study.select
    outcomes = [results.outcome(name) for name in names]
    end, outer = ("domainMin", min) if _upwards(outcomes[0], metric) else ("domainMax", max)
    border = outer(value for outcome in outcomes for value in _in_sight(outcome, metric))
    panels = [
        Panel(charts.curves(name, names, **{end: border}), list(_curve_rows(results.outcome(name), metric)), metric)
        for name in names
    ]
    caption = f"Each optimizer's best trial over others of its pool (at most {_SHOWN_CURVES})."
    return Figure("curves", "Learning curves", caption, panels, 3)


def _in_sight(outcome: Outcome, metric: str) -> Iterator[float]:
    """What the axis of learning curves takes in: the finals but for bad ones, three quarters of the best trial."""
    yield worst(outcome, metric)
    if outcome.best_trial:
        values = outcome.curve(outcome.best_trial).values.get(metric, np.empty(0))
        yield from (float(value) for value in values[len(values) // 4 :] if math.isfinite(value))


def _curve_rows(outcome: Outcome, metric: str) -> Iterator[dict[str, Any]]:
    best = outcome.best_trial
    shown = [trial for trial in outcome.pool if trial is not best][:_SHOWN_CURVES]
    for trial in [*shown, best] if best else []:
        curve = outcome.curve(trial)
        steps, values = curve.steps, curve.values.get(metric, np.empty(0))
        if len(values):
            for i in np.unique(np.linspace(0, len(steps) - 1, _SHOWN_POINTS).round().astype(int)):
                if math.isfinite(values[i]):
                    row = {"step": int(steps[i]), "value": coordinate(float(values[i])), "best": trial is best}
                    yield {"trial": trial.point.index} | row


def _sweeps(results: Results, names: charts.Names) -> Figure | None:
    """Other budgets, and other targets."""
    study, k = results.study, results.study.trials
    first = results.outcome(next(iter(names)))
    evaluated = first.curve(first.pool[0]).steps
    if len(evaluated) < 2:
        return None
    steps = [int(evaluated[i]) for i in np.unique(np.geomspace(1, len(evaluated), _SWEEP).round().astype(int) - 1)]
    rows = [
        {"optimizer": name, "step": step, **estimate(results.outcome(name).at(step=step).best(k))}
        for name in names
        for step in steps
    ]
    panels = [Panel(charts.budgets(names), [row for row in rows if row["mean"] is not None], study.select)]
    metric = study.target.metric if study.target else study.select
    reached = [
        {"optimizer": name, "target": value, **estimate(results.outcome(name).at(target=aim).steps_to_target(k))}
        for value in swept_targets(results, names, metric)
        for aim in [Target(metric, value)]
        for name in names
    ]
    if reached := [row for row in reached if row["mean"] is not None]:
        panels.append(Panel(charts.targets(names, _upwards(first, metric)), reached, metric))
    caption = (
        f"At K = {k}: the trials read earlier, and steps to other targets. "
        "Schedules were tuned for the full budget: shorter trials of their own would end better."
    )
    return Figure("budgets", "Other budgets and targets", caption, panels)


def swept_targets(results: Results, names: charts.Names, metric: str) -> list[float]:
    """From what half of all trials reach in the end to what the best do."""
    outcomes = [results.outcome(name).at(select=metric) for name in names]
    ranked = np.concatenate([outcome.ranked() for outcome in outcomes])
    ranked = ranked[np.isfinite(ranked)]
    if not len(ranked):
        return []
    sign = -1 if _upwards(outcomes[0], metric) else 1
    low, high = (float(end) for end in np.quantile(ranked, [0.02, 0.5]))
    swept = np.geomspace(low, high, _SWEEP) if low > 0 else np.linspace(low, high, _SWEEP)
    return [float(f"{sign * value:.3g}") for value in swept]


# ---------------------------------------------------------------------------- numbers


def estimate(found: Any) -> dict[str, float | None]:
    """An estimate as columns; what is not finite, as missing."""
    return {key: number(value) for key, value in asdict(found).items()}


def number(value: float) -> float | None:
    return value if math.isfinite(value) else None
