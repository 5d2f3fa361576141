"""The Transformer against PyTorch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_references import (
    SMALL_TRANSFORMER,
    Torch,
    close,
    evaluated,
    model,
    sentences,
)

from levelfield.models import lm1b_transformer, transformer
from levelfield.workloads import lm1b_transformer as lm1b_workload


@pytest.fixture
def small_transformer(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(lm1b_transformer, "NET", SMALL_TRANSFORMER)
    monkeypatch.setattr(lm1b_transformer, "LENGTH", 12)
    return lm1b_transformer


def test_attention(torch: Any) -> None:
    net = transformer.Attention(heads=4)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 7, 16)), jnp.float32)
    params, _ = model(net, x)
    t = Torch(torch)
    reference = torch.nn.MultiheadAttention(16, 4, bias=False, batch_first=True)
    joined = torch.cat([t(params[name]).T for name in ("query", "key", "value")])
    reference.load_state_dict({"in_proj_weight": joined, "out_proj.weight": t(params["output"]).T})
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
        joined = torch.cat([t(attention[name]).T for name in ("query", "key", "value")])
        weights = {
            "self_attn.in_proj_weight": joined,
            "self_attn.in_proj_bias": torch.zeros(48),
            "self_attn.out_proj.weight": t(attention["output"]).T,
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


def test_transformer_does_not_see_later_tokens() -> None:
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


def test_padding_does_not_count_in_the_loss(torch: Any, small_transformer: Any) -> None:
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
