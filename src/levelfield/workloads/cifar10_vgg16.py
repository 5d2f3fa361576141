"""CIFAR-10 with VGG-16 as Wilson et al. 2017 used it: vgg_bn_drop of Zagoruyko's cifar.torch."""

from __future__ import annotations

import flax.linen as nn
import jax

from levelfield.workloads import images
from levelfield.workloads.convolution import conv
from levelfield.workloads.layers import BatchNorm, Dropout, max_pool


class Net(nn.Module):
    """13 convolutions in five stages, a hidden and a linear layer: 14,991,946 parameters.

    Dropout is 0.3 after the first convolution, 0.4 after the others that no pooling follows, 0.5 around the
    hidden layer. Weights of convolutions start as there (He et al. 2015, by fan out).
    """

    stages: tuple[tuple[int, ...], ...] = ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3)
    hidden: int = 512

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        he = nn.initializers.variance_scaling(2.0, "fan_out", "normal")

        for stage, widths in enumerate(self.stages):
            for i, features in enumerate(widths):
                x = nn.Conv(features, (3, 3), padding=1, kernel_init=he, conv_general_dilated=conv)(x)
                x = nn.relu(BatchNorm(decay=0.9, epsilon=1e-3)(x, train))
                if i + 1 < len(widths):
                    x = Dropout(0.4 if stage else 0.3)(x, train)
            x = max_pool(x)
        x = nn.Dense(self.hidden)(Dropout(0.5)(x.reshape(len(x), -1), train))
        x = nn.relu(BatchNorm(decay=0.9)(x, train))
        return nn.Dense(10)(Dropout(0.5)(x, train))


# Mirror images as in cifar.torch, and no random crops: the paper leaves them out for Wilson et al.'s sake.
CLASSIFIER = images.Classifier(Net(), (32, 32, 3), images.standardise, images.flip)

WORKLOAD = CLASSIFIER.workload(
    "cifar10_vgg16",
    "CIFAR-10 (45,000/5,000/10,000), VGG-16 with batch normalisation and dropout",
    "cifar10",
    batch_size=128,
    eval_interval=1755,  # five epochs
)
