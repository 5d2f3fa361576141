"""Learning-rate schedules: each kind with its hyperparameters and its equation. Importing this loads no JAX.

Every kind can be preceded by a linear warmup. The kind then takes the steps that remain: its first step is the first
one after the warmup, and its lengths are fractions of the remaining steps, so that it still ends with the training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from levelfield.arrays import namespace
from levelfield.hyperparameters import FRACTION, POSITIVE, Hyperparameter

WARMUP = "warmup_steps"
_WARMUP = replace(
    FRACTION, required=False, default=0.0, group="schedule", usual_range=(0.0, 0.3), unit="a fraction of the steps"
)

# Kind → its hyperparameters, in addition to the learning rate.
SCHEDULES: dict[str, Mapping[str, Hyperparameter]] = {}

_RATES: dict[str, Callable[..., Any]] = {}
_TINY = 1e-9  # keeps what is not used from dividing by 0


def _share(low: float, high: float, default: float | None = None) -> Hyperparameter:
    """A length as a fraction of the steps; ``low`` and ``high`` are its usual values."""
    return _scheduled(replace(POSITIVE, unit="a fraction of the steps"), low, high, default)


def _factor(low: float, high: float, default: float | None = None) -> Hyperparameter:
    """A fraction of the learning rate."""
    return _scheduled(FRACTION, low, high, default)


def _scheduled(domain: Hyperparameter, low: float, high: float, default: float | None) -> Hyperparameter:
    return replace(domain, required=default is None, default=default, group="schedule", usual_range=(low, high))


def _kind(**hyperparameters: Hyperparameter) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a schedule: the learning rate at step t, counted from 0, of a training of ``steps`` steps.

    A hyperparameter whose name ends in _factor is a fraction of the learning rate, between which the schedule moves.
    """

    def declare(rate: Callable[..., Any]) -> Callable[..., Any]:
        SCHEDULES[rate.__name__] = {**hyperparameters, WARMUP: _WARMUP}
        _RATES[rate.__name__] = rate
        return rate

    return declare


@_kind()
def constant(t: Any, steps: Any, learning_rate: Any) -> Any:
    """Stay at learning_rate."""
    return learning_rate


@_kind(decay_steps=_share(0.1, 1.0, default=1.0), decay_factor=_factor(0.0, 0.5, default=0.0))
def linear(t: Any, steps: Any, learning_rate: Any, decay_steps: Any, decay_factor: Any) -> Any:
    """Decay linearly to learning_rate · decay_factor over decay_steps · steps, then stay (Shallue et al. 2019)."""
    progress = t / (decay_steps * steps)
    return learning_rate * (1 - (1 - decay_factor) * namespace(progress).minimum(progress, 1.0))


@_kind(decay_every=_share(1e-3, 0.8), decay_factor=_factor(0.01, 0.99))
def step(t: Any, steps: Any, learning_rate: Any, decay_every: Any, decay_factor: Any) -> Any:
    """Multiply by decay_factor after every decay_every · steps steps, rounded to whole steps."""
    length = decay_every * steps
    xp = namespace(length)
    # Half a step further on, rounding does not matter: XLA multiplies by 1 / 49, and 49 · (1 / 49) < 1 in float32.
    decays = (t + 0.5) / xp.maximum(xp.round(length), 1.0)
    return learning_rate * decay_factor ** namespace(decays).floor(decays)


@_kind(decay_steps=_share(0.1, 1.0, default=1.0), decay_factor=_factor(0.0, 0.5, default=0.0))
def cosine(t: Any, steps: Any, learning_rate: Any, decay_steps: Any, decay_factor: Any) -> Any:
    """Decay as half a cosine to learning_rate · decay_factor over decay_steps · steps, then stay (Loshchilov 2017)."""
    progress = t / (decay_steps * steps)
    return learning_rate * (decay_factor + (1 - decay_factor) * _half_cosine(progress))


@_kind(
    decay_steps=_share(0.1, 1.0, default=1.0),
    decay_factor=_factor(0.0, 0.5, default=0.0),
    power=replace(POSITIVE, group="schedule", usual_range=(0.5, 4.0)),
)
def polynomial(t: Any, steps: Any, learning_rate: Any, decay_steps: Any, decay_factor: Any, power: Any) -> Any:
    """Decay as a power of the steps left to learning_rate · decay_factor over decay_steps · steps, then stay."""
    progress = t / (decay_steps * steps)
    left = 1 - namespace(progress).minimum(progress, 1.0)
    return learning_rate * (decay_factor + (1 - decay_factor) * left**power)


@_kind(decay_steps=_share(0.05, 1.0, default=0.2), decay_factor=_factor(0.0, 0.5, default=0.0))
def wsd(t: Any, steps: Any, learning_rate: Any, decay_steps: Any, decay_factor: Any) -> Any:
    """Stay, then decay linearly to learning_rate · decay_factor over the last decay_steps · steps (Hu et al. 2024).

    With a warmup, this is warmup–stable–decay.
    """
    progress = 1 - (steps - t) / (decay_steps * steps)
    return learning_rate * (1 - (1 - decay_factor) * namespace(progress).clip(progress, 0.0, 1.0))


@_kind(timescale=_share(1e-4, 0.5))
def inverse_sqrt(t: Any, steps: Any, learning_rate: Any, timescale: Any) -> Any:
    """Decay with the inverse square root of the steps, to learning_rate / √2 after timescale · steps."""
    growth = 1 + t / (timescale * steps)
    return learning_rate / namespace(growth).sqrt(growth)


@_kind(
    rise_steps=replace(_share(0.05, 0.6, default=0.3), high=1.0),
    start_factor=_factor(1e-3, 0.5, default=1 / 25),
    decay_factor=_factor(0.0, 0.1, default=1 / 25e4),
)
def one_cycle(t: Any, steps: Any, learning_rate: Any, rise_steps: Any, start_factor: Any, decay_factor: Any) -> Any:
    """Rise from learning_rate · start_factor to learning_rate over rise_steps · steps, then decay, as half cosines.

    The decay ends at learning_rate · decay_factor at the end of the training (Smith & Topin 2018).
    """
    rise = rise_steps * steps
    xp = namespace(t - rise)
    risen = 1 - _half_cosine(t / rise)
    left = _half_cosine((t - rise) / xp.maximum(steps - rise, _TINY))
    rising = start_factor + (1 - start_factor) * risen
    return learning_rate * xp.where(t < rise, rising, decay_factor + (1 - decay_factor) * left)


def _half_cosine(progress: Any) -> Any:
    """Return 1 until 0, then half a cosine to 0 at 1, and 0 from there on."""
    xp = namespace(progress)
    return (1 + xp.cos(xp.pi * xp.clip(progress, 0.0, 1.0))) / 2


def schedule(kind: str, steps: int, hyperparameters: Mapping[str, Any]) -> Any:
    """Return the learning rate of a trial: a number if it is constant, otherwise a function of the step."""
    learning_rate = hyperparameters["learning_rate"]
    own = {name: hyperparameters.get(name, about.default) for name, about in SCHEDULES[kind].items() if name != WARMUP}
    rate = functools.partial(_RATES[kind], learning_rate=learning_rate, **own)
    if WARMUP in hyperparameters:
        return functools.partial(_after_warmup, rate, steps, learning_rate, hyperparameters[WARMUP])
    return learning_rate if kind == "constant" else functools.partial(rate, steps=steps)


def _after_warmup(rate: Callable[..., Any], steps: int, learning_rate: Any, warmup_steps: Any, t: Any) -> Any:
    """Rise linearly to learning_rate over the first W = warmup_steps · steps steps, rounded to whole steps.

    The first rate is learning_rate / (W + 1), not 0: the first step would be lost, and Prodigy would divide by it.
    """
    length = warmup_steps * steps
    xp = namespace(t * length)
    length = xp.round(length)
    later = rate(xp.maximum(t - length, 0.0), steps=xp.maximum(steps - length, 1.0))
    return xp.where(t < length, learning_rate * (t + 1) / (length + 1), later)


def special_case(special: str, general: str) -> dict[str, float] | None:
    """Return the values at which one kind of schedule equals another; None if there are none.

    All values that it shares with the other kind are the same, and those that are neither given nor shared do not
    matter.

    >>> special_case("constant", "cosine"), special_case("linear", "polynomial"), special_case("cosine", "linear")
    ({'decay_factor': 1.0}, {'power': 1.0}, None)
    """
    if special == general:
        return {}
    factors = {name: 1.0 for name in SCHEDULES[general] if name.endswith("_factor")}
    if special == "constant" and factors:  # it moves between equal rates
        return factors
    return {"power": 1.0} if (special, general) == ("linear", "polynomial") else None
