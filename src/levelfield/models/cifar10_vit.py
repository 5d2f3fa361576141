"""A small vision transformer (Dosovitskiy et al. 2021) for images of 32×32 pixels."""

from __future__ import annotations

import flax.linen as nn
import jax

from levelfield.models.augmentation import pad_crop_flip, standardize
from levelfield.models.image_classifier import Classifier
from levelfield.models.layers import Dense
from levelfield.models.transformer import Block, LayerNorm


class Net(nn.Module):
    """Patches of 4×4 pixels, six blocks, and a linear layer on the mean over the patches."""

    patch: int = 4
    layers: int = 6
    width: int = 192
    heads: int = 3

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        normal, smaller = (nn.initializers.normal(0.02 / scale) for scale in (1, (2 * self.layers) ** 0.5))
        count, side, _, channels = images.shape
        across = side // self.patch
        patches = images.reshape(count, across, self.patch, across, self.patch, channels).swapaxes(2, 3)
        positions = self.param("position_embedding", normal, (across**2, self.width))
        x = patches.reshape(count, across**2, -1).astype(positions.dtype)
        x = Dense(self.width, name="embedding")(x) + positions
        for _ in range(self.layers):
            block = Block(self.heads, 4 * self.width, bias=True, causal=False, kernel_init=normal, output_init=smaller)
            x = block(x)
        return Dense(10, name="head")(LayerNorm(bias=True)(x).mean(1))


CLASSIFIER = Classifier(Net(), (32, 32, 3), standardize, pad_crop_flip)
init, loss, evaluate = CLASSIFIER.init, CLASSIFIER.loss, CLASSIFIER.evaluate
