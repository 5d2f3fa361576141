"""Layers, losses and metrics that several networks share."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from levelfield.errors import UsageError
from levelfield.models.convolution import conv


def max_pool(inputs: jax.Array) -> jax.Array:
    """Pool 2×2 windows by reshaping, which is faster than ``reduce_window``, above all in its gradient."""
    batch, height, width, channels = inputs.shape
    return inputs.reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))


class BatchNorm(nn.Module):
    """Normalize each channel over a batch, or over groups of ``ghost`` examples of it.

    The running averages use the mean over the groups and the unbiased variance, as in TensorFlow and PyTorch.
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
            normalized = (inputs - mean.value) * (scale * jax.lax.rsqrt(variance.value + self.epsilon)) + bias
            return normalized.astype(inputs.dtype)

        groups = self._groups(len(inputs))
        x = inputs.reshape(groups, len(inputs) // groups, *inputs.shape[1:])
        count = x.size // (groups * x.shape[-1])
        normalized, means, variances = _normalized(x, scale, bias, self.epsilon)
        self._average(mean, means)
        self._average(variance, variances * (count / max(count - 1, 1)))
        return normalized.reshape(inputs.shape)

    def _groups(self, examples: int) -> int:
        if self.ghost is None or examples <= self.ghost:
            return 1
        if examples % self.ghost:
            raise UsageError(
                f"batch size {examples}: expected a multiple of {self.ghost}, the size of a ghost batch; "
                "choose another batch size"
            )
        return examples // self.ghost

    def _average(self, running: nn.Variable[jax.Array], groups: jax.Array) -> None:
        """Update a running average with the mean over the groups."""
        running.value = self.decay * running.value + (1 - self.decay) * groups.reshape(-1, groups.shape[-1]).mean(0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _normalized(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> tuple[jax.Array, ...]:
    """Normalize (groups, examples, …, channels); return also the means and variances, which pass no gradient.

    The gradient is written out because it then keeps only one array as large as x: x itself.
    """
    return _normalize(x, scale, bias, epsilon)[0]


def _normalize(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> tuple[Any, Any]:
    axes = tuple(range(1, x.ndim - 1))
    wide = x.astype(jnp.float32)
    # One pass over the data computes both means; rounding may make their difference negative.
    means, squares = wide.mean(axes, keepdims=True), jnp.square(wide).mean(axes, keepdims=True)
    variances = jnp.maximum(squares - jnp.square(means), 0)
    inverse = jax.lax.rsqrt(variances + epsilon)
    normalized = (x - means) * (scale * inverse) + bias
    return (normalized.astype(x.dtype), means, variances), (x, scale, means, inverse)


def _normalize_backward(epsilon: float, residuals: Any, derivatives: Any) -> tuple[jax.Array, ...]:
    x, scale, means, inverse = residuals
    axes, outer = tuple(range(1, x.ndim - 1)), tuple(range(x.ndim - 1))
    d, normal = derivatives[0].astype(jnp.float32), (x - means) * inverse
    dbias, dscale = d.sum(axes, keepdims=True), (d * normal).sum(axes, keepdims=True)
    count = x.size // dbias.size
    dx = (d - dbias / count - normal * (dscale / count)) * (scale * inverse)
    return dx.astype(x.dtype), dscale.sum(outer).astype(scale.dtype), dbias.sum(outer).astype(scale.dtype)


_normalized.defvjp(_normalize, _normalize_backward)


# The gradient of a parameter that is used many times adds up all of its uses. These layers do that in float32 even if
# the parameters are in bfloat16: numbers are added to a bias, and taken from a table, in float32, and then rounded.


def add_bias(inputs: jax.Array, bias: jax.Array) -> jax.Array:
    return (inputs.astype(jnp.float32) + bias.astype(jnp.float32)).astype(inputs.dtype)


def _with_wide_bias(inputs: Any, kernel: Any, bias: Any, dtype: Any) -> tuple[Any, Any, Any]:
    inputs, kernel = nn.dtypes.promote_dtype(inputs, kernel, dtype=dtype)
    return inputs, kernel, None if bias is None else bias.astype(jnp.float32)


class Dense(nn.Dense):
    """flax's linear layer."""

    promote_dtype: Any = _with_wide_bias

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return super().__call__(inputs).astype(inputs.dtype)


class Conv(nn.Conv):
    """flax's convolution, lowered for the platform."""

    promote_dtype: Any = _with_wide_bias
    conv_general_dilated: Any = conv

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return super().__call__(inputs).astype(inputs.dtype)


def lookup(table: jax.Array, indices: jax.Array) -> jax.Array:
    """Return rows of a table."""
    return table.astype(jnp.float32)[indices].astype(table.dtype)


class Embed(nn.Embed):
    """flax's embedding."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return lookup(self.embedding, inputs)


class Dropout(nn.Module):
    """Keep each input with probability 1 − rate during training, and divide it by that.

    This draws 16 random bits per input, half of what flax's layer draws: in an LSTM, drawing takes much of the time.
    """

    rate: float

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool) -> jax.Array:
        if not (train and self.rate):
            return inputs
        words = jax.random.bits(self.make_rng("dropout"), (-(-inputs.size // 2),), jnp.uint32)
        halves = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(-1)[: inputs.size]
        kept = halves.reshape(inputs.shape) >= round(self.rate * 2**16)
        return jnp.where(kept, inputs / (1 - self.rate), 0)


class LSTM(nn.Module):
    """A layer of long short-term memory, with gates in the order i, f, g, o as in PyTorch.

    The gates and the cell state are computed in float32, whatever the type of the inputs, the weights and the outputs.
    """

    units: int
    input_init: Any = nn.initializers.lecun_normal()
    recurrent_init: Any = nn.initializers.orthogonal()
    bias_init: Any = nn.initializers.zeros

    def setup(self) -> None:
        self.input = Dense(4 * self.units, kernel_init=self.input_init, bias_init=self.bias_init)
        self.recurrent = self.param("recurrent", self.recurrent_init, (self.units, 4 * self.units))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Map (batch, time, features) to (batch, time, units), from zero state."""
        return self.recur(self.project(inputs))

    def project(self, inputs: jax.Array) -> jax.Array:
        """Compute the inputs' contribution to the gates in one product, outside the loop over time."""
        return self.input(inputs)

    def recur(self, projected: jax.Array) -> jax.Array:
        """Map (batch, time, gates) to (batch, time, units), from zero state."""
        zero = jnp.zeros((len(projected), self.units))
        return self.resume((zero, zero), projected.swapaxes(0, 1))[1].swapaxes(0, 1)

    def resume(self, carry: Any, projected: jax.Array) -> tuple[Any, jax.Array]:
        """Continue from a state (h, c), over (time, batch, gates); return the state at the end, and the outputs."""
        h, c = carry
        start = h.astype(projected.dtype), c.astype(jnp.float32)
        return _recurrence(self.recurrent, start, projected)


@jax.custom_vjp
def _recurrence(weights: jax.Array, start: Any, projected: jax.Array) -> tuple[Any, jax.Array]:
    """Return the state (h, c) after all of (time, batch, gates), and h after each step.

    The gradient is written out because that of the weights is then one product over all steps; the derivative of a scan
    would add up a matrix in every step.
    """
    return _forward(weights, start, projected)[0]


def _forward(weights: jax.Array, start: Any, projected: jax.Array) -> tuple[Any, Any]:
    def cell(carry: Any, x: jax.Array) -> tuple[Any, Any]:
        h, c = carry
        i, f, g, o = jnp.split(x + _product(h, weights), 4, axis=-1)
        i, f, g, o = nn.sigmoid(i), nn.sigmoid(f), jnp.tanh(g), nn.sigmoid(o)
        new = f * c + i * g
        h = (o * jnp.tanh(new)).astype(x.dtype)
        return (h, new), (h, (c, i, f, g, o))

    final, (outputs, steps) = jax.lax.scan(cell, start, projected, unroll=_unrolled_steps())
    return (final, outputs), (weights, start[0], final[1], outputs, steps)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _unrolled_steps() -> int:
    """Return the number of steps per iteration of the loop: on a GPU, an iteration's overhead equals a step."""
    return 1 if jax.default_backend() == "cpu" else 5


def _backward(residuals: Any, derivatives: Any) -> tuple[jax.Array, Any, jax.Array]:
    """Map derivatives of the loss (d…) with respect to the results to those with respect to the arguments."""
    weights, h, c, outputs, steps = residuals
    (dh, dc), doutputs = derivatives

    def cell(carry: Any, x: Any) -> tuple[Any, jax.Array]:
        dh, dc, c = carry
        doutput, (before, i, f, g, o) = x
        dh, squashed = dh + doutput, jnp.tanh(c)
        dc = dc + dh * o * (1 - squashed**2)
        di, df, dg, do = dc * g, dc * before, dc * i, dh * squashed
        dgates = jnp.concatenate([di * i * (1 - i), df * f * (1 - f), dg * (1 - g**2), do * o * (1 - o)], -1)
        dgates = dgates.astype(weights.dtype)
        return (_product(dgates, weights.T), dc * f, before), dgates

    dh = dh.astype(jnp.float32)
    (dh, dc, _), dgates = jax.lax.scan(cell, (dh, dc, c), (doutputs, steps), reverse=True, unroll=_unrolled_steps())
    before = jnp.concatenate([h[None], outputs[:-1]])
    return jnp.einsum("tbh,tbg->hg", before, dgates), (dh.astype(h.dtype), dc), dgates


_recurrence.defvjp(_forward, _backward)


def cross_entropy(logits: jax.Array, labels: jax.Array, smoothing: Any = None) -> jax.Array:
    """Return the mean cross-entropy; smoothing by τ puts 1 − τ on the label and spreads τ over all classes."""
    logits = logits.astype(jnp.float32)
    hard = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    if smoothing is None:
        return hard
    return (1 - smoothing) * hard - smoothing * jax.nn.log_softmax(logits).mean()


def classification_error(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return 0 for each example whose label has the largest logit and 1 for the others; if n logits tie, 1 − 1/n.

    On a CPU, XLA takes nearly 30 times longer for an argmax than for a maximum.
    """
    largest = logits.max(-1, keepdims=True)
    right = jnp.take_along_axis(logits, labels[..., None], -1) == largest  # false if there is a NaN
    tied = (logits == largest).sum(-1, keepdims=True)
    return 1 - (right / jnp.maximum(tied, 1))[..., 0]


def classification_metrics(logits: jax.Array, labels: jax.Array) -> Mapping[str, jax.Array]:
    """Return the cross-entropy and error of each example."""
    logits = logits.astype(jnp.float32)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": loss, "error": classification_error(logits, labels)}
