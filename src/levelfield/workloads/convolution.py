"""Convolutions for flax's ``Conv(conv_general_dilated=conv)``, lowered for the platform.

XLA on a CPU runs the gradients of lax.conv inside a loop many times slower than the same as products of matrices: by
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
    elif _by_patches_pays(kernel.shape, strides, padding):
        return _by_patches(inputs, kernel, padding, precision)
    else:
        way = _Patches(size, kernel.shape, strides, padding, precision)
    matrices = way.matrices(kernel)
    # As many examples at a time as a core's cache holds what lies between input and output of; the way back makes that
    # anew: to fetch it from memory takes longer.
    some = _some(len(inputs), _IN_CACHE // (way.numbers * inputs.dtype.itemsize))
    parts = way.enter(inputs.reshape(-1, some, *inputs.shape[1:]))
    if len(parts) == 1:
        return way.leave(way.convolve(parts[0], matrices)[None])
    convolve = jax.checkpoint(way.convolve)
    return way.leave(jax.lax.map(lambda part: convolve(part, matrices), parts))


def _some(examples: int, fitting: int) -> int:
    """How many to take at a time, so that all parts are alike."""
    return next(n for n in range(max(1, min(fitting, examples)), 0, -1) if examples % n == 0)


class _Patches:
    """What the kernel meets at each place is a row of a matrix."""

    def __init__(self, size: Any, kernel: Any, strides: Any, padding: Any, precision: Any) -> None:
        self._kernel, self._strides, self._padding, self._precision = kernel, strides, padding, precision
        self.numbers = math.prod(kernel[:3]) * math.prod(size) // math.prod(strides)  # between input and output

    def matrices(self, kernel: jax.Array) -> jax.Array:
        return kernel.reshape(-1, kernel.shape[-1])

    def enter(self, parts: jax.Array) -> jax.Array:
        return parts

    def leave(self, parts: jax.Array) -> jax.Array:
        return parts.reshape(-1, *parts.shape[2:])

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


def _by_patches_pays(kernel: Any, strides: Any, padding: Any) -> bool:
    """Where what comes back has no larger patches than the input, whose patches JAX's gradient makes."""
    height, width, channels, features = kernel
    within = all(max(around) < length for around, length in zip(padding, kernel[:2], strict=True))
    return tuple(strides) == (1, 1) and within and height * width > 1 and bool(features <= channels)


def _by_patches(inputs: jax.Array, kernel: jax.Array, padding: Any, precision: Any) -> jax.Array:
    """_Patches with its gradient written out: patches of what comes back serve for both of its parts.

    JAX's own makes the input's patches anew, and adds up the gradients by all places in a patch.
    """
    height, width, channels, features = kernel.shape

    @jax.custom_vjp
    def convolve(images: jax.Array, kernel: jax.Array) -> jax.Array:
        def product(_: None, patches: jax.Array) -> tuple[None, jax.Array]:
            return None, jnp.dot(patches, kernel.reshape(-1, features), precision=precision)

        return _over_patches(product, None, images, (height, width), padding)[1]

    def back(kept: tuple[jax.Array, jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        images, kernel = kept
        turned = kernel[::-1, ::-1].swapaxes(2, 3).reshape(-1, channels)

        def products(total: jax.Array, patches: jax.Array, images: jax.Array) -> tuple[jax.Array, jax.Array]:
            # The transpose of what is wanted: twice as fast here.
            by_kernel = jnp.dot(images.reshape(-1, channels).T, patches, precision=precision)
            return total + by_kernel, jnp.dot(patches, turned, precision=precision)

        sides = zip((height, width), padding, strict=True)
        around = [(side - 1 - before, side - 1 - after) for side, (before, after) in sides]
        start = jnp.zeros((channels, height * width * features), kernel.dtype)
        by_kernel, by_images = _over_patches(products, start, d, (height, width), around, images)
        by_kernel = by_kernel.reshape(channels, height, width, features).transpose(1, 2, 0, 3)
        return by_images, by_kernel[::-1, ::-1]

    convolve.defvjp(lambda images, kernel: (convolve(images, kernel), (images, kernel)), back)
    return convolve(inputs, kernel)


def _over_patches(function: Any, carry: Any, images: jax.Array, kernel: Any, padding: Any, *others: jax.Array) -> Any:
    """A scan with the function over parts of the images, as patches, and of the others: the carry, and images."""
    # Padded as a whole: XLA would fuse it into each of a patch's slices.
    padded = jnp.pad(images, ((0, 0), *padding, (0, 0)))
    count, channels = len(images), images.shape[-1]
    rows, columns = (length - side + 1 for length, side in zip(padded.shape[1:3], kernel, strict=True))
    places = list(np.ndindex(*kernel))
    fitting = _IN_CACHE // (rows * columns * len(places) * channels * images.dtype.itemsize)
    some = _some(count, max(2, fitting))  # XLA copies arrays to give them an axis of length 1

    def body(carry: Any, parts: Any) -> Any:
        (patches, carry), (padded, *others) = carry, parts
        for n, (i, j) in enumerate(places):
            seen = padded[:, i : i + rows, j : j + columns]
            patches = jax.lax.dynamic_update_slice(patches, seen, (0, 0, 0, n * channels))
        carry, results = function(carry, patches.reshape(-1, patches.shape[-1]), *others)
        return (patches, carry), results

    # Written over in each turn: to concatenate slices takes a copy more.
    patches = jnp.zeros((some, rows, columns, len(places) * channels), images.dtype)
    parts = [array.reshape(-1, some, *array.shape[1:]) for array in (padded, *others)]
    (_, carry), results = jax.lax.scan(body, (patches, carry), parts)
    return carry, results.reshape(count, rows, columns, -1)


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

    # The axes change places outside the loop over the parts: inside, where XLA fuses that with changes of shape, it
    # computes the place of every single number.

    def enter(self, parts: jax.Array) -> jax.Array:
        return parts.transpose(0, 2, 3, 1, 4)

    def leave(self, parts: jax.Array) -> jax.Array:
        x = parts.transpose(0, 5, 4, 1, 3, 2, 6)
        rows, columns = self._shape
        return x.reshape(-1, x.shape[2] * x.shape[3], x.shape[4] * x.shape[5], self._features)[:, :rows, :columns]

    def convolve(self, images: jax.Array, matrices: jax.Array) -> jax.Array:
        height, width, count, channels = images.shape
        (down, right), n, m = self._tiles, self._n, self._TILE
        x = images.reshape(1, height, -1)
        x = _left(self._of_lines[0], x).reshape(n, down, width, -1).swapaxes(1, 2)
        x = _left(self._of_lines[1], x.reshape(n, width, -1)).reshape(n * n, -1, channels)
        x = _products(x, matrices, self._precision)
        x = _left(self._of_results, x.reshape(n, n, -1))
        return _left(self._of_results, x.reshape(1, n, -1)).reshape(m, m, right, down, count, self._features)


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
