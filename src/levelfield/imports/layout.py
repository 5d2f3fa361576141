"""A layout says which part of a source is what: its columns, its studies, its workload."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from levelfield.errors import UnknownName, UsageError, suggestion
from levelfield.imports.records import SAMPLINGS, plain_name
from levelfield.trial import Direction

# Columns by the name to give them, or a list of columns; ``prefix*`` stands for all that start so, without the prefix.
Columns = Mapping[str, str] | tuple[str, ...]

# What people call the optimizer and the seed among a trial's settings.
OPTIMIZERS = (
    *("optimizer", "optimizer_name", "optimizer.name", "optimizer/name"),
    *("optimizer._target_", "optimizer/_target_", "opt"),
)
SEEDS = ("seed", "random_seed", "rng_seed")


@dataclass(frozen=True)
class Layout:
    """Which column, setting or part of a source is what. What is not given is guessed from names.

    As a TOML file::

        optimizer = "config/opt"          # the column that names the optimizer
        step = "epoch"
        hyperparameters = ["config/*"]    # all columns that start with config/
        directions = { valid_acc = "maximize" }

        [metrics]                         # name = column
        train_loss = "loss"
        valid_acc = "val/acc"
    """

    workload: str = ""  # a name for what the trials were trained on; of several in a source, the one to read
    studies: tuple[str, ...] = ()  # of an Optuna storage or a folder of Ray Tune's, those to read
    optimizer: str = ""  # the column (or setting) that names the optimizer
    optimizer_name: str = ""  # or one name for all trials
    trial: str = ""  # the column that tells trials apart
    step: str = ""
    seed: str = ""
    status: str = ""
    seconds: str = ""
    hyperparameters: Columns | None = None
    metrics: Columns | None = None
    directions: Mapping[str, Direction] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()  # columns that are none of these
    select: str = ""
    sampling: str = ""

    @classmethod
    def parse(cls, content: Mapping[str, Any], where: str = "layout") -> Layout:
        """Return the layout of plain content, as TOML has it. Lists may be texts with commas."""
        values: dict[str, Any] = {}
        for key, value in content.items():
            if key not in _PARSERS:
                raise UsageError(f"{where}: unknown key {key!r}{suggestion(key, _PARSERS)}")
            values[key] = _PARSERS[key](value, f"{where}: {key}")
        if values.get("optimizer") and values.get("optimizer_name"):
            raise UsageError(f"{where}: give optimizer, a column, or optimizer_name, one name for all trials; not both")
        if (sampling := values.get("sampling", "")) not in ("", *SAMPLINGS):
            raise UsageError(f"{where}: sampling = {sampling!r}{suggestion(sampling, SAMPLINGS)}")
        return cls(**values)

    @property
    def given(self) -> list[str]:
        """The keys that were given."""
        nothing = Layout()
        return [entry.name for entry in fields(self) if getattr(self, entry.name) != getattr(nothing, entry.name)]


def load_layout(path: Path | None = None, options: Sequence[str] = ()) -> Layout:
    """Return the layout of a TOML file, changed by options such as ``step=epoch`` or ``metrics.train_loss=loss``."""
    content = {} if path is None else _read(path)
    Layout.parse(content, str(path))
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise UsageError(f"{option!r}: expected KEY=VALUE, such as step=epoch or metrics.train_loss=loss")
        key, dot, name = key.partition(".")
        if dot:
            table = content.get(key, {})
            content[key] = {**(table if isinstance(table, Mapping) else {}), name: value}
        else:
            content[key] = value
    return Layout.parse(content, "options")


def chosen(columns: Columns, available: Collection[str], where: str) -> dict[str, str]:
    """Return the column of each name. Every column must exist, and a pattern must stand for at least one.

    >>> chosen(("config/*", "seed"), ["config/lr", "seed", "loss"], "runs.csv")
    {'lr': 'config/lr', 'seed': 'seed'}
    >>> chosen({"learning_rate": "config/lr"}, ["config/lr"], "runs.csv")
    {'learning_rate': 'config/lr'}
    """
    if isinstance(columns, Mapping):
        pairs = list(columns.items())
    else:
        pairs = [pair for column in columns for pair in _expanded(column, available, where)]
    result: dict[str, str] = {}
    for name, column in pairs:
        require(column, available, where)
        if name in result:
            raise UsageError(f"{where}: {result[name]!r} and {column!r} would both be called {name}; name one yourself")
        result[name] = column
    return result


def metric_names(columns: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the columns of metrics by names that study files can use."""
    result: dict[str, str] = {}
    for name, column in columns.items():
        if not plain_name(name):
            raise UsageError(
                f"{where}: a metric is called {name!r}; expected a name with letters from a to z; name all metrics "
                f"with --map metrics.NAME=COLUMN"
            )
        first = result.setdefault(plain_name(name), column)
        if first != column:
            raise UsageError(
                f"{where}: {first!r} and {column!r} would both be called {plain_name(name)}; leave one out with --map "
                f"ignore=COLUMN"
            )
    return result


def require(column: str, available: Iterable[str], where: str) -> None:
    if column not in (known := list(available)):
        raise UnknownName(f"{where}: no column {column!r}{suggestion(column, known)}")


def _expanded(column: str, available: Collection[str], where: str) -> list[tuple[str, str]]:
    if not column.endswith("*"):
        return [(column, column)]
    prefix = column.removesuffix("*")
    matches = [name for name in available if name.startswith(prefix) and name != prefix]
    if not matches:
        raise UnknownName(f"{where}: no column starts with {prefix!r}{suggestion(prefix, available)}")
    return [(name.removeprefix(prefix), name) for name in matches]


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path}: cannot read the file ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from None


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{where} = {value!r}: expected a text")
    return value


def _list(value: Any, where: str) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise UsageError(f"{where} = {value!r}: expected a list of names")
    return tuple(part.strip() for part in parts if part.strip())


def _columns(value: Any, where: str) -> Columns:
    if not isinstance(value, Mapping):
        return _list(value, where)
    return {name: _text(column, f"{where}.{name}") for name, column in value.items()}


def _directions(value: Any, where: str) -> dict[str, Direction]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} = {value!r}: expected a table from metrics to minimize or maximize")
    for metric, direction in value.items():
        if direction not in list(Direction):
            raise UsageError(f"{where}.{metric} = {direction!r}: expected minimize or maximize")
    return {metric: Direction(direction) for metric, direction in value.items()}


_TEXTS = ("workload", "optimizer", "optimizer_name", "trial", "step", "seed", "status", "seconds", "select", "sampling")
_PARSERS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(("studies", "ignore"), _list),
    **dict.fromkeys(("hyperparameters", "metrics"), _columns),
    "directions": _directions,
}
