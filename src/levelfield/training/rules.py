"""The paper's update rules (Table 1, with its errata) as optax transformations.

Every hyperparameter is a number or a function of the step, which counts from 0. Two details set these rules
apart from the ones of the same name elsewhere: adam and nadam add ε to √v *before* the bias correction,
which then multiplies the whole step; rmsprop starts from v = 1, has ε inside the root, and the learning
rate inside the momentum buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Update = Callable[..., tuple[jax.Array, ...]]


class RuleState(NamedTuple):
    step: jax.Array
    buffers: tuple[Any, ...]


def _rule(*start: float) -> Callable[[Update], Callable[..., optax.GradientTransformation]]:
    """A rule from ``update(t, gradient, *buffers, **hyperparameters at t) → (change, *buffers)``.

    It is applied to every parameter; ``start`` are the buffers' first values.
    """

    def of(update: Update) -> Callable[..., optax.GradientTransformation]:
        def build(**hyperparameters: Any) -> optax.GradientTransformation:
            def init(params: Any) -> RuleState:
                buffers = tuple(jax.tree.map(lambda p, at=at: jnp.full_like(p, at), params) for at in start)
                return RuleState(jnp.zeros((), jnp.int32), buffers)

            def step(gradients: Any, state: RuleState, params: Any = None) -> tuple[Any, RuleState]:
                t = state.step
                now = {name: value(t) if callable(value) else value for name, value in hyperparameters.items()}
                results = jax.tree.map(lambda g, *held: update(t, g, *held, **now), gradients, *state.buffers)
                changes, *buffers = jax.tree.transpose(jax.tree.structure(gradients), None, results)
                return changes, RuleState(t + 1, tuple(buffers))

            return optax.GradientTransformation(init, step)

        return build

    return of


@_rule()
def sgd(t, g, learning_rate):
    return (-learning_rate * g,)


@_rule(0.0)
def momentum(t, g, v, learning_rate, momentum):
    v = momentum * v + g
    return -learning_rate * v, v


@_rule(0.0)
def nesterov(t, g, v, learning_rate, momentum):
    v = momentum * v + g
    return -learning_rate * (momentum * v + g), v


@_rule(1.0, 0.0)
def rmsprop(t, g, v, m, learning_rate, momentum, rho, epsilon):
    v = rho * v + (1 - rho) * g**2
    m = momentum * m + learning_rate / jnp.sqrt(v + epsilon) * g
    return -m, v, m


@_rule(1.0, 0.0)
def rmsterov(t, g, v, m, learning_rate, momentum, rho, epsilon):
    v = rho * v + (1 - rho) * g**2
    scaled = learning_rate / jnp.sqrt(v + epsilon) * g
    m = momentum * m + scaled
    return -(momentum * m + scaled), v, m


@_rule(0.0, 0.0)
def adam(t, g, m, v, learning_rate, beta1, beta2, epsilon):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    b = jnp.sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1))
    return -learning_rate * m / (jnp.sqrt(v) + epsilon) * b, m, v


@_rule(0.0, 0.0)
def nadam(t, g, m, v, learning_rate, beta1, beta2, epsilon):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    b = jnp.sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1))
    ahead = beta1 * m + (1 - beta1) * g
    return -learning_rate * ahead / (jnp.sqrt(v) + epsilon) * b, m, v
