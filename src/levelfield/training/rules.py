"""The paper's update rules (Table 1, with its errata) as optax transformations.

``learning_rate`` is a number or a function of the step, which counts from 0. Two details set these rules
apart from the ones of the same name elsewhere: adam and nadam add ε to √v *before* the bias correction,
which then multiplies the whole step; rmsprop starts from v = 1, has ε inside the root, and the learning
rate inside the momentum buffer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Rate = Any  # a number, or a function from the step to a number


class RuleState(NamedTuple):
    step: jax.Array
    buffers: tuple[Any, ...]


def _componentwise(update: Callable[..., tuple[jax.Array, ...]], *start: float) -> optax.GradientTransformation:
    """A rule from ``update(t, gradient, *buffers) → (change, *buffers)``, applied to every parameter."""

    def init(params: Any) -> RuleState:
        buffers = tuple(jax.tree.map(lambda p, at=at: jnp.full_like(p, at), params) for at in start)
        return RuleState(jnp.zeros((), jnp.int32), buffers)

    def step(gradients: Any, state: RuleState, params: Any = None) -> tuple[Any, RuleState]:
        results = jax.tree.map(functools.partial(update, state.step), gradients, *state.buffers)
        changes, *buffers = jax.tree.transpose(jax.tree.structure(gradients), None, results)
        return changes, RuleState(state.step + 1, tuple(buffers))

    return optax.GradientTransformation(init, step)


def _at(learning_rate: Rate, t: jax.Array) -> Any:
    return learning_rate(t) if callable(learning_rate) else learning_rate


def sgd(learning_rate: Rate) -> optax.GradientTransformation:
    def update(t, g):
        return (-_at(learning_rate, t) * g,)

    return _componentwise(update)


def momentum(learning_rate: Rate, momentum: Any) -> optax.GradientTransformation:
    def update(t, g, v):
        v = momentum * v + g
        return -_at(learning_rate, t) * v, v

    return _componentwise(update, 0.0)


def nesterov(learning_rate: Rate, momentum: Any) -> optax.GradientTransformation:
    def update(t, g, v):
        v = momentum * v + g
        return -_at(learning_rate, t) * (momentum * v + g), v

    return _componentwise(update, 0.0)


def rmsprop(learning_rate: Rate, momentum: Any, rho: Any, epsilon: Any) -> optax.GradientTransformation:
    def update(t, g, v, m):
        v = rho * v + (1 - rho) * g**2
        m = momentum * m + _at(learning_rate, t) / jnp.sqrt(v + epsilon) * g
        return -m, v, m

    return _componentwise(update, 1.0, 0.0)


def rmsterov(learning_rate: Rate, momentum: Any, rho: Any, epsilon: Any) -> optax.GradientTransformation:
    def update(t, g, v, m):
        v = rho * v + (1 - rho) * g**2
        scaled = _at(learning_rate, t) / jnp.sqrt(v + epsilon) * g
        m = momentum * m + scaled
        return -(momentum * m + scaled), v, m

    return _componentwise(update, 1.0, 0.0)


def adam(learning_rate: Rate, beta1: Any, beta2: Any, epsilon: Any) -> optax.GradientTransformation:
    def update(t, g, m, v):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        b = jnp.sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1))
        return -_at(learning_rate, t) * m / (jnp.sqrt(v) + epsilon) * b, m, v

    return _componentwise(update, 0.0, 0.0)


def nadam(learning_rate: Rate, beta1: Any, beta2: Any, epsilon: Any) -> optax.GradientTransformation:
    def update(t, g, m, v):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        b = jnp.sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1))
        ahead = beta1 * m + (1 - beta1) * g
        return -_at(learning_rate, t) * ahead / (jnp.sqrt(v) + epsilon) * b, m, v

    return _componentwise(update, 0.0, 0.0)
