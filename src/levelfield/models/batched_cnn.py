"""The "Simple CNN" for many trials at once, with kernels for a GPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from levelfield.kernels.pooled_convolution import (
    first_kernel_gradient,
    input_gradient,
    kernel_gradient,
    pooled_convolution,
    spread,
)
from levelfield.kernels.products import batched_product


def forward(params: Any, state: Any, images: jax.Array, *, dtype: Any) -> tuple[jax.Array, Any]:
    """Return the logits (slots, examples, classes) and the state, which stays empty."""
    x = pooled_first_layer(images.astype(dtype), params["Conv_0"]["kernel"], params["bias_0"])
    x = pooled_layer(x, params["Conv_1"]["kernel"], params["bias_1"])
    x = jax.nn.relu(_dense(x.reshape(*x.shape[:2], -1), params["Dense_0"])).astype(dtype)
    return _dense(x, params["Dense_1"]), state


def _dense(x: jax.Array, params: Any) -> jax.Array:
    return batched_product(x, params["kernel"], jnp.float32) + params["bias"][:, None]


@jax.custom_vjp
def pooled_layer(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Convolve, pool by the maximum, add the bias and apply ReLU."""
    return pooled_convolution(x, kernel, bias)[0]


def _layer_forward(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> tuple[jax.Array, Any]:
    out, winners = pooled_convolution(x, kernel, bias)
    return out, (x, kernel, winners)


def _layer_backward(residuals: Any, d: jax.Array) -> tuple[jax.Array, ...]:
    x, kernel, winners = residuals
    dy, dbias = spread(d, winners)
    return input_gradient(dy, kernel), kernel_gradient(x, dy, size=kernel.shape[1]), dbias


pooled_layer.defvjp(_layer_forward, _layer_backward)


@jax.custom_vjp
def pooled_first_layer(images: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Compute the same from images with one channel, which get no gradient."""
    return pooled_convolution(images, kernel, bias)[0]


def _first_layer_backward(residuals: Any, d: jax.Array) -> tuple[jax.Array, ...]:
    images, kernel, winners = residuals
    return jnp.zeros_like(images), *first_kernel_gradient(images, d, winners, size=kernel.shape[1])


pooled_first_layer.defvjp(_layer_forward, _first_layer_backward)
