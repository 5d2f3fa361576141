"""A study for trials from elsewhere: their metrics, their budget, and the search spaces that they span."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from levelfield.errors import LevelfieldError, UsageError
from levelfield.formatting import pluralize
from levelfield.imports.records import Record, Source
from levelfield.space import Hyperparameters, Value
from levelfield.study import CHOSEN, POOL_FACTOR, Study
from levelfield.trial import Direction, Status

_MINIMIZED = ("loss", "error", "err", "perplexity", "ppl", "nll", "mse", "mae", "rmse", "wer", "bpc", "regret")
_MAXIMIZED = ("accuracy", "acc", "auc", "f1", "precision", "recall", "bleu", "map", "ssim", "r2", "reward", "score")
_VALIDATION = ("valid", "validation", "val", "dev")
_FEW = 12  # at most so many values of a hyperparameter can be a list of choices
_SIMILAR = 0.9  # trials whose last steps differ by no more than this factor have the same budget, in time perhaps
_WIDE = 10.0  # at least this ratio of the largest to the smallest value makes a logarithmic range plausible


def infer_study(
    source: Source, name: str, *, directions: Mapping[str, Direction] | None = None, steps: int | None = None
) -> Study:
    """Return a study whose search spaces are those that the source states, and else what the trials span.

    ``directions`` says which way metrics get better, where neither the source nor their names do. ``steps``: the
    budget, if the trials' differ.
    """
    metrics = {metric: _direction(metric, source, directions or {}) for metric in source.metrics}
    steps = _budget(source.records) if steps is None else steps
    records: dict[str, list[Record]] = {}
    for record in source.records:
        records.setdefault(record.optimizer, []).append(record)
    tables = {optimizer: _table(optimizer, found, source) for optimizer, found in records.items()}
    counts = {optimizer: len(_points(found)) for optimizer, found in records.items()}
    workload = source.name or name
    content = {
        "name": name,
        "description": f"Trials from elsewhere on {workload}",
        "workload": workload,
        "metrics": metrics,
        "select": source.select or _selection(source.metrics),
        "steps": steps,
        "eval_interval": _interval(source.records, steps),
        "trials": max(1, min(counts.values()) // POOL_FACTOR),
        "pool": max(counts.values()),
        **({"trials": min(counts.values()), "replacement": False} if source.sampling in CHOSEN else {}),
        "target": source.target,
        "inferred": any(
            key not in source.ranges.get(name, ()) for name in tables for key in tables[name] if key != "rule"
        ),
        "search": "imported",
        "sampling": source.sampling or "unknown",
    }
    if source.sampling == "grid" and _is_grid(tables, counts):
        content["search"] = "grid"
    content = {key: value for key, value in content.items() if value is not None}
    return Study(**content, optimizers={each: _known(each, tables[each], content) for each in tables})


def _points(records: Sequence[Record]) -> list[Hyperparameters]:
    """Return the points that were tried, each once, however many seeds it had."""
    return list({tuple(sorted(record.hyperparameters.items())): record.hyperparameters for record in records}.values())


def _direction(metric: str, source: Source, directions: Mapping[str, Direction]) -> Direction:
    for stated in (directions, source.directions):
        if metric in stated:
            return stated[metric]
    words = re.split(r"[^a-z0-9]+", metric.lower())
    down, up = any(word in _MINIMIZED for word in words), any(word in _MAXIMIZED for word in words)
    if down == up:
        raise UsageError(
            f"metric {metric}: which way is better? Say so with --minimize {metric} or --maximize {metric}, or leave "
            f"it out with --map ignore=COLUMN"
        )
    return Direction.MINIMIZE if down else Direction.MAXIMIZE


def _selection(metrics: Sequence[str]) -> str:
    """Return the metric that selects the best trial: the only one, or the only one of validation data."""
    if len(metrics) == 1:
        return metrics[0]
    valid = [metric for metric in metrics if re.split(r"[^a-z0-9]+", metric.lower())[0] in _VALIDATION]
    errors = [metric for metric in valid if not metric.endswith("loss")]
    if len(valid) != 1 and len(errors) != 1:
        raise UsageError(f"which metric selects the best trial? Choose one with --select: {', '.join(metrics)}")
    return (valid if len(valid) == 1 else errors)[0]


def _budget(records: Sequence[Record]) -> int:
    """Return the step at which the trials end."""
    ended = [each for each in records if not each.pruned and not each.diverged and each.status is not Status.INFEASIBLE]
    ends = Counter(int(record.curve.steps[-1]) for record in ended)
    ends = ends or Counter(int(record.curve.steps[-1]) for record in records)
    if min(ends) < _SIMILAR * max(ends):
        shown = ", ".join(f"{pluralize(count, 'trial')} at step {end:,}" for end, count in ends.most_common(4))
        raise UsageError(
            f"the trials have different budgets: {shown}{', …' if len(ends) > 4 else ''} are their last steps; compare "
            f"them at one step, with --steps {min(ends)}"
        )
    return max(1, min(ends))


def _interval(records: Sequence[Record], steps: int) -> int:
    gaps = [int(gap) for record in records[:100] for gap in np.diff(record.curve.steps)]
    return max(1, min(int(np.median(gaps)), steps)) if gaps else steps


def _table(optimizer: str, records: Sequence[Record], source: Source) -> dict[str, Any]:
    """Return an optimizer's table: its rule, and the space that its trials span."""
    table: dict[str, Any] = {"rule": optimizer}
    points = _points(records)
    for name in dict.fromkeys(name for record in records for name in record.hyperparameters):
        missing = [record.label for record in records if name not in record.hyperparameters]
        if missing:
            raise UsageError(
                f"{optimizer}: {name} is missing in {len(missing):,} of {len(records):,} trials, such as {missing[0]}; "
                f"fill it in, leave it out with --map ignore=COLUMN, or give these trials another optimizer's name"
            )
        stated = source.ranges.get(optimizer, {})
        if key := next((key for key in (name, f"one_minus_{name}") if key in stated), ""):
            table[key] = stated[key]
        else:
            key, table[key] = infer_dimension(name, [point[name] for point in points], listed=source.sampling == "grid")
    return table


def infer_dimension(name: str, values: Sequence[Value], *, listed: bool = False) -> tuple[str, Any]:
    """Return the key and the dimension, as a study file writes them, that values of a hyperparameter span.

    ``listed``: they are known to come from a list, as those of a grid do.

    >>> infer_dimension("momentum", [0.9, 0.9])
    ('momentum', 0.9)
    >>> infer_dimension("batch_norm", [True, False, True])
    ('batch_norm', {'choice': [False, True]})
    """
    distinct = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    if len(distinct) == 1:
        return name, distinct[0]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in distinct)
    if listed or not numbers or len(distinct) <= min(_FEW, len(values) / 3):
        return name, {"choice": distinct}
    if all(isinstance(value, int) for value in distinct):
        return name, {"integer": [distinct[0], distinct[-1]]}
    low, high = float(distinct[0]), float(distinct[-1])
    scales = {"uniform": np.array(distinct, float)}
    if low > 0 and high / low >= _WIDE:
        scales["log"] = np.log(scales["uniform"])
    if low >= 0 and high < 1 and (1 - low) / (1 - high) >= _WIDE and high > 0.5:
        scales["one_minus"] = np.log1p(-scales["uniform"])
    scale = min(scales, key=lambda each: _unevenness(scales[each]))
    if scale == "one_minus":
        return f"one_minus_{name}", {"log": [1 - high, 1 - low]}
    return name, {scale: [low, high]}


def _unevenness(values: np.ndarray) -> float:
    """Return how far values are from an even spread over their range: the distance of Kolmogorov and Smirnov."""
    ordered = np.sort(values)
    even = (ordered - ordered[0]) / (ordered[-1] - ordered[0])
    return float(np.abs(even - np.linspace(0, 1, len(even))).max())


def _is_grid(tables: Mapping[str, Mapping[str, Any]], counts: Mapping[str, int]) -> bool:
    """Return whether the trials of every optimizer are all the combinations of some values, and equally many.

    Of unequal grids, a grid study has as many points as the smallest: those in one corner of the others.
    """
    if len(set(counts.values())) > 1:
        return False
    for optimizer, table in tables.items():
        lists = [spec["choice"] for spec in table.values() if isinstance(spec, Mapping) and "choice" in spec]
        ranges = any(isinstance(spec, Mapping) and "choice" not in spec for spec in table.values())
        if ranges or math.prod(map(len, lists)) != counts[optimizer]:
            return False
    return True


def _known(optimizer: str, table: dict[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table whose rule is levelfield's only if its hyperparameters are, too: equal names may differ."""
    try:
        Study(**{**content, "search": "imported", "sampling": "unknown"}, optimizers={optimizer: table})
    except LevelfieldError:
        return table | {"rule": f"imported.{table['rule']}"}
    return table
