"""The precision of a study: what is rounded, what is not, and which trials it keeps apart."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_study
from training_helpers import ADAM, job_of, trained

import levelfield as lf
from levelfield.data import Data
from levelfield.errors import StudyError
from levelfield.models import cifar10_resnet32, cifar10_vgg16, cifar100_allcnnc, lm1b_transformer, war_and_peace_lstm
from levelfield.models.image_classifier import Classifier
from levelfield.models.layers import Embed
from levelfield.training.program import program
from levelfield.training.step import plain_gradients, train
from levelfield.trial import Point
from levelfield.workload import Workload, minimized
from levelfield.workloads import get_workload


def _small_classifier(module: Any, **changes: Any) -> Classifier:
    return dataclasses.replace(module.CLASSIFIER, net=module.CLASSIFIER.net.clone(**changes))


def _images(size: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (size, side, side, 3)).astype(np.uint8), generator.integers(0, 10, size)


def _lstm_parts() -> tuple[Any, Any]:
    net = war_and_peace_lstm.Net(characters=11, units=8)
    tokens = np.random.default_rng(0).integers(0, 11, (6, 9))
    start = net.zero(6)

    def loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> Any:
        logits, end = net.apply({"params": params}, batch[:, :-1], state)
        return war_and_peace_lstm.cross_entropy(logits, batch[:, 1:]), end

    return (lambda key: (net.init(key, tokens[:, :-1], start)["params"], start), loss), tokens


def _transformer_parts() -> tuple[Any, Any]:
    net = lm1b_transformer.Net(vocabulary=13, layers=1, width=8, heads=2, hidden=16)
    rows = np.random.default_rng(0).integers(1, 13, (4, 9))

    def loss(params: Any, state: Any, batch: Any, key: Any, hyperparameters: Any) -> Any:
        logits = net.apply({"params": params}, batch[:, :-1])
        return lm1b_transformer.optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), batch[:, 1:]
        ).mean(), state

    return (lambda key: (net.init(key, rows[:, :-1])["params"], ()), loss), rows


def _case(name: str) -> tuple[Callable[..., Any], Callable[..., Any], Any]:
    """Return the initialization and the loss of a small network, and a batch."""
    if name == "lstm":
        return *_lstm_parts()[0], _lstm_parts()[1]
    if name == "transformer":
        return *_transformer_parts()[0], _transformer_parts()[1]
    classifiers = {
        "resnet": (cifar10_resnet32, {"blocks": (1, 1), "features": 4}),
        "vgg": (cifar10_vgg16, {"stages": ((4, 4), (4,), (4,), (4,), (4,)), "hidden": 8}),
        "allcnn": (cifar100_allcnnc, {"features": (4, 8)}),
    }
    if name in classifiers:
        module, changes = classifiers[name]
        small = _small_classifier(module, **changes)
        return small.init, small.loss, _images(8, 16 if name == "resnet" else 32)
    workload = get_workload(name)
    data = workload.load().train
    batch = jax.tree.map(lambda array: np.asarray(array[:32]), data) if name != "quadratic" else np.ones(100, "f4")
    return workload.init, workload.loss, batch


def _compiled(function: Any) -> Any:
    """They run once: compiling them well would take longer than running them."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": "0"})


_LARGER = [pytest.param(name, marks=pytest.mark.slow) for name in ("vgg", "allcnn", "transformer")]


@pytest.mark.parametrize("name", ["fashion_mini", "tolstoi_mini", "quadratic", "wilson", "resnet", "lstm", *_LARGER])
def test_gradients_in_bfloat16_are_those_in_float32_up_to_its_rounding(name: str) -> None:
    init, loss, batch = _case(name)
    workload: Any = dataclasses.replace(get_workload("wilson"), init=init, loss=loss)
    params, state = init(jax.random.key(0))
    numbers = {"l2": jnp.full(1, 1e-2, jnp.float32)}
    arguments = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (params, state, batch, jax.random.key(1)))
    found = {
        precision: _compiled(plain_gradients(workload, precision))(*arguments, numbers)
        for precision in ("float32", "bfloat16")
    }
    (exact, gradients, _), (rounded, coarse, coarse_state) = found["float32"], found["bfloat16"]
    for leaf, like in zip(jax.tree.leaves((coarse, coarse_state)), jax.tree.leaves((params, state)), strict=True):
        assert leaf.dtype == like.dtype
    assert rounded.dtype == jnp.float32
    np.testing.assert_allclose(rounded, exact, rtol=0.02)
    ours, theirs = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(t)]) for t in (coarse, gradients))
    error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    assert error < 0.1  # each number is rounded to 1 part in 256
    assert error > 1e-5 or name == "wilson"  # whose first gradient is made of small integers


def test_uses_of_an_embedding_are_added_up_in_float32() -> None:
    """In bfloat16, adding ones to 256 would have no effect."""

    def total(table: jax.Array) -> jax.Array:
        looked_up = Embed(3, 2).apply({"params": {"embedding": table}}, jnp.zeros(5000, int))
        assert looked_up.dtype == table.dtype
        return jnp.sum(looked_up.astype(jnp.float32))

    gradient = jax.grad(total)(jnp.zeros((3, 2), jnp.bfloat16))
    np.testing.assert_allclose(gradient[0].astype(float), 5000, rtol=2**-8)


def test_weights_keep_changes_that_bfloat16_would_lose() -> None:
    slope = Workload(
        name="slope",
        summary="a loss that falls by a tiny amount in each step",
        batch_size=1,
        eval_interval=40,
        metrics=minimized("train_loss"),
        select="train_loss",
        load=lambda: Data((), {"train": np.zeros(1)}),
        draw=lambda key, size: (),
        init=lambda key: (jnp.ones(()), ()),
        loss=lambda params, state, batch, key, hyperparameters: (params, state),
        evaluate=lambda params, state, batch: {"loss": jnp.full(1, params)},
    )
    job = job_of(slope, "sgd", steps=40, eval_interval=40)._replace(precision="bfloat16")
    (trial,) = trained(job, 1, [Point(0, {"learning_rate": 1e-4}, 0)])
    assert trial.curve.final("train_loss") == pytest.approx(1 - 40e-4, abs=1e-6)


@functools.cache
def _fashion_mini_loss(precision: Any) -> float:
    job = job_of("fashion_mini", steps=100, eval_interval=100)._replace(precision=precision)
    (trial,) = trained(job, 1, [Point(0, ADAM, 0)])
    return trial.curve.final("train_loss")


def test_training_in_bfloat16_reaches_about_the_same_loss() -> None:
    assert _fashion_mini_loss("bfloat16") == pytest.approx(_fashion_mini_loss("tf32"), rel=0.1)
    assert _fashion_mini_loss("bfloat16") < 1.0  # it starts at 2.3


@pytest.mark.parametrize(("precision", "asked"), [("float32", True), ("tf32", False)])
def test_float32_asks_for_full_precision_of_every_product(precision: Any, asked: bool) -> None:
    job = job_of("wilson", steps=2, eval_interval=1)._replace(precision=precision)
    compiled = program(job, 1)
    text = str(
        jax.make_jaxpr(lambda slots, data: train(job, plain_gradients(job.workload, precision), slots, data))(
            compiled.empty(), get_workload("wilson").load().train
        )
    )
    products = [line for line in text.splitlines() if "dot_general" in line or "precision=" in line]
    assert products
    assert ("Precision.HIGHEST" in text) is asked


def test_a_dense_layer_takes_the_type_of_its_parameters() -> None:
    """flax would compute in float32 if the input were in float32."""
    seen = []

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
            seen.append(x.dtype)
            return nn.Dense(10)(x)

    classifier = Classifier(Net(), (4,), lambda images: images.astype(jnp.float32))
    params, state = classifier.init(jax.random.key(0))
    low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    batch = np.ones((2, 4), np.uint8), np.zeros(2, int)
    value, _ = classifier.loss(low, state, batch, jax.random.key(0), {})
    assert seen[-1] == jnp.bfloat16
    assert value.dtype == jnp.float32


def test_trials_of_another_precision_are_other_trials() -> None:
    default, same = make_study(), make_study(precision="tf32")
    assert "precision" not in default.spec()
    assert default.identity("sgd") == same.identity("sgd")
    identities = {make_study(precision=name).identity("sgd") for name in ("float32", "tf32", "bfloat16")}
    assert len(identities) == 3
    again = lf.Study(**make_study(precision="bfloat16").spec())
    assert again.precision == "bfloat16"


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(StudyError, match="precision = 'half': expected 'float32', 'tf32' or 'bfloat16'"):
        make_study(precision="half")


def test_the_precision_of_the_products_is_recorded_with_the_trials(command) -> None:
    arguments = ("--trials", "1", "--pool", "1", "--steps", "2", "--optimizers", "momentum")
    code, _, err = command("run", "quadratic", *arguments, "--precision", "bfloat16")
    assert code == 0, err
    study = lf.load_study("quadratic").replace(trials=1, pool=1, steps=2, precision="bfloat16").only(["momentum"])
    comparison = lf.compare(study, "levelfield-out/quadratic/trials.db")
    assert [entry["precision"] for entry in comparison.provenance] == ["bfloat16 (weights: float32)"]
