"""Stored trials as a table: one row for each trial, or one for each recorded step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from levelfield.errors import UsageError
from levelfield.files import replacing
from levelfield.pool import pool_window
from levelfield.store import Store
from levelfield.study import Study
from levelfield.trial import Trial

if TYPE_CHECKING:
    import polars

FORMATS = (".parquet", ".csv")
_CHUNK = 2_000  # trials whose rows are made at a time


def check_format(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise UsageError(f"{path}: unknown format {path.suffix!r}; expected a name that ends in {' or '.join(FORMATS)}")


def write_trials(study: Study, store: Store, path: Path, *, curves: bool = False) -> int:
    """Write every stored trial of the study's optimizers, in the pool or beyond it, and return the number of rows.

    A row is a trial with its metrics at the last step, or with ``curves`` a recorded step of a trial. Rows are made and
    written part by part, because those of a large study would not fit into memory.
    """
    import polars
    from polars.io.plugins import register_io_source

    check_format(path)
    tables = _tables(study, store, curves)
    if not tables:
        raise UsageError(f"{study.name}: the store has no trials of this study with these settings; run it first")
    rows = register_io_source(lambda *_: _chunks(tables), schema=_schema(tables))
    try:
        with replacing(path) as temporary:
            rows.sink_parquet(temporary) if path.suffix == ".parquet" else rows.sink_csv(temporary)
    except (OSError, polars.exceptions.ComputeError) as error:  # polars has either for a full disk
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: cannot write the file ({reason})") from None
    return sum(len(table.steps) for table in tables)


@dataclass(frozen=True, eq=False)
class _Table:
    """The trials of one optimizer: a row for each, and their recorded steps, concatenated."""

    rows: polars.DataFrame
    starts: np.ndarray  # where the recorded steps of each begin, and where the last one's end
    steps: np.ndarray
    metrics: Mapping[str, np.ndarray]

    def chunk(self, first: int, last: int) -> polars.DataFrame:
        """Return a row for each recorded step of the trials first … last − 1."""
        import polars

        starts = self.starts[first : last + 1]
        here = slice(starts[0], starts[-1])
        return self.rows[first:last][np.repeat(np.arange(len(starts) - 1), np.diff(starts))].with_columns(
            polars.Series("step", self.steps[here], polars.Int64),
            *(polars.Series(name, values[here].astype(float)) for name, values in self.metrics.items()),
        )


def _tables(study: Study, store: Store, curves: bool) -> list[_Table]:
    stored = ((name, store.trials(study.identity(name))) for name in study.optimizers)
    return [_table(study, name, trials, curves) for name, trials in stored if trials]


def _table(study: Study, name: str, trials: Sequence[Trial], curves: bool) -> _Table:
    import polars

    window = pool_window({trial.point.index: trial.status for trial in trials}, study.pool)
    points = [trial.point for trial in trials]
    keys = dict.fromkeys(key for point in points for key in point.hyperparameters)
    columns: dict[str, list[Any]] = {
        "optimizer": [name] * len(trials),
        "index": [point.index for point in points],
        "status": [trial.status.value for trial in trials],
        "in_pool": [trial.feasible and trial.point.index in window for trial in trials],
        "seed": [point.seed for point in points],
        "seconds": [trial.seconds for trial in trials],
        **({"code": [trial.code for trial in trials]} if study.code_files else {}),
        **{f"hp_{key}": [point.hyperparameters.get(key) for point in points] for key in keys},
    }
    shown = slice(None) if curves else slice(-1, None)
    recorded = [trial.curve.steps[shown] for trial in trials]
    return _Table(
        polars.DataFrame([polars.Series(key, values, strict=False) for key, values in columns.items()]),
        np.cumsum([0, *map(len, recorded)]),
        np.concatenate(recorded),
        {
            metric: np.concatenate([trial.curve.values[metric][shown] for trial in trials])
            for metric in trials[0].curve.values
        },
    )


def _schema(tables: Sequence[_Table]) -> polars.Schema:
    """Return the columns of all tables: not every optimizer has every hyperparameter."""
    import polars

    return polars.concat([table.chunk(0, 0) for table in tables], how="diagonal_relaxed").schema


def _chunks(tables: Sequence[_Table]) -> Iterator[polars.DataFrame]:
    """Yield the rows of all tables, with the same columns each."""
    import polars

    schema = _schema(tables)
    for table in tables:
        for first in range(0, len(table.rows), _CHUNK):
            chunk = table.chunk(first, first + _CHUNK)
            yield chunk.select(
                polars.col(name).cast(kind) if name in chunk.columns else polars.lit(None, kind).alias(name)
                for name, kind in schema.items()
            )
