"""The LSTM that carries its state, against PyTorch."""

from __future__ import annotations

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
