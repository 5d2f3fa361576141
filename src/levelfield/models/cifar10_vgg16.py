"""VGG-16 for images of 32×32 pixels as in Wilson et al. 2017: vgg_bn_drop of Zagoruyko's cifar.torch."""

from __future__ import annotations

import flax.linen as nn
import jax

from levelfield.models.augmentation import flip, standardize
from levelfield.models.image_classifier import Classifier
from levelfield.models.layers import BatchNorm, Conv, Dense, Dropout, max_pool


class Net(nn.Module):
    """13 convolutions in five stages, a hidden and a linear layer: 14,991,946 parameters.

    The dropout rate is 0.3 after the first convolution, 0.4 after the others that no pooling follows, and 0.5 around
    the hidden layer. Convolutions are initialized as in cifar.torch (He et al. 2015, by fan-out).
    """

    stages: tuple[tuple[int, ...], ...] = ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3)
    hidden: int = 512

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        he = nn.initializers.variance_scaling(2.0, "fan_out", "normal")

        for stage, widths in enumerate(self.stages):
            for i, features in enumerate(widths):
                x = Conv(features, (3, 3), padding=1, kernel_init=he)(x)
                x = nn.relu(BatchNorm(decay=0.9, epsilon=1e-3)(x, train))
                if i + 1 < len(widths):
                    x = Dropout(0.4 if stage else 0.3)(x, train)
            x = max_pool(x)
        x = Dense(self.hidden)(Dropout(0.5)(x.reshape(len(x), -1), train))
        x = nn.relu(BatchNorm(decay=0.9)(x, train))
        return Dense(10)(Dropout(0.5)(x, train))


# Flips as in cifar.torch, but no random crops: the paper leaves them out to match Wilson et al.
CLASSIFIER = Classifier(Net(), (32, 32, 3), standardize, flip)
init, loss, evaluate = CLASSIFIER.init, CLASSIFIER.loss, CLASSIFIER.evaluate
