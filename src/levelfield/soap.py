"""SOAP (Vyas et al. 2024): Adam in the eigenbasis of Shampoo's preconditioner. Importing this module loads JAX.

Where the paper leaves a choice, this is the choice of its authors' code:

- The first gradient of a matrix sets its bases and does not move it, so that no gradient is used in a basis that it
  has shaped itself.
- Kernels with more than two axes have a basis for each axis. Vectors, axes of length 1, and axes longer than
  ``max_precondition_dim`` have none.
- Adam adds ε before the bias correction, as the paper's ``adam`` does in this project.
- Before a basis is updated, its vectors are sorted by the size of their eigenvalues, and the second moments with them.

Unlike there, a parameter without any basis does not wait for the second gradient: Adam trains it from the first step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from levelfield.eigenbasis import left_singular_vectors, power_iteration

Axes = dict[int, jax.Array]  # by the axis of a parameter


_together = functools.partial(zip, strict=True)


class SoapState(NamedTuple):
    """The state of SOAP; its lists are over the parameters."""

    step: Any
    momentum: list[Any]
    second_moment: list[Any]  # in the eigenbases
    factors: list[Axes]  # the preconditioner: moving averages of G Gᵀ and Gᵀ G
    bases: list[Axes]


def soap(
    learning_rate: Any,
    beta1: Any = 0.95,
    beta2: Any = 0.95,
    epsilon: Any = 1e-8,
    weight_decay: Any = 0.0,
    precondition_frequency: int = 10,
    max_precondition_dim: int = 10_000,
) -> optax.GradientTransformation:
    """Return SOAP as an optax transformation. The weight decay is that of AdamW, for all parameters."""

    def sides(leaf: Any) -> list[tuple[int, int]]:
        """Return the axes that have a basis, and their lengths."""
        lengths = enumerate(leaf.shape) if leaf.ndim > 1 else ()
        return [(axis, n) for axis, n in lengths if 1 < n <= max_precondition_dim]

    def init(params: Any) -> SoapState:
        leaves = jax.tree.leaves(params)
        bases = [{axis: jnp.eye(n, dtype=leaf.dtype) for axis, n in sides(leaf)} for leaf in leaves]
        factors = jax.tree.map(jnp.zeros_like, bases)
        zeros = [jnp.zeros_like(leaf) for leaf in leaves]
        return SoapState(jnp.zeros((), jnp.int32), zeros, zeros, factors, bases)

    def update(gradients: Any, state: SoapState, params: Any = None) -> tuple[Any, SoapState]:
        if params is None:
            raise ValueError("soap decays the parameters: pass them, as in update(gradients, state, params)")
        t = state.step
        rate = learning_rate(t) if callable(learning_rate) else learning_rate
        leaves, structure = jax.tree.flatten(gradients)

        def move(g: Any, m: Any, v: Any, bases: Axes, weight: Any) -> tuple[Any, Any, Any]:
            used = 1 if not bases else jnp.minimum(t, 1)  # a matrix waits for its bases
            m = jnp.where(used, beta1 * m + (1 - beta1) * g, m)
            v = jnp.where(used, beta2 * v + (1 - beta2) * _project(g, bases) ** 2, v)
            n = jnp.maximum(t if bases else t + 1, 1)  # gradients used
            correction = jnp.sqrt(1 - beta2**n) / (1 - beta1**n)
            direction = _project_back(_project(m, bases) / (jnp.sqrt(v) + epsilon), bases) * correction
            return -used * rate * (direction + weight_decay * weight), m, v

        weights = jax.tree.leaves(params)
        moved = [move(*held) for held in _together(leaves, state.momentum, state.second_moment, state.bases, weights)]
        changes, momentum, second = ([column[i] for column in moved] for i in range(3))
        unfolded = [{axis: _unfold(g, axis) for axis in axes} for g, axes in _together(leaves, state.bases)]
        factors = jax.tree.map(lambda p, side: beta2 * p + (1 - beta2) * side @ side.T, state.factors, unfolded)
        bases = _when(t == 0, lambda _, sides: _by_shape(left_singular_vectors, sides), state.bases, unfolded)
        refresh = (t > 0) & (t % precondition_frequency == 0)
        bases, second = _when(refresh, _refreshed, (bases, second), factors)
        return jax.tree.unflatten(structure, changes), SoapState(t + 1, momentum, second, factors, bases)

    return optax.GradientTransformation(init, update)


def _when(needed: Any, compute: Callable[[Any, Any], Any], held: Any, inputs: Any) -> Any:
    """Return ``compute(held, inputs)`` if that is needed, and otherwise what is held.

    Under vmap, ``lax.cond`` would compute it in every step of every slot; this loop runs only when a slot needs it.
    """

    def body(carried: tuple[Any, Any]) -> tuple[Any, Any]:
        # The inputs seem to depend on the loop; otherwise XLA would compute what depends on them alone in every step.
        seeming = jax.tree.map(lambda leaf: jnp.where(carried[0], leaf, 0), inputs)
        return jnp.zeros_like(needed), compute(carried[1], seeming)

    return jax.lax.while_loop(lambda carried: carried[0], body, (needed, held))[1]


def _refreshed(held: tuple[list[Axes], list[Any]], factors: list[Axes]) -> tuple[list[Axes], list[Any]]:
    """Return the bases after a power iteration, and the second moments in the order of their vectors."""
    bases, second = held
    found = _by_shape(power_iteration, factors, bases)
    for i, axes in enumerate(found):
        for axis, (_, order) in axes.items():
            second = [*second[:i], jnp.take(second[i], order, axis), *second[i + 1 :]]
    return [{axis: basis for axis, (basis, _) in axes.items()} for axes in found], second


def _by_shape(function: Callable[..., Any], *trees: list[Axes]) -> list[dict[int, Any]]:
    """Apply a function to every axis, to all matrices of one shape at once: that compiles and runs faster."""
    places: dict[Any, list[tuple[int, int]]] = {}
    for i, axes in enumerate(trees[0]):
        for axis, matrix in axes.items():
            places.setdefault((matrix.shape, matrix.dtype), []).append((i, axis))
    results: list[dict[int, Any]] = [{} for _ in trees[0]]
    for alike in places.values():
        stacks = [jnp.stack([tree[i][axis] for i, axis in alike]) for tree in trees]
        computed = jax.vmap(function)(*stacks)
        for k, (i, axis) in enumerate(alike):
            results[i][axis] = jax.tree.map(lambda stack, k=k: stack[k], computed)
    return results


def _project(tensor: Any, bases: Axes) -> Any:
    """Return a tensor in its eigenbases: Qₗᵀ G Qᵣ for a matrix."""
    for axis, basis in bases.items():
        tensor = jnp.moveaxis(jnp.tensordot(tensor, basis, (axis, 0)), -1, axis)
    return tensor


def _project_back(tensor: Any, bases: Axes) -> Any:
    return _project(tensor, {axis: basis.T for axis, basis in bases.items()})


def _unfold(tensor: Any, axis: int) -> Any:
    """Return a tensor as a matrix whose rows are an axis: G for the first axis of a matrix, Gᵀ for the second."""
    return jnp.moveaxis(tensor, axis, 0).reshape(tensor.shape[axis], -1)
