"""How large a workload's gradients are where training starts."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from levelfield.space import Hyperparameters
from levelfield.training.program import Job, _key, load_data

_SEEDS = 4


def gradient_scale(job: Job, hyperparameters: Hyperparameters) -> float:
    """The size of a gradient's entries at initialisation, each weighted by its share of the squared norm.

    It is the size that decides how large an ε must be to drown the second moment: the small entries of a
    gradient are many, but they hardly move anything.
    """
    workload = job.workload
    train = load_data(workload).train

    def scale(seed: jax.Array) -> jax.Array:
        params, state = workload.init(_key(seed, 0, 0))
        if workload.draw:
            batch = workload.draw(_key(seed, 1, 0), job.batch_size)
        else:
            batch = jax.tree.map(lambda array: array[: job.batch_size], train)
        gradients = jax.grad(workload.loss, has_aux=True)(params, state, batch, _key(seed, 2, 0), hyperparameters)[0]
        entries = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(gradients)])
        largest = jnp.max(jnp.abs(entries))  # fourth powers of small numbers vanish in float32
        return largest * jnp.sqrt(jnp.sum((entries / largest) ** 4) / jnp.sum((entries / largest) ** 2))

    measured = jax.jit(scale)
    return float(sum(measured(jnp.uint32(seed)) for seed in range(_SEEDS)) / _SEEDS)
