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
        augmentation_key, dropout_key = jax.random.split(key)
        logits, state = self.net.apply(
            {"params": params, **state},
            self._inputs(params, self.augment(augmentation_key, images)),
            train=True,
            rngs={"dropout": dropout_key},
            mutable=list(state),
        )
        entropy = cross_entropy(logits, labels, hyperparameters.get("label_smoothing"))
        return l2_regularized(entropy, params, hyperparameters), state

    def evaluate(self, params: Any, state: Any, batch: Any) -> Mapping[str, jax.Array]:
        images, labels = batch
        logits = self.net.apply({"params": params, **state}, self._inputs(params, images))
        return classification_metrics(logits, labels)

    def _inputs(self, params: Any, images: jax.Array) -> jax.Array:
        """Return the network's input in the type of its parameters."""
        return self.prepare(images).astype(jax.tree.leaves(params)[0].dtype)
