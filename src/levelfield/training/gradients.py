"""The size of a workload's gradients at the start of training."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from levelfield.data import Stream
from levelfield.space import Hyperparameters
from levelfield.training.program import load_data
from levelfield.training.step import Job, trial_key

_SEEDS = 4
_EXAMPLES = 64  # of a batch: enough for the size of its gradient


def gradient_scale(job: Job, hyperparameters: Hyperparameters) -> float:
    """Measure the size of a gradient's entries at initialization, each weighted by its share of the squared norm.

    This size decides how large an ε must be to dominate the second moment: the small entries of a gradient are many,
    but they hardly move anything.
    """
    workload = job.workload
    train = load_data(workload).train
    if isinstance(train, Stream):
        first = next(train.batches(0, min(job.batch_size, _EXAMPLES)))
    elif workload.sequential:
        first = jax.tree.map(lambda array: array[0], train)
    else:
        first = jax.tree.map(lambda array: array[: min(job.batch_size, _EXAMPLES)], train)

    def scale(seed: jax.Array) -> jax.Array:
        params, state = workload.init(trial_key(seed, 0, 0))
        batch = workload.draw(trial_key(seed, 1, 0), job.batch_size) if workload.draw else first
        gradient = jax.grad(workload.loss, has_aux=True)
        gradients, _ = gradient(params, state, batch, trial_key(seed, 2, 0), hyperparameters)
        entries = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(gradients)])
        largest = jnp.max(jnp.abs(entries))  # fourth powers of small numbers vanish in float32
        return largest * jnp.sqrt(jnp.sum((entries / largest) ** 4) / jnp.sum((entries / largest) ** 2))

    # It runs only a few times: compiling it well would take longer than running it.
    measured = jax.jit(scale, compiler_options={"xla_backend_optimization_level": "0"})
    return float(sum(measured(jnp.uint32(seed)) for seed in range(_SEEDS)) / _SEEDS)
