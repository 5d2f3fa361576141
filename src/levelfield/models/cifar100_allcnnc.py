"""All-CNN-C (Springenberg et al. 2014) for images of 32×32 pixels, as in DeepOBS."""

from __future__ import annotations

import flax.linen as nn
import jax

from levelfield.models.augmentation import pad_crop_flip, standardize
from levelfield.models.image_classifier import Classifier
from levelfield.models.layers import Conv, Dropout


class Net(nn.Module):
    """Nine convolutions, with stride 2 instead of pooling, and a global average: 1,387,108 parameters.

    Initial weights are those of DeepOBS: Glorot initialization, biases 0.1. The last convolution also ends in a ReLU.
    """

    features: tuple[int, ...] = (96, 192)

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        def layer(x: jax.Array, features: int, size: int, padding: tuple[int, int], stride: int = 1) -> jax.Array:
            convolution = Conv(
                features,
                (size, size),
                stride,
                padding=(padding, padding),
                kernel_init=nn.initializers.glorot_normal(),
                bias_init=nn.initializers.constant(0.1),
            )
            return nn.relu(convolution(x))

        x = Dropout(0.2)(x, train)
        for features in self.features:
            x = layer(x, features, 3, (1, 1))
            x = layer(x, features, 3, (1, 1))
            x = layer(x, features, 3, (0, 1), stride=2)  # TensorFlow's "same" at an even size
            x = Dropout(0.5)(x, train)
        x = layer(x, self.features[-1], 3, (0, 0))
        x = layer(x, self.features[-1], 1, (0, 0))
        return layer(x, 100, 1, (0, 0)).mean((1, 2))


CLASSIFIER = Classifier(Net(), (32, 32, 3), standardize, pad_crop_flip)
init, loss, evaluate = CLASSIFIER.init, CLASSIFIER.loss, CLASSIFIER.evaluate
