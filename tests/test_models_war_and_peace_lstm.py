"""The LSTM that carries its state, against PyTorch."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_references import (
    Torch,
    close,
    model,
)

from levelfield.kernels import pallas
from levelfield.models import (
    war_and_peace_lstm,
)
from levelfield.workloads import war_and_peace_lstm as war_and_peace_workload


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
    actual = jax.jit(lambda *model: small_lstm.evaluate(*model, batches))(params, junk)
    streams, targets = text[: 4 * 30].reshape(4, 30), text[1 : 4 * 30 + 1].reshape(4, 30)
    logits, _ = torch_lstm(torch, params, 12)(streams)
    targets = torch.from_numpy(targets).long()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    close(actual["loss"].mean(), expected)
    close(actual["error"].mean(), (logits.argmax(-1) != targets).float().mean())


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


def test_dropout_acts_on_the_inputs_and_outputs_of_each_layer(torch: Any, small_lstm: Any) -> None:
    """Between the layers, it acts twice."""
    net, t = small_lstm.NET, Torch(torch)
    characters = np.random.default_rng(0).integers(0, 83, (4, 6))
    params, _ = model(net, jnp.zeros((4, 6), jnp.int32), net.zero(4))
    noise = net.draw_noise(jax.random.key(1), 4, 6)
    assert [array.shape for array in noise] == [(6, 4, 12)] * 3
    x = t(params["Embed_0"]["embedding"])[t(characters.T).long()]
    kept = [256 - 51, 256 - 92, 256 - 51]
    assert np.allclose(np.array(kept) / 256, [0.8, 0.8 * 0.8, 0.8], atol=1e-3)
    for layer, (random, number) in enumerate(zip(noise, kept, strict=True)):
        if layer:
            ours, lstm = params[f"LSTM_{layer - 1}"], torch.nn.LSTM(12, 12, bias=True)
            weights = {
                "weight_ih_l0": t(ours["input"]["kernel"]).T,
                "weight_hh_l0": t(ours["recurrent"]).T,
                "bias_ih_l0": t(ours["input"]["bias"]),
                "bias_hh_l0": torch.zeros(48),
            }
            lstm.load_state_dict(weights)
            x = lstm(x)[0]
        x = x * t(np.asarray(random) >= 256 - number) * (256 / number)
    expected = t.dense(x, params["Dense_0"]).detach().numpy()
    logits, _ = net.apply({"params": params}, characters, net.zero(4), noise)
    close(logits.swapaxes(0, 1), expected)


def test_all_slots_at_once_have_the_gradients_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same dropout, and from zero state where an epoch begins."""
    net = war_and_peace_lstm.Net(units=16)
    monkeypatch.setattr(war_and_peace_lstm, "NET", net)
    slots, streams, window = 3, 5, 2
    random = np.random.default_rng(0)
    single, _ = model(net, jnp.zeros((streams, window), jnp.int32), net.zero(streams))
    params, state = jax.tree.map(
        lambda leaf: leaf + jnp.asarray(random.normal(size=(slots, *leaf.shape)) * 0.1, jnp.float32),
        (single, net.zero(streams)),
    )
    tokens = random.integers(0, 83, (slots, streams, window + 1), dtype=np.uint8)
    batch, keys = (tokens, np.array([False, True, False])), jax.random.split(jax.random.key(1), slots)

    plain = jax.vmap(jax.value_and_grad(war_and_peace_lstm.loss, has_aux=True))
    (losses, ends), gradients = jax.jit(plain)(params, state, batch, keys, {})
    for dtype, tolerance in ((jnp.float32, 1e-5), (jnp.bfloat16, 0.02)):
        own = functools.partial(war_and_peace_lstm._gradients, dtype)
        compiled = jax.jit(own)
        actual = compiled(params, state, batch, keys, {})
        assert jax.tree.structure(actual) == jax.tree.structure((losses, gradients, ends))
        for ours, expected in zip(jax.tree.leaves(actual), jax.tree.leaves((losses, gradients, ends)), strict=True):
            assert ours.dtype == expected.dtype == jnp.float32
            assert jnp.linalg.norm(ours - expected) < tolerance * jnp.linalg.norm(expected)
        diverged = jax.tree.map(lambda leaf: leaf.at[1].set(jnp.nan), params)
        for ours, expected in zip(
            jax.tree.leaves(compiled(diverged, state, batch, keys, {})), jax.tree.leaves(actual), strict=True
        ):
            np.testing.assert_array_equal(ours[::2], expected[::2])  # the neighbors of a trial that diverged


def test_all_slots_at_once_are_evaluated_as_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the state carried from batch to batch, and whatever state training has left."""
    net = war_and_peace_lstm.Net(units=16)
    monkeypatch.setattr(war_and_peace_lstm, "NET", net)
    random = np.random.default_rng(0)
    single, _ = model(net, jnp.zeros((5, 4), jnp.int32), net.zero(5))
    params = jax.tree.map(
        lambda leaf: leaf + jnp.asarray(random.normal(size=(3, *leaf.shape)) * 0.1, leaf.dtype), single
    )
    state = jax.tree.map(lambda leaf: jnp.full((3, *leaf.shape), jnp.nan), net.zero(5))
    batches = random.integers(0, 83, (2, 5, 5), dtype=np.uint8)
    actual = jax.jit(war_and_peace_lstm._evaluate)(params, state, batches)
    expected = jax.jit(jax.vmap(war_and_peace_lstm.evaluate, in_axes=(0, 0, None)))(params, state, batches)
    for metric in ("loss", "error"):
        for ours, theirs in zip(actual[metric], expected[metric], strict=True):
            np.testing.assert_allclose(np.sort(ours.ravel()), np.sort(theirs.ravel()), rtol=1e-4, atol=1e-5)


def test_without_a_gpu_the_plain_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert war_and_peace_lstm.batched("float32") is None
    monkeypatch.setattr(pallas, "available", lambda: False)
    assert war_and_peace_lstm.batched("bfloat16") is None
    monkeypatch.setattr(pallas, "available", lambda: True)
    for function in (war_and_peace_lstm.batched, war_and_peace_lstm.batched_evaluate):
        assert callable(function("bfloat16"))
        assert function("float32") is None
