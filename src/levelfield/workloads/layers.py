"""Layers and losses that several workloads share."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from levelfield.errors import UsageError


def max_pool(inputs: jax.Array) -> jax.Array:
    """The largest of each 2×2 window: by reshape, which is faster than ``reduce_window``, its gradient above all."""
    batch, height, width, channels = inputs.shape
    return inputs.reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))


class BatchNorm(nn.Module):
    """Normalisation of each channel over a batch; with ``ghost``, over each group of so many examples.

    The running averages take the mean over the groups, and the variance without bias, as TensorFlow's and PyTorch's do.
    """

    decay: float
    epsilon: float = 1e-5
    ghost: int | None = None

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool) -> jax.Array:
        channels = inputs.shape[-1:]
        scale = self.param("scale", nn.initializers.ones, channels)
        bias = self.param("bias", nn.initializers.zeros, channels)
        mean = self.variable("batch_stats", "mean", jnp.zeros, channels)
        variance = self.variable("batch_stats", "variance", jnp.ones, channels)
        if not train:
            return (inputs - mean.value) * (scale * jax.lax.rsqrt(variance.value + self.epsilon)) + bias

        groups = self._groups(len(inputs))
        x = inputs.reshape(groups, len(inputs) // groups, *inputs.shape[1:])
        count = x.size // (groups * x.shape[-1])
        normal, means, variances = _normalised(x, scale, bias, self.epsilon)
        self._follow(mean, means)
        self._follow(variance, variances * (count / max(count - 1, 1)))
        return normal.reshape(inputs.shape)

    def _groups(self, examples: int) -> int:
        if self.ghost is None or examples <= self.ghost:
            return 1
        if examples % self.ghost:
            raise UsageError(
                f"a batch of {examples} is no multiple of the ghost batch of {self.ghost}: choose a batch size that is"
            )
        return examples // self.ghost

    def _follow(self, average: Any, found: jax.Array) -> None:
        average.value = self.decay * average.value + (1 - self.decay) * found.reshape(-1, found.shape[-1]).mean(0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _normalised(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> tuple[jax.Array, ...]:
    """(groups, examples, …, channels) normalised, and its means and variances, which no gradient goes through.

    The gradient is written out: of arrays as large as x, it keeps x alone.
    """
    return _normalise(x, scale, bias, epsilon)[0]


def _normalise(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> tuple[Any, Any]:
    axes = tuple(range(1, x.ndim - 1))
    wide = x.astype(jnp.float32)
    # Both means in one pass over the data; rounding may take their difference below zero.
    means, squares = wide.mean(axes, keepdims=True), jnp.square(wide).mean(axes, keepdims=True)
    variances = jnp.maximum(squares - jnp.square(means), 0)
    inverse = jax.lax.rsqrt(variances + epsilon)
    normal = (x - means) * (scale * inverse) + bias
    return (normal.astype(x.dtype), means, variances), (x, scale, means, inverse)


def _normalise_back(epsilon: float, kept: Any, by: Any) -> tuple[jax.Array, ...]:
    x, scale, means, inverse = kept
    axes, outer = tuple(range(1, x.ndim - 1)), tuple(range(x.ndim - 1))
    d, normal = by[0].astype(jnp.float32), (x - means) * inverse
    by_bias, by_scale = d.sum(axes, keepdims=True), (d * normal).sum(axes, keepdims=True)
    count = x.size // by_bias.size
    by_x = (d - by_bias / count - normal * (by_scale / count)) * (scale * inverse)
    return by_x.astype(x.dtype), by_scale.sum(outer), by_bias.sum(outer)


_normalised.defvjp(_normalise, _normalise_back)


class Dropout(nn.Module):
    """Each input is kept with probability 1 − rate while training, and divided by that.

    16 random bits decide about one input, half of what flax's layer draws: in an LSTM they take much of the time.
    """

    rate: float

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool) -> jax.Array:
        if not train:
            return inputs
        words = jax.random.bits(self.make_rng("dropout"), (-(-inputs.size // 2),), jnp.uint32)
        halves = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(-1)[: inputs.size]
        kept = halves.reshape(inputs.shape) >= round(self.rate * 2**16)
        return jnp.where(kept, inputs / (1 - self.rate), 0)


class LSTM(nn.Module):
    """A layer of long short-term memory, gates in the order i, f, g, o as in PyTorch."""

    units: int
    input_init: Any = nn.initializers.lecun_normal()
    recurrent_init: Any = nn.initializers.orthogonal()
    bias_init: Any = nn.initializers.zeros

    def setup(self) -> None:
        self.input = nn.Dense(4 * self.units, kernel_init=self.input_init, bias_init=self.bias_init)
        self.recurrent = self.param("recurrent", self.recurrent_init, (self.units, 4 * self.units))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """(batch, time, features) → (batch, time, units), from zero state."""
        return self.recur(self.project(inputs))

    def project(self, inputs: jax.Array) -> jax.Array:
        """The inputs' share of the gates: one product, outside the loop over time."""
        return self.input(inputs)

    def recur(self, projected: jax.Array) -> jax.Array:
        """(batch, time, gates) → (batch, time, units), from zero state."""
        zero = jnp.zeros((len(projected), self.units), projected.dtype)
        return self.resume((zero, zero), projected)[1]

    def resume(self, carry: Any, projected: jax.Array) -> tuple[Any, jax.Array]:
        """From the state (h, c) that earlier inputs left: the state after these, and the outputs."""
        last, outputs = _recurrence(self.recurrent, carry, projected.swapaxes(0, 1))
        return last, outputs.swapaxes(0, 1)


@jax.custom_vjp
def _recurrence(weights: jax.Array, start: Any, projected: jax.Array) -> tuple[Any, jax.Array]:
    """The state (h, c) after all of (time, batch, gates), and h after each.

    The gradient is written out for the sake of the weights' share in it: one product over the whole time, where the
    derivative of a scan would add a matrix up in every step.
    """
    return _forth(weights, start, projected)[0]


def _forth(weights: jax.Array, start: Any, projected: jax.Array) -> tuple[Any, Any]:
    def cell(carry: Any, x: jax.Array) -> tuple[Any, Any]:
        h, c = carry
        i, f, g, o = jnp.split(x + h @ weights, 4, axis=-1)
        i, f, g, o = nn.sigmoid(i), nn.sigmoid(f), jnp.tanh(g), nn.sigmoid(o)
        new = f * c + i * g
        h = o * jnp.tanh(new)
        return (h, new), (h, (c, i, f, g, o))

    last, (outputs, steps) = jax.lax.scan(cell, start, projected, unroll=_at_once())
    return (last, outputs), (weights, start[0], last[1], outputs, steps)


def _at_once() -> int:
    """How many steps a turn of the loop takes: on a GPU, starting a turn costs as much as a step."""
    return 1 if jax.default_backend() == "cpu" else 5


def _back(kept: Any, by: Any) -> tuple[jax.Array, Any, jax.Array]:
    """From the loss's derivatives (d…) by what came out, those by what went in."""
    weights, h, c, outputs, steps = kept
    (dh, dc), doutputs = by

    def cell(carry: Any, x: Any) -> tuple[Any, jax.Array]:
        dh, dc, c = carry
        doutput, (before, i, f, g, o) = x
        dh, squashed = dh + doutput, jnp.tanh(c)
        dc = dc + dh * o * (1 - squashed**2)
        di, df, dg, do = dc * g, dc * before, dc * i, dh * squashed
        dgates = jnp.concatenate([di * i * (1 - i), df * f * (1 - f), dg * (1 - g**2), do * o * (1 - o)], -1)
        return (dgates @ weights.T, dc * f, before), dgates

    (dh, dc, _), dgates = jax.lax.scan(cell, (dh, dc, c), (doutputs, steps), reverse=True, unroll=_at_once())
    before = jnp.concatenate([h[None], outputs[:-1]])
    return jnp.einsum("tbh,tbg->hg", before, dgates), (dh, dc), dgates


_recurrence.defvjp(_forth, _back)


def cross_entropy(logits: jax.Array, labels: jax.Array, smoothing: Any = None) -> jax.Array:
    """The mean cross-entropy; with smoothing τ, against (1 − τ) on the label and τ spread evenly over all classes."""
    hard = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    if smoothing is None:
        return hard
    return (1 - smoothing) * hard - smoothing * jax.nn.log_softmax(logits).mean()


def regularised(loss: jax.Array, params: Any, hyperparameters: Mapping[str, Any]) -> jax.Array:
    """The loss with λ/2 ‖w‖² over matrices and kernels, not biases or scales, if the study names ``l2``."""
    if "l2" not in hyperparameters:
        return loss
    squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
    return loss + 0.5 * hyperparameters["l2"] * sum(squares)


def classification_error(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """1 for each example whose label has not the largest logit, else 0; where n tie, 1 − 1/n.

    XLA on a CPU takes nearly 30 times longer for an argmax than for a maximum.
    """
    largest = logits.max(-1, keepdims=True)
    right = jnp.take_along_axis(logits, labels[..., None], -1) == largest  # never, where there is a NaN
    tied = (logits == largest).sum(-1, keepdims=True)
    return 1 - (right / jnp.maximum(tied, 1))[..., 0]


def classification_metrics(logits: jax.Array, labels: jax.Array) -> Mapping[str, jax.Array]:
    """Cross-entropy and error of each example."""
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": loss, "error": classification_error(logits, labels)}
