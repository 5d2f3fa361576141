"""Gradients of many trials at once against those of each trial's loss."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_helpers import lowered_for_cuda, relative_error

from levelfield.kernels import pallas
from levelfield.models import batched_cnn, batched_transformer, cifar10_resnet32, fashion_mnist_cnn, war_and_peace_gpt
from levelfield.models.layers import max_pool
from levelfield.models.transformer import GPT, LanguageModel

SLOTS, EXAMPLES = 3, 3


def trials(classifier, seed=0, examples=EXAMPLES):
    """Return the arguments of ``gradients`` for trials with random parameters, images and labels."""
    keys = jax.random.split(jax.random.key(seed), SLOTS)
    params, state = jax.vmap(classifier.init)(keys)
    params = perturbed(params)
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (SLOTS, examples, *classifier.shape), dtype=np.uint8)
    labels = generator.integers(0, 10, (SLOTS, examples), dtype=np.int32)
    return params, state, (images, labels), keys


def perturbed(params):
    """Move parameters, so that scales are not 1 and biases not 0: otherwise errors could hide."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    moved = [p + 0.1 * jax.random.normal(key, p.shape) for key, p in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, moved)


def plain_gradients(classifier):
    """Return the same as ``classifier.batched``, from each trial's loss."""

    def gradients(*arguments):
        (losses, state), derivatives = jax.vmap(jax.value_and_grad(classifier.loss, has_aux=True))(*arguments)
        return losses, derivatives, state

    return gradients


def error_of_all(got, expected):
    """Return ‖got − expected‖ / ‖expected‖ over all arrays."""
    pairs = list(zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True))
    error = sum(np.sum((np.asarray(a, float) - np.asarray(b, float)) ** 2) for a, b in pairs)
    return (error / sum(np.sum(np.asarray(b, float) ** 2) for _, b in pairs)) ** 0.5


def assert_isolated(gradients, params, *others):
    """A slot whose parameters are not finite changes nothing in the others."""
    expected = gradients(params, *others)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(expected))
    for poison in (jnp.nan, jnp.inf):
        got = gradients(jax.tree.map(lambda leaf, value=poison: leaf.at[1].set(value), params), *others)
        assert not np.isfinite(got[0][1])
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(a[::2], b[::2])


def assert_those_of_each_trial(model, classifier, *arguments):
    gradients = jax.jit(model.gradients(classifier, jnp.float32))
    got = gradients(*arguments)
    expected = jax.jit(plain_gradients(classifier))(*arguments)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=5e-6)
    assert_isolated(gradients, *arguments)


@pytest.fixture(scope="module")
def small_resnet():
    net = cifar10_resnet32.Net(blocks=(1, 1))
    return dataclasses.replace(cifar10_resnet32.CLASSIFIER, net=net, shape=(8, 8, 3))


def test_resnet_gradients_at_once_are_those_of_each_trial(small_resnet):
    arguments = (
        *trials(small_resnet),
        {"l2": jnp.array([0.0, 0.1, 0.2]), "label_smoothing": jnp.array([0.0, 0.1, 0.2])},
    )
    assert_those_of_each_trial(cifar10_resnet32, small_resnet, *arguments)


@pytest.fixture(scope="module")
def small_cnn():
    net = fashion_mnist_cnn.Net(features=(16, 16), hidden=16)
    return dataclasses.replace(fashion_mnist_cnn.CLASSIFIER, net=net, shape=(12, 12))


def test_cnn_gradients_at_once_are_those_of_each_trial(small_cnn):
    arguments = (*trials(small_cnn), {"l2": jnp.array([0.0, 0.1, 0.2])})
    assert_those_of_each_trial(fashion_mnist_cnn, small_cnn, *arguments)


@pytest.mark.parametrize("model", [cifar10_resnet32, fashion_mnist_cnn])
def test_images_are_evaluated_at_once_as_for_each_trial(model, small_resnet, small_cnn):
    classifier = small_resnet if model is cifar10_resnet32 else small_cnn
    params, state, (images, labels), _ = trials(classifier)
    # Running averages that the batch does not have.
    state = jax.tree.map(lambda s: s + jax.random.uniform(jax.random.key(s.size), s.shape), state)
    batch = (images[0], labels[0])
    got = jax.jit(model.evaluation(classifier))(params, state, batch)
    expected = jax.jit(jax.vmap(classifier.evaluate, in_axes=(0, 0, None)))(params, state, batch)
    assert got.keys() == expected.keys()
    np.testing.assert_allclose(got["loss"], expected["loss"], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got["error"], expected["error"])


def assert_diverged_trials_have_no_finite_loss(model, classifier):
    """Otherwise they would count as feasible."""
    params, state, (images, labels), _ = trials(classifier)
    evaluate, batch = jax.jit(model.evaluation(classifier)), (images[0], labels[0])
    expected = evaluate(params, state, batch)["loss"]
    broken = params | {"Conv_0": {"kernel": params["Conv_0"]["kernel"].at[1].set(jnp.nan)}}
    cases = [(broken, state)]
    if state:
        cases.append((params, jax.tree.map(lambda average: average.at[1].set(jnp.nan), state)))
    for case in cases:
        loss = evaluate(*case, batch)["loss"]
        assert np.isnan(loss[1]).all()
        np.testing.assert_array_equal(loss[::2], expected[::2])


@pytest.mark.parametrize("model", [cifar10_resnet32, fashion_mnist_cnn])
def test_diverged_trials_have_no_finite_loss(model, small_resnet, small_cnn):
    assert_diverged_trials_have_no_finite_loss(model, small_resnet if model is cifar10_resnet32 else small_cnn)


@pytest.mark.gpu  # maxima pass over NaN on a GPU, but not in the interpreter
@pytest.mark.parametrize("model", [cifar10_resnet32, fashion_mnist_cnn])
def test_on_a_gpu_diverged_trials_have_no_finite_loss(model, small_resnet, small_cnn):
    if not pallas.available():
        pytest.skip("there is no GPU with kernels")
    assert_diverged_trials_have_no_finite_loss(model, small_resnet if model is cifar10_resnet32 else small_cnn)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 2e-2)])
def test_the_layers_of_the_cnn_have_the_gradients_of_xla(dtype, tolerance):
    generator = np.random.default_rng(0)
    x, kernel, bias, d = (
        jnp.asarray(generator.normal(size=shape), dtype)
        for shape in [(2, 2, 4, 4, 16), (2, 5, 5, 16, 16), (2, 16), (2, 2, 2, 2, 16)]
    )

    def by_xla(x, kernel, bias):
        convolve = functools.partial(
            jax.lax.conv_general_dilated,
            window_strides=(1, 1),
            padding=[(2, 2), (2, 2)],
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        pooled = jax.vmap(max_pool)(jax.vmap(convolve)(x, kernel))
        return jax.nn.relu(pooled + bias[:, None, None, None])

    def gradients(layer, d, *arguments):
        return jax.vjp(layer, *arguments)[1](d)

    got = jax.jit(gradients, static_argnums=0)(batched_cnn.pooled_layer, d, x, kernel, bias)
    wide = [array.astype(jnp.float32) for array in (d, x, kernel, bias)]
    for a, b in zip(got, jax.jit(gradients, static_argnums=0)(by_xla, *wide), strict=True):
        assert error_of_all(a.astype(jnp.float32), b) < tolerance


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("model", [cifar10_resnet32, fashion_mnist_cnn])
def test_kernels_lower_for_cuda(model, dtype):
    keys = jax.ShapeDtypeStruct((2,), jax.random.key(0).dtype)
    params, state = jax.eval_shape(jax.vmap(model.init), keys)
    images = jax.ShapeDtypeStruct((2, 256, *model.CLASSIFIER.shape), jnp.uint8)
    batch = (images, jax.ShapeDtypeStruct((2, 256), jnp.int32))
    lowered = lowered_for_cuda(model.gradients(model.CLASSIFIER, dtype), params, state, batch, keys, {})
    assert lowered.count("triton") >= 2
    of_one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)
    assert lowered_for_cuda(model.evaluation(model.CLASSIFIER), params, state, of_one).count("triton") >= 2


@pytest.mark.gpu
@pytest.mark.parametrize("model", [cifar10_resnet32, fashion_mnist_cnn])
def test_gradients_at_full_size_are_as_precise_as_those_of_xla(model):
    if not pallas.available():
        pytest.skip("there is no GPU with kernels")
    arguments = (*trials(model.CLASSIFIER, examples=256), {})
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(plain_gradients(model.CLASSIFIER))(*arguments)[1]
    with jax.default_matmul_precision("tensorfloat32"):
        usual = error_of_all(jax.jit(plain_gradients(model.CLASSIFIER))(*arguments)[1], expected)
    # bfloat16 has three bits less than TF32.
    for precision, allowed in (("tf32", 3 * usual), ("bfloat16", 3 * 8 * usual)):
        got = jax.jit(model.batched(precision))(*arguments)[1]
        assert error_of_all(got, expected) < allowed, precision


# ---------------------------------------------------------------------------- transformers

GPT_MODEL = LanguageModel(GPT(characters=11, length=12, layers=2, width=32, heads=2, dropout=0.2, spread=0.3))
CERTAIN = LanguageModel(dataclasses.replace(GPT_MODEL.net, dropout=0.0, layers=1))


def texts(language, sequences, seed=0):
    """Return the arguments of ``gradients`` for trials with random parameters and characters."""
    keys = jax.random.split(jax.random.key(seed), SLOTS)
    params, _ = jax.vmap(language.init)(keys)
    params = perturbed(params)
    shape = (SLOTS, sequences, language.net.length + 1)
    characters = np.random.default_rng(seed).integers(0, language.net.characters, shape, dtype=np.uint8)
    return params, (), characters, keys, {}


@functools.cache
def gpt_gradients(language):
    return jax.jit(batched_transformer.gradients(language.net, jnp.float32))


@pytest.mark.parametrize("language", [GPT_MODEL, CERTAIN])
def test_gpt_gradients_at_once_are_those_of_each_trial(language):
    arguments, gradients = texts(language, 3), gpt_gradients(language)
    got, expected = gradients(*arguments), jax.jit(plain_gradients(language))(*arguments)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
    assert all(a.dtype == b.dtype for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True))
    assert relative_error(got[1], expected[1]) < 1e-4
    assert_isolated(gradients, *arguments)


def test_gpts_are_evaluated_at_once_as_each():
    params, state, characters, *_ = texts(GPT_MODEL, 3)
    windows = characters[0]
    got = jax.jit(functools.partial(batched_transformer.evaluate, GPT_MODEL.net))(params, state, windows)
    expected = jax.jit(jax.vmap(GPT_MODEL.evaluate, in_axes=(0, 0, None)))(params, state, windows)
    assert got.keys() == expected.keys()
    np.testing.assert_allclose(got["loss"], expected["loss"], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got["error"], expected["error"])


def test_gpt_gradients_in_bfloat16_are_near_those_in_float32():
    arguments = texts(GPT_MODEL, 3)
    losses, got, _ = jax.jit(batched_transformer.gradients(GPT_MODEL.net, jnp.bfloat16))(*arguments)
    expected_losses, expected, _ = gpt_gradients(GPT_MODEL)(*arguments)
    np.testing.assert_allclose(losses, expected_losses, rtol=0.02)
    assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {np.dtype(np.float32)}
    assert relative_error(got, expected) < 0.1


def test_kernels_of_the_gpt_lower_for_cuda():
    language = LanguageModel(GPT(83, 256, layers=1, width=384, heads=6, dropout=0.2))
    arguments = jax.eval_shape(lambda: texts(language, 2))
    arguments = (*arguments[:2], jax.ShapeDtypeStruct((SLOTS, 2, 257), jnp.uint8), *arguments[3:])
    for dtype in (jnp.float32, jnp.bfloat16):
        lowered = lowered_for_cuda(batched_transformer.gradients(language.net, dtype), *arguments)
        assert lowered.count("triton") >= 4


@pytest.mark.gpu
def test_gpt_gradients_at_full_width_are_as_precise_as_those_of_xla():
    if not pallas.available():
        pytest.skip("there is no GPU with kernels")
    language = LanguageModel(dataclasses.replace(war_and_peace_gpt.NET, layers=1))
    arguments, plain = texts(language, 8), plain_gradients(language)
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(plain)(*arguments)[1]
    with jax.default_matmul_precision("tensorfloat32"):
        usual = relative_error(jax.jit(plain)(*arguments)[1], expected)
    for dtype, allowed in ((jnp.float32, 3 * usual), (jnp.bfloat16, 3 * 8 * usual)):
        got = jax.jit(batched_transformer.gradients(language.net, dtype))(*arguments)[1]
        assert relative_error(got, expected) < allowed, dtype
