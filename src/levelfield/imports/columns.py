"""Which column of a table is what: as a layout says, or guessed from names that people use."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from levelfield.errors import DataError
from levelfield.imports.layout import OPTIMIZERS, SEEDS, Layout, chosen, metric_names, require

# The usual names of each role, the most specific first, as ``_folded`` returns them.
_NAMES = {
    "optimizer": OPTIMIZERS,
    "trial": ("trial_id", "run_id", "trial", "run", "id", "number", "run_name", "name"),
    "step": ("step", "global_step", "_step", "training_iteration", "iteration", "steps", "epoch"),
    "seed": SEEDS,
    "status": ("status", "state"),
    "seconds": ("seconds", "runtime", "_runtime", "time_total_s"),
}
_HYPERPARAMETER_PREFIXES = ("hp_", "hp.", "hp/", "config/", "config.", "params_", "params.", "params/", "param_")
_METRIC_PREFIXES = ("metrics.", "metrics/", "metric_", "summary.", "summary/")
_PREFIXES = {  # of columns that have a role as well
    **dict.fromkeys(("optimizer", "seed"), _HYPERPARAMETER_PREFIXES),
    **dict.fromkeys(("step", "seconds"), _METRIC_PREFIXES),
}
_HYPERPARAMETER = re.compile(
    r"(^|.*[^a-z])(lr|learning_rate|momentum|nesterov|dampening|amsgrad|betas?|beta_?[123]|eps|epsilon|rho|alpha|gamma|"
    r"weight_decay|wd|l1|l2|decay_steps|decay_factor|decay_rate|warmup(_\w+)?|dropout|label_smoothing|batch_size|clip(_\w+)?)"
)
_METRIC = re.compile(
    r"(?!(std|rank)_)(.*[^a-z])?(loss|error|err|error_rate|accuracy|acc|perplexity|ppl|nll|auc|f1|bleu|wer|map|ssim|mse|mae|rmse|"
    r"mean_average_precision|top_?[15]|reward|score|objective|value)(_?\d)?"
)
# What trackers and tuners write besides the settings and results.
_BOOKKEEPING = re.compile(
    r"|index|unnamed:_\d+|notes|user|tags|created(_at)?|updated(_at)?|_?runtime|sweep|agent|host(name)?|commit|group|job_?type|pid|node_ip|date|"
    r"timestamp|_timestamp|_wandb(\..*)?|time_this_iter_s|time_since_restore|iterations_since_restore|done|logdir|"
    r"checkpoint_dir_name|should_checkpoint|experiment_tag|datetime_\w+|duration|system_attrs_.*|experiment_id|"
    r"start_time|end_time|artifact_uri"
)
_COLUMN_KEYS = {*_NAMES, "optimizer_name", "hyperparameters", "metrics", "ignore"}  # of a layout

# How the tables begin that `levelfield export` writes.
_EXPORT = ("optimizer", "index", "status", "in_pool", "seed", "seconds")


@dataclass(frozen=True)
class Roles:
    """The columns of a table by what they hold; "" where there is none."""

    optimizer: str = ""
    trial: str = ""
    step: str = ""
    seed: str = ""
    status: str = ""
    seconds: str = ""
    hyperparameters: Mapping[str, str] = field(default_factory=dict)  # name → column
    metrics: Mapping[str, str] = field(default_factory=dict)
    unused: Sequence[str] = ()
    exported: bool = False  # `levelfield export` wrote the table


def assign(columns: Sequence[str], varying: Collection[str], layout: Layout, where: str) -> Roles:
    """Return the role of each column; ``varying`` are those with more than one value."""
    if tuple(columns[: len(_EXPORT)]) == _EXPORT and "step" in columns and not set(layout.given) & _COLUMN_KEYS:
        return _of_export(columns)
    metrics = {} if layout.metrics is None else chosen(layout.metrics, columns, where)
    tuned = {} if layout.hyperparameters is None else chosen(layout.hyperparameters, columns, where)
    roles = _roles(columns, varying, layout, metrics.values(), tuned.values(), where)
    free = [name for name in columns if name not in {*roles.values(), *layout.ignore, *metrics.values()}]
    if layout.hyperparameters is None:
        tuned = _prefixed(free, _HYPERPARAMETER_PREFIXES, where) or _matching(free, _HYPERPARAMETER)
    tuned = {name: column for name, column in tuned.items() if column in free}  # without the optimizer and the seed
    free = [name for name in free if name not in tuned.values()]
    if layout.metrics is None:
        found = _prefixed(free, _METRIC_PREFIXES, where) or _matching(free, _METRIC)
        others = _NAMES["step"]  # such as the epoch beside W&B's own step
        metrics = {
            name: column for name, column in found.items() if not _is_bookkeeping(name) and _folded(name) not in others
        }
    if not metrics:
        raise DataError(
            f"{where}: no column has a metric's name; name them with --map metrics=COLUMN,… {_listed(columns)}"
        )
    unused = [name for name in free if name not in metrics.values()]
    if layout.hyperparameters is None and not any(name.startswith(_HYPERPARAMETER_PREFIXES) for name in tuned.values()):
        _check_known([name for name in unused if name in varying], metrics.values(), where)
        if not tuned:
            raise DataError(
                f"{where}: no column has a hyperparameter's name; name them with --map "
                f"hyperparameters=COLUMN,… (or --map hyperparameters= if there are none). {_listed(columns)}"
            )
    overlooked = [name for name in _matching(unused, _HYPERPARAMETER) if name in varying]
    if layout.hyperparameters is not None and overlooked:
        raise DataError(
            f"{where}: columns that look like hyperparameters, but are not named as such: {', '.join(overlooked)}; "
            f"name all with --map hyperparameters=COLUMN,… or leave these out with --map ignore={','.join(overlooked)}"
        )
    assigned: dict[str, Any] = {**roles, "hyperparameters": tuned, "metrics": metric_names(metrics, where)}
    return Roles(**assigned, unused=unused)


def _of_export(columns: Sequence[str]) -> Roles:
    hyperparameters = {name.removeprefix("hp_"): name for name in columns if name.startswith("hp_")}
    others = {*_EXPORT, "code", "step", *hyperparameters.values()}
    return Roles(
        optimizer="optimizer",
        trial="index",
        step="step",
        seed="seed",
        status="status",
        seconds="seconds",
        hyperparameters=hyperparameters,
        metrics={name: name for name in columns if name not in others},
        exported=True,
    )


def _roles(
    columns: Sequence[str],
    varying: Collection[str],
    layout: Layout,
    metrics: Iterable[str],
    tuned: Iterable[str],
    where: str,
) -> dict[str, str]:
    """Return the column of each role, "" if there is none. An optimizer and a seed may be among what was tuned."""
    roles = {role: getattr(layout, role) for role in _NAMES}
    for column in (*filter(None, roles.values()), *layout.ignore):
        require(column, columns, where)
    taken = {*roles.values(), *layout.ignore, *metrics}
    for role in [role for role, column in roles.items() if not column]:
        names = [prefix + name for name in _NAMES[role] for prefix in ("", *_PREFIXES.get(role, ()))]
        excluded = taken if role in ("optimizer", "seed") else taken | set(tuned)
        if role == "trial":
            excluded = excluded | {column for column in columns if column not in varying}
        if role != "optimizer" or not layout.optimizer_name:
            lower = {_folded(column): column for column in reversed(columns) if column not in excluded}
            roles[role] = next((lower[name] for name in names if name in lower), "")
    return roles


def _folded(name: str) -> str:
    """Return a name in lower case, with underscores for spaces and hyphens.

    >>> _folded("Learning Rate")
    'learning_rate'
    """
    return re.sub(r"[\s-]+", "_", name.lower())


def is_metric(name: str) -> bool:
    """Return whether a name is one that people give to metrics.

    >>> is_metric("valid_loss"), is_metric("val/top1"), is_metric("batch_size")
    (True, True, False)
    """
    return _METRIC.fullmatch(_folded(name)) is not None


def _prefixed(columns: Collection[str], prefixes: Iterable[str], where: str) -> dict[str, str]:
    used = tuple(f"{prefix}*" for prefix in prefixes if any(column.startswith(prefix) for column in columns))
    return chosen(used, columns, where)


def _is_bookkeeping(name: str) -> bool:
    return _BOOKKEEPING.fullmatch(_folded(name)) is not None


def _matching(columns: Iterable[str], names: re.Pattern[str]) -> dict[str, str]:
    return {column: column for column in columns if names.fullmatch(_folded(column))}


def _check_known(unused: Sequence[str], metrics: Collection[str], where: str) -> None:
    """Raise if a hyperparameter may have been overlooked: trials would seem to be repetitions of others."""
    unknown = [name for name in unused if not _is_bookkeeping(name)]
    named = [name for name in unknown if _folded(name) in ("metric", "metric_name", "tag")]
    if named and {_folded(metric) for metric in metrics} == {"value"}:
        raise DataError(
            f"{where}: each row seems to have one metric, which {named[0]!r} names; expected a column for each metric, "
            f"as pandas' pivot_table makes them"
        )
    if unknown:
        shown = ", ".join(unknown[:8]) + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else "")
        raise DataError(
            f"{where}: cannot tell whether these columns are hyperparameters: {shown}; name all that are with "
            f"--map hyperparameters=COLUMN,… or the others with --map ignore=COLUMN,…"
        )


def _listed(columns: Sequence[str]) -> str:
    shown = ", ".join(columns[:20]) + (f" and {len(columns) - 20} more" if len(columns) > 20 else "")
    return f"Its columns: {shown}"
