"""The functions of a workload that classifies images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from levelfield.models.layers import classification_metrics, cross_entropy
from levelfield.models.regularization import l2_regularized


@dataclass(frozen=True)
class Classifier:
    """A workload's ``init``, ``loss`` and ``evaluate`` for a network that is called with (images, train).

    Images are stored as bytes. ``augment`` changes them at random during training; ``prepare`` turns them into the
    network's input. The state holds the network's variables besides its parameters: batch statistics, or nothing.
    """

    net: nn.Module
    shape: tuple[int, ...]  # of a stored image
    prepare: Callable[[jax.Array], jax.Array]
    augment: Callable[[jax.Array, jax.Array], jax.Array] = lambda key, images: images

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        variables = self.net.init(key, self.prepare(jnp.zeros((1, *self.shape), jnp.uint8)))
        return variables.pop("params"), variables

    def loss(
        self, params: Any, state: Any, batch: Any, key: jax.Array, hyperparameters: Mapping[str, Any]
    ) -> tuple[jax.Array, Any]:
        images, labels = batch
        images, dropout_key = self._inputs(images, key)
        logits, state = self.net.apply(
            {"params": params, **state}, images, train=True, rngs={"dropout": dropout_key}, mutable=list(state)
        )
        return _regularized_loss(logits, labels, params, hyperparameters), state

    def batched(self, forward: Callable[[Any, Any, jax.Array], tuple[jax.Array, Any]]) -> Callable[..., Any]:
        """Return the gradients of many trials' losses, from the forward pass of a network without dropout.

        ``forward(params, state, images)`` returns (logits, state). All arrays have a leading axis of slots.
        """

        def gradients(
            params: Any, state: Any, batch: Any, keys: jax.Array, hyperparameters: Mapping[str, Any]
        ) -> tuple[jax.Array, Any, Any]:
            images, labels = batch
            images, _ = jax.vmap(self._inputs)(images, keys)

            def total(params: Any) -> tuple[jax.Array, Any]:
                logits, after = forward(params, state, images)
                losses = jax.vmap(_regularized_loss)(logits, labels, params, hyperparameters)
                return losses.sum(), (losses, after)

            (_, (losses, after)), derivatives = jax.value_and_grad(total, has_aux=True)(params)
            return losses, derivatives, after

        return gradients

    def _inputs(self, images: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the network's inputs for training, and a key for dropout."""
        augmentation_key, dropout_key = jax.random.split(key)
        return self.prepare(self.augment(augmentation_key, images)), dropout_key

    def evaluate(self, params: Any, state: Any, batch: Any) -> Mapping[str, jax.Array]:
        images, labels = batch
        return classification_metrics(self.net.apply({"params": params, **state}, self.prepare(images)), labels)


def _regularized_loss(
    logits: jax.Array, labels: jax.Array, params: Any, hyperparameters: Mapping[str, Any]
) -> jax.Array:
    entropy = cross_entropy(logits, labels, hyperparameters.get("label_smoothing"))
    return l2_regularized(entropy, params, hyperparameters)
