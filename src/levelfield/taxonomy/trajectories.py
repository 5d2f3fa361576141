"""How closely one rule follows another over given gradients, by the rules' equations in numpy. Loads no JAX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from levelfield.rules import Equations


def trajectory(equations: Equations, hyperparameters: Mapping[str, Any], gradients: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the parameters after each step, from zero, over these gradients (steps × parameters × …).

    Hyperparameters are numbers, arrays that broadcast against the gradients of a step, or functions of the step.
    """
    parameters: Any = 0.0
    buffers: list[Any] = list(equations.buffers)
    for t, gradient in enumerate(gradients):
        now = {name: value(t) if callable(value) else value for name, value in hyperparameters.items()}
        change, *buffers = equations.update(t, gradient, *buffers, **now)
        parameters = parameters + change
        yield parameters


def deviation(trajectory: Iterable[np.ndarray], expected: Iterable[np.ndarray]) -> np.ndarray:
    """Return the largest distance between two trajectories, relative to how far the expected one goes."""
    distance: Any = 0.0  # squared, like the length
    length: Any = 0.0
    for parameters, aim in zip(trajectory, expected, strict=True):
        distance = np.maximum(distance, np.square(parameters - aim).sum(0))
        length = np.maximum(length, np.square(aim).sum(0))
    relative: np.ndarray = np.sqrt(distance / length)
    return relative
