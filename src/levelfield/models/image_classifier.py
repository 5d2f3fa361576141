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
from levelfield.workload import Evaluate, Gradients

# (params, state, images) of many trials → (logits, state), all with a leading axis of slots
Forward = Callable[[Any, Any, jax.Array], tuple[jax.Array, Any]]


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
        images, dropout_key = self._augmented(images, key)
        logits, state = self.net.apply(
            {"params": params, **state},
            self._prepared(params, images),
            train=True,
            rngs={"dropout": dropout_key},
            mutable=list(state),
        )
        return _regularized_loss(logits, labels, params, hyperparameters), state

    def batched(self, forward: Forward) -> Gradients:
        """Return the gradients of many trials' losses, from the forward pass of a network without dropout."""

        def gradients(
            params: Any, state: Any, batch: Any, keys: jax.Array, hyperparameters: Mapping[str, Any]
        ) -> tuple[jax.Array, Any, Any]:
            images, labels = batch
            augmented, _ = jax.vmap(self._augmented)(images, keys)
            inputs = jax.vmap(self.prepare)(augmented)

            def total(params: Any) -> tuple[jax.Array, Any]:
                logits, after = forward(params, state, inputs)
                losses = jax.vmap(_regularized_loss)(logits, labels, params, hyperparameters)
                return losses.sum(), (losses, after)

            (_, (losses, after)), derivatives = jax.value_and_grad(total, has_aux=True)(params)
            return losses, derivatives, after

        return gradients

    def batched_evaluate(self, forward: Forward) -> Evaluate:
        """Return ``evaluate`` for many trials at once, from a network's forward pass as in ``batched``."""

        def evaluate(params: Any, state: Any, batch: Any) -> Mapping[str, jax.Array]:
            images, labels = batch
            slots = len(jax.tree.leaves(params)[0])
            prepared = self.prepare(images)
            inputs = jnp.broadcast_to(prepared, (slots, *prepared.shape))
            logits, _ = forward(params, state, inputs)
            return classification_metrics(logits, jnp.broadcast_to(labels, (slots, len(labels))))

        return evaluate

    def evaluate(self, params: Any, state: Any, batch: Any) -> Mapping[str, jax.Array]:
        images, labels = batch
        logits = self.net.apply({"params": params, **state}, self._prepared(params, images))
        return classification_metrics(logits, labels)

    def _augmented(self, images: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the images of a training step, and a key for dropout."""
        augmentation_key, dropout_key = jax.random.split(key)
        return self.augment(augmentation_key, images), dropout_key

    def _prepared(self, params: Any, images: jax.Array) -> jax.Array:
        """Return the network's input in the type of its parameters."""
        return self.prepare(images).astype(jax.tree.leaves(params)[0].dtype)


def _regularized_loss(
    logits: jax.Array, labels: jax.Array, params: Any, hyperparameters: Mapping[str, Any]
) -> jax.Array:
    entropy = cross_entropy(logits, labels, hyperparameters.get("label_smoothing"))
    return l2_regularized(entropy, params, hyperparameters)
