"""One step of training, and the loop over steps, for all slots of a device at once.

The gradients of all slots come from one function, so that a workload can compute them in kernels of its own. Everything
else is written for one slot and batched over all slots: the trial's data, its random keys, its rule and the options
around it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from levelfield.options import OPTIONS
from levelfield.rules import Rule
from levelfield.schedules import schedule
from levelfield.training.options import averaged, start_average, with_keys, with_options, without_keys
from levelfield.training.precision import in_precision, products
from levelfield.training.shuffle import batch_indices
from levelfield.workload import Gradients, Precision, Workload

Hyper = dict[str, Any]


class Job(NamedTuple):
    """Everything that defines a program: a trial without its hyperparameters and its seed."""

    workload: Workload
    rule: Rule
    schedule: str
    steps: int
    batch_size: int
    eval_interval: int
    traced: tuple[str, ...]  # hyperparameters that differ from trial to trial
    static: tuple[tuple[str, Any], ...] = ()  # hyperparameters that shape the program
    precision: Precision = "tf32"


class Slot(NamedTuple):
    """The state of a running trial; in a program, every array has a leading axis of slots."""

    step: Any
    seed: Any
    hyperparameters: Hyper
    params: Any
    state: Any
    optimizer: Any
    average: Any  # of the weights, if the study asks for it


def trial_key(seed: Any, purpose: int, step: Any) -> Any:
    """Return a key of a trial's random stream: initialization (0), drawn batches (1) or the loss (2)."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), step)


def start(job: Job, seed: Any, hyperparameters: Hyper, model: tuple[Any, Any]) -> Slot:
    """Return a slot before the first step; ``model`` has its parameters and state."""
    average = start_average(model[0], options_of(job, hyperparameters))
    slot = Slot(jnp.zeros((), jnp.int32), seed, hyperparameters, *model, (), average)
    return slot._replace(optimizer=without_keys(_transformation(job, slot).init(slot.params)))


def gradients_of(workload: Workload, precision: Precision) -> Gradients:
    """Return the function that computes the gradients of all slots here: the workload's own, if it has one."""
    own = workload.batched(precision) if workload.batched else None
    return own or plain_gradients(workload, precision)


def plain_gradients(workload: Workload, precision: Precision) -> Gradients:
    """Return the gradients of the loss, batched over slots."""

    def gradients(params: Any, state: Any, batch: Any, keys: Any, hyperparameters: Any) -> tuple[Any, Any, Any]:
        gradient = jax.vmap(jax.value_and_grad(in_precision(workload.loss, precision), has_aux=True))
        (losses, state), found = gradient(params, state, batch, keys, hyperparameters)
        return losses, found, state

    return gradients


def train(job: Job, gradients: Gradients, slots: Slot, data: Any) -> Slot:
    """Train all slots to their next evaluation."""
    phases = jnp.arange(min(job.eval_interval, job.steps))
    leaves = jax.tree.leaves(data)

    def order(slot: Slot) -> jax.Array:
        """Return which examples each step takes. They are computed outside the loop, which then only gathers."""
        steps = slot.step + phases
        if job.workload.sequential:
            return steps % len(leaves[0])
        return batch_indices(slot.seed, steps, len(leaves[0]), job.batch_size) if leaves else steps

    def drawn(slot: Slot) -> Any:
        assert job.workload.draw
        return job.workload.draw(trial_key(slot.seed, 1, slot.step), job.batch_size)

    def body(slots: Slot, now: tuple[jax.Array, jax.Array]) -> tuple[Slot, None]:
        indices, phase = now
        batch = jax.vmap(drawn)(slots) if job.workload.draw else jax.tree.map(lambda array: array[indices], data)
        return step(job, gradients, slots, batch, phase), None

    with products(job.precision):
        return jax.lax.scan(body, slots, (jax.vmap(order, out_axes=1)(slots), phases))[0]


def train_on(job: Job, gradients: Gradients, slots: Slot, batches: Any) -> Slot:
    """Train all slots on these batches (slots × steps × batch × …)."""

    def body(slots: Slot, batch: Any) -> tuple[Slot, None]:
        return step(job, gradients, slots, batch, None), None

    by_step = jax.tree.map(lambda array: array.swapaxes(0, 1), batches)
    with products(job.precision):
        return jax.lax.scan(body, slots, by_step)[0]


def step(job: Job, gradients: Gradients, slots: Slot, batch: Any, phase: Any) -> Slot:
    """Train all slots by one step. ``phase`` counts the steps since the last evaluation, None if they are streamed."""
    objective = in_precision(job.workload.loss, job.precision)
    keys = jax.vmap(lambda slot: trial_key(slot.seed, 2, slot.step))(slots)
    losses, found, state = gradients(slots.params, slots.state, batch, keys, slots.hyperparameters)

    def update(slot: Slot, batch: Any, key: Any, value: Any, gradients: Any, state: Any) -> Slot:
        def loss(params: Any, obj_fn: Any = None, phase: Any = None, interval: Any = None) -> Any:
            """optax's line searches pass it those of the arguments below that they do not know."""
            return objective(params, slot.state, batch, key, slot.hyperparameters)[0]

        transformation = _transformation(job, slot)
        updates, optimizer = transformation.update(
            gradients,
            with_keys(slot.optimizer, jax.eval_shape(transformation.init, slot.params)),
            slot.params,
            # Some transformations ask for these. The phase, unlike the step, is the same in all slots: code that
            # branches on it runs only one of its branches.
            value=value,
            grad=gradients,
            value_fn=loss,
            obj_fn=loss,
            phase=phase,
            interval=job.eval_interval,
        )
        params = optax.apply_updates(slot.params, updates)
        trained = slot._replace(
            step=slot.step + 1,
            params=params,
            state=state,
            optimizer=without_keys(optimizer),
            average=averaged(slot.average, params, options_of(job, slot.hyperparameters)),
        )
        if job.steps % job.eval_interval == 0:
            return trained
        # The last stretch is shorter than the others: change nothing after the last step.
        unfinished = slot.step < job.steps
        return jax.tree.map(lambda new, old: jnp.where(unfinished, new, old), trained, slot)

    return jax.vmap(update)(slots, batch, keys, losses, found, state)


def started(job: Job) -> Slot:
    """Return the shapes of a slot before the first step."""

    def fresh(seed: Any, numbers: Hyper) -> Slot:
        return start(job, seed, numbers, job.workload.init(trial_key(seed, 0, 0)))

    seed, number = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.uint32, jnp.float32))
    shapes: Slot = jax.eval_shape(fresh, seed, dict.fromkeys(job.traced, number))
    return shapes


def one_step(job: Job, batch: Any) -> Slot:
    """Return the shapes of an array of slots, of which there is one, after a step on a batch of these shapes."""

    def of_one(seeds: Any, numbers: Hyper, batches: Any) -> Slot:
        models = jax.vmap(lambda seed: job.workload.init(trial_key(seed, 0, 0)))(seeds)
        slots = jax.vmap(lambda *arguments: start(job, *arguments))(seeds, numbers, models)
        return step(job, gradients, slots, batches, jnp.zeros((), jnp.int32))

    def gradients(params: Any, state: Any, batch: Any, keys: Any, hyperparameters: Hyper) -> Any:
        own = {name: hyperparameters[name] for name in job.workload.hyperparameters if name in hyperparameters}
        return _traced_gradients(job.workload, job.precision)(params, state, batch, keys, own)

    seeds, numbers = (jax.ShapeDtypeStruct((1,), dtype) for dtype in (jnp.uint32, jnp.float32))
    batches = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), batch)
    shapes: Slot = jax.eval_shape(of_one, seeds, dict.fromkeys(job.traced, numbers), batches)
    return shapes


@functools.lru_cache(maxsize=8)
def _traced_gradients(workload: Workload, precision: Precision) -> Gradients:
    """Return gradients that are traced once for all rules: tracing them takes longer than tracing a rule."""
    return jax.jit(plain_gradients(workload, precision))


def _transformation(job: Job, slot: Slot) -> optax.GradientTransformationExtraArgs:
    """The rule at a trial's hyperparameters, with the study's options."""
    values = dict(job.static) | {
        name: _scheduled(job, slot.hyperparameters, name)
        for name in job.rule.hyperparameters
        if name in slot.hyperparameters
    }
    if job.rule.seed_argument:
        values[job.rule.seed_argument] = slot.seed
    return with_options(job.rule(**values), values["learning_rate"], options_of(job, slot.hyperparameters))


def _scheduled(job: Job, hyperparameters: Hyper, name: str) -> Any:
    """Return the value of a hyperparameter. Every learning rate follows the schedule."""
    value, own = hyperparameters[name], job.rule.hyperparameters
    if name != "learning_rate" and own[name].group != "learning rate":
        return value
    others = {other: number for other, number in hyperparameters.items() if other not in own}
    return schedule(job.schedule, job.steps, others | {"learning_rate": value})


def options_of(job: Job, hyperparameters: Hyper) -> Hyper:
    """Return the options of any optimizer that the study sets, less those that the rule or the workload redefines."""
    own = job.rule.hyperparameters.keys() | job.workload.hyperparameters.keys()
    return {name: hyperparameters[name] for name in OPTIONS if name in hyperparameters and name not in own}
