"""Each trial's order of the data: a pseudo-random permutation that is computed index by index.

Nothing is sorted or stored: any position in any epoch takes a few integer operations. The permutation is the
swap-or-not shuffle (Hoang, Morris and Rogaway 2012): each round pairs x with k − x (mod n) and swaps the pair if a hash
of it says so, which is a bijection of 0 … n−1 for every n.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

_ROUNDS = 24


def _mix(x: Any) -> jax.Array:
    """Hash a 32-bit integer (the finalizer of MurmurHash3)."""
    x = jnp.asarray(x, jnp.uint32)
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def permute(seed: Any, positions: Any, n: int) -> jax.Array:
    """Map positions through a seed's permutation of range(n). Seed and positions are broadcast."""
    size = jnp.uint32(n)

    def swap_or_not(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, state = carry
        state = _mix(state + jnp.uint32(0x9E3779B9))
        k = state % size
        partner = jnp.where(k >= x, k - x, k + size - x)
        swap = _mix(jnp.maximum(x, partner) ^ state) >> 31
        return jnp.where(swap == 1, partner, x), state

    positions, state = jnp.broadcast_arrays(jnp.asarray(positions, jnp.uint32), _mix(seed))
    return jax.lax.fori_loop(0, _ROUNDS, swap_or_not, (positions, state))[0].astype(jnp.int32)


def batch_indices(seed: Any, steps: jax.Array, n: int, batch_size: int) -> jax.Array:
    """Return the examples in each step's batch: without replacement within an epoch, in a new order in each epoch.

    An epoch is n // batch_size whole batches; the few examples left over differ from epoch to epoch.
    """
    batches = n // batch_size
    epochs, within = jnp.divmod(steps, batches)
    positions = within[:, None] * batch_size + jnp.arange(batch_size)
    return permute(_mix(seed) + epochs[:, None].astype(jnp.uint32), positions, n)
