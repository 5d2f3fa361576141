"""Networks for images against PyTorch."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from model_references import (
    Torch,
    bytes_of,
    close,
    evaluated,
    model,
    weights,
    with_gradient,
)

from levelfield.models import (
    augmentation,
    cifar10_resnet32,
    cifar10_vgg16,
    cifar100_allcnnc,
    fashion_mnist_cnn,
    imagenet_resnet50,
    layers,
    resnet,
)


def test_simple_cnn(torch: Any) -> None:
    net = fashion_mnist_cnn.Net()
    inputs = fashion_mnist_cnn.prepare(jnp.asarray(bytes_of((3, 28, 28))))
    params, _ = model(net, inputs)
    t = Torch(torch)
    pixels = (t(bytes_of((3, 28, 28)))[:, None] / 255.0).requires_grad_()
    x = pixels
    for i in range(2):
        layer = params[f"Conv_{i}"] | {"bias": params[f"bias_{i}"]}
        x = t.pool(t.conv(x, layer, padding=2).relu())
    x = t.dense(t.dense(t.flat(x), params["Dense_0"]).relu(), params["Dense_1"])
    (x * t(weights(x.shape))).sum().backward()
    actual, gradient = with_gradient(lambda x: net.apply({"params": params}, x), inputs)
    close(actual, x.detach())
    close(gradient[..., 0], pixels.grad[:, 0])


def test_all_cnn_c(torch: Any) -> None:
    net = cifar100_allcnnc.Net()
    inputs = augmentation.standardize(jnp.asarray(bytes_of((2, 32, 32, 3))))
    params, state = model(net, inputs)
    t = Torch(torch)
    x, layer = t.image(inputs), iter(params[f"Conv_{i}"] for i in range(9))
    for _ in range(2):
        x = t.conv(x, next(layer), padding=1).relu()
        x = t.conv(x, next(layer), padding=1).relu()
        x = t.conv(torch.nn.functional.pad(x, (0, 1, 0, 1)), next(layer), stride=2).relu()
    for _ in range(3):
        x = t.conv(x, next(layer)).relu()
    assert x.shape == (2, 100, 6, 6)
    close(evaluated(net, params, state, inputs), x.mean((2, 3)))


def test_vgg(torch: Any) -> None:
    net = cifar10_vgg16.Net(stages=((8, 8), (16, 16), (24,) * 3, (32,) * 3, (32,) * 3), hidden=48)
    inputs = augmentation.standardize(jnp.asarray(bytes_of((4, 32, 32, 3))))
    params, state = model(net, inputs)
    norms = state["batch_stats"]
    t = Torch(torch)
    x, i = t.image(inputs), 0
    for convolutions in (2, 2, 3, 3, 3):
        for _ in range(convolutions):
            name = f"BatchNorm_{i}"
            x = t.norm(t.conv(x, params[f"Conv_{i}"], padding=1), params[name], norms[name], 1e-3).relu()
            i += 1
        x = t.pool(x)
    assert x.shape == (4, 32, 1, 1)
    x = t.norm(t.dense(x.flatten(1), params["Dense_0"]), params["BatchNorm_13"], norms["BatchNorm_13"]).relu()
    close(evaluated(net, params, state, inputs), t.dense(x, params["Dense_1"]), 1e-4)


def torch_block(t: Torch, x: Any, params: Any, state: Any, stride: int, train: bool = False) -> Any:
    """A block of pre-activation with two convolutions, or three: the stride is the 3×3's that comes first."""
    count = sum(name.startswith("Conv") for name in params)
    past, strides = x, (stride, 1) if count == 2 else (1, stride, 1)
    for i in range(count):
        x = t.norm(x, params[f"BatchNorm_{i}"], state[f"BatchNorm_{i}"], train=train).relu()
        if i == 0 and "projection" in params:
            past = t.conv(x, params["projection"], stride)
        x = t.conv(x, params[f"Conv_{i}"], strides[i], padding=params[f"Conv_{i}"]["kernel"].shape[0] // 2)
    return past + x


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    ("block", "features", "stride", "projects"),
    [
        (resnet.Basic, 8, 1, False),
        (resnet.Basic, 16, 2, True),
        (resnet.Bottleneck, 2, 1, False),
        (resnet.Bottleneck, 4, 1, True),
        (resnet.Bottleneck, 4, 2, True),
    ],
)
def test_residual_blocks(torch: Any, block: Any, features: int, stride: int, projects: bool, train: bool) -> None:
    net = block(features, stride, functools.partial(layers.BatchNorm, decay=0.9))
    inputs = jnp.asarray(np.random.default_rng(0).normal(0.3, 1, (4, 8, 8, 8)), jnp.float32)
    params, state = model(net, inputs, False)
    assert ("projection" in params) == projects
    variables = {"params": params, **state}
    actual, gradient = with_gradient(lambda x: net.apply(variables, x, train, mutable=["batch_stats"])[0], inputs)
    t = Torch(torch)
    x = t.image(inputs).requires_grad_()
    expected = torch_block(t, x, params, state["batch_stats"], stride, train)
    (expected * t.image(weights(actual.shape))).sum().backward()
    close(np.moveaxis(np.asarray(actual), -1, 1), expected.detach())
    close(np.moveaxis(np.asarray(gradient), -1, 1), x.grad)


@pytest.mark.parametrize(
    ("net", "side", "stem"),
    [
        (cifar10_resnet32.Net(blocks=(2, 1, 1), features=4), 16, (1, 1)),
        (imagenet_resnet50.Net(blocks=(1, 2, 1), features=4, classes=7), 32, (2, 3)),
    ],
    ids=["resnet32", "resnet50"],
)
def test_residual_networks(torch: Any, net: Any, side: int, stem: tuple[int, int]) -> None:
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(2, side, side, 3)), jnp.float32)
    params, state = model(net, inputs)
    stages, norms = params["Stages_0"], state["batch_stats"]["Stages_0"]
    t = Torch(torch)
    x = t.conv(t.image(inputs), params["Conv_0"], *stem)
    kind = "Basic"
    if isinstance(net, imagenet_resnet50.Net):
        x = torch.nn.functional.max_pool2d(torch.nn.functional.pad(x, (0, 1, 0, 1), value=-torch.inf), 3, 2)
        kind = "Bottleneck"
    i = 0
    for stage, count in enumerate(net.blocks):
        for first in [True] + [False] * (count - 1):
            name = f"{kind}_{i}"
            x = torch_block(t, x, stages[name], norms[name], 2 if first and stage else 1)
            i += 1
    x = t.norm(x, stages["BatchNorm_0"], norms["BatchNorm_0"]).relu().mean((2, 3))
    close(evaluated(net, params, state, inputs), t.dense(x, stages["Dense_0"]), 1e-4)
