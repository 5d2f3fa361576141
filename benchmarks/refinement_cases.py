"""Random cases for benchmarks/refinement.py: studies of one rule with a good, a bad, and a very wide search space."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from levelfield.space import Axis, Log, Uniform
from levelfield.study import Study, load_study
from levelfield.study_optimizer import optimizer_table

STEPS = {"quadratic": 1_000, "tolstoi_mini": 400, "fashion_mini": 300}
RULES = ("sgd", "momentum", "nesterov", "rmsprop", "rmsterov", "adam", "nadam", "optax.adamw", "optax.lion")
SIZES = ((5, 25), (8, 20), (10, 50))  # (K, N)
SCHEDULE = {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": {"choice": [1e-3, 1e-2, 1e-1]}}
DISPLACED = 0.6  # chance that a bad log range is displaced; otherwise it is cut
CUT = 0.1  # share of its width that a cut range keeps
NARROWEST = 0.5  # decades that a displaced range keeps
BEYOND = 3  # decades by which the wide space extends a log range on both sides

_RATES = {
    "optax.adamw": {"quadratic": [5e-3, 1e-1], "fashion_mini": [5e-3, 1e-1], "tolstoi_mini": [2e-2, 3e-1]},
    "optax.lion": {"quadratic": [3e-3, 3e-2], "fashion_mini": [3e-3, 3e-2], "tolstoi_mini": [1e-2, 1e-1]},
}
_EPSILON = {"optax.adamw": {"eps": {"log": [1e-8, 1e-3]}}, "optax.lion": {}}


@dataclass(frozen=True)
class Case:
    """A study in three search spaces, and what is wrong with the bad one (axis → "displaced …" or "cut")."""

    good: Study
    bad: Study
    wide: Study
    changes: Mapping[str, str]

    @property
    def rule(self) -> str:
        return next(iter(self.good.optimizers))


def draw_case(seed: int, workload: str, rule: str, index: int) -> Case:
    """Return a random case; it depends on nothing but the arguments."""
    random = np.random.default_rng([seed, index, *f"{workload} {rule}".encode()])
    k, n = SIZES[random.integers(len(SIZES))]
    good = good_study(workload, rule, k, n, seed=int(random.integers(2**31)))
    axes = [axis for axis in good.optimizer(rule).space if isinstance(axis.dimension, Log | Uniform)]
    count = int(random.integers(1, min(3, len(axes)) + 1))
    spoiled = [spoil(axes[i], random) for i in random.permutation(len(axes))[:count]]
    bad = {axis: spec for axis, spec, _ in spoiled}
    wide = {axis.key: widened(axis) for axis in axes}
    changes = {axis: change for axis, _, change in spoiled}
    return Case(good, with_ranges(good, bad), with_ranges(good, wide), changes)


def good_study(workload: str, rule: str, k: int, n: int, seed: int) -> Study:
    steps = STEPS[workload]
    return Study(
        name=f"{workload}_{rule}",
        workload=workload,
        steps=steps,
        eval_interval=steps // 2,
        trials=k,
        pool=n,
        seed=seed,
        schedule=SCHEDULE,
        optimizers={rule: _good_table(workload, rule)},
    )


def _good_table(workload: str, rule: str) -> dict[str, Any]:
    if rule not in _RATES:
        own = load_study(workload).optimizer("rmsprop" if rule == "rmsterov" else rule)
        return own.spec() | {"rule": rule, "schedule": SCHEDULE}
    return {
        "rule": rule,
        "learning_rate": {"log": _RATES[rule][workload]},
        "one_minus_b1": {"log": [3e-2, 1e0]},
        "one_minus_b2": {"log": [1e-3, 1e0]},
        # The quadratic's minimum is at 0, so that decay alone would solve it.
        "weight_decay": 0.0 if workload == "quadratic" else {"log": [1e-6, 1e-2]},
        **_EPSILON[rule],
    }


def with_ranges(study: Study, ranges: Mapping[str, Any]) -> Study:
    """Return a study of one rule with some of its ranges replaced."""
    (name,) = study.optimizers
    optimizer = study.optimizer(name)
    return study.replace(optimizers={name: optimizer_table(optimizer, optimizer.space.spec() | dict(ranges))})


def limits(axis: Axis) -> tuple[float, float]:
    """Return how far the benchmark moves a range; decay_steps is the only uniform one."""
    if isinstance(axis.dimension, Uniform):
        return 0.05, 1.5
    return (1e-6, 1.0) if axis.one_minus else (0.0, math.inf)


def spoil(axis: Axis, random: np.random.Generator) -> tuple[str, dict[str, list[float]], str]:
    """Return the axis's key, a bad range for it, and in which way it is bad."""
    if isinstance(axis.dimension, Log) and random.random() < DISPLACED:
        decades = int(random.integers(1, 4)) * (1 if random.random() < 0.5 else -1)
        if axis.dimension.high * 10.0**decades > limits(axis)[1]:
            decades = -abs(decades)
        return axis.key, displaced(axis, decades), f"displaced by {decades:+d} decades"
    start = random.uniform(0, 1 - CUT)
    ends = [axis.dimension.value(start), axis.dimension.value(start + CUT)]
    return axis.key, _spec(axis, ends), "cut"


def displaced(axis: Axis, decades: int) -> dict[str, list[float]]:
    lowest, highest = limits(axis)
    low, high = (end * 10.0**decades for end in map(float, axis.dimension.ends))
    low = min(max(low, lowest), highest / 10**NARROWEST)
    return _spec(axis, [low, min(max(high, low * 10**NARROWEST), highest)])


def widened(axis: Axis) -> dict[str, list[float]]:
    low, high = map(float, axis.dimension.ends)
    if isinstance(axis.dimension, Log):
        low, high = low / 10**BEYOND, high * 10**BEYOND
    else:
        low, high = low - (high - low) / 2, high + (high - low) / 2
    lowest, highest = limits(axis)
    return _spec(axis, [max(low, lowest), min(high, highest)])


def _spec(axis: Axis, ends: list[Any]) -> dict[str, list[float]]:
    return {next(iter(axis.dimension.spec())): [float(f"{end:.4g}") for end in ends]}
