"""The transformers against PyTorch; what they see, and what they learn."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_references import Torch, bytes_of, close, evaluated, model
from training_helpers import trained

from levelfield.models import augmentation, cifar10_vit, transformer
from levelfield.models.transformer import GPT, LanguageModel
from levelfield.optax_optimizers import build_optimizer
from levelfield.rules import get_rule
from levelfield.training.program import Job
from levelfield.trial import Point
from levelfield.workloads import get_workload, tolstoi_mini, war_and_peace_gpt

SMALL = GPT(characters=11, length=12, layers=2, width=16, heads=2)
TEXT = np.random.default_rng(0).integers(0, 11, (3, 13))


@functools.cache
def parameters() -> Any:
    return model(SMALL, jnp.zeros((1, 12), jnp.int32))[0]


def torch_blocks(torch: Any, x: Any, params: Any, causal: bool, width: int = 16, heads: int = 2) -> Any:
    """PyTorch's own encoder layers with our weights."""
    t, i = Torch(torch), 0
    zero = functools.partial(torch.zeros, dtype=torch.float32)
    length = x.shape[1]
    while f"Block_{i}" in params:
        ours = params[f"Block_{i}"]
        attention = ours["Attention_0"]
        layer = torch.nn.TransformerEncoderLayer(
            width,
            heads,
            4 * width,
            0.0,
            functools.partial(torch.nn.functional.gelu, approximate="tanh"),
            batch_first=True,
            norm_first=True,
        )
        weights = {
            "self_attn.in_proj_weight": torch.cat([t(attention[name]).T for name in ("query", "key", "value")]),
            "self_attn.in_proj_bias": zero(3 * width),
            "self_attn.out_proj.weight": t(attention["output"]).T,
            "self_attn.out_proj.bias": zero(width),
        }
        for j, size in enumerate((4 * width, width)):
            dense, norm = ours[f"Dense_{j}"], ours[f"LayerNorm_{j}"]
            weights |= {
                f"linear{j + 1}.weight": t(dense["kernel"]).T,
                f"linear{j + 1}.bias": t(dense["bias"]) if "bias" in dense else zero(size),
                f"norm{j + 1}.weight": t(norm["scale"]),
                f"norm{j + 1}.bias": t(norm["bias"]) if "bias" in norm else zero(width),
            }
        layer.load_state_dict(weights)
        later = torch.triu(torch.full((length, length), -torch.inf), 1) if causal else None
        with torch.no_grad():
            x = layer.train()(x, src_mask=later)
        i += 1
    return x


def test_a_gpt_is_pytorchs(torch: Any) -> None:
    params, t = parameters(), Torch(torch)
    tokens = TEXT[:, :-1]
    x = t(params["embedding"])[torch.from_numpy(tokens)] + t(params["position_embedding"])
    x = torch_blocks(torch, x, params, causal=True)
    x = torch.nn.functional.layer_norm(x, (16,), t(params["LayerNorm_0"]["scale"]), None, 1e-5)
    close(evaluated(SMALL, params, {}, tokens), x @ t(params["embedding"]).T)


def test_the_loss_is_the_cross_entropy_of_the_next_character(torch: Any) -> None:
    language = LanguageModel(SMALL)
    logits = Torch(torch)(evaluated(SMALL, parameters(), {}, TEXT[:, :-1]))
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(TEXT[:, 1:]).flatten())
    loss = jax.jit(lambda params: language.loss(params, (), TEXT, jax.random.key(0), {})[0])(parameters())
    metrics = jax.jit(lambda params: language.evaluate(params, (), TEXT))(parameters())
    close(loss, expected)
    close(metrics["loss"].mean(), expected)
    wrong = logits.argmax(-1) != torch.from_numpy(TEXT[:, 1:])
    close(metrics["error"].mean(), wrong.float().mean())


def test_a_gpt_does_not_see_later_characters() -> None:
    before = evaluated(SMALL, parameters(), {}, TEXT[:, :-1])
    for place in (0, 5, 11):
        changed = TEXT[:, :-1].copy()
        changed[:, place] = (changed[:, place] + 3) % 11
        after = evaluated(SMALL, parameters(), {}, changed)
        differs = np.abs(np.asarray(after - before)).max((0, 2)) > 1e-6
        assert not differs[:place].any()
        assert differs[place:].all()


def test_a_vit_is_pytorchs(torch: Any) -> None:
    net = cifar10_vit.Net(layers=2, width=16, heads=2)
    inputs = augmentation.standardize(jnp.asarray(bytes_of((2, 32, 32, 3))))
    params, _ = model(net, inputs)
    t = Torch(torch)
    # A convolution with stride 4 takes the patches. Our kernel's first axis is (row, column, channel) of a patch.
    kernel = np.asarray(params["embedding"]["kernel"]).reshape(4, 4, 3, 16)
    x = t.conv(t.image(inputs), {"kernel": kernel, "bias": params["embedding"]["bias"]}, stride=4)
    x = torch_blocks(torch, x.flatten(2).mT + t(params["position_embedding"]), params, causal=False)
    norm = params["LayerNorm_0"]
    x = torch.nn.functional.layer_norm(x, (16,), t(norm["scale"]), t(norm["bias"]), 1e-5)
    close(evaluated(net, params, {}, inputs), t.dense(x.mean(1), params["head"]))


def test_half_precision_computes_what_decides_in_single_precision() -> None:
    """In bfloat16, activations are rounded to 8 bits; logits are float32, and losses are near those of float32."""
    language = LanguageModel(SMALL)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), parameters())
    logits = jax.eval_shape(lambda params: SMALL.apply({"params": params}, TEXT[:, :-1]), half)
    assert logits.dtype == jnp.float32

    @jax.jit
    def gradient(params: Any) -> Any:
        return jax.value_and_grad(lambda params: language.loss(params, (), TEXT, jax.random.key(0), {})[0])(params)

    (wide_loss, wide), (loss, gradients) = gradient(parameters()), gradient(half)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {np.dtype(jnp.bfloat16)}
    assert loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, wide_loss, rtol=0.02)
    for leaf, expected in zip(jax.tree.leaves(gradients), jax.tree.leaves(wide), strict=True):
        close(leaf.astype(jnp.float32), expected, 0.1)


def test_layer_normalization_in_half_precision_has_statistics_in_single_precision() -> None:
    """The variance of numbers near 64 cannot be seen in bfloat16, whose spacing there is 0.5."""
    x = jnp.asarray(64 + np.tile([0.0, 0.5], 32), jnp.bfloat16)[None]
    params = {"scale": jnp.ones(64, jnp.bfloat16)}
    normalized = transformer.LayerNorm().apply({"params": params}, x)
    assert normalized.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(normalized, float)[0], np.tile([-1.0, 1.0], 32), rtol=0.01)


def test_the_kernel_of_attention_is_chosen_by_type_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {transformer.attention_kernel(dtype) for dtype in (jnp.float32, jnp.bfloat16)} == {"xla"}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert transformer.attention_kernel(jnp.bfloat16) == "cudnn"
    assert transformer.attention_kernel(jnp.float32) == "xla"


# nanoGPT's count for 65 characters is 10.65 million without positions.
PARAMETERS = {
    "tolstoi_gpt": (76 + 32) * 32 + 2 * (12 * 32**2 + 2 * 32) + 32,
    "war_and_peace_gpt": (83 + 256) * 384 + 6 * (12 * 384**2 + 2 * 384) + 384,
    "cifar10_vit": (48 + 1) * 192 + 64 * 192 + 6 * (12 * 192**2 + 5 * 192 + 4 * 192) + 2 * 192 + 193 * 10,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_sizes(name: str) -> None:
    params, _ = jax.eval_shape(get_workload(name).init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_muon_of_hidden_layers_moves_the_matrices_of_blocks_and_nothing_else(name: str) -> None:
    """Embeddings and the last layer are matrices, too, but Muon is for hidden layers."""
    params, _ = jax.eval_shape(get_workload(name).init, jax.random.key(0))
    state = jax.eval_shape(build_optimizer("contrib.muon", learning_rate=0.1, hidden_only=True).init, params)
    momentum = state.inner_states["muon"].inner_state[0].mu
    by_muon = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(momentum)}
    every = jax.tree_util.tree_leaves_with_path(params)
    assert by_muon == {jax.tree_util.keystr(path) for path, leaf in every if "Block" in str(path) and leaf.ndim == 2}
    assert by_muon


def test_windows_of_war_and_peace() -> None:
    text = (np.arange(1000) % 251).astype(np.uint8)
    cut = war_and_peace_gpt.windows(text, 16)
    assert cut.shape == (47, 257)  # 46 · 16 + 257 = 993; the next would end at 1009
    np.testing.assert_array_equal(cut[3], text[48 : 48 + 257])


def entropy_of_bigrams() -> tuple[float, float]:
    """Return the validation cross-entropy, in nats, of the counts of characters and of pairs in the training text."""
    data = tolstoi_mini.load()
    train_text, valid = data.train, data.evaluation["valid"]
    pairs = np.zeros((76, 76))
    np.add.at(pairs, (train_text[:, :-1], train_text[:, 1:]), 1)
    single = pairs.sum(0) + 1
    pairs += 0.1  # for pairs that do not occur
    before, after = valid[:, :-1], valid[:, 1:]
    unigram = -np.log(single[after] / single.sum()).mean()
    return float(unigram), float(-np.log(pairs[before, after] / pairs.sum(1)[before]).mean())


@pytest.mark.slow
def test_the_small_gpt_learns_more_than_pairs_of_characters() -> None:
    """The counts of single characters give 3.11 nats and those of pairs 2.41: 1,000 steps go below both."""
    unigram, bigram = entropy_of_bigrams()
    assert unigram == pytest.approx(3.105, abs=0.01)
    assert bigram == pytest.approx(2.413, abs=0.01)
    job = Job(get_workload("tolstoi_gpt"), get_rule("optax.adamw"), "constant", 1000, 8, 250, ("learning_rate",))
    (trial,) = trained(job, 1, [Point(0, {"learning_rate": 0.01}, seed=0)])
    losses = trial.curve.values["valid_loss"]
    assert losses[-1] < bigram - 0.2
    assert np.all(np.diff(losses) < 0)
