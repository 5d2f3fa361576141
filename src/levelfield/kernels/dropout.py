"""Dropout with random bytes, which kernels and plain JAX compute in the same way, so that trials do not differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

_LOOPS = 8  # in which words are drawn on a CPU


def random_bytes(key: jax.Array, shape: tuple[int, ...], count: int) -> list[jax.Array]:
    """Draw ``count`` arrays of random bytes.

    With JAX's own generator, a GPU would need more than three times as many instructions, which would take longer than
    storing the bytes.
    """
    size, own = math.prod(shape), jax.random.bits(key, (2,), jnp.uint32)

    def draw(number: jax.Array) -> list[jax.Array]:
        zero = jnp.zeros_like(number)
        words = [word for group in range(-(-count // 4)) for word in philox((number, zero + group, zero, zero), own)]
        return words[:count]

    # On a CPU, XLA would compute each word anew for each of its uses, if there were no loop between.
    loops = _LOOPS if jax.default_backend() == "cpu" else 1
    number = lax.iota(jnp.uint32, loops * -(-size // (4 * loops)))
    words = draw(number) if loops == 1 else lax.map(draw, number.reshape(loops, -1))
    return [lax.bitcast_convert_type(word, jnp.uint8).reshape(-1)[:size].reshape(shape) for word in words]


def philox(counter: Sequence[jax.Array], key: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Return four random words for each counter of four words: Philox4x32-10 of Salmon et al. 2011."""
    (a, b, c, d), (first, second) = counter, key
    for _ in range(10):
        (high, low), (other_high, other_low) = _product(a, 0xD2511F53), _product(c, 0xCD9E8D57)
        a, b, c, d = other_high ^ b ^ first, other_low, high ^ d ^ second, low
        first, second = first + jnp.uint32(0x9E3779B9), second + jnp.uint32(0xBB67AE85)
    return a, b, c, d


def _product(word: jax.Array, factor: int) -> tuple[jax.Array, jax.Array]:
    """Return the upper and the lower half of a product of 64 bits.

    ``lax.mulhi`` does not compile for several devices.
    """
    with jax.enable_x64(True):
        wide = word.astype(jnp.uint64) * jnp.uint64(factor)
        return (wide >> jnp.uint64(32)).astype(jnp.uint32), wide.astype(jnp.uint32)


def dropped(values: jax.Array, noise: jax.Array, drop: int) -> jax.Array:
    """Drop each value whose random byte is below ``drop``, and divide the others by the probability of keeping them.

    This is computed in float32, because a factor in bfloat16 would be off by up to 0.4%.
    """
    return jnp.where(noise >= drop, values.astype(jnp.float32) * (256 / (256 - drop)), 0).astype(values.dtype)
