"""Stored trials as a table: one row for each trial, or one for each recorded step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.errors import UsageError
from levelfield.pool import pool_window
from levelfield.store import Store
from levelfield.study import Study

if TYPE_CHECKING:
    import polars

FORMATS = (".parquet", ".csv")


def trials_frame(study: Study, store: Store, *, curves: bool = False) -> polars.DataFrame:
    """Return every stored trial of the study's optimizers, in the pool or beyond it.

    A row is a trial with its metrics at the last step, or with ``curves`` a recorded step of a trial.
    """
    import polars

    rows: list[dict[str, Any]] = []
    for name in study.optimizers:
        trials = store.trials(study.identity(name))
        window = pool_window({trial.point.index: trial.status for trial in trials}, study.pool)
        for trial in trials:
            description = {
                "optimizer": name,
                "index": trial.point.index,
                "status": trial.status.value,
                "in_pool": trial.feasible and trial.point.index in window,
                "seed": trial.point.seed,
                "seconds": trial.seconds,
                **({"code": trial.code} if study.code else {}),
                **{f"hp_{key}": value for key, value in trial.point.hyperparameters.items()},
            }
            for i in range(len(trial.curve.steps)) if curves else [-1]:
                metrics = {metric: float(values[i]) for metric, values in trial.curve.values.items()}
                rows.append(description | {"step": int(trial.curve.steps[i])} | metrics)
    columns = list(dict.fromkeys(key for row in rows for key in row))  # not every optimizer has every column
    return polars.DataFrame([{key: row.get(key) for key in columns} for row in rows], infer_schema_length=None)


def check_format(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise UsageError(f"{path}: unknown format {path.suffix!r}; expected a name that ends in {' or '.join(FORMATS)}")


def write_trials(study: Study, store: Store, path: Path, *, curves: bool = False) -> int:
    """Write the trials to a Parquet or CSV file and return the number of rows."""
    check_format(path)
    frame = trials_frame(study, store, curves=curves)
    if frame.is_empty():
        raise UsageError(f"{study.name}: the store has no trials of this study with these settings; run it first")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.write_parquet(path) if path.suffix == ".parquet" else frame.write_csv(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot write the file ({error.strerror or error})") from None
    return len(frame)
