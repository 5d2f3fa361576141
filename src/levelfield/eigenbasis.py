"""Eigenvectors and orthonormal bases by products of matrices alone. Importing this module loads JAX.

``jax.numpy.linalg`` calls LAPACK on a CPU, whose threads wait for each other if several devices call it at once: with
one device per core, as training has, the QR decomposition of a matrix takes many times as long as alone. On a GPU, it
decomposes the matrices of a batch one by one. The functions here run like any other code, for all slots together.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

_SWEEPS = 20  # of Jacobi's method at most; a matrix of 512 rows takes about 10
_PANEL = 32  # columns that are factored before the others are updated


def power_iteration(matrix: Any, basis: Any) -> tuple[Any, Any]:
    """Return a basis closer to the eigenvectors of a symmetric matrix, the largest first.

    Also return the order in which the old basis had to be put.
    """
    product = _scaled(matrix) @ basis
    order = jnp.argsort(-(basis * product).sum(0))
    return orthonormal(product[:, order]), order


def left_singular_vectors(matrix: Any) -> Any:
    """Return an orthonormal basis of a matrix's rows: its left singular vectors, the largest first, and the rest."""
    n, columns = matrix.shape
    matrix = _scaled(matrix)
    if n <= columns:
        return eigenvectors(matrix @ matrix.T)
    along = matrix @ eigenvectors(matrix.T @ matrix)  # finds them from the smaller side
    return orthonormal(jnp.pad(along, ((0, 0), (0, n - columns))))


def orthonormal(matrix: Any) -> Any:
    """Return the Q of the QR decomposition of a square matrix, by Householder's method in panels of columns."""
    n = len(matrix)
    panel = min(n, _PANEL)
    width = -(-n // panel) * panel
    matrix = _scaled(jnp.pad(matrix, ((0, 0), (0, width - n))))
    rows = jnp.arange(n)

    def factor(start: Any, held: tuple[Any, Any]) -> tuple[Any, Any]:
        """Reflect a panel's columns onto the diagonal: H = I − V T Vᵀ, the product of their reflections."""
        matrix, q = held

        def reflect(j: Any, held: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            columns, v, t = held
            x = jnp.where(rows >= start + j, columns[:, j], 0)
            x = x + jnp.where(rows == start + j, jnp.copysign(jnp.linalg.norm(x), x[jnp.minimum(start + j, n - 1)]), 0)
            x = x / _or_one(jnp.linalg.norm(x))
            t = t.at[:, j].set(-2 * t @ (v.T @ x)).at[j, j].set(2)
            return columns - 2 * jnp.outer(x, x @ columns), v.at[:, j].set(x), t

        columns = jax.lax.dynamic_slice_in_dim(matrix, start, panel, axis=1)
        empty = jnp.zeros_like(columns), jnp.zeros((panel, panel), matrix.dtype)
        _, v, t = jax.lax.fori_loop(0, panel, reflect, (columns, *empty))
        return matrix - v @ (t.T @ (v.T @ matrix)), q - (q @ v) @ t @ v.T

    start = matrix, jnp.eye(n, dtype=matrix.dtype)
    return jax.lax.fori_loop(0, width // panel, lambda i, held: factor(i * panel, held), start)[1]


def eigenvectors(matrix: Any) -> Any:
    """Return the eigenvectors of a symmetric matrix, the largest eigenvalue first, by Jacobi's method.

    In a round, n / 2 rotations each set one entry off the diagonal to zero. After n − 1 rounds, a sweep, every pair of
    axes has met.
    """
    n = len(matrix)
    half = (n + 1) // 2
    size = 2 * half  # an axis without a partner meets a dummy axis
    matrix = _scaled(jnp.pad(matrix, (0, size - n)))

    def meet(_: Any, held: tuple[Any, Any]) -> tuple[Any, Any]:
        matrix, vectors = held  # as rows
        blocks = matrix[:half, :half], matrix[half:, half:], matrix[:half, half:]
        first, second, between = (jnp.diagonal(block)[:, None] for block in blocks)
        tau = (second - first) / (2 * jnp.where(between == 0, 1, between))
        tangent = jnp.where(tau < 0, -1, 1) / (jnp.abs(tau) + jnp.sqrt(1 + tau**2))
        tangent = jnp.where(between == 0, 0, tangent)
        cos = 1 / jnp.sqrt(1 + tangent**2)
        sin = tangent * cos

        def rotated(rows: Any) -> Any:
            top, bottom = cos * rows[:half] - sin * rows[half:], sin * rows[:half] + cos * rows[half:]
            if half == 1:
                return jnp.concatenate([top, bottom])
            # All but the first move on by one seat around the table.
            return jnp.concatenate([top[:1], bottom[:1], top[1:-1], bottom[1:], top[-1:]])

        return rotated(rotated(matrix).T), rotated(vectors)

    def sweep(held: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        sweeps, matrix, vectors = held
        return sweeps + 1, *jax.lax.fori_loop(0, size - 1, meet, (matrix, vectors))

    precision = float(jnp.finfo(matrix.dtype).eps)  # type: ignore[no-untyped-call]

    def unfinished(held: tuple[Any, Any, Any]) -> Any:
        sweeps, matrix, _ = held
        diagonal = jnp.sum(jnp.diagonal(matrix) ** 2)
        rest = jnp.sum((matrix - jnp.diag(jnp.diagonal(matrix))) ** 2)
        return (sweeps < _SWEEPS) & (rest > precision**2 * size * diagonal)

    _, matrix, vectors = jax.lax.while_loop(unfinished, sweep, (0, matrix, jnp.eye(size, dtype=matrix.dtype)))
    missing = jnp.any(vectors[:, n:] != 0, axis=1)  # the dummy axis never turns
    order = jnp.argsort(jnp.where(missing, jnp.inf, -jnp.diagonal(matrix)))
    return vectors[order[:n], :n].T


def _scaled(matrix: Any) -> Any:
    """Return a multiple of a matrix whose squares are neither too large nor too small for its type."""
    return matrix / _or_one(jnp.max(jnp.abs(matrix)))


def _or_one(x: Any) -> Any:
    return jnp.where(x == 0, 1, x)
