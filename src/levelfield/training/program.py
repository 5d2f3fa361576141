"""The compiled program of one optimizer on one workload: slots that train side by side on the device.

A slot holds one trial. Its training is a pure function of its hyperparameters, its seed and the data, so
nothing in it depends on the slot, its neighbours or how many there are. Hyperparameters are traced: one
compilation serves every trial. Slots are spread over all local devices.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from levelfield.errors import StudyError
from levelfield.rules import Rule
from levelfield.training.order import batch_indices
from levelfield.training.schedules import schedule
from levelfield.workloads import Data, Workload

Hyper = dict[str, Any]
_SPLIT, _WHOLE = PartitionSpec("slots"), PartitionSpec()


class Job(NamedTuple):
    """What a program trains: everything about a trial except its hyperparameters and its seed."""

    workload: Workload
    rule: Rule
    schedule: str
    steps: int
    batch_size: int
    eval_interval: int
    traced: tuple[str, ...]  # hyperparameters that differ from trial to trial
    static: tuple[tuple[str, Any], ...] = ()  # hyperparameters that shape the program


class Slot(NamedTuple):
    """The state of a trial in flight; in a program every array has a leading axis of slots."""

    step: Any
    seed: Any
    hyperparameters: Hyper
    params: Any
    state: Any
    optimizer: Any


def use_every_core() -> None:
    """Let JAX on a CPU see one device a core: slots on devices of their own use the cores best.

    Only before JAX has started, and only where the user has not chosen a number.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    with suppress(RuntimeError):  # JAX runs already: its devices are what they are
        jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))


class _Common:
    """What the programs of all rules share on a workload: its data, initialisation and evaluation."""

    def __init__(self, workload: Workload, slots: int) -> None:
        devices = jax.local_devices()
        count = max(n for n in range(1, min(slots, len(devices)) + 1) if slots % n == 0)
        self.mesh = Mesh(np.array(devices[:count]), ("slots",))
        self.split = NamedSharding(self.mesh, _SPLIT)
        self.data: Data = jax.device_put(load_data(workload), NamedSharding(self.mesh, _WHOLE))

        # Trials start on one device: initialisers that call LAPACK, as the orthogonal one does, can wait for
        # each other forever when several CPU devices run them at once.
        init = jax.jit(jax.vmap(lambda seed: workload.init(_key(seed, 0, 0))))
        seeds = jax.ShapeDtypeStruct((slots,), jnp.uint32)
        self.model = self.shapes(jax.eval_shape(init, seeds))  # (params, state)
        self.init = init.lower(seeds).compile()

        @self.on_slots
        def evaluate(model: Any, data: Data) -> jax.Array:
            return jax.vmap(functools.partial(_evaluate, workload), in_axes=(0, None))(model, data)

        self.evaluate = jax.jit(evaluate).lower(self.model, self.data).compile()

    def on_slots(self, function: Any) -> Any:
        """A function of slots and data, run where the slots are."""
        return jax.shard_map(function, mesh=self.mesh, in_specs=(_SPLIT, _WHOLE), out_specs=_SPLIT, check_vma=False)

    def shapes(self, tree: Any) -> Any:
        """The tree's shapes, split over the devices."""
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.split), tree)


class Program:
    """``fill`` puts trials into slots; ``advance`` trains all slots to their next evaluation."""

    def __init__(self, job: Job, slots: int) -> None:
        self.job, self.slots = job, slots
        self.metrics = tuple(job.workload.metrics)
        check_batch_size(job.workload, job.batch_size)
        self._common = common = _common(job.workload, slots)

        def fill(held: Slot, fresh: jax.Array, seeds: jax.Array, hyperparameters: Hyper, model: Any) -> Slot:
            started = jax.vmap(functools.partial(_start, job))(seeds, hyperparameters, model)

            def choose(new: jax.Array, old: jax.Array) -> jax.Array:
                return jnp.where(fresh.reshape(-1, *[1] * (new.ndim - 1)), new, old)

            return jax.tree.map(choose, started, held)

        @common.on_slots
        def train(held: Slot, data: Any) -> Slot:
            return jax.vmap(functools.partial(_train, job), in_axes=(0, None))(held, data)

        def of(dtype: Any) -> Any:
            return common.shapes(jax.ShapeDtypeStruct((slots,), dtype))

        numbers = dict.fromkeys(job.traced, of(jnp.float32))
        start = jax.vmap(functools.partial(_start, job))
        self._held = common.shapes(jax.eval_shape(start, of(jnp.uint32), numbers, common.model))
        # Compiled here, so that what follows is training alone.
        arguments = (self._held, of(jnp.bool), of(jnp.uint32), numbers, common.model)
        self._fill = jax.jit(fill, donate_argnums=0).lower(*arguments).compile()
        self._train = jax.jit(train, donate_argnums=0).lower(self._held, common.data.train).compile()

    def empty(self) -> Slot:
        """Slots that hold nothing yet."""
        return jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), self._held)

    def fill(self, held: Slot, fresh: np.ndarray, seeds: np.ndarray, hyperparameters: Hyper) -> Slot:
        """Start trials in the slots where ``fresh`` is true; the others stay as they are."""
        seeds = seeds.astype(np.uint32)
        numbers = {name: np.asarray(value, np.float32) for name, value in hyperparameters.items()}
        arguments = jax.device_put((fresh, seeds, numbers, self._common.init(seeds)), self._common.split)
        return self._fill(held, *arguments)

    def advance(self, held: Slot) -> tuple[Slot, np.ndarray]:
        """Train every slot to its next evaluation: the slots, and their metrics (slots × metrics)."""
        held = self._train(held, self._common.data.train)
        return held, np.asarray(self._common.evaluate((held.params, held.state), self._common.data))


@functools.lru_cache(maxsize=32)
def program(job: Job, slots: int) -> Program:
    """The program of a job: compiled once in a process."""
    return Program(job, slots)


@functools.lru_cache(maxsize=8)
def _common(workload: Workload, slots: int) -> _Common:
    return _Common(workload, slots)


def _transformation(job: Job, hyperparameters: Mapping[str, Any]) -> optax.GradientTransformation:
    own = {name: hyperparameters[name] for name in job.rule.hyperparameters if name in hyperparameters}
    rate = schedule(job.schedule, job.steps, hyperparameters)
    found: optax.GradientTransformation = job.rule(**own | dict(job.static) | {"learning_rate": rate})
    return found


def _key(seed: Any, purpose: int, step: Any) -> Any:
    """A trial's randomness: one stream for initialisation (0), drawn batches (1) and the loss (2)."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), step)


def _start(job: Job, seed: Any, hyperparameters: Hyper, model: tuple[Any, Any]) -> Slot:
    optimizer = _transformation(job, hyperparameters).init(model[0])
    return Slot(jnp.zeros((), jnp.int32), seed, hyperparameters, *model, optimizer)


def _step(job: Job, slot: Slot, batch: Any, key: Any) -> Slot:
    gradients, state = jax.grad(job.workload.loss, has_aux=True)(
        slot.params, slot.state, batch, key, slot.hyperparameters
    )
    transformation = _transformation(job, slot.hyperparameters)
    updates, optimizer = transformation.update(gradients, slot.optimizer, slot.params)
    params = optax.apply_updates(slot.params, updates)
    return slot._replace(step=slot.step + 1, params=params, state=state, optimizer=optimizer)


def _train(job: Job, slot: Slot, train: Any) -> Slot:
    """One slot's steps to its next evaluation."""
    steps = slot.step + jnp.arange(min(job.eval_interval, job.steps))
    leaves = jax.tree.leaves(train)
    # The whole stretch's indices at once, outside the loop: nothing to do there but gather.
    indices = batch_indices(slot.seed, steps, len(leaves[0]), job.batch_size) if leaves else steps

    def body(slot: Slot, indices: jax.Array) -> tuple[Slot, None]:
        if job.workload.draw:
            batch = job.workload.draw(_key(slot.seed, 1, slot.step), job.batch_size)
        else:
            batch = jax.tree.map(lambda array: array[indices], train)
        trained = _step(job, slot, batch, _key(slot.seed, 2, slot.step))
        if job.steps % job.eval_interval == 0:
            return trained, None
        # The last stretch is shorter than the others: stand still after the last step.
        going = slot.step < job.steps
        return jax.tree.map(lambda new, old: jnp.where(going, new, old), trained, slot), None

    return jax.lax.scan(body, slot, indices)[0]


def _evaluate(workload: Workload, model: tuple[Any, Any], data: Data) -> jax.Array:
    """One slot's metrics, in the order in which the workload declares them."""
    found = {
        f"{split}_{name}": mean
        for split, arrays in data.evaluation.items()
        for name, mean in _means(functools.partial(workload.evaluate, *model), arrays).items()
    }
    return jnp.stack([found[name] for name in workload.metrics]).astype(jnp.float32)


def _means(evaluate: Any, arrays: Any) -> Mapping[str, Any]:
    """The means of the metrics over all examples, a chunk at a time."""
    leaves = jax.tree.leaves(arrays)
    # Small chunks stay in a CPU's cache; a GPU wants large ones.
    most = 64 if jax.default_backend() == "cpu" else 1024
    if not leaves or len(leaves[0]) <= most:
        return evaluate(arrays)
    n = len(leaves[0])
    chunk = next((c for c in range(most, most // 2, -1) if n % c == 0), most)
    whole = n // chunk
    chunks = jax.tree.map(lambda a: a[: whole * chunk].reshape(whole, chunk, *a.shape[1:]), arrays)
    total = jax.tree.map(lambda each: each.sum(0) * chunk, jax.lax.map(evaluate, chunks))
    if rest := n - whole * chunk:
        last = evaluate(jax.tree.map(lambda a: a[-rest:], arrays))
        total = jax.tree.map(lambda sum, mean: sum + rest * mean, total, last)
    return jax.tree.map(lambda sum: sum / n, total)


def check_batch_size(workload: Workload, batch_size: int) -> None:
    examples = jax.tree.leaves(load_data(workload).train)
    if examples and batch_size > len(examples[0]):
        raise StudyError(
            f"batch_size = {batch_size} exceeds the {len(examples[0])} training examples of {workload.name}: lower it"
        )


@functools.lru_cache(maxsize=8)
def load_data(workload: Workload) -> Data:
    return workload.load()
