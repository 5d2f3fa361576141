"""What tests of figures, tables and the report need: a study of three optimizers and random trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from helpers import make_study

import levelfield as lf

METRICS = ["train_loss", "train_error", "valid_loss", "valid_error", "test_loss", "test_error"]
K, POOL, EVALUATIONS, INTERVAL, TARGET = 4, 20, 6, 10, 0.3
RATE, ONE_MINUS = {"log": [1e-3, 1e1]}, {"log": [1e-3, 1e0]}
SGD = {"rule": "sgd", "learning_rate": RATE}
MOMENTUM = {"rule": "momentum", "learning_rate": RATE, "one_minus_momentum": ONE_MINUS}
ADAM = {
    "rule": "adam",
    "learning_rate/epsilon": {"log": [1e-2, 1e2]},
    "one_minus_beta1": {"choice": [0.1, 0.05, 0.3]},
    "beta2": 0.999,
    "epsilon": {"log": [1e-3, 1e3]},
}
FIXED_ADAM = {"rule": "adam", "learning_rate": RATE, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
OPTIMIZERS = {"sgd": SGD, "momentum": MOMENTUM, "adam": ADAM}
INFEASIBLE = {"sgd": [0, 7], "adam": [3]}
Pools = Mapping[str, Sequence[Mapping[str, np.ndarray]]]


def study_of(optimizers: Mapping[str, Any] = OPTIMIZERS, **changes: Any) -> lf.Study:
    content = {
        "workload": "fashion_mini",
        "steps": INTERVAL * EVALUATIONS,
        "eval_interval": INTERVAL,
        "trials": K,
        "pool": POOL,
        "target": {"metric": "valid_error", "value": TARGET},
    }
    return make_study(optimizers, **content | changes)


def random_pools() -> dict[str, list[dict[str, np.ndarray]]]:
    """Return curves that fall to random ends, as float32; those of infeasible trials end early."""
    generator = np.random.default_rng(0)

    def curves(length: int) -> dict[str, np.ndarray]:
        ends = 0.1 + 0.5 * generator.random(len(METRICS))
        return {
            metric: np.linspace(0.9, end, EVALUATIONS)[:length].astype(np.float32)
            for metric, end in zip(METRICS, ends, strict=True)
        }

    return {
        name: [curves(2 if i in broken else EVALUATIONS) for i in range(POOL + len(broken))]
        for name in OPTIMIZERS
        for broken in [INFEASIBLE.get(name, [])]
    }


def constant_pools(ends: Mapping[str, float]) -> dict[str, list[dict[str, np.ndarray]]]:
    """Return pools in which all trials end alike: optimizer → final value."""
    return {
        name: [{metric: np.linspace(0.9, end, EVALUATIONS) for metric in METRICS}] * POOL for name, end in ends.items()
    }
