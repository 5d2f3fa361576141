"""Learning-rate schedules: each kind with its hyperparameters and its equation. Importing this loads no JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from levelfield.arrays import namespace
from levelfield.hyperparameters import FRACTION, POSITIVE, Hyperparameter

# Kind → its hyperparameters, in addition to the learning rate at the first step.
SCHEDULES: dict[str, Mapping[str, Hyperparameter]] = {"constant": {}}

_RATES: dict[str, Callable[..., Any]] = {}

SHARE_OF_STEPS = replace(POSITIVE, group="schedule")
FACTOR = replace(FRACTION, group="schedule")


def _usual(hyperparameter: Hyperparameter, low: float, high: float) -> Hyperparameter:
    return replace(hyperparameter, usual_range=(low, high))


def _kind(**hyperparameters: Hyperparameter) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a schedule: the learning rate at step t, counted from 0, of a training of ``steps`` steps."""

    def declare(rate: Callable[..., Any]) -> Callable[..., Any]:
        SCHEDULES[rate.__name__] = hyperparameters
        _RATES[rate.__name__] = rate
        return rate

    return declare


@_kind(decay_steps=_usual(SHARE_OF_STEPS, 0.1, 1.0), decay_factor=_usual(FACTOR, 0.0, 0.5))
def linear(t: Any, steps: int, learning_rate: Any, decay_steps: Any, decay_factor: Any) -> Any:
    """Decay linearly to learning_rate · decay_factor over decay_steps · steps, then stay (Shallue et al. 2019)."""
    progress = t / (decay_steps * steps)
    return learning_rate * (1 - (1 - decay_factor) * namespace(progress).minimum(progress, 1.0))


@_kind(decay_every=_usual(SHARE_OF_STEPS, 1e-3, 0.8), decay_factor=_usual(FACTOR, 0.01, 0.99))
def step(t: Any, steps: int, learning_rate: Any, decay_every: Any, decay_factor: Any) -> Any:
    """Multiply by decay_factor after every decay_every · steps steps, rounded to whole steps."""
    length = decay_every * steps
    xp = namespace(length)
    decays = t / xp.maximum(xp.round(length), 1.0)
    return learning_rate * decay_factor ** namespace(decays).floor(decays)


def schedule(kind: str, steps: int, hyperparameters: Mapping[str, Any]) -> Any:
    """Return the learning rate of a trial: a number if it is constant, otherwise a function of the step."""
    learning_rate = hyperparameters["learning_rate"]
    if kind == "constant":
        return learning_rate
    decay = {name: hyperparameters[name] for name in SCHEDULES[kind]}
    return functools.partial(_RATES[kind], steps=steps, learning_rate=learning_rate, **decay)
