"""What surrounds a rule in training: the options of any optimizer, and which weights are evaluated."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import ScheduleFreeState, schedule_free_eval_params

from levelfield.rules import Rule

Weights = Callable[[Any], Any]  # from a slot


def with_options(
    rule: optax.GradientTransformation, learning_rate: Any, options: Mapping[str, Any]
) -> optax.GradientTransformationExtraArgs:
    """Return the rule with the options that are set. ``learning_rate`` is a number or a function of the step."""
    rule = _taking_what_it_asks_for(rule)
    parts = [rule]
    if "clip_norm" in options:
        parts.insert(0, optax.clip_by_global_norm(options["clip_norm"]))
    if "weight_decay" in options:
        parts.append(_weight_decay(options["weight_decay"], learning_rate))
    return optax.with_extra_args_support(optax.chain(*parts) if len(parts) > 1 else rule)


def _taking_what_it_asks_for(rule: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Return the rule with an update that ignores what it does not ask for, unlike that of optax.contrib.sam."""
    rule = optax.with_extra_args_support(rule)
    parameters = inspect.signature(rule.update).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return rule
    asked = {parameter.name for parameter in parameters}

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return rule.update(gradients, state, params, **{name: extra[name] for name in asked & extra.keys()})

    return optax.GradientTransformationExtraArgs(rule.init, update)


def _weight_decay(decay: Any, learning_rate: Any) -> optax.GradientTransformation:
    """Subtract learning rate · λ · w from the update of matrices and kernels, not of biases and scales.

    The decay is decoupled: it does not pass through the rule.
    """
    rate = (lambda step: -learning_rate(step) * decay) if callable(learning_rate) else -learning_rate * decay
    return optax.add_decayed_weights(rate, mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params))


def start_average(params: Any, options: Mapping[str, Any]) -> Any:
    """Return the moving average of the weights before the first step; nothing if the option is not set."""
    return jax.tree.map(jnp.zeros_like, params) if "ema_decay" in options else ()


def averaged(average: Any, params: Any, options: Mapping[str, Any]) -> Any:
    """Return the moving average after another step."""
    if "ema_decay" not in options:
        return ()
    decay = options["ema_decay"]
    return jax.tree.map(lambda mean, leaf: decay * mean + (1 - decay) * leaf, average, params)


def evaluated_weights(rule: Rule, state: Any, options: Collection[str]) -> Weights | None:
    """Return the function that computes the weights to evaluate from a slot; None if they are those that are trained.

    ``state`` is the optimizer's, or its shapes. Schedule-free optimizers do not train at the weights that they end
    with. They are recognized by their state, so that a custom rule that wraps one is evaluated where it should be, too.
    """
    if "ema_decay" in options:
        return _average
    if (evaluated := rule.evaluated) is not None:
        return lambda slot: evaluated(slot.optimizer, slot.params)
    if _schedule_free(state) is not None:
        return lambda slot: schedule_free_eval_params(_schedule_free(slot.optimizer), slot.params)
    return None


def _average(slot: Any) -> Any:
    """Like Adam's moments, the average starts from zero, and the division corrects for it."""
    decay = slot.hyperparameters["ema_decay"]
    return jax.tree.map(lambda mean: mean / (1 - decay**slot.step), slot.average)


def _schedule_free(state: Any) -> ScheduleFreeState | None:
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, ScheduleFreeState))
    return next((node for node in nodes if isinstance(node, ScheduleFreeState)), None)


def without_keys(state: Any) -> Any:
    """Return an optimizer's state with typed random keys as plain numbers, so that it can be stored like the rest."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, state)


def with_keys(state: Any, template: Any) -> Any:
    """Undo ``without_keys``; the template has the types."""
    return jax.tree.map(lambda leaf, like: jax.random.wrap_key_data(leaf) if _is_key(like) else leaf, state, template)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
