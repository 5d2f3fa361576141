"""Learning-rate schedules: from the step, counted from 0, to the learning rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp


def linear(learning_rate: Any, decay_steps: Any, decay_factor: Any) -> Callable[[Any], Any]:
    """Falls linearly to learning_rate · decay_factor over decay_steps, then stays (Shallue et al. 2019)."""

    def rate(step: Any) -> Any:
        return learning_rate * (1 - (1 - decay_factor) * jnp.minimum(step / decay_steps, 1.0))

    return rate


def step(learning_rate: Any, decay_every: Any, decay_factor: Any) -> Callable[[Any], Any]:
    """Multiplied by decay_factor after every decay_every steps."""

    def rate(step: Any) -> Any:
        return learning_rate * decay_factor ** jnp.floor(step / decay_every)

    return rate


def schedule(kind: str, steps: int, hyperparameters: Mapping[str, Any]) -> Any:
    """The learning rate of a trial of so many steps: a number, or a function of the step."""
    learning_rate = hyperparameters["learning_rate"]
    if kind == "linear":
        return linear(learning_rate, hyperparameters["decay_steps"] * steps, hyperparameters["decay_factor"])
    if kind == "step":
        every = jnp.maximum(jnp.round(hyperparameters["decay_every"] * steps), 1.0)
        return step(learning_rate, every, hyperparameters["decay_factor"])
    return learning_rate
