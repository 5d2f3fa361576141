"""Dropout by random bytes, which kernels and plain JAX compute in the same way, so that trials do not differ."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp


def random_bytes(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw four bytes from each random word; ``jax.random.bits`` would draw a word for each byte."""
    count = math.prod(shape)
    words = jax.random.bits(key, (-(-count // 4),), jnp.uint32)
    return jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(-1)[:count].reshape(shape)


def dropped(values: jax.Array, noise: jax.Array, drop: int) -> jax.Array:
    """Drop each value whose random byte is below ``drop``, and divide the others by the probability of keeping them.

    This is computed in float32, because a factor in bfloat16 would be off by up to 0.4%.
    """
    return jnp.where(noise >= drop, values.astype(jnp.float32) * (256 / (256 - drop)), 0).astype(values.dtype)
