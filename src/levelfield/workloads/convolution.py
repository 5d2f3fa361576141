"""Convolutions for flax's ``Conv(conv_general_dilated=conv)``, lowered for the platform.

XLA on a CPU runs lax.conv inside a loop some 15 times slower than the same convolution as products of matrices: by
Winograd's algorithm where there are channels enough to pay for it, else as patches times the kernel.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_IN_CACHE = 2**20  # bytes


def conv(
    inputs: jax.Array, kernel: jax.Array, strides: Any, padding: Any, *, precision: Any = None, **others: Any
) -> jax.Array:
    """On a CPU: images in NHWC with explicit padding, undilated and ungrouped, as products; all else is lax.conv's."""
    unusual = ("lhs_dilation", "rhs_dilation", "feature_group_count")
    plain = all(others.get(key) in (None, 1, (1, 1)) for key in unusual) and not isinstance(padding, str)
    if jax.default_backend() != "cpu" or not plain:
        return jax.lax.conv_general_dilated(inputs, kernel, strides, padding, precision=precision, **others)
    size = inputs.shape[1:3]
    way: _Winograd | _Patches
    if _Winograd.pays(kernel.shape, strides):
        way = _Winograd(size, kernel.shape, padding, precision)
    else:
        way = _Patches(size, kernel.shape, strides, padding, precision)
    matrices = way.matrices(kernel)
    fitting = max(1, _IN_CACHE // (way.numbers * inputs.dtype.itemsize))
    if len(inputs) <= fitting:
        return way.convolve(inputs, matrices)
    # As many examples at a time as a core's cache holds what lies between input and output of; the way back makes that
    # anew: to fetch it from memory takes longer.
    some = next(n for n in range(fitting, 0, -1) if len(inputs) % n == 0)
    convolve = jax.checkpoint(way.convolve)
    parts = jax.lax.map(lambda part: convolve(part, matrices), inputs.reshape(-1, some, *inputs.shape[1:]))
    return parts.reshape(len(inputs), *parts.shape[2:])


class _Patches:
    """What the kernel meets at each place is a row of a matrix."""

    def __init__(self, size: Any, kernel: Any, strides: Any, padding: Any, precision: Any) -> None:
        self._kernel, self._strides, self._padding, self._precision = kernel, strides, padding, precision
        self.numbers = math.prod(kernel[:3]) * math.prod(size) // math.prod(strides)  # between input and output

    def matrices(self, kernel: jax.Array) -> jax.Array:
        return kernel.reshape(-1, kernel.shape[-1])

    def convolve(self, images: jax.Array, matrix: jax.Array) -> jax.Array:
        height, width = self._kernel[:2]
        padded = jnp.pad(images, ((0, 0), *self._padding, (0, 0)))
        rows = (padded.shape[1] - height) // self._strides[0] + 1
        columns = (padded.shape[2] - width) // self._strides[1] + 1

        def shifted(i: int, j: int) -> jax.Array:
            """What the kernel's element (i, j) meets at each place."""
            down = slice(i, i + (rows - 1) * self._strides[0] + 1, self._strides[0])
            right = slice(j, j + (columns - 1) * self._strides[1] + 1, self._strides[1])
            return padded[:, down, right]

        patches = jnp.concatenate([shifted(i, j) for i in range(height) for j in range(width)], axis=-1)
        product = jnp.dot(patches.reshape(-1, len(matrix)), matrix, precision=self._precision)
        return product.reshape(-1, rows, columns, matrix.shape[-1])


class _Winograd:
    """Winograd's algorithm, F(4×4, 3×3) and F(4×4, 5×5): of 4 and 6.25 multiplications, one is left.

    As polynomials, a tile of the image and the kernel are multiplied by their values at n points. Each transform is
    a product with a constant matrix, which also pads the image and cuts it into tiles: sums of slices XLA would fuse
    into the loops over their results, and compute many times over.
    """

    _TILE = 4  # results a side
    _POINTS = (0, 1, -1, 0.5, -0.5, 2, -2)  # and infinity

    @staticmethod
    def pays(kernel: Any, strides: Any) -> bool:
        """Measured: the transforms take longer than the products save where channels or features are few."""
        height, width, channels, features = kernel
        square = height == width and height in (3, 5) and tuple(strides) == (1, 1)
        return square and bool(min(channels, features) * height >= 80)

    def __init__(self, size: Any, kernel: Any, padding: Any, precision: Any) -> None:
        side, _, channels, self._features = kernel
        self._precision = precision
        self._n = n = self._TILE + side - 1
        points = np.array(self._POINTS[: n - 1])[:, None]

        def values(coefficients: int) -> np.ndarray:
            """Of a polynomial, at the points: points × coefficients."""
            return np.vstack([points ** np.arange(coefficients), np.eye(coefficients)[-1]])

        of_tile = np.linalg.inv(values(n)).T
        scale = np.abs(of_tile).max(1, keepdims=True)
        self._of_kernel, self._of_results = values(side) * scale, values(self._TILE).T
        self._shape = [length + sum(around) - side + 1 for length, around in zip(size, padding, strict=True)]
        self._tiles = [-(-length // self._TILE) for length in self._shape]
        self._of_lines = [
            self._of_line(of_tile / scale, *line) for line in zip(size, self._tiles, padding, strict=True)
        ]
        self.numbers = n * n * math.prod(self._tiles) * channels  # between input and output, for an image

    def _of_line(self, of_tile: np.ndarray, length: int, tiles: int, padding: tuple[int, int]) -> np.ndarray:
        """(n · tiles) × length: the transform of each tile of a line, padded in thought."""
        n, before = self._n, padding[0]
        matrix = np.zeros((n, tiles, before + tiles * self._TILE + n + length))
        for tile in range(tiles):
            matrix[:, tile, tile * self._TILE :][:, :n] = of_tile
        return matrix[..., before : before + length].reshape(-1, length)

    def matrices(self, kernel: jax.Array) -> jax.Array:
        """One of channels × features for each of the n × n products."""
        n, side = self._of_kernel.shape
        half = _left(self._of_kernel, kernel.reshape(1, side, -1))
        return _left(self._of_kernel, half.reshape(n, side, -1)).reshape(n * n, *kernel.shape[2:])

    def convolve(self, images: jax.Array, matrices: jax.Array) -> jax.Array:
        count, height, width, channels = images.shape
        (rows, columns), (down, right), n, m = self._shape, self._tiles, self._n, self._TILE
        x = images.transpose(1, 2, 0, 3).reshape(1, height, -1)
        x = _left(self._of_lines[0], x).reshape(n, down, width, -1).swapaxes(1, 2)
        x = _left(self._of_lines[1], x.reshape(n, width, -1)).reshape(n * n, -1, channels)
        x = _products(x, matrices, self._precision)
        x = _left(self._of_results, x.reshape(n, n, -1))
        x = _left(self._of_results, x.reshape(1, n, -1)).reshape(m, m, right, down, count, self._features)
        return x.transpose(4, 3, 0, 2, 1, 5).reshape(count, down * m, right * m, -1)[:, :rows, :columns]


# Gradients are written out where JAX's own would swap the factors and transpose large arrays for it.


def _products(a: jax.Array, b: jax.Array, precision: Any) -> jax.Array:
    """The product of each pair of matrices."""

    def product(a: jax.Array, b: jax.Array, over: tuple[int, int]) -> jax.Array:
        return jax.lax.dot_general(a, b, (((over[0],), (over[1],)), ((0,), (0,))), precision=precision)

    @jax.custom_vjp
    def products(a: jax.Array, b: jax.Array) -> jax.Array:
        return product(a, b, (2, 1))

    products.defvjp(
        lambda a, b: (product(a, b, (2, 1)), (a, b)),
        lambda kept, d: (product(d, kept[1], (2, 2)), product(kept[0], d, (1, 1))),
    )
    return products(a, b)


def _left(constant: np.ndarray, matrices: jax.Array) -> jax.Array:
    """The constant times each of the matrices."""

    def times(constant: np.ndarray, matrices: jax.Array) -> jax.Array:
        many = jnp.broadcast_to(jnp.asarray(constant, matrices.dtype), (len(matrices), *constant.shape))
        return jax.lax.dot_general(many, matrices, (((2,), (1,)), ((0,), (0,))))

    @jax.custom_vjp
    def product(matrices: jax.Array) -> jax.Array:
        return times(constant, matrices)

    product.defvjp(lambda matrices: (times(constant, matrices), None), lambda _, d: (times(constant.T, d),))
    return product(matrices)
