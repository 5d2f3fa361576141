"""The paper's models as workloads: sizes, dropout, that they learn and load."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from model_references import (
    SMALL_TRANSFORMER,
    example,
    filled,
    sentences,
)

from levelfield.data import Pass, Stream
from levelfield.errors import DataError
from levelfield.models import (
    cifar10_resnet32,
    cifar10_vgg16,
    cifar100_allcnnc,
    fashion_mnist_cnn,
    imagenet_resnet50,
    layers,
    lm1b_transformer,
    war_and_peace_lstm,
)
from levelfield.workloads import get_workload

NAMES = (
    "fashion_mnist_cnn",
    "cifar10_resnet32",
    "cifar10_vgg16",
    "cifar100_allcnnc",
    "imagenet_resnet50",
    "war_and_peace_lstm",
    "lm1b_transformer",
)


BLOCKS_50 = [(64, 3), (128, 4), (256, 6), (512, 3)]  # features within, blocks


PARAMETERS = {
    # 5×5 on 1 and 32 channels; 7·7·64 → 1024 → 10
    "fashion_mnist_cnn": (25 + 1) * 32 + (25 * 32 + 1) * 64 + (3136 + 1) * 1024 + 1025 * 10,
    # the first convolution; blocks of two convolutions and two normalizations (of 2 numbers a channel); what the
    # first block of the later stages has instead: half the channels come in, and a projection; the end
    "cifar10_resnet32": 27 * 16
    + sum(5 * (2 * 9 * c * c + 2 * 2 * c) for c in (16, 32, 64))
    + sum(-9 * c * c // 2 - c + c * c // 2 for c in (32, 64))
    + 2 * 64
    + 65 * 10,
    # "configuration D" (Simonyan and Zisserman) has 14,714,688 in its convolutions; 4,224 channels are normalized
    "cifar10_vgg16": 14_714_688 + 2 * 4224 + 513 * 512 + 2 * 512 + 513 * 10,
    "cifar100_allcnnc": (27 + 1) * 96
    + 2 * (9 * 96 + 1) * 96
    + (9 * 96 + 1) * 192
    + 3 * (9 * 192 + 1) * 192
    + (192 + 1) * 192
    + (192 + 1) * 100,
    # blocks that take 4f channels in; the first of a stage takes half as many (the very first, a quarter) and projects
    "imagenet_resnet50": 147 * 64
    + sum(n * (4 * f * f + 9 * f * f + 4 * f * f + 2 * (4 * f + f + f)) for f, n in BLOCKS_50)
    + sum(
        (i - 4 * f) * f + 2 * (i - 4 * f) + i * 4 * f for i, (f, _) in zip((64, 256, 512, 1024), BLOCKS_50, strict=True)
    )
    + 2 * 2048
    + 2049 * 1000,
    # 83 characters; two layers of four gates, with one bias each
    "war_and_peace_lstm": 83 * 128 + 2 * 4 * 128 * (128 + 128 + 1) + 129 * 83,
    # two embeddings; attention without biases, the hidden layer, normalizations; the last normalization
    "lm1b_transformer": 2 * 32_000 * 512 + 6 * (4 * 512**2 + 513 * 2048 + 2049 * 512 + 2 * 2 * 512) + 2 * 512,
}


@pytest.mark.parametrize("name", NAMES)
def test_sizes(name: str) -> None:
    params, _ = jax.eval_shape(get_workload(name).init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == PARAMETERS[name]
    net = importlib.import_module(f"levelfield.models.{name}").Net
    assert f"{PARAMETERS[name]:,} parameters" in net.__doc__


def test_simple_cnn_has_the_papers_size() -> None:
    assert PARAMETERS["fashion_mnist_cnn"] == 3_274_634


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("fashion_mnist_cnn", []),
        ("cifar10_resnet32", []),
        ("cifar10_vgg16", [0.3] + [0.4] * 7 + [0.5] * 2),
        ("cifar100_allcnnc", [0.2, 0.5, 0.5]),
        ("lm1b_transformer", []),
    ],
)
def test_dropout(name: str, rates: list[float]) -> None:
    """Its rates, in the order in which they act, during training only."""
    calls: list[tuple[float, bool]] = []

    def record(call: Any, arguments: Any, others: Any, context: Any) -> Any:
        module = context.module
        if isinstance(module, layers.Dropout) and module.rate and context.method_name == "__call__":
            calls.append((module.rate, arguments[1]))
        return call(*arguments, **others)

    of = get_workload(name)
    params, state = jax.eval_shape(of.init, jax.random.key(0))
    batch = example(name, 2)
    with nn.intercept_methods(record):
        jax.eval_shape(lambda *model: of.loss(*model, batch, jax.random.key(0), {}), params, state)
        training = calls.copy()
        calls.clear()
        evaluated = batch[0][None] if of.sequential else (batch, np.ones(2, np.float32)) if name[0] == "l" else batch
        jax.eval_shape(lambda *model: of.evaluate(*model, evaluated), params, state)
    assert training == [(rate, True) for rate in rates]
    assert not any(train for _, train in calls)


class Small(NamedTuple):
    """A workload's functions on a small network, and a batch."""

    init: Any
    loss: Any
    batch: Any


def small(name: str, monkeypatch: pytest.MonkeyPatch) -> Small:
    labels = np.arange(8, dtype=np.int32)
    if name == "war_and_peace_lstm":
        monkeypatch.setattr(war_and_peace_lstm, "NET", war_and_peace_lstm.Net(units=24))
        monkeypatch.setattr(war_and_peace_lstm, "STREAMS", 4)
        tokens = np.random.default_rng(0).integers(0, 83, (4, 9), dtype=np.uint8)
        return Small(war_and_peace_lstm.init, war_and_peace_lstm.loss, (tokens, np.bool_(True)))
    if name == "lm1b_transformer":
        monkeypatch.setattr(lm1b_transformer, "NET", SMALL_TRANSFORMER)
        return Small(lm1b_transformer.init, lm1b_transformer.loss, sentences(4))
    if name == "imagenet_resnet50":
        monkeypatch.setattr(imagenet_resnet50, "_SIZE", 32)
    net, shape = {
        "fashion_mnist_cnn": (fashion_mnist_cnn.Net(features=(4, 8), hidden=32), (28, 28)),
        "cifar10_resnet32": (cifar10_resnet32.Net(blocks=(1,), features=8), (16, 16, 3)),
        "cifar10_vgg16": (cifar10_vgg16.Net(stages=((16, 16),), hidden=64), (8, 8, 3)),
        "cifar100_allcnnc": (cifar100_allcnnc.Net(features=(24,)), (16, 16, 3)),
        "imagenet_resnet50": (imagenet_resnet50.Net(blocks=(1,), features=8, classes=10), (36, 36, 3)),
    }[name]
    classifier = dataclasses.replace(
        importlib.import_module(f"levelfield.models.{name}").CLASSIFIER, net=net, shape=shape
    )
    # Pictures that differ in their colors and coarse shapes, which survive crops, flips and dropout.
    generator = np.random.default_rng(0)
    coarse = generator.uniform(20, 235, (8, 2, 2, *shape[2:]))
    pictures = coarse.repeat(shape[0] // 2, 1).repeat(shape[1] // 2, 2) + generator.normal(0, 10, (8, *shape))
    return Small(classifier.init, classifier.loss, (pictures.clip(0, 255).astype(np.uint8), labels))


FALLS_TO = {"cifar100_allcnnc": 0.7, "cifar10_vgg16": 0.7}  # much dropout; the others reach half


LONG_TO_COMPILE = ("imagenet_resnet50", "cifar100_allcnnc", "cifar10_resnet32", "cifar10_vgg16", "lm1b_transformer")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG_TO_COMPILE)) for name in NAMES]
)
def test_a_network_learns_in_a_slot_as_it_does_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch can be memorized, and a trial's losses are the same in a slot as alone."""
    of, optimizer = small(name, monkeypatch), optax.adam(1e-2)

    def train(model: Any, seed: Any) -> jax.Array:
        def step(held: Any, i: Any) -> Any:
            (params, state), moments = held
            key = jax.random.fold_in(jax.random.key(seed), i)
            (loss, state), gradients = jax.value_and_grad(of.loss, has_aux=True)(params, state, of.batch, key, {})
            updates, moments = optimizer.update(gradients, moments)
            return ((optax.apply_updates(params, updates), state), moments), loss

        return jax.lax.scan(step, (model, optimizer.init(model[0])), jnp.arange(60))[1]

    # Not from ``init``, which takes longer to compile than the training.
    shapes = jax.eval_shape(lambda key: of.init(key), jax.random.key(0))
    models = [filled(shapes, seed) for seed in range(2)]
    alone = np.asarray(jax.jit(train)(models[1], 1))
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    together = np.asarray(jax.jit(jax.vmap(train))(both, jnp.arange(2)))
    assert np.isfinite(alone).all()
    assert alone[-10:].mean() < FALLS_TO.get(name, 0.5) * alone[0]
    np.testing.assert_allclose(together[1, :5], alone[:5], rtol=1e-3)
    assert np.abs(together[0, :5] - alone[:5]).max() > 1e-2  # another seed is another trial


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_loads(name: str) -> None:
    """Real data, if they are on this machine, have shapes that ``init``, ``loss`` and ``evaluate`` accept."""
    of = get_workload(name)
    try:
        data = of.load()
    except DataError as error:
        pytest.skip(str(error))
    assert {f"{split}_loss" for split in data.evaluation} <= set(of.metrics)
    if isinstance(data.train, Stream):
        batch = next(data.train.batches(0, 2))
        for leaf, stacked in zip(jax.tree.leaves(data.train.example), jax.tree.leaves(batch), strict=True):
            assert stacked.shape == (2, *leaf.shape)
    else:
        batch = jax.tree.map(lambda array: array[0] if of.sequential else array[:2], data.train)
    params, state = jax.eval_shape(of.init, jax.random.key(0))
    loss, new = jax.eval_shape(lambda *model: of.loss(*model, batch, jax.random.key(0), {}), params, state)
    assert loss.shape == ()
    assert jax.tree.map(lambda leaf: leaf.shape, new) == jax.tree.map(lambda leaf: leaf.shape, state)
    for split, content in data.evaluation.items():
        first = next(content.batches(2)) if isinstance(content, Pass) else content
        few = jax.tree.map(lambda array: array[:2], first)
        metrics = jax.eval_shape(lambda *model: of.evaluate(*model, few), params, state)  # noqa: B023
        assert {f"{split}_{metric}" for metric in metrics} <= set(of.metrics)


@pytest.mark.parametrize("name", ["fashion_mnist_cnn", "cifar10_resnet32", "cifar100_allcnnc"])
def test_images_are_split_once(name: str) -> None:
    try:
        data = get_workload(name).load()
    except DataError as error:
        pytest.skip(str(error))

    def pictures(arrays: Any) -> Iterator[bytes]:
        return (picture.tobytes() for picture in arrays[0])

    train, valid, subset = (
        set(pictures(arrays)) for arrays in (data.train, data.evaluation["valid"], data.evaluation["train"])
    )
    assert subset <= train
    assert len(data.evaluation["valid"][0]) == len(data.evaluation["train"][0]) == 5000
    assert len(train & valid) < 50  # a few pictures occur twice in the published sets
    assert data.train[1].dtype == np.int32
    assert set(np.unique(data.train[1])) == set(range(100 if "cifar100" in name else 10))
