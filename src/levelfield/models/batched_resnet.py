"""Residual networks for many trials at once, with kernels for a GPU.

This computes what a convolution and ``resnet.Stages`` of ``Basic`` blocks compute, with a leading axis of slots in all
arrays. Batch normalization is fused into the convolutions around it, which batching single operations could not do.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from levelfield.kernels.convolution import (
    Normalization,
    activated_convolution,
    convolution,
    input_gradient,
    kernel_gradient,
)

_EPSILON = 1e-5  # added to variances


class Activations(NamedTuple):
    """The outputs of a layer, with the statistics by which the next normalization normalizes them.

    The statistics are (slots, channels). They pass no gradient.
    """

    values: jax.Array  # (slots, images, height, width, channels)
    mean: jax.Array
    variance: jax.Array

    @classmethod
    def of(cls, values: jax.Array, sums: jax.Array) -> Activations:
        """Take the statistics from the sums of the values and of their squares (slots, 2, channels)."""
        mean, square = jnp.moveaxis(sums, 1, 0) / (values.size // sums[:, 0].size)
        return cls(values, mean, jnp.maximum(square - jnp.square(mean), 0))  # rounding may make it negative

    @property
    def number(self) -> int:
        """The number of values of each channel."""
        return self.values.size // self.mean.size

    def normalization(self, parameters: Any) -> Normalization:
        return _normalization(parameters, {"mean": self.mean, "variance": self.variance})

    def averaged(self, old: Any, decay: float) -> Any:
        """Return the updated running averages of a normalization, with the unbiased variance."""
        new = {"mean": self.mean, "variance": self.variance * (self.number / max(self.number - 1, 1))}
        return jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, old, new)


def forward(params: Any, state: Any, images: jax.Array, *, decay: float, dtype: Any) -> tuple[jax.Array, Any]:
    """Return the logits (slots, examples, classes) and the state with the updated averages of the normalizations."""
    stages, old = params["Stages_0"], state["batch_stats"]["Stages_0"]
    x = first_convolution(images.astype(dtype), params["Conv_0"]["kernel"])
    averages = {}
    for name in _blocks(stages):
        x, averages[name] = _block(x, stages[name], old[name], decay)
    averages["BatchNorm_0"] = x.averaged(old["BatchNorm_0"], decay)
    logits = _logits(_channels_last(normalized(x, stages["BatchNorm_0"])), stages["Dense_0"])
    return logits, {"batch_stats": {"Stages_0": averages}}


def _block(inputs: Activations, params: Any, old: Any, decay: float) -> tuple[Activations, Any]:
    """Compute a ``resnet.Basic`` block; return its outputs and the averages of its normalizations."""
    kernel = params["Conv_0"]["kernel"]
    if "projection" in params:
        both = normalized_convolution(inputs, params["BatchNorm_0"], _with_projection(params), None, 2)
        inner = Activations(*(array[..., : kernel.shape[-1]] for array in both))
        bypass = both.values[..., kernel.shape[-1] :]
    else:
        inner, bypass = normalized_convolution(inputs, params["BatchNorm_0"], kernel, None, 1), inputs.values
    averages = {
        "BatchNorm_0": inputs.averaged(old["BatchNorm_0"], decay),
        "BatchNorm_1": inner.averaged(old["BatchNorm_1"], decay),
    }
    return normalized_convolution(inner, params["BatchNorm_1"], params["Conv_1"]["kernel"], bypass, 1), averages


def evaluated(params: Any, state: Any, images: jax.Array) -> tuple[jax.Array, Any]:
    """Return the logits as in an evaluation, which normalizes by the averages, and the state, which stays as it is.

    As the averages are known, each convolution normalizes its own outputs and applies the next ReLU.
    """
    stages, averages = params["Stages_0"], state["batch_stats"]["Stages_0"]
    blocks = _blocks(stages)
    kernel = _in_fours(params["Conv_0"]["kernel"], 3)
    of_inputs = [_normalization(stages[name]["BatchNorm_0"], averages[name]["BatchNorm_0"]) for name in blocks]
    of_inputs.append(_normalization(stages["BatchNorm_0"], averages["BatchNorm_0"]))
    # A block without a projection adds its input as it is, before normalization.
    bypassed = [*("projection" not in stages[name] for name in blocks), False]
    activated, x = activated_convolution(_in_fours(images, 4), kernel, of_inputs[0], keep=bypassed[0])
    for name, following, keep in zip(blocks, of_inputs[1:], bypassed[1:], strict=True):
        block, kernel = stages[name], stages[name]["Conv_0"]["kernel"]
        normalization = _normalization(block["BatchNorm_1"], averages[name]["BatchNorm_1"])
        if "projection" in block:
            both, _ = convolution(activated, _with_projection(block), stride=2)
            inner, x = _activated(both[..., : kernel.shape[-1]], normalization), both[..., kernel.shape[-1] :]
        else:
            inner, _ = activated_convolution(activated, kernel, normalization)
        activated, x = activated_convolution(inner, block["Conv_1"]["kernel"], following, x, keep=keep)
    return _logits(activated, stages["Dense_0"]), state


def _blocks(stages: Any) -> list[str]:
    """Return the names of the blocks, in their order."""
    return [f"Basic_{number}" for number in range(sum(name.startswith("Basic_") for name in stages))]


def _with_projection(block: Any) -> jax.Array:
    """Return the kernels of a block's first convolution and of its projection as one.

    The projection reads what the center of the convolution reads: computed together, they load it once.
    """
    centered = jnp.pad(block["projection"]["kernel"], ((0, 0), (1, 1), (1, 1), (0, 0), (0, 0)))
    return jnp.concatenate([block["Conv_0"]["kernel"], centered], -1)


def _logits(activated: jax.Array, dense: Any) -> jax.Array:
    return jnp.einsum("snc,sck->snk", activated.mean((2, 3)), dense["kernel"]) + dense["bias"][:, None]


def _normalization(parameters: Any, statistics: Any) -> Normalization:
    inverse = jax.lax.rsqrt(statistics["variance"] + _EPSILON)
    return Normalization(statistics["mean"], inverse, parameters["scale"], parameters["bias"])


# Gradients are written by hand: those of a normalization include how its statistics depend on its input, so the
# statistics pass none.


@jax.custom_vjp
def first_convolution(images: jax.Array, kernel: jax.Array) -> Activations:
    """Convolve images of a few channels, which get no gradient."""
    return _first_forward(images, kernel)[0]


def _first_forward(images: jax.Array, kernel: jax.Array) -> tuple[Activations, Any]:
    images, padded = _in_fours(images, 4), _in_fours(kernel, 3)
    return Activations.of(*convolution(images, padded)), (images, kernel)


def _first_backward(residuals: Any, d: Activations) -> tuple[jax.Array, jax.Array]:
    images, kernel = residuals
    channels = kernel.shape[3]
    return jnp.zeros_like(images[..., :channels]), kernel_gradient(images, d.values)[..., :channels, :]


first_convolution.defvjp(_first_forward, _first_backward)


def _in_fours(array: jax.Array, axis: int) -> jax.Array:
    """Pad the channels with zeros to four: kernels want a power of two."""
    return jnp.pad(array, [(0, 4 - size if i == axis else 0) for i, size in enumerate(array.shape)])


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def normalized_convolution(
    x: Activations, parameters: Any, kernel: jax.Array, residual: jax.Array | None, stride: int
) -> Activations:
    """Normalize, apply ReLU, convolve and add the residual if there is one."""
    return _normalized_convolution_forward(x, parameters, kernel, residual, stride)[0]


def _normalized_convolution_forward(
    x: Activations, parameters: Any, kernel: jax.Array, residual: jax.Array | None, stride: int
) -> tuple[Activations, Any]:
    normalization = x.normalization(parameters)
    activated = _activated(x.values, normalization).astype(x.values.dtype)
    y = Activations.of(*convolution(activated, kernel, residual, stride=stride))
    return y, (x, activated, normalization, kernel, residual)


def _normalized_convolution_backward(stride: int, residuals: Any, d: Activations) -> tuple[Any, ...]:
    x, activated, normalization, kernel, residual = residuals
    dy = d.values
    masked, sums = input_gradient(dy, kernel, x.values, normalization, stride=stride)
    dx, dparameters = _normalization_gradient(masked, sums, x, normalization)
    dkernel = kernel_gradient(activated, dy, stride=stride)
    return dx, dparameters, dkernel, None if residual is None else dy


normalized_convolution.defvjp(_normalized_convolution_forward, _normalized_convolution_backward)


@jax.custom_vjp
def normalized(x: Activations, parameters: Any) -> jax.Array:
    """Normalize and apply ReLU."""
    return _activated(x.values, x.normalization(parameters))


def _normalized_forward(x: Activations, parameters: Any) -> tuple[jax.Array, Any]:
    normalization = x.normalization(parameters)
    return _activated(x.values, normalization), (x, normalization)


def _normalized_backward(residuals: Any, d: jax.Array) -> tuple[Any, Any]:
    x, normalization = residuals
    masked = jnp.where(_activated(x.values, normalization) > 0, d, 0)
    normal = (x.values - _wide(normalization.mean)) * _wide(normalization.inverse)
    sums = jnp.stack([masked.sum((1, 2, 3)), (masked * normal).sum((1, 2, 3))], 1)
    return _normalization_gradient(masked, sums, x, normalization)


normalized.defvjp(_normalized_forward, _normalized_backward)


def _activated(x: jax.Array, normalization: Normalization) -> jax.Array:
    slope, offset = normalization.affine
    return jax.nn.relu(x * _wide(slope) + _wide(offset))


def _normalization_gradient(
    d: jax.Array, sums: jax.Array, x: Activations, normalization: Normalization
) -> tuple[Activations, Any]:
    """Return the gradients with respect to x and the parameters, from those with respect to the normalized x.

    ``sums`` are those of d and of its product with the values, normalized without scale and bias.
    """
    mean, inverse, scale, _ = normalization
    dbias, dscale = sums[:, 0], sums[:, 1]
    slope = scale * inverse
    by_value = -slope * inverse * dscale / x.number
    offset = -slope * dbias / x.number - by_value * mean
    dx = d * _wide(slope) + x.values * _wide(by_value) + _wide(offset)
    gradients = Activations(dx.astype(x.values.dtype), jnp.zeros_like(x.mean), jnp.zeros_like(x.variance))
    return gradients, {"scale": dscale, "bias": dbias}


def _channels_last(x: jax.Array) -> jax.Array:
    """Keep x and its gradient in the layout that kernels use.

    XLA would make the axes over which a mean is taken the last ones, and transpose between that layout and that of the
    kernels throughout the last stage.
    """
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _wide(value: jax.Array) -> jax.Array:
    """Give (slots, channels) the axes of images."""
    return value[:, None, None, None, :]
