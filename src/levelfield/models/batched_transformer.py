"""GPTs for many trials at once, with kernels for a GPU.

This computes what ``transformer.GPT`` computes in training, with a leading axis of slots in all arrays. Dropout, the
residual connections and the normalizations after them are fused, and attention never stores its scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from levelfield.kernels.attention import attention
from levelfield.kernels.cross_entropy import linear_cross_entropy, linear_logits
from levelfield.kernels.gelu import gelu
from levelfield.kernels.lookup import lookup
from levelfield.kernels.products import batched_product
from levelfield.kernels.residual import added_and_normalized
from levelfield.models.layers import classification_metrics
from levelfield.models.transformer import GPT
from levelfield.workload import Gradients


def gradients(net: GPT, dtype: Any) -> Gradients:
    """Return the gradients of many trials of a GPT, with activations of this type."""

    def compute(
        params: Any, state: Any, batch: jax.Array, keys: jax.Array, hyperparameters: Mapping[str, Any]
    ) -> tuple[jax.Array, Any, Any]:
        characters = batch.astype(jnp.int32)
        size, length = batch.shape[1], batch.shape[2] - 1
        noise = jax.vmap(lambda key: net.draw_noise(key, size, length))(keys)

        def total(params: Any) -> tuple[jax.Array, jax.Array]:
            outputs = _outputs(net, params, characters[..., :-1], noise, dtype)
            losses = linear_cross_entropy(outputs, params["embedding"].swapaxes(1, 2), None, characters[..., 1:])
            return losses.sum(), losses

        found, losses = jax.grad(total, has_aux=True)(params)
        return losses, found, state

    return compute


def evaluate(net: GPT, params: Any, state: Any, batch: jax.Array) -> Mapping[str, jax.Array]:
    """Evaluate many trials of a GPT on the same windows, in float32 with products in TF32."""
    slots = len(params["embedding"])
    characters = jnp.broadcast_to(batch.astype(jnp.int32), (slots, *batch.shape))
    outputs = _outputs(net, params, characters[..., :-1], None, jnp.float32)
    return classification_metrics(linear_logits(outputs, params["embedding"].swapaxes(1, 2), None), characters[..., 1:])


def _outputs(net: GPT, params: Any, characters: jax.Array, noise: Any, dtype: Any) -> jax.Array:
    table, positions = params["embedding"], params["position_embedding"]
    noise = noise or [None] * (1 + 2 * net.layers)
    embedded = (lookup(table, characters, dtype) + positions[:, None, : characters.shape[-1]]).astype(dtype)
    blocks = [params[f"Block_{layer}"] for layer in range(net.layers)]
    # One kernel adds each branch and normalizes the sum, with which the next branch, or the logits, begin.
    scales = [block[f"LayerNorm_{i}"]["scale"] for block in blocks for i in range(2)]
    scales.append(params["LayerNorm_0"]["scale"])
    x, normal = added_and_normalized(None, embedded, noise[0], scales[0], net.drop)
    for i, block in enumerate(blocks):
        for place, branch in enumerate((_attended, _hidden)):
            added = branch(net, block, normal, dtype)
            number = 1 + 2 * i + place
            x, normal = added_and_normalized(x, added, noise[number], scales[number], net.drop)
    return normal


def _attended(net: GPT, block: Any, x: jax.Array, dtype: Any) -> jax.Array:
    own = block["Attention_0"]
    kernels = jnp.concatenate([own[name] for name in ("query", "key", "value")], axis=2)
    return batched_product(attention(batched_product(x, kernels, dtype), net.heads), own["output"], dtype)


def _hidden(net: GPT, block: Any, x: jax.Array, dtype: Any) -> jax.Array:
    hidden = gelu(batched_product(x, block["Dense_0"]["kernel"], dtype))
    return batched_product(hidden, block["Dense_1"]["kernel"], dtype)
