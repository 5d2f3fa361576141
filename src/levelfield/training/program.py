"""The compiled program of one optimizer on one workload: slots that train side by side on the device.

A slot holds one trial. Training is a pure function of the trial's hyperparameters, its seed and the data, so it
depends neither on the slot nor on its neighbors or, beyond rounding, on their number. Hyperparameters are traced, so
one compilation serves every trial. Slots are spread over all local devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from time import perf_counter, process_time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from levelfield.data import Data, Pass, Stream
from levelfield.kernels import pallas
from levelfield.training.devices import out_of_memory
from levelfield.training.feeds import Feeds
from levelfield.training.options import evaluated_weights
from levelfield.training.precision import products
from levelfield.training.step import Hyper, Job, Slot, gradients_of, options_of, start, train, train_on, trial_key
from levelfield.workload import Evaluate, Precision, Workload

_SPLIT, _WHOLE = PartitionSpec("slots"), PartitionSpec()
_CHUNK_ON_GPU = 1024  # examples evaluated at once


class _Common:
    """What the programs of all rules share on a workload: data, initialization and evaluation."""

    def __init__(self, workload: Workload, slots: int, precision: Precision) -> None:
        devices = jax.local_devices()
        count = max(n for n in range(1, min(slots, len(devices)) + 1) if slots % n == 0)
        self.mesh = Mesh(np.array(devices[:count]), ("slots",))
        self.split = NamedSharding(self.mesh, _SPLIT)
        train, evaluation = load_data(workload)
        self.stream = train if isinstance(train, Stream) else None
        self.passes = {split: content for split, content in evaluation.items() if isinstance(content, Pass)}
        self.train, self.held = _on_devices(workload, self.mesh)
        self.metrics = tuple(workload.metrics)

        # Initialize on one device: initializers that call LAPACK, such as the orthogonal one, can deadlock if several
        # CPU devices run them at once.
        init = jax.jit(jax.vmap(lambda seed: workload.init(trial_key(seed, 0, 0))))
        seeds = jax.ShapeDtypeStruct((slots,), jnp.uint32)
        self.model = self.shapes(jax.eval_shape(init, seeds))  # (params, state)
        self.init = init.lower(seeds).compile()

        def evaluate_batch(model: Any, batch: Any) -> Any:
            with products(precision):
                return _totals(_evaluate_of(workload, precision)(model[0], model[1], batch))

        self._workload, self._precision = workload, precision
        self._evaluate_batch = jax.jit(self.on_slots(evaluate_batch))

    @functools.cached_property
    def evaluation(self) -> Any:
        """The compiled evaluation on the splits in memory; compiling it can take longer than the loop over steps."""
        return with_or_without_kernels(self._workload.batched_evaluate, self._evaluation)

    def _evaluation(self) -> Any:
        def evaluate(model: Any, splits: Any) -> Any:
            with products(self._precision):
                return metrics_of_slots(self._workload, self._precision, model, splits)

        return jax.jit(self.on_slots(evaluate)).lower(self.model, self.held).compile()

    def on_slots(self, function: Any, data: PartitionSpec = _WHOLE) -> Any:
        """Return the function of slots and data, run on the devices of the slots."""
        return jax.shard_map(function, mesh=self.mesh, in_specs=(_SPLIT, data), out_specs=_SPLIT, check_vma=False)

    def evaluate(self, model: Any) -> np.ndarray:
        """Return the metrics of all slots (slots × metrics)."""
        totals = dict(jax.device_get(self.evaluation(model, self.held)))
        for split, content in self.passes.items():
            for batch in content.batches(_CHUNK_ON_GPU):
                for name, (more, values) in jax.device_get(self._evaluate_batch(model, batch)).items():
                    total, count = totals.get(f"{split}_{name}", (0.0, 0))
                    totals[f"{split}_{name}"] = total + more.astype(np.float64), count + values
        # Divide on the host: XLA would multiply by 1/n, and 280 errors of 2,000 would not be exactly 14%.
        means = {name: np.float64(total) / count for name, (total, count) in totals.items()}
        return np.stack([means[name].astype(np.float32) for name in self.metrics], axis=1)

    def shapes(self, tree: Any) -> Any:
        """Return the shapes of a tree, split over the devices."""
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.split), tree)


class Program:
    """``fill`` and ``restore`` put trials into slots; ``advance`` trains all slots to their next evaluation.

    If its trials are to be ``evaluated``, the evaluation is compiled right away, too.
    """

    def __init__(self, job: Job, slots: int, *, evaluated: bool = False) -> None:
        self.job, self.slots = job, slots
        self.step_seconds = 0.0
        self.metrics = tuple(job.workload.metrics)
        self._common = common = _common(job.workload, slots, job.precision)
        interval = min(job.eval_interval, job.steps)
        self._feeds = Feeds(common.stream, slots, job.batch_size, interval, job.steps) if common.stream else None

        def fill(held: Slot, fresh: jax.Array, seeds: jax.Array, hyperparameters: Hyper, model: Any) -> Slot:
            started = jax.vmap(functools.partial(start, job))(seeds, hyperparameters, model)

            def choose(new: jax.Array, old: jax.Array) -> jax.Array:
                return jnp.where(fresh.reshape(-1, *[1] * (new.ndim - 1)), new, old)

            return jax.tree.map(choose, started, held)

        def of(dtype: Any) -> Any:
            return common.shapes(jax.ShapeDtypeStruct((slots,), dtype))

        numbers = dict.fromkeys(job.traced, of(jnp.float32))
        started = jax.vmap(functools.partial(start, job))
        self._held = common.shapes(jax.eval_shape(started, of(jnp.uint32), numbers, common.model))
        # Compile now, so that timing what follows measures training alone.
        empty = functools.partial(jax.tree.map, lambda x: jnp.zeros(x.shape, x.dtype), self._held)
        self._empty = jax.jit(empty, out_shardings=common.split).lower().compile()
        arguments = (self._held, of(jnp.bool), of(jnp.uint32), numbers, common.model)
        self._fill = jax.jit(fill, donate_argnums=0, out_shardings=common.split).lower(*arguments).compile()
        self._train = with_or_without_kernels(job.workload.batched, self._compiled)
        weights = evaluated_weights(job.rule, self._held.optimizer, options_of(job, numbers))
        if evaluated:
            _ = common.evaluation
        self._weights = weights and jax.jit(jax.vmap(weights)).lower(self._held).compile()

    def _compiled(self) -> Any:
        """Compile the loop over the steps to the next evaluation."""
        common, gradients = self._common, gradients_of(self.job.workload, self.job.precision)
        if self._feeds:
            batches = common.shapes(self._feeds.shapes)
            loop = common.on_slots(functools.partial(train_on, self.job, gradients), _SPLIT)
        else:
            batches = common.train
            loop = common.on_slots(functools.partial(train, self.job, gradients))
        return jax.jit(loop, donate_argnums=0, out_shardings=common.split).lower(self._held, batches).compile()

    def empty(self) -> Slot:
        """Return slots without trials."""
        slots: Slot = self._empty()
        return slots

    def fill(self, held: Slot, fresh: np.ndarray, seeds: np.ndarray, hyperparameters: Hyper) -> Slot:
        """Start trials in the slots where ``fresh`` is true; the others stay unchanged."""
        seeds = seeds.astype(np.uint32)
        numbers = {name: np.asarray(value, np.float32) for name, value in hyperparameters.items()}
        if self._feeds:
            for slot in map(int, np.flatnonzero(fresh)):
                self._feeds.open(slot, int(seeds[slot]))
        arguments = jax.device_put((fresh, seeds, numbers, self._common.init(seeds)), self._common.split)
        return self._fill(held, *arguments)

    def snapshot(self, held: Slot) -> np.ndarray:
        """Return the state of all slots as bytes (slots × bytes)."""
        leaves = [np.ascontiguousarray(leaf) for leaf in jax.device_get(jax.tree.leaves(held)) if leaf.size]
        return np.concatenate([leaf.reshape(self.slots, -1).view(np.uint8) for leaf in leaves], axis=1)

    def restore(self, held: Slot, saved: Mapping[int, np.ndarray]) -> Slot:
        """Continue trials in these slots, each from its row of a snapshot; the others stay unchanged."""
        content = self.snapshot(held)
        jax.tree.map(lambda leaf: leaf.delete(), held)  # the device may have no room for both
        for slot, row in saved.items():
            content[slot] = row
        shapes, structure = jax.tree.flatten(self._held)
        ends = np.cumsum([leaf.size // self.slots * leaf.dtype.itemsize for leaf in shapes])
        parts = np.split(content, ends[:-1], axis=1)
        leaves = [
            np.ascontiguousarray(part).view(shape.dtype).reshape(shape.shape)
            for part, shape in zip(parts, shapes, strict=True)
        ]
        restored: Slot = jax.tree.unflatten(structure, leaves)
        if self._feeds:
            for slot in saved:
                self._feeds.open(slot, int(restored.seed[slot]), int(restored.step[slot]))
        return jax.device_put(restored, self._common.split)

    @property
    def shapes(self) -> dict[str, str]:
        """The shape and type of everything that a snapshot has."""
        leaves = jax.tree_util.tree_leaves_with_path(self._held)
        return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}

    @property
    def failures(self) -> Mapping[int, tuple[str, str]]:
        """The slots whose data could not be read, and why: the reason and its details."""
        return self._feeds.failures if self._feeds else {}

    def leave(self, slot: int) -> None:
        """Stop reading data for a slot whose trial has ended."""
        if self._feeds:
            self._feeds.close(slot)

    def advance(self, held: Slot) -> tuple[Slot, np.ndarray]:
        """Train every slot to its next evaluation; return the slots and their metrics (slots × metrics).

        ``step_seconds`` is then how long a step of one slot took. Empty slots take as long as full ones.
        """
        jax.block_until_ready(held)
        begun = self._device_clock()
        held = jax.block_until_ready(self.train(held))
        self.step_seconds = (self._device_clock() - begun) / (self.slots * min(self.job.eval_interval, self.job.steps))
        return held, self.evaluate(held)

    def train(self, held: Slot) -> Slot:
        """Train every slot to its next evaluation, without evaluating it."""
        if not self._feeds:
            return self._train(held, self._common.train)
        for batches in self._feeds.until_evaluation():
            coming = jax.device_put(batches, self._common.split)
            jax.block_until_ready(held.step)  # otherwise batches would pile up on the device
            held = self._train(held, coming)
        return held

    def evaluate(self, held: Slot) -> np.ndarray:
        """Return the metrics of all slots (slots × metrics)."""
        params = self._weights(held) if self._weights else held.params
        return self._common.evaluate((params, held.state))

    def _device_clock(self) -> float:
        """Return the seconds that a device has had for its work.

        On a CPU, this is processor time, because other programs take turns on the same cores.
        """
        return process_time() / self.devices if jax.default_backend() == "cpu" else perf_counter()

    @property
    def devices(self) -> int:
        return int(self._common.mesh.size)

    @property
    def text(self) -> str:
        """The loop over the steps as XLA compiled it."""
        return str(self._train.as_text())

    @property
    def memory(self) -> int:
        """The bytes that a device needs to train its slots, according to the compiler; 0 if it does not say."""
        sizes: Any = self._train.memory_analysis()
        if sizes is None:
            return 0
        needed = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
        return int(needed - sizes.alias_size_in_bytes)


@functools.lru_cache(maxsize=32)
def program(job: Job, slots: int) -> Program:
    """Return the program of a job; it is compiled once per process."""
    return Program(job, slots, evaluated=True)


@functools.lru_cache(maxsize=8)
def _common(workload: Workload, slots: int, precision: Precision) -> _Common:
    return _Common(workload, slots, precision)


@functools.lru_cache(maxsize=8)
def _on_devices(workload: Workload, mesh: Mesh) -> Any:
    """Return the training data and evaluation splits that are not streamed, in one copy for all slots."""
    train, evaluation = load_data(workload)
    held = {split: content for split, content in evaluation.items() if not isinstance(content, Pass)}
    return jax.device_put((() if isinstance(train, Stream) else train, held), NamedSharding(mesh, _WHOLE))


def with_or_without_kernels(own: Any, compiled: Callable[[], Any]) -> Any:
    """Return what is compiled: without kernels if a workload has ``own`` functions that may use them, but cannot."""
    try:
        return compiled()
    except Exception as error:  # the toolchain of kernels raises errors of its own
        if not (own and pallas.available()) or out_of_memory(error):
            raise
        with pallas.given_up(error):
            return compiled()


def _own_evaluate(workload: Workload, precision: Precision) -> Evaluate | None:
    return workload.batched_evaluate(precision) if workload.batched_evaluate else None


def _evaluate_of(workload: Workload, precision: Precision) -> Evaluate:
    """Return the function that evaluates all slots here: the workload's own, if it has one."""
    return _own_evaluate(workload, precision) or _plain_evaluate(workload)


def _plain_evaluate(workload: Workload) -> Evaluate:
    """Return the workload's ``evaluate`` for all slots.

    A GPU evaluates one slot at a time, because many examples fill it and convolutions of one model are faster than
    grouped ones, but all slots side by side if the examples must be read in order.
    """
    if jax.default_backend() == "cpu" or workload.sequential:
        return jax.vmap(workload.evaluate, in_axes=(0, 0, None))

    def one_by_one(params: Any, state: Any, batch: Any) -> Mapping[str, Any]:
        return jax.lax.map(lambda model: workload.evaluate(model[0], model[1], batch), (params, state))

    return one_by_one


def metrics_of_slots(
    workload: Workload, precision: Precision, model: tuple[Any, Any], splits: Mapping[str, Any]
) -> Mapping[str, tuple[Any, Any]]:
    """Return the sum and the number of values of each metric on the splits in memory, for each slot."""
    own = _own_evaluate(workload, precision)
    evaluate = functools.partial(jax.jit(own or _plain_evaluate(workload)), *model)  # chunks share one trace
    # Small chunks stay in a CPU's cache. A GPU wants large ones, but no larger than batches if all slots are in memory.
    on_gpu = workload.batch_size if own else _CHUNK_ON_GPU
    size = 64 if jax.default_backend() == "cpu" else on_gpu
    return {
        f"{split}_{name}": total
        for split, arrays in splits.items()
        for name, total in (
            _totals(evaluate(arrays)) if workload.sequential else _totals_by_chunk(evaluate, arrays, size)
        ).items()
    }


def _totals(values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the sum and the number of each metric's values by slot. Sums of zeros and ones are exact in any order."""

    def total(value: jax.Array) -> tuple[jax.Array, jax.Array]:
        by_slot = value.reshape(len(value), -1)
        return by_slot.sum(1, dtype=jnp.float32), jnp.full(len(value), by_slot.shape[1], jnp.int32)

    return {name: total(value) for name, value in values.items()}


def _totals_by_chunk(evaluate: Any, arrays: Any, size: int) -> Mapping[str, Any]:
    """Evaluate at most ``size`` examples at a time. All chunks have one shape, so the last two may overlap."""
    leaves = jax.tree.leaves(arrays)
    if not leaves or len(leaves[0]) <= size:
        return _totals(evaluate(arrays))
    examples = len(leaves[0])
    chunks = -(-examples // size)
    size = -(-examples // chunks)
    count, rest = divmod(examples, size)
    whole = jax.tree.map(lambda a: a[: count * size].reshape(count, size, *a.shape[1:]), arrays)
    total = jax.tree.map(lambda sums: sums.sum(0), jax.lax.map(lambda chunk: _totals(evaluate(chunk)), whole))
    if rest:
        values = evaluate(jax.tree.map(lambda a: a[-size:], arrays))
        total = jax.tree.map(jnp.add, total, _totals({name: value[:, -rest:] for name, value in values.items()}))
    return total


@functools.lru_cache(maxsize=8)
def load_data(workload: Workload) -> Data:
    return workload.load()
