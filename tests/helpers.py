"""What tests of several modules need: a tiny study, and where the repository is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import levelfield as lf

REPOSITORY = Path(__file__).resolve().parent.parent

SGD = {"rule": "sgd", "learning_rate": {"log": [1e-3, 1e-1]}}
MOMENTUM = {
    "rule": "momentum",
    "learning_rate": {"log": [1e-3, 1e-1]},
    "one_minus_momentum": {"log": [1e-2, 1e0]},
}


def make_study(optimizers: Mapping[str, Any] | None = None, **changes: Any) -> lf.Study:
    """Return a tiny study on the quadratic, by default of sgd and momentum; ``changes`` are fields of a study file."""
    content = {"workload": "quadratic", "steps": 4, "eval_interval": 2, "trials": 2, "pool": 4}
    tables = {"sgd": SGD, "momentum": MOMENTUM} if optimizers is None else dict(optimizers)
    return lf.Study(**content | {"optimizers": tables} | changes)
