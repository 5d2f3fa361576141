"""How closely one rule follows another over given gradients, for any rules: their optax transformations in JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from levelfield.rules import Rule
from levelfield.training.devices import use_every_core
from levelfield.training.options import evaluated_weights

Values = Mapping[str, Any]


class Trained(NamedTuple):
    """The parameters that a rule trains, and its state."""

    params: Any
    optimizer: Any


def trajectory(rule: Rule, hyperparameters: Values, gradients: jax.Array) -> jax.Array:
    """Return the evaluated parameters after each step, from zero, over these gradients (steps × parameters).

    A rule that asks for the loss gets random numbers, and one that draws random numbers always draws the same.
    """
    seed = {rule.seed_argument: 0} if rule.seed_argument else {}
    transformation = optax.with_extra_args_support(rule(**hyperparameters, **seed))
    start = jnp.zeros_like(gradients[0])
    carried = Trained(start, transformation.init(start))
    evaluated = evaluated_weights(rule, carried.optimizer, ()) or (lambda trained: trained.params)

    def step(trained: Trained, now: tuple[jax.Array, jax.Array]) -> tuple[Trained, jax.Array]:
        gradient, loss = now
        updates, state = transformation.update(gradient, trained.optimizer, trained.params, value=loss)
        trained = Trained(optax.apply_updates(trained.params, updates), state)
        return trained, evaluated(trained)

    losses = np.random.default_rng(0).normal(size=len(gradients))
    return jax.lax.scan(step, carried, (gradients, jnp.asarray(losses, gradients.dtype)))[1]


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
    """Return how far the general rule strays from the special one (points × opens), relative to how far that one goes.

    For each of the special rule's ``points`` and each choice of ``opens``, the general rule runs at their image over
    the same gradients (points × steps × parameters, of any shape), in float64, or with ``single`` in float32.
    ``rates`` multiply the learning rate step by step.
    """
    use_every_core()  # JAX may start here, and train afterwards

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
    return _longest(np.asarray(followed, np.float64) - expected) / _longest(expected)


def _longest(paths: np.ndarray) -> np.ndarray:
    """Return the largest distance from zero on each path (points × opens × steps × parameters)."""
    lengths: np.ndarray = np.linalg.norm(paths.reshape(*paths.shape[:3], -1), axis=-1).max(-1)
    return lengths


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
