"""Convolutions for flax's ``Conv(conv_general_dilated=conv)``, lowered for the platform.

On a CPU, XLA runs the gradients of lax.conv inside a loop many times slower than equivalent matrix products. ``conv``
computes those instead: with Winograd's algorithm if there are enough channels to pay for it, otherwise as patches times
the kernel.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_CACHE_BYTES = 2**20  # of a core


def conv(
    inputs: jax.Array, kernel: jax.Array, strides: Any, padding: Any, *, precision: Any = None, **options: Any
) -> jax.Array:
    """Convolve images in NHWC; on a CPU, if padding is explicit and there is no dilation or grouping, as products."""
    unusual = ("lhs_dilation", "rhs_dilation", "feature_group_count")
    plain = all(options.get(key) in (None, 1, (1, 1)) for key in unusual) and not isinstance(padding, str)
    if jax.default_backend() != "cpu" or not plain:
        return jax.lax.conv_general_dilated(inputs, kernel, strides, padding, precision=precision, **options)
    if inputs.dtype == jnp.bfloat16:  # the products are the same, and Winograd's transforms would lose digits
        wide = inputs.astype(jnp.float32), kernel.astype(jnp.float32)
        return conv(*wide, strides, padding, precision=precision, **options).astype(jnp.bfloat16)
    image_size = inputs.shape[1:3]
    algorithm: _Winograd | _Patches
    if _Winograd.pays(kernel.shape, strides):
        algorithm = _Winograd(image_size, kernel.shape, padding, precision)
    elif _patches_with_gradient_pay(kernel.shape, strides, padding):
        return _patches_with_gradient(inputs, kernel, padding, precision)
    else:
        algorithm = _Patches(image_size, kernel.shape, strides, padding, precision)
    matrices = algorithm.matrices(kernel)
    # Take as many examples at a time as have their intermediate results fit into a core's cache. The backward pass
    # recomputes those, which is faster than fetching them from memory.
    size = _chunk_size(len(inputs), _CACHE_BYTES // (algorithm.intermediates * inputs.dtype.itemsize))
    chunks = algorithm.enter(inputs.reshape(-1, size, *inputs.shape[1:]))
    if len(chunks) == 1:
        return algorithm.leave(algorithm.convolve(chunks[0], matrices)[None])
    convolve = jax.checkpoint(algorithm.convolve)
    return algorithm.leave(jax.lax.map(lambda chunk: convolve(chunk, matrices), chunks))


def _chunk_size(examples: int, fitting: int) -> int:
    """Return the largest number of examples that fits and divides them into equal chunks."""
    return next(n for n in range(max(1, min(fitting, examples)), 0, -1) if examples % n == 0)


class _Patches:
    """A convolution as a product: what the kernel covers at each position is a row of a matrix."""

    def __init__(self, size: Any, kernel: Any, strides: Any, padding: Any, precision: Any) -> None:
        self._kernel, self._strides, self._padding, self._precision = kernel, strides, padding, precision
        self.intermediates = math.prod(kernel[:3]) * math.prod(size) // math.prod(strides)  # numbers per image

    def matrices(self, kernel: jax.Array) -> jax.Array:
        return kernel.reshape(-1, kernel.shape[-1])

    def enter(self, chunks: jax.Array) -> jax.Array:
        return chunks

    def leave(self, chunks: jax.Array) -> jax.Array:
        return chunks.reshape(-1, *chunks.shape[2:])

    def convolve(self, images: jax.Array, matrix: jax.Array) -> jax.Array:
        height, width = self._kernel[:2]
        padded = jnp.pad(images, ((0, 0), *self._padding, (0, 0)))
        rows = (padded.shape[1] - height) // self._strides[0] + 1
        columns = (padded.shape[2] - width) // self._strides[1] + 1

        def shifted(i: int, j: int) -> jax.Array:
            """Return what the kernel's element (i, j) covers at each position."""
            down = slice(i, i + (rows - 1) * self._strides[0] + 1, self._strides[0])
            right = slice(j, j + (columns - 1) * self._strides[1] + 1, self._strides[1])
            return padded[:, down, right]

        patches = jnp.concatenate([shifted(i, j) for i in range(height) for j in range(width)], axis=-1)
        product = jnp.dot(patches.reshape(-1, len(matrix)), matrix, precision=self._precision)
        return product.reshape(-1, rows, columns, matrix.shape[-1])


def _patches_with_gradient_pay(kernel: Any, strides: Any, padding: Any) -> bool:
    """Whether patches of the output's gradient are no larger than those of the input, which JAX's gradient makes."""
    height, width, channels, features = kernel
    within = all(max(pads) < length for pads, length in zip(padding, kernel[:2], strict=True))
    return tuple(strides) == (1, 1) and within and height * width > 1 and bool(features <= channels)


def _patches_with_gradient(inputs: jax.Array, kernel: jax.Array, padding: Any, precision: Any) -> jax.Array:
    """Convolve by patches, with the gradient written out: patches of the output's gradient serve both of its parts.

    JAX's own gradient makes the input's patches again, and adds up the gradients of all positions in a patch.
    """
    height, width, channels, features = kernel.shape

    @jax.custom_vjp
    def convolve(images: jax.Array, kernel: jax.Array) -> jax.Array:
        def product(_: None, patches: jax.Array) -> tuple[None, jax.Array]:
            return None, jnp.dot(patches, kernel.reshape(-1, features), precision=precision)

        return _scan_patches(product, None, images, (height, width), padding)[1]

    def backward(residuals: tuple[jax.Array, jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        images, kernel = residuals
        rotated = kernel[::-1, ::-1].swapaxes(2, 3).reshape(-1, channels)

        def products(total: jax.Array, patches: jax.Array, images: jax.Array) -> tuple[jax.Array, jax.Array]:
            # The transpose of the kernel's gradient: twice as fast on a CPU.
            dkernel = jnp.dot(images.reshape(-1, channels).T, patches, precision=precision)
            return total + dkernel, jnp.dot(patches, rotated, precision=precision)

        sides = zip((height, width), padding, strict=True)
        pads = [(side - 1 - before, side - 1 - after) for side, (before, after) in sides]
        start = jnp.zeros((channels, height * width * features), kernel.dtype)
        dkernel, dimages = _scan_patches(products, start, d, (height, width), pads, images)
        dkernel = dkernel.reshape(channels, height, width, features).transpose(1, 2, 0, 3)
        return dimages, dkernel[::-1, ::-1]

    convolve.defvjp(lambda images, kernel: (convolve(images, kernel), (images, kernel)), backward)
    return convolve(inputs, kernel)


def _scan_patches(function: Any, carry: Any, images: jax.Array, kernel: Any, padding: Any, *others: jax.Array) -> Any:
    """Scan a function over chunks of the images, as patches, and of the other arrays; return the carry and images."""
    # Pad all images at once: otherwise XLA fuses the padding into each slice of a patch.
    padded = jnp.pad(images, ((0, 0), *padding, (0, 0)))
    count, channels = len(images), images.shape[-1]
    rows, columns = (length - side + 1 for length, side in zip(padded.shape[1:3], kernel, strict=True))
    positions = list(np.ndindex(*kernel))
    fitting = _CACHE_BYTES // (rows * columns * len(positions) * channels * images.dtype.itemsize)
    size = _chunk_size(count, max(2, fitting))  # XLA copies arrays to give them an axis of length 1

    def body(carry: Any, chunks: Any) -> Any:
        (patches, carry), (padded, *others) = carry, chunks
        for n, (i, j) in enumerate(positions):
            covered = padded[:, i : i + rows, j : j + columns]
            patches = jax.lax.dynamic_update_slice(patches, covered, (0, 0, 0, n * channels))
        carry, results = function(carry, patches.reshape(-1, patches.shape[-1]), *others)
        return (patches, carry), results

    # Overwritten in each iteration: concatenating slices takes one more copy.
    patches = jnp.zeros((size, rows, columns, len(positions) * channels), images.dtype)
    chunks = [array.reshape(-1, size, *array.shape[1:]) for array in (padded, *others)]
    (_, carry), results = jax.lax.scan(body, (patches, carry), chunks)
    return carry, results.reshape(count, rows, columns, -1)


class _Winograd:
    """Winograd's algorithm, F(4×4, 3×3) and F(4×4, 5×5), which needs 4 and 6.25 times fewer multiplications.

    A tile of the image and the kernel are polynomials, which are multiplied through their values at n points. Each
    transform is a product with a constant matrix, which also pads the image and cuts it into tiles. XLA would fuse sums
    of slices into the loops over their results, and compute them many times over.
    """

    _TILE = 4  # results per side
    _POINTS = (0, 1, -1, 0.5, -0.5, 2, -2)  # and infinity

    @staticmethod
    def pays(kernel: Any, strides: Any) -> bool:
        """Whether the products save more time than the transforms take, by measurement: not with few channels."""
        height, width, channels, features = kernel
        square = height == width and height in (3, 5) and tuple(strides) == (1, 1)
        return square and bool(min(channels, features) * height >= 80)

    def __init__(self, size: Any, kernel: Any, padding: Any, precision: Any) -> None:
        side, _, channels, self._features = kernel
        self._precision = precision
        self._n = n = self._TILE + side - 1
        points = np.array(self._POINTS[: n - 1])[:, None]

        def values(coefficients: int) -> np.ndarray:
            """Return the matrix (points × coefficients) that evaluates a polynomial at the points."""
            return np.vstack([points ** np.arange(coefficients), np.eye(coefficients)[-1]])

        of_tile = np.linalg.inv(values(n)).T
        scale = np.abs(of_tile).max(1, keepdims=True)
        self._of_kernel, self._of_results = values(side) * scale, values(self._TILE).T
        self._shape = [length + sum(pads) - side + 1 for length, pads in zip(size, padding, strict=True)]
        self._tiles = [-(-length // self._TILE) for length in self._shape]
        self._of_lines = [
            self._of_line(of_tile / scale, *line) for line in zip(size, self._tiles, padding, strict=True)
        ]
        self.intermediates = n * n * math.prod(self._tiles) * channels  # numbers per image

    def _of_line(self, of_tile: np.ndarray, length: int, tiles: int, padding: tuple[int, int]) -> np.ndarray:
        """Return the matrix ((n · tiles) × length) that transforms each tile of a line as if it were padded."""
        n, before = self._n, padding[0]
        matrix = np.zeros((n, tiles, before + tiles * self._TILE + n + length))
        for tile in range(tiles):
            matrix[:, tile, tile * self._TILE :][:, :n] = of_tile
        return matrix[..., before : before + length].reshape(-1, length)

    def matrices(self, kernel: jax.Array) -> jax.Array:
        """Return a matrix of channels × features for each of the n × n products."""
        n, side = self._of_kernel.shape
        half = _left(self._of_kernel, kernel.reshape(1, side, -1))
        return _left(self._of_kernel, half.reshape(n, side, -1)).reshape(n * n, *kernel.shape[2:])

    # Axes are transposed outside the loop over chunks: inside it, XLA fuses transposes with reshapes and computes the
    # position of every single number.

    def enter(self, chunks: jax.Array) -> jax.Array:
        return chunks.transpose(0, 2, 3, 1, 4)

    def leave(self, chunks: jax.Array) -> jax.Array:
        x = chunks.transpose(0, 5, 4, 1, 3, 2, 6)
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


# Gradients are written out because JAX's own would swap the factors and transpose large arrays.


def _products(a: jax.Array, b: jax.Array, precision: Any) -> jax.Array:
    """Multiply each pair of matrices."""

    def product(a: jax.Array, b: jax.Array, over: tuple[int, int]) -> jax.Array:
        return jax.lax.dot_general(a, b, (((over[0],), (over[1],)), ((0,), (0,))), precision=precision)

    @jax.custom_vjp
    def products(a: jax.Array, b: jax.Array) -> jax.Array:
        return product(a, b, (2, 1))

    products.defvjp(
        lambda a, b: (product(a, b, (2, 1)), (a, b)),
        lambda factors, d: (product(d, factors[1], (2, 2)), product(factors[0], d, (1, 1))),
    )
    return products(a, b)


def _left(constant: np.ndarray, matrices: jax.Array) -> jax.Array:
    """Multiply each of the matrices by a constant matrix from the left."""

    def times(constant: np.ndarray, matrices: jax.Array) -> jax.Array:
        many = jnp.broadcast_to(jnp.asarray(constant, matrices.dtype), (len(matrices), *constant.shape))
        return jax.lax.dot_general(many, matrices, (((2,), (1,)), ((0,), (0,))))

    @jax.custom_vjp
    def product(matrices: jax.Array) -> jax.Array:
        return times(constant, matrices)

    product.defvjp(lambda matrices: (times(constant, matrices), None), lambda _, d: (times(constant.T, d),))
    return product(matrices)
