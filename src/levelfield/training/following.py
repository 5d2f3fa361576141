"""How closely one rule follows another over given gradients, for any rules: their optax transformations in JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from levelfield.rules import Rule

Values = Mapping[str, Any]


def trajectory(rule: Rule, hyperparameters: Values, gradients: jax.Array) -> jax.Array:
    """Return the parameters after each step, from zero, over these gradients (steps × parameters)."""
    transformation = rule(**hyperparameters)

    def step(carry: tuple[Any, Any], gradient: jax.Array) -> tuple[Any, jax.Array]:
        params, state = carry
        updates, state = transformation.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    start = jnp.zeros_like(gradients[0])
    return jax.lax.scan(step, (start, transformation.init(start)), gradients)[1]


def deviations(
    special: Rule,
    general: Rule,
    image: Callable[[Values, Values], Values],
    points: Sequence[Values],
    opens: Sequence[Values],
    gradients: np.ndarray,
    rates: np.ndarray | None = None,
    *,
    single: bool = False,
) -> np.ndarray:
    """Return how far the general rule strays from the special one (points × opens), relative to how far that goes.

    For each of the special rule's ``points`` and each choice of ``opens``, the general rule runs at their image over
    the same gradients (points × steps × parameters), in float64, or with ``single`` in float32. ``rates`` multiply the
    learning rate step by step.
    """

    def varied(values: Values) -> Values:
        if rates is None:
            return values
        table = jnp.asarray(rates, values["learning_rate"].dtype)
        return {**values, "learning_rate": lambda step: values["learning_rate"] * table[step]}

    numbers, switches = _stacked(points)
    chosen, fixed = _stacked(opens)
    dtype = np.float32 if single else np.float64

    with jax.enable_x64(True):
        expected = jax.jit(jax.vmap(lambda p, g: trajectory(special, {**varied(p), **switches}, g)))(
            _cast(numbers, np.float64), np.asarray(gradients, np.float64)
        )
    expected = np.asarray(expected)[:, None]

    def follow(point: Values, open: Values, history: jax.Array) -> jax.Array:
        return trajectory(general, image({**varied(point), **switches}, {**open, **fixed}), history)

    over_opens = jax.vmap(follow, in_axes=(None, 0, None))
    with nullcontext() if single else jax.enable_x64(True):
        followed = jax.jit(jax.vmap(over_opens, in_axes=(0, None, 0)))(
            _cast(numbers, dtype), _cast(chosen, dtype) | {"": np.zeros(len(opens), dtype)}, gradients.astype(dtype)
        )
    distance = np.linalg.norm(np.asarray(followed, np.float64) - expected, axis=-1).max(-1)
    return distance / np.linalg.norm(expected, axis=-1).max(-1)


def _stacked(rows: Sequence[Values]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return numbers as arrays over the rows; switches, which are the same in all rows, as they are."""
    numbers = sorted(name for name, value in rows[0].items() if _is_number(value))
    return (
        {name: np.array([row[name] for row in rows], np.float64) for name in numbers},
        {name: value for name, value in rows[0].items() if name not in numbers},
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cast(arrays: Mapping[str, np.ndarray], dtype: Any) -> dict[str, np.ndarray]:
    return {name: array.astype(dtype) for name, array in arrays.items()}
