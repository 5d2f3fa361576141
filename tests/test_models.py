"""The paper's models against PyTorch, numpy and counts by hand; what they do to images; that they learn."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from levelfield.data import Pass, Stream
from levelfield.errors import DataError, UsageError
from levelfield.models import (
    augmentation,
    cifar10_resnet32,
    cifar10_vgg16,
    cifar100_allcnnc,
    fashion_mnist_cnn,
    imagenet_resnet50,
    layers,
    lm1b_transformer,
    regularization,
    resnet,
    war_and_peace_lstm,
)
from levelfield.workloads import get_workload
from levelfield.workloads import lm1b_transformer as lm1b_workload
from levelfield.workloads import war_and_peace_lstm as war_and_peace_workload

NAMES = (
    "fashion_mnist_cnn",
    "cifar10_resnet32",
    "cifar10_vgg16",
    "cifar100_allcnnc",
    "imagenet_resnet50",
    "war_and_peace_lstm",
    "lm1b_transformer",
)


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is what these models are checked against")


def filled(tree: Any, seed: int = 0) -> Any:
    """Parameters or state with random content, so that nothing is hidden by a zero or a one; variances positive."""
    generator = np.random.default_rng(seed)

    def fill(path: Any, leaf: Any) -> jax.Array:
        fan_in = max(1, int(np.prod(leaf.shape[:-1]))) if len(leaf.shape) > 1 else 16
        values = generator.normal(size=leaf.shape) * fan_in**-0.5
        positive = jax.tree_util.keystr(path[-1:]) in ("['variance']", "['scale']")
        return jnp.asarray(np.abs(values) + 0.5 if positive else values, jnp.float32)

    return jax.tree_util.tree_map_with_path(fill, tree)


def model(net: nn.Module, *arguments: Any) -> tuple[Any, Any]:
    """A net's parameters and the rest of its variables, filled."""
    variables = filled(jax.eval_shape(lambda key: net.init(key, *arguments), jax.random.key(0)))
    return variables.pop("params"), variables


def close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Equal to within a share of the largest value."""
    expected = np.asarray(expected)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=tolerance * np.abs(expected).max())


# ---------------------------------------------------------------------------- in PyTorch's terms


class Torch(NamedTuple):
    """Layers of PyTorch by the names of ours, with the weights of ours."""

    torch: Any

    def __call__(self, array: Any) -> Any:
        return array if isinstance(array, self.torch.Tensor) else self.torch.from_numpy(np.array(array))

    def image(self, array: Any) -> Any:
        return self(np.moveaxis(np.asarray(array), -1, 1))

    def conv(self, x: Any, params: Any, stride: int = 1, padding: int = 0) -> Any:
        kernel = self(np.transpose(params["kernel"], (3, 2, 0, 1)))
        bias = self(params["bias"]) if "bias" in params else None
        return self.torch.nn.functional.conv2d(x, kernel, bias, stride, padding)

    def dense(self, x: Any, params: Any) -> Any:
        return self.torch.nn.functional.linear(x, self(params["kernel"]).T, self(params["bias"]))

    def norm(self, x: Any, params: Any, state: Any, epsilon: float = 1e-5, train: bool = False) -> Any:
        mean, variance = self(state["mean"]), self(state["variance"])
        return self.torch.nn.functional.batch_norm(
            x, mean, variance, self(params["scale"]), self(params["bias"]), train, 0.0, epsilon
        )

    def pool(self, x: Any) -> Any:
        return self.torch.nn.functional.max_pool2d(x, 2)

    def flat(self, x: Any) -> Any:
        return x.permute(0, 2, 3, 1).flatten(1)  # ours are flattened with the channels last


def bytes_of(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def with_gradient(apply: Any, x: Any) -> tuple[jax.Array, jax.Array]:
    """Outputs, and what the inputs have of the gradient where every output counts differently."""

    @jax.jit
    def both(x: Any) -> Any:
        outputs, pull = jax.vjp(apply, x)
        return outputs, pull(weights(outputs.shape))[0]

    outputs, gradient = both(x)
    return outputs, gradient


def weights(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(9).normal(size=shape).astype(np.float32)


def evaluated(net: nn.Module, params: Any, state: Any, x: Any) -> jax.Array:
    return jax.jit(lambda params, state, x: net.apply({"params": params, **state}, x))(params, state, x)


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
    found, gradient = with_gradient(lambda x: net.apply({"params": params}, x), inputs)
    close(found, x.detach())
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
    found, gradient = with_gradient(lambda x: net.apply(variables, x, train, mutable=["batch_stats"])[0], inputs)
    t = Torch(torch)
    x = t.image(inputs).requires_grad_()
    expected = torch_block(t, x, params, state["batch_stats"], stride, train)
    (expected * t.image(weights(found.shape))).sum().backward()
    close(np.moveaxis(np.asarray(found), -1, 1), expected.detach())
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


@pytest.mark.parametrize("shape", [(12, 5, 4, 3), (12, 6)])
@pytest.mark.parametrize("ghost", [None, 4, 12, 32])
def test_batch_norm(torch: Any, shape: tuple[int, ...], ghost: int | None) -> None:
    """Outputs and running averages over two steps of training, then an evaluation."""
    net = layers.BatchNorm(decay=0.7, epsilon=1e-3, ghost=ghost)
    generator = np.random.default_rng(0)
    batches = [generator.normal(2, 3, shape).astype(np.float32) for _ in range(3)]
    params, _ = model(net, jnp.asarray(batches[0]), False)
    state = {"batch_stats": {"mean": jnp.zeros(shape[-1]), "variance": jnp.ones(shape[-1])}}
    step = jax.jit(lambda state, x: net.apply({"params": params, **state}, x, True, mutable=["batch_stats"]))

    t = Torch(torch)
    running = {"mean": torch.zeros(shape[-1]), "variance": torch.ones(shape[-1])}
    for batch in batches[:2]:
        found, state = step(state, batch)
        outputs, changed = [], []
        for group in np.split(batch, 1 if ghost in (None, 32) else len(batch) // ghost):
            reference = torch.nn.BatchNorm1d(shape[-1], eps=1e-3, momentum=0.3)
            reference.load_state_dict(
                {
                    "weight": t(params["scale"]),
                    "bias": t(params["bias"]),
                    "running_mean": running["mean"],
                    "running_var": running["variance"],
                    "num_batches_tracked": torch.tensor(0),
                }
            )
            outputs.append(reference(t(group.reshape(-1, shape[-1]))).detach())
            changed.append((reference.running_mean, reference.running_var))
        running = {
            "mean": torch.stack([mean for mean, _ in changed]).mean(0),
            "variance": torch.stack([variance for _, variance in changed]).mean(0),
        }
        close(found, torch.cat(outputs).reshape(shape), 1e-5)
        for name, expected in running.items():
            close(state["batch_stats"][name], expected, 1e-5)
    expected = t.norm(t(batches[2].reshape(-1, shape[-1])), params, running, 1e-3).reshape(shape)
    close(net.apply({"params": params, **state}, batches[2], False), expected, 1e-5)


@pytest.mark.parametrize("groups", [1, 3])
def test_batch_norm_has_the_gradient_of_its_equations(groups: int) -> None:
    """Against their derivatives in float64; and side by side as alone."""
    net = layers.BatchNorm(decay=0.7, epsilon=1e-3, ghost=12 // groups)
    generator = np.random.default_rng(0)
    arrays = [generator.normal(2, 3, (2, *shape)).astype(np.float32) for shape in ((12, 5, 4, 3), (3,), (3,))]

    def ours(x: Any, scale: Any, bias: Any) -> Any:
        variables = {"params": {"scale": scale, "bias": bias}}
        return jnp.sum(jnp.sin(net.apply(variables, x, True, mutable=["batch_stats"])[0]))

    def plain(x: Any, scale: Any, bias: Any) -> Any:
        parts = jnp.split(x, groups)
        normal = [(part - part.mean((0, 1, 2))) / jnp.sqrt(part.var((0, 1, 2)) + 1e-3) for part in parts]
        return jnp.sum(jnp.sin(jnp.concatenate(normal) * scale + bias))

    gradient = jax.jit(jax.grad(ours, (0, 1, 2)))
    together = jax.jit(jax.vmap(jax.grad(ours, (0, 1, 2))))(*arrays)
    for i in range(2):
        own = [array[i] for array in arrays]
        with jax.enable_x64(True):
            expected = jax.grad(plain, (0, 1, 2))(*(array.astype(np.float64) for array in own))
        for one, alone, exact in zip(together, gradient(*own), expected, strict=True):
            np.testing.assert_allclose(alone, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())
            np.testing.assert_allclose(one[i], alone, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


def test_a_batch_that_ghost_batches_do_not_fill_is_refused() -> None:
    net = layers.BatchNorm(decay=0.9, ghost=4)
    with pytest.raises(UsageError, match="batch size 10: expected a multiple of 4, the size of a ghost batch"):
        net.init(jax.random.key(0), jnp.zeros((10, 3)), True)


def test_max_pooling(torch: Any) -> None:
    x = np.random.default_rng(0).normal(size=(2, 6, 8, 3)).astype(np.float32)
    image = Torch(torch).image(x)
    np.testing.assert_array_equal(
        np.moveaxis(np.asarray(layers.max_pool(jnp.asarray(x))), -1, 1), Torch(torch).pool(image)
    )
    padded = torch.nn.functional.pad(image, (0, 1, 0, 1), value=-torch.inf)
    found = np.moveaxis(np.asarray(imagenet_resnet50.max_pool_3x3(jnp.asarray(x))), -1, 1)
    np.testing.assert_array_equal(found, torch.nn.functional.max_pool2d(padded, 3, 2))


# ---------------------------------------------------------------------------- the LSTM


@pytest.fixture
def small_lstm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The workload's module with a small net and 4 streams of 6 characters at a time."""
    monkeypatch.setattr(war_and_peace_lstm, "NET", war_and_peace_lstm.Net(units=12))
    for module in (war_and_peace_lstm, war_and_peace_workload):
        monkeypatch.setattr(module, "STREAMS", 4)
        monkeypatch.setattr(module, "WINDOW", 6)
    return war_and_peace_lstm


def torch_lstm(torch: Any, params: Any, units: int) -> Any:
    """Logits and state from characters and state."""
    t = Torch(torch)
    lstm = torch.nn.LSTM(units, units, 2, batch_first=True)
    weights = {}
    for i in range(2):
        ours = params[f"LSTM_{i}"]
        weights |= {
            f"weight_ih_l{i}": t(ours["input"]["kernel"]).T,
            f"weight_hh_l{i}": t(ours["recurrent"]).T,
            f"bias_ih_l{i}": t(ours["input"]["bias"]),
            f"bias_hh_l{i}": torch.zeros(4 * units),
        }
    lstm.load_state_dict(weights)

    def run(characters: Any, state: Any = None) -> Any:
        with torch.no_grad():
            outputs, state = lstm(t(params["Embed_0"]["embedding"])[t(characters).long()], state)
            return t.dense(outputs, params["Dense_0"]), state

    return run


def test_lstm_carries_its_state(torch: Any, small_lstm: Any) -> None:
    net, streams = small_lstm.NET, np.random.default_rng(0).integers(0, 83, (4, 12))
    params, _ = model(net, jnp.zeros((4, 6), jnp.int32), net.zero(4))
    reference = torch_lstm(torch, params, 12)
    expected, (h, c) = reference(streams)
    state, apply = net.zero(4), jax.jit(lambda characters, state: net.apply({"params": params}, characters, state))
    first, state = apply(streams[:, :6], state)
    second, state = apply(streams[:, 6:], state)
    close(jnp.concatenate([first, second], 1), expected)
    for layer, (ours_h, ours_c) in enumerate(state):
        close(ours_h, h[layer])
        close(ours_c, c[layer])


def test_lstm_evaluates_a_split_as_one_text(torch: Any, small_lstm: Any) -> None:
    text = np.random.default_rng(0).integers(0, 83, 4 * 6 * 5 + 3, dtype=np.uint8)
    batches = war_and_peace_workload.windows(text)
    assert batches.shape == (5, 4, 7)
    params, _ = model(small_lstm.NET, jnp.zeros((4, 6), jnp.int32), small_lstm.NET.zero(4))
    junk = jax.tree.map(lambda leaf: leaf + 5.0, small_lstm.NET.zero(4))  # training's state is not used
    found = jax.jit(lambda *model: small_lstm.evaluate(*model, batches))(params, junk)
    streams, targets = text[: 4 * 30].reshape(4, 30), text[1 : 4 * 30 + 1].reshape(4, 30)
    logits, _ = torch_lstm(torch, params, 12)(streams)
    targets = torch.from_numpy(targets).long()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    close(found["loss"].mean(), expected)
    close(found["error"].mean(), (logits.argmax(-1) != targets).float().mean())


def test_lstm_starts_each_epoch_from_zero(small_lstm: Any) -> None:
    tokens = np.random.default_rng(0).integers(0, 83, (4, 7), dtype=np.uint8)
    params, zero = small_lstm.init(jax.random.key(0))
    junk = jax.tree.map(lambda leaf: leaf + 1.0, zero)
    loss = jax.jit(lambda state, first: small_lstm.loss(params, state, (tokens, first), jax.random.key(1), {}))
    fresh, end = loss(zero, False)
    again, end_again = loss(junk, True)
    assert fresh == again
    jax.tree.map(np.testing.assert_array_equal, end, end_again)
    assert loss(junk, False)[0] != fresh


def test_lstm_starts_as_tensorflows(small_lstm: Any) -> None:
    params, state = small_lstm.init(jax.random.key(0))
    for layer in ("LSTM_0", "LSTM_1"):
        i, f, g, o = np.split(np.asarray(params[layer]["input"]["bias"]), 4)
        assert (f == 1).all()
        assert not np.concatenate([i, g, o]).any()
        # Glorot's over inputs and state together: √(6 / (2 units + 4 units)).
        joined = np.concatenate([params[layer]["input"]["kernel"], params[layer]["recurrent"]])
        assert 0.95 * 12**-0.5 < np.abs(joined).max() <= 12**-0.5
    assert not any(leaf.any() for leaf in jax.tree.leaves(state))


def test_text_is_read_in_streams() -> None:
    text = np.arange(50 * 50 * 3 + 7)
    batches = war_and_peace_workload.windows(text)
    assert batches.shape == (3, 50, 51)
    for stream in range(50):
        inputs, targets = batches[:, stream, :-1].ravel(), batches[:, stream, 1:].ravel()
        np.testing.assert_array_equal(inputs, np.arange(150) + stream * 150)
        np.testing.assert_array_equal(targets, inputs + 1)
    assert len(war_and_peace_workload.windows(text[:7500])) == 2  # the last character would have no target


# ---------------------------------------------------------------------------- the Transformer

SMALL_TRANSFORMER = lm1b_transformer.Net(vocabulary=40, layers=2, width=16, heads=2, hidden=24)


@pytest.fixture
def small_transformer(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(lm1b_transformer, "NET", SMALL_TRANSFORMER)
    monkeypatch.setattr(lm1b_transformer, "LENGTH", 12)
    return lm1b_transformer


def sentences(count: int, length: int = 12) -> np.ndarray:
    """Rows as the data have them: 1, tokens, 2, padding."""
    generator, rows = np.random.default_rng(0), np.zeros((count, length + 1), np.int32)
    for row, size in zip(rows, generator.integers(1, length - 1, count), strict=True):
        row[: size + 2] = [1, *generator.integers(3, 40, size), 2]
    return rows


def test_attention(torch: Any) -> None:
    net = lm1b_transformer.Attention(heads=4)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 7, 16)), jnp.float32)
    params, _ = model(net, x)
    t = Torch(torch)
    reference = torch.nn.MultiheadAttention(16, 4, bias=False, batch_first=True)
    joined = torch.cat([t(params[name]["kernel"]).T for name in ("query", "key", "value")])
    reference.load_state_dict({"in_proj_weight": joined, "out_proj.weight": t(params["output"]["kernel"]).T})
    later = torch.triu(torch.ones(7, 7, dtype=torch.bool), 1)
    with torch.no_grad():
        expected, _ = reference(t(x), t(x), t(x), attn_mask=later)
    close(net.apply({"params": params}, x), expected)


def test_transformer(torch: Any) -> None:
    net, tokens = SMALL_TRANSFORMER, sentences(3)
    params, _ = model(net, jnp.zeros((1, 12), jnp.int32))
    t = Torch(torch)
    x = t(params["Embed_0"]["embedding"])[t(tokens).long()] * 4.0
    for position in range(13):
        for k in range(8):  # Vaswani et al., with the sines before the cosines
            angle = position / 10_000 ** (2 * k / 16)
            x[:, position, k] += np.sin(angle)
            x[:, position, 8 + k] += np.cos(angle)
    for i in range(2):
        ours = params[f"Block_{i}"]
        attention = ours["Attention_0"]
        layer = torch.nn.TransformerEncoderLayer(16, 2, 24, 0.0, layer_norm_eps=1e-6, batch_first=True, norm_first=True)
        joined = torch.cat([t(attention[name]["kernel"]).T for name in ("query", "key", "value")])
        weights = {
            "self_attn.in_proj_weight": joined,
            "self_attn.in_proj_bias": torch.zeros(48),
            "self_attn.out_proj.weight": t(attention["output"]["kernel"]).T,
            "self_attn.out_proj.bias": torch.zeros(16),
        }
        for j in (0, 1):
            weights |= {
                f"linear{j + 1}.weight": t(ours[f"Dense_{j}"]["kernel"]).T,
                f"linear{j + 1}.bias": t(ours[f"Dense_{j}"]["bias"]),
                f"norm{j + 1}.weight": t(ours[f"LayerNorm_{j}"]["scale"]),
                f"norm{j + 1}.bias": t(ours[f"LayerNorm_{j}"]["bias"]),
            }
        layer.load_state_dict(weights)
        with torch.no_grad():
            x = layer.train()(x, src_mask=torch.triu(torch.full((13, 13), -torch.inf), 1))
    last = params["LayerNorm_0"]
    x = torch.nn.functional.layer_norm(x, (16,), t(last["scale"]), t(last["bias"]), 1e-6)
    close(evaluated(net, params, {}, tokens), x @ t(params["Dense_0"]["kernel"]))


def test_transformer_sees_no_later_token() -> None:
    net, tokens = SMALL_TRANSFORMER, sentences(2)
    params, _ = model(net, jnp.zeros((1, 12), jnp.int32))
    apply = jax.jit(lambda tokens: net.apply({"params": params}, tokens))
    before = apply(tokens)
    for place in (0, 5, 12):
        changed = tokens.copy()
        changed[:, place] = (changed[:, place] + 7) % 40
        differs = np.abs(np.asarray(apply(changed) - before)).max((0, 2)) > 1e-6
        assert not differs[:place].any()
        assert differs[place:].all()


def test_padding_has_no_part_in_the_loss(torch: Any, small_transformer: Any) -> None:
    rows = sentences(6)
    params, _ = model(SMALL_TRANSFORMER, jnp.zeros((1, 12), jnp.int32))
    loss = jax.jit(lambda rows: small_transformer.loss(params, (), rows, None, {})[0])
    logits = Torch(torch)(evaluated(SMALL_TRANSFORMER, params, {}, rows[:, :-1]))
    targets = torch.from_numpy(rows[:, 1:]).long()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)
    close(loss(rows), expected)
    size = np.count_nonzero(rows[0])
    close(loss(rows[:1]), loss(rows[:1, :size]))


def test_a_mean_over_chunks_is_the_mean_over_tokens(small_transformer: Any) -> None:
    """The loop averages chunks by their number of sentences, however many tokens these have."""
    rows, weights = lm1b_workload.weighted(sentences(70))
    params, _ = model(SMALL_TRANSFORMER, jnp.zeros((1, 12), jnp.int32))
    evaluate = jax.jit(lambda rows, weights: small_transformer.evaluate(params, (), (rows, weights))["loss"].mean())
    expected = jax.jit(lambda rows: small_transformer.loss(params, (), rows, None, {})[0])(rows)
    close(evaluate(rows, weights), expected)
    close(0.5 * (evaluate(rows[:35], weights[:35]) + evaluate(rows[35:], weights[35:])), expected)


# ---------------------------------------------------------------------------- sizes, dropout, regularisation

BLOCKS_50 = [(64, 3), (128, 4), (256, 6), (512, 3)]  # features within, blocks
PARAMETERS = {
    # 5×5 on 1 and 32 channels; 7·7·64 → 1024 → 10
    "fashion_mnist_cnn": (25 + 1) * 32 + (25 * 32 + 1) * 64 + (3136 + 1) * 1024 + 1025 * 10,
    # the first convolution; blocks of two convolutions and two normalisations (of 2 numbers a channel); what the
    # first block of the later stages has instead: half the channels come in, and a projection; the end
    "cifar10_resnet32": 27 * 16
    + sum(5 * (2 * 9 * c * c + 2 * 2 * c) for c in (16, 32, 64))
    + sum(-9 * c * c // 2 - c + c * c // 2 for c in (32, 64))
    + 2 * 64
    + 65 * 10,
    # "configuration D" (Simonyan and Zisserman) has 14,714,688 in its convolutions; 4,224 channels are normalised
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
    # two embeddings; attention without biases, the hidden layer, normalisations; the last normalisation
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
        ("war_and_peace_lstm", [0.2] * 4),
        ("lm1b_transformer", []),
    ],
)
def test_dropout(name: str, rates: list[float]) -> None:
    """Its rates, in the order in which they act, in training alone."""
    found: list[tuple[float, bool]] = []

    def record(call: Any, arguments: Any, others: Any, context: Any) -> Any:
        if isinstance(context.module, layers.Dropout) and context.method_name == "__call__":
            found.append((context.module.rate, arguments[1]))
        return call(*arguments, **others)

    of = get_workload(name)
    params, state = jax.eval_shape(of.init, jax.random.key(0))
    batch = example(name, 2)
    with nn.intercept_methods(record):
        jax.eval_shape(lambda *model: of.loss(*model, batch, jax.random.key(0), {}), params, state)
        training = found.copy()
        found.clear()
        evaluated = batch[0][None] if of.sequential else (batch, np.ones(2, np.float32)) if name[0] == "l" else batch
        jax.eval_shape(lambda *model: of.evaluate(*model, evaluated), params, state)
    assert training == [(rate, True) for rate in rates]
    assert not any(train for _, train in found)


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_dropout_keeps_each_input_by_chance(rate: float) -> None:
    """As often as it should, independently of the input beside it, scaled so that the mean stays; else not at all."""
    inputs, count = jnp.ones((51, 61, 127)), 51 * 61 * 127  # an odd number
    assert (layers.Dropout(rate).apply({}, inputs, train=False) == inputs).all()
    trained = layers.Dropout(rate).apply({}, inputs, train=True, rngs={"dropout": jax.random.key(1)})
    outputs = np.asarray(trained).ravel()
    np.testing.assert_allclose(np.unique(outputs), [0, 1 / (1 - rate)], rtol=1e-6)
    dropped = outputs == 0
    deviation = math.sqrt(rate * (1 - rate) / count)
    assert abs(dropped.mean() - rate) < 4 * deviation
    for apart in (1, 2, 127):
        assert abs(np.corrcoef(dropped[apart:], dropped[:-apart])[0, 1]) < 4 / math.sqrt(count)


def example(name: str, count: int) -> Any:
    """A batch of the full model's shapes."""
    generator = np.random.default_rng(0)
    if name == "war_and_peace_lstm":
        return generator.integers(0, 83, (50, 51), dtype=np.uint8), np.bool_(True)
    if name == "lm1b_transformer":
        return generator.integers(1, 32_000, (count, 129), dtype=np.int32)
    shape = importlib.import_module(f"levelfield.models.{name}").CLASSIFIER.shape
    return bytes_of((count, *shape)), np.arange(count, dtype=np.int32) % 10


def test_label_smoothing(torch: Any) -> None:
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(0, 3, (8, 5)).astype(np.float32), generator.integers(0, 5, 8)
    for smoothing in (0.0, 0.1, 0.7):
        found = layers.cross_entropy(jnp.asarray(logits), jnp.asarray(labels), smoothing)
        expected = torch.nn.functional.cross_entropy(
            torch.from_numpy(logits), torch.from_numpy(labels), label_smoothing=smoothing
        )
        close(found, expected)


def test_a_classifier_applies_what_the_study_names(torch: Any) -> None:
    small = dataclasses.replace(fashion_mnist_cnn.CLASSIFIER, net=fashion_mnist_cnn.Net(features=(4, 4), hidden=8))
    params, state = filled(jax.eval_shape(small.init, jax.random.key(0)))
    batch = example("fashion_mnist_cnn", 4)
    t = Torch(torch)
    logits, labels = t(evaluated(small.net, params, state, small.prepare(batch[0]))), t(batch[1]).long()
    layers_with_kernels = ("Conv_0", "Conv_1", "Dense_0", "Dense_1")
    squares = sum((np.asarray(params[layer]["kernel"]) ** 2).sum() for layer in layers_with_kernels)

    @jax.jit
    def loss(hyperparameters: Any) -> jax.Array:
        return small.loss(params, state, batch, jax.random.key(1), hyperparameters)[0]

    for hyperparameters in ({}, {"l2": 0.02}, {"label_smoothing": 0.3, "weight_decay": 0.1}):
        smoothing = hyperparameters.get("label_smoothing", 0.0)
        expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
        close(loss(hyperparameters), expected + 0.5 * hyperparameters.get("l2", 0.0) * squares)


def test_regularisation_spares_biases_and_scales() -> None:
    for name, count in {"cifar10_resnet32": 1 + 30 + 2 + 1, "imagenet_resnet50": 1 + 48 + 4 + 1}.items():
        params, _ = filled(jax.eval_shape(get_workload(name).init, jax.random.key(0)))
        paths = jax.tree_util.tree_leaves_with_path(params)
        kernels = [np.asarray(leaf) for path, leaf in paths if "kernel" in str(path[-1])]
        assert len(kernels) == count  # the first; the blocks'; projections; the last
        expected = 7 + 0.01 * sum(float(np.square(kernel, dtype=np.float64).sum()) for kernel in kernels)
        close(regularization.l2_regularized(jnp.array(7.0), params, {"l2": 0.02}), expected)


# ---------------------------------------------------------------------------- images


def test_standardisation() -> None:
    pictures = bytes_of((5, 6, 7, 3))
    pictures[1] = 200  # flat
    pictures[2] = 100
    pictures[2, 0, 0, 0] = 101  # nearly flat: its deviation is below 1/√126
    found = np.asarray(augmentation.standardize(jnp.asarray(pictures)))
    for picture, standard in zip(pictures.astype(np.float64), found, strict=True):
        expected = (picture - picture.mean()) / max(picture.std(), 1 / np.sqrt(6 * 7 * 3))
        np.testing.assert_allclose(standard, expected, atol=1e-3)  # the mean of a flat one is rounded


def test_pad_crop_flip() -> None:
    """Each of the 81 windows and their mirror images comes as often as any other."""
    picture, draws = bytes_of((8, 8, 3)), 8100
    padded = np.pad(picture, ((4, 4), (4, 4), (0, 0)))
    windows = {}
    for top in range(9):
        for left in range(9):
            window = padded[top : top + 8, left : left + 8]
            windows[window.tobytes()] = (top, left, 0)
            windows[window[:, ::-1].tobytes()] = (top, left, 1)
    assert len(windows) == 162
    found = jax.jit(augmentation.pad_crop_flip)(jax.random.key(0), jnp.tile(picture, (draws, 1, 1, 1)))
    assert found.dtype == jnp.uint8
    counts = dict.fromkeys(windows.values(), 0)
    for each in np.asarray(found):
        counts[windows[each.tobytes()]] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4
    mirrored = sum(count for (_, _, mirror), count in counts.items() if mirror)
    assert abs(mirrored / draws - 0.5) < 0.03


def test_flips_leave_the_place_of_an_image() -> None:
    pictures = bytes_of((500, 4, 6, 3))
    found = np.asarray(augmentation.flip(jax.random.key(0), jnp.asarray(pictures)))
    same = (found == pictures).all((1, 2, 3))
    mirrored = (found == pictures[:, :, ::-1]).all((1, 2, 3))
    assert (same ^ mirrored).all()
    assert 200 < mirrored.sum() < 300


def test_crops() -> None:
    pictures = np.arange(200 * 9 * 11 * 3, dtype=np.int32).reshape(200, 9, 11, 3)
    found = np.asarray(augmentation.crop(jax.random.key(0), jnp.asarray(pictures), 5))
    corners = found[:, 0, 0, 0] - pictures[:, 0, 0, 0]
    tops, lefts = corners // 33, corners % 33 // 3
    assert (np.unique(tops) == np.arange(5)).all()
    assert (np.unique(lefts) == np.arange(7)).all()
    for picture, window, top, left in zip(pictures, found, tops, lefts, strict=True):
        np.testing.assert_array_equal(window, picture[top : top + 5, left : left + 5])
    np.testing.assert_array_equal(augmentation.center(jnp.asarray(pictures), 5), pictures[:, 2:7, 3:8])


def test_imagenet_is_prepared_as_the_paper_says() -> None:
    pictures = bytes_of((2, 256, 256, 3))
    expected = pictures[:, 16:240, 16:240] - np.array([123.68, 116.779, 103.939])
    prepared = imagenet_resnet50.prepare(jnp.asarray(pictures))
    np.testing.assert_allclose(prepared, expected, atol=1e-4)
    np.testing.assert_array_equal(imagenet_resnet50.prepare(jnp.asarray(pictures[:, 16:240, 16:240])), prepared)
    augmented = jax.jit(imagenet_resnet50.augment)(jax.random.key(0), jnp.asarray(pictures))
    assert augmented.shape == (2, 224, 224, 3)
    assert imagenet_resnet50.prepare(augmented).shape == (2, 224, 224, 3)


def test_colours_turn_and_fade() -> None:
    luma, colours = np.array([0.299, 0.587, 0.114]), np.random.default_rng(0).uniform(0, 255, (50, 3))

    def changed(saturation: float, hue: float) -> np.ndarray:
        matrix = augmentation.color_matrices(jnp.array([saturation]), jnp.array([hue]))[0]
        return colours @ np.asarray(matrix, np.float64)

    np.testing.assert_allclose(changed(1, 0), colours, atol=1e-3)
    np.testing.assert_allclose(changed(1, 1), colours, atol=1e-3)
    np.testing.assert_allclose(changed(0, 0.1), np.repeat((colours @ luma)[:, None], 3, 1), atol=1e-3)
    grey = (colours @ luma)[:, None]
    np.testing.assert_allclose(changed(0.6, 0), grey + 0.6 * (colours - grey), atol=1e-3)  # as torchvision's saturation
    for hue in (0.1, 0.2, -0.2):
        np.testing.assert_allclose(changed(1.3, hue) @ luma, colours @ luma, atol=1e-3)
        assert np.abs(changed(1, hue) - colours).max() > 10
    there = augmentation.color_matrices(jnp.array([2.0]), jnp.array([0.15]))[0]
    back = augmentation.color_matrices(jnp.array([0.5]), jnp.array([-0.15]))[0]
    np.testing.assert_allclose(there @ back, np.eye(3), atol=1e-5)


def test_colour_distortion_is_as_strong_as_tensorflows() -> None:
    """On grey pictures, which have no colour to turn, brightness and contrast are what is left."""
    noise = np.random.default_rng(0).normal(0, 5, (8, 8))
    pictures = np.tile(128 + noise[None, :, :, None], (2000, 1, 1, 3)).astype(np.float32)
    found = np.asarray(jax.jit(augmentation.distort_colors)(jax.random.key(0), pictures), np.float64)
    np.testing.assert_allclose(found, found[..., :1].repeat(3, -1), atol=1e-2)
    brightness = found.mean((1, 2, 3)) - pictures[0].mean()
    contrast = found[..., 0].std((1, 2)) / noise.std()
    for drawn, low, high in ((brightness, -32, 32), (contrast, 0.5, 1.5)):
        assert stats.kstest(drawn, stats.uniform(low, high - low).cdf).pvalue > 1e-4
    extreme = np.asarray(augmentation.distort_colors(jax.random.key(1), bytes_of((50, 8, 8, 3))))
    assert extreme.min() == 0
    assert extreme.max() == 255


# ---------------------------------------------------------------------------- they learn


class Small(NamedTuple):
    """A workload's functions on a small net, and a batch."""

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
    # Pictures that differ in their colours and coarse shapes, which survive crops, flips and dropout.
    generator = np.random.default_rng(0)
    coarse = generator.uniform(20, 235, (8, 2, 2, *shape[2:]))
    pictures = coarse.repeat(shape[0] // 2, 1).repeat(shape[1] // 2, 2) + generator.normal(0, 10, (8, *shape))
    return Small(classifier.init, classifier.loss, (pictures.clip(0, 255).astype(np.uint8), labels))


FALLS_TO = {"cifar100_allcnnc": 0.7, "cifar10_vgg16": 0.7}  # much dropout; the others reach half


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_alone_as_beside_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch can be learnt by heart, and a trial's losses are the same in a slot as alone."""
    of, optimizer = small(name, monkeypatch), optax.adam(1e-2)

    def train(model: Any, seed: Any) -> jax.Array:
        def step(held: Any, i: Any) -> Any:
            (params, state), moments = held
            key = jax.random.fold_in(jax.random.key(seed), i)
            (loss, state), gradients = jax.value_and_grad(of.loss, has_aux=True)(params, state, of.batch, key, {})
            updates, moments = optimizer.update(gradients, moments)
            return ((optax.apply_updates(params, updates), state), moments), loss

        return jax.lax.scan(step, (model, optimizer.init(model[0])), jnp.arange(60))[1]

    # Not by ``init``, which takes longer to compile than the training.
    shapes = jax.eval_shape(lambda key: of.init(key), jax.random.key(0))
    models = [filled(shapes, seed) for seed in range(2)]
    alone = np.asarray(jax.jit(train)(models[1], 1))
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    together = np.asarray(jax.jit(jax.vmap(train))(both, jnp.arange(2)))
    assert np.isfinite(alone).all()
    assert alone[-10:].mean() < FALLS_TO.get(name, 0.5) * alone[0]
    np.testing.assert_allclose(together[1, :5], alone[:5], rtol=1e-3)
    assert np.abs(together[0, :5] - alone[:5]).max() > 1e-2  # another seed is another trial


# ---------------------------------------------------------------------------- the workloads as they are declared


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_loads(name: str) -> None:
    """Real data, where this machine has them: shapes that ``init`` and ``loss`` take, splits that do not overlap."""
    of = get_workload(name)
    try:
        data = of.load()
    except DataError as error:
        pytest.skip(str(error))
    assert {f"{split}_loss" for split in data.evaluation} <= set(of.metrics)
    if isinstance(data.train, Stream):
        batch = next(data.train.batches(0, 2))
        jax.tree.map(lambda one, many: np.testing.assert_equal(many.shape, (2, *one.shape)), data.train.example, batch)
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
    assert len(train & valid) < 50  # a few pictures are twice in the published sets
    assert data.train[1].dtype == np.int32
    assert set(np.unique(data.train[1])) == set(range(100 if "cifar100" in name else 10))
