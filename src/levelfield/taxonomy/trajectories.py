"""How closely one rule follows another over given gradients, by the rules' equations in numpy. Loads no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from levelfield.rules import Equations


def trajectory(equations: Equations, hyperparameters: Mapping[str, Any], gradients: np.ndarray) -> np.ndarray:
    """Return the parameters after each step, from zero, over these gradients (… × steps × parameters).

    Hyperparameters are numbers, arrays that broadcast against the gradients of a step, or functions of the step.
    """
    parameters: Any = 0.0
    buffers: list[Any] = list(equations.buffers)
    path = []
    for t in range(gradients.shape[-2]):
        now = {name: value(t) if callable(value) else value for name, value in hyperparameters.items()}
        change, *buffers = equations.update(t, gradients[..., t, :], *buffers, **now)
        parameters = parameters + change
        path.append(parameters)
    return np.stack(path, axis=-2)


def deviation(trajectory: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the largest distance between two trajectories, relative to how far the expected one goes."""
    distance = np.linalg.norm(trajectory - expected, axis=-1).max(-1)
    relative: np.ndarray = distance / np.linalg.norm(expected, axis=-1).max(-1)
    return relative
