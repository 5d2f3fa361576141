"""Trials as rows of a table, and the check that a row is what was written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from levelfield.store.schema import trials
from levelfield.trial import Curve, Point, Status, Trial

_STATUS = {status.value: status for status in Status}
_NO_VALUE = np.float32(np.nan).tobytes()


@dataclass(frozen=True, eq=False)
class Ends:
    """How the trials of an optimizer ended, by index."""

    index: np.ndarray
    status: list[Status]
    final: np.ndarray  # a metric at the last step; NaN if it was not measured
    code: list[str]  # digest of the custom code of each
    last_step: np.ndarray


def ends_of(rows: Sequence[Any], codes: Mapping[str, str]) -> Ends:
    """Return how trials ended, from rows of index, status, provenance ("" if it does not matter), last value and step.

    Raises KeyError if a row has an unknown status or provenance.
    """
    indices, statuses, origins, values, steps = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    last_step = np.frombuffer(b"".join((step or b"").rjust(8, b"\0") for step in steps), "<i8")
    final = np.frombuffer(b"".join(value or _NO_VALUE for value in values), "<f4")
    known = [_STATUS[status] for status in statuses]
    return Ends(np.array(indices, int), known, final, [codes[key] if key else "" for key in origins], last_step)


def row_of(optimizer: str, trial: Trial, metrics: list[str], origin: str) -> dict[str, Any]:
    curve = np.array([trial.curve.values[name] for name in metrics], "<f4")
    row = {
        "optimizer": optimizer,
        "index": trial.point.index,
        "status": trial.status.value,
        "seed": trial.point.seed,
        "hyperparameters": json.dumps(trial.point.hyperparameters),
        "steps": np.asarray(trial.curve.steps, "<i8").tobytes(),
        "curve": curve.tobytes(),
        "started": trial.started,
        "seconds": trial.seconds,
        "provenance": origin,
    }
    return row | {"digest": _trial_digest(row.values(), metrics)}


def _trial_digest(content: Iterable[Any], metrics: list[str]) -> str:
    """Return a digest of a row, in the order of the table's columns, and of what its curve's values are called."""
    optimizer, index, status, seed, hyperparameters, steps, curve, started, seconds, origin = content
    own = optimizer.partition("@")[0]  # trials that are set aside keep their digest
    texts = (own, index, status, seed, hyperparameters, started, seconds, origin, *metrics)
    total = hashlib.blake2b("\0".join(map(str, texts)).encode(), digest_size=16)
    total.update(steps)
    total.update(curve)
    return total.hexdigest()


def problem_of(row: Any, metrics: list[str], codes: Mapping[str, str]) -> str:
    """Return what is wrong with a stored trial; "" if it is intact."""
    if row.digest is not None and row.digest != _trial_digest(row[:-1], sorted(metrics)):
        return "its content does not match its digest"
    if row.provenance not in codes:
        return "its provenance is missing"
    if row.digest is None:  # without a digest, it can only be checked to be a trial
        try:
            trials_of([row], metrics, codes)
        except (ValueError, TypeError, KeyError) as error:
            return str(error)
    return ""


def trials_of(rows: Sequence[Any], metrics: list[str], codes: Mapping[str, str]) -> list[Trial]:
    """Return the trials in rows of the table. Trials that were evaluated at the same steps share them."""
    places = [(name, sorted(metrics).index(name)) for name in metrics]
    hyperparameters = json.loads(f"[{','.join(row.hyperparameters for row in rows)}]")  # faster than one by one
    found: list[Trial] = []
    shared: dict[bytes, np.ndarray] = {}
    for row, values in zip(rows, hyperparameters, strict=True):
        _, index, status, seed, _, steps, curve, started, seconds, origin, _ = row
        if steps not in shared:
            shared[steps] = np.frombuffer(steps, "<i8")
        table = np.frombuffer(curve, "<f4").reshape(len(metrics), len(shared[steps]))
        content = Curve(shared[steps], {name: table[place] for name, place in places})
        found.append(Trial(Point(index, values, seed), _STATUS[status], content, started, seconds, codes[origin]))
    return found


def last_value(metric: str, metrics: list[str]) -> sa.ColumnElement[Any]:
    """Return the last value of a metric as bytes. A curve holds one metric after another, four bytes per step."""
    if metric not in metrics:
        return sa.null()
    end = (metrics.index(metric) + 1) * sa.func.length(trials.c.steps) // 2
    return sa.func.substr(trials.c.curve, end - 3, 4)  # counted from 1


def last_step() -> sa.ColumnElement[Any]:
    """Return the last step of a curve as eight bytes."""
    return sa.func.substr(trials.c.steps, sa.func.length(trials.c.steps) - 7, 8)
