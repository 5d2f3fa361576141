"""How many slots train fastest on a device: measured by training for a moment, once, and kept in the cache.

Results do not depend on it, except for rounding. Whatever is in the cache stays, so that a resumed run rounds like an
uninterrupted one.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import jax
import numpy as np

from levelfield.files import replacing
from levelfield.training.devices import device_memory, out_of_memory
from levelfield.training.program import Program
from levelfield.training.step import Job

_STEPS = 20  # trained at once, or more with few slots
_TRIAL_STEPS = 100  # trained at once, at least
_SECONDS = 1.0  # measured at least
_FACTOR = 4  # between two candidates
_GAIN = 1.05  # more slots must be faster by this factor, because they need more memory
_PATIENCE = 2  # candidates in a row that are no faster, after which no more are tried

Rates = dict[int, float]  # slots per device → trial-steps per second; 0 if they do not fit


def fastest(rates: Rates, measure: Callable[[int], float], most: int) -> int:
    """Return the number of slots with which ``most`` trials take the least time.

    ``rates`` has what was measured before; what it does not have is measured and added. The candidates are the powers
    of four, ``most`` itself, and then the numbers halfway between the best of them and its neighbors.
    """

    def rate(slots: int) -> float:
        if slots not in rates:
            rates[slots] = measure(slots)
        rounds = -(-most // slots)  # in the last one, some slots may have no trial
        return rates[slots] * most / (rounds * slots)

    tried, best, slower = [1], 1, 0
    while rate(tried[-1]) and tried[-1] < most and slower < _PATIENCE:
        tried.append(min(_FACTOR * tried[-1], most))
        best, slower = (tried[-1], 0) if rate(tried[-1]) > _GAIN * rate(best) else (best, slower + 1)
    place = tried.index(best)
    if place + 1 < len(tried) and rate(more := math.isqrt(best * tried[place + 1])) > _GAIN * rate(best):
        return more
    return fewer if place and _GAIN * rate(fewer := math.isqrt(best * tried[place - 1])) >= rate(best) else best


def measured(job: Job, values: Mapping[str, float], file: Path | None, most: int) -> int:
    """Return the fastest number of slots of a device for a job. ``file`` keeps the measurements, if there is one."""
    kept: Rates = {}
    if file:
        with suppress(OSError, ValueError, AttributeError):
            kept = {int(slots): float(rate) for slots, rate in json.loads(file.read_text()).items()}

    def measure(slots: int) -> float:
        try:
            rate = training_rate(job, values, slots)
        except jax.errors.JaxRuntimeError as error:
            if not out_of_memory(error):
                raise
            return 0.0  # not kept, because other programs may have had the memory
        kept[slots] = rate
        if file:  # after each one, because a run that is interrupted need not compile it again
            with suppress(OSError), replacing(file) as temporary:
                temporary.write_text(json.dumps(kept))
        return rate

    return fastest(dict(kept), measure, most)


def training_rate(job: Job, values: Mapping[str, float], slots: int) -> float:
    """Return the trial-steps per second with this many slots on each device; 0 if they can never fit into memory."""
    steps = max(_STEPS, _TRIAL_STEPS // slots)
    brief = job._replace(steps=2**12 * steps, eval_interval=steps)
    count = slots * jax.local_device_count()
    program = Program(brief, count)
    if program.memory > device_memory():
        return 0.0
    numbers = {name: np.full(count, float(values[name])) for name in job.traced}
    held = program.fill(program.empty(), np.ones(count, bool), np.arange(count), numbers)
    held = jax.block_until_ready(program.train(held))
    begun, stretches = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begun) < _SECONDS:
        held = jax.block_until_ready(program.train(held))
        stretches += 1
    return stretches * steps * count / elapsed
