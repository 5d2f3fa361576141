"""lf.simulate: the general rule at what it returns follows the special one, by independent equations in numpy."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import levelfield as lf

# The paper's rules, written out again in numpy. Each yields the steps θ_{t+1} − θ_t. Any hyperparameter may vary.


def at(value: Any, t: int) -> Any:
    return value(t) if callable(value) else value


def momentum(gradients, learning_rate, momentum):
    v = 0.0
    for t, g in enumerate(gradients):
        v = at(momentum, t) * v + g
        yield -at(learning_rate, t) * v


def nesterov(gradients, learning_rate, momentum):
    v = 0.0
    for t, g in enumerate(gradients):
        v = at(momentum, t) * v + g
        yield -at(learning_rate, t) * (at(momentum, t) * v + g)


def rmsprop(gradients, learning_rate, momentum, rho, epsilon, ahead=False):
    v, m = 1.0, 0.0
    for t, g in enumerate(gradients):
        v = rho * v + (1 - rho) * g**2
        scaled = at(learning_rate, t) * g / np.sqrt(v + epsilon)
        m = at(momentum, t) * m + scaled
        yield -(at(momentum, t) * m + scaled) if ahead else -m


def adam(gradients, learning_rate, beta1, beta2, epsilon, ahead=False):
    m, v = 0.0, 0.0
    for t, g in enumerate(gradients):
        b1 = at(beta1, t)
        m = b1 * m + (1 - b1) * g
        v = beta2 * v + (1 - beta2) * g**2
        correction = math.sqrt(1 - beta2 ** (t + 1)) / (1 - b1 ** (t + 1))
        step = b1 * m + (1 - b1) * g if ahead else m
        yield -at(learning_rate, t) * step / (np.sqrt(v) + epsilon) * correction


NUMPY: dict[str, Callable[..., Any]] = {
    "momentum": momentum,
    "nesterov": nesterov,
    "rmsprop": rmsprop,
    "rmsterov": functools.partial(rmsprop, ahead=True),
    "adam": adam,
    "nadam": functools.partial(adam, ahead=True),
}
STEPS = 50


def history(seed: int = 0, steps: int = STEPS) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return 10 ** generator.uniform(-1, 1, size=8) * generator.normal(size=(steps, 8))


def trajectory(rule: str, hyperparameters: Mapping[str, Any], seen: np.ndarray) -> np.ndarray:
    return np.cumsum(list(NUMPY[rule](seen, **hyperparameters)), axis=0)


def deviation(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest distance, relative to how far the expected one goes."""
    return float(np.linalg.norm(actual - expected, axis=1).max() / np.linalg.norm(expected, axis=1).max())


def linear(t: Any) -> Any:
    return 0.1 * (1 - t / 60)


# The general rule at what simulate returns, against the special one

LIMITS = [
    ("momentum", "adam", {}),
    ("momentum", "adam", {"beta2": 0.9}),
    ("nesterov", "nadam", {}),
    ("nesterov", "nadam", {"beta2": 0.9}),
    ("momentum", "rmsprop", {"rho": 0.5}),
]
RATES = {"constant": 0.1, "function": lambda t: 0.1, "linear": linear}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("special", "general", "open"), LIMITS, ids=str)
def test_a_limits_error_falls_tenfold_with_each_decade(special, general, open, rate):
    values, seen = {"learning_rate": RATES[rate], "momentum": 0.9}, history()
    expected = trajectory(special, values, seen)
    errors = [
        deviation(
            trajectory(general, lf.simulate(special, values, by=general, epsilon=epsilon, **open), seen), expected
        )
        for epsilon in (1e5, 1e6, 1e7, 1e8, 1e9)
    ]
    assert errors[0] < 1e-2
    assert all(8 < before / after < 12 for before, after in itertools.pairwise(errors))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("pair", [("momentum", "adam"), ("nesterov", "nadam")], ids=" in ".join)
def test_the_error_is_of_the_size_that_the_notes_say(pair, seed):
    """They say 5e-8 at ε = 1e9."""
    special, general = pair
    values, seen = {"learning_rate": 0.1, "momentum": 0.9}, history(seed)
    followed = trajectory(general, lf.simulate(special, values, by=general, epsilon=1e9), seen)
    assert 1e-9 < deviation(followed, trajectory(special, values, seen)) < 2e-7


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("epsilon", [0.0, 3.0])
def test_rmsprop_follows_momentum_exactly(rate, epsilon):
    values, seen = {"learning_rate": RATES[rate], "momentum": 0.9}, history()
    followed = lf.simulate("momentum", values, by="rmsprop", epsilon=epsilon)
    assert followed["rho"] == 1
    assert followed["epsilon"] == epsilon
    assert deviation(trajectory("rmsprop", followed, seen), trajectory("momentum", values, seen)) < 1e-13


@pytest.mark.parametrize("epsilon", [0.0, 3.0])
def test_rmsterov_follows_nesterov_exactly_at_a_constant_rate(epsilon):
    values, seen = {"learning_rate": 0.1, "momentum": 0.9}, history()
    followed = lf.simulate("nesterov", values, by="rmsterov", epsilon=epsilon)
    assert deviation(trajectory("rmsterov", followed, seen), trajectory("nesterov", values, seen)) < 1e-13


def test_a_momentum_that_varies_is_followed_or_refused():
    """RMSProp follows it; Adam's two weights, β₁ and 1 − β₁, cannot."""
    values, seen = {"learning_rate": 0.1, "momentum": lambda t: 0.5 + 0.4 * t / STEPS}, history()
    for general in ("rmsprop", "adam"):
        with contextlib.suppress(lf.LevelfieldError):
            followed = lf.simulate("momentum", values, by=general)
            error = deviation(trajectory(general, followed, seen), trajectory("momentum", values, seen))
            assert error < 1e-3, f"{general} strays by {error:.2g}"


@given(
    rate=st.floats(1e-4, 10),
    gamma=st.floats(0, 0.99),
    beta2=st.floats(0, 0.999),
    epsilon=st.floats(1e2, 1e8),
    seed=st.integers(0, 2**32 - 1),
)
def test_adam_strays_by_at_most_the_largest_gradient_over_epsilon(rate, gamma, beta2, epsilon, seed):
    """Each of its steps is Momentum's times ε/(√v + ε), and √v is at most the largest |g|."""
    values, seen = {"learning_rate": rate, "momentum": gamma}, history(seed, steps=20)
    followed = lf.simulate("momentum", values, by="adam", epsilon=epsilon, beta2=beta2)
    steps = np.array(list(momentum(seen, **values)))
    strays = np.abs(trajectory("adam", followed, seen) - np.cumsum(steps, axis=0))
    bound = np.abs(seen).max() / epsilon + 1e-12  # and rounding
    assert np.all(strays <= bound * np.cumsum(np.abs(steps), axis=0))


# What simulate returns


def test_a_value_that_does_not_vary_is_a_number():
    assert lf.simulate("sgd", {"learning_rate": 0.1}, by="nesterov") == {"learning_rate": 0.1, "momentum": 0.0}
    image = lf.simulate("momentum", {"learning_rate": 0.1, "momentum": 0.9}, by="rmsprop")
    assert image == {"learning_rate": 0.1, "momentum": 0.9, "rho": 1.0, "epsilon": 0.0}


def test_without_momentum_there_is_no_bias_to_correct():
    image = lf.simulate("momentum", {"learning_rate": 0.1, "momentum": 0.0}, by="adam", epsilon=1e4)
    rate = image.pop("learning_rate")
    assert [rate(t) for t in (0, 1, 2, 100)] == [1e3] * 4
    assert image == {"beta1": 0.0, "beta2": 0.0, "epsilon": 1e4}


def varying(image: Mapping[str, Any]) -> set[str]:
    return {name for name, value in image.items() if callable(value)}


def test_a_value_that_varies_is_a_function_of_the_step():
    still, moving = ({"learning_rate": rate, "momentum": 0.9} for rate in (0.1, linear))
    assert varying(lf.simulate("momentum", still, by="adam")) == {"learning_rate"}
    assert varying(lf.simulate("momentum", moving, by="adam")) == {"learning_rate"}
    assert varying(lf.simulate("momentum", moving, by="optax.sgd")) == {"learning_rate"}
    assert varying(lf.simulate("momentum", moving, by="rmsprop")) == {"learning_rate", "momentum"}
    assert varying(lf.simulate("sgd", {"learning_rate": linear}, by="rmsprop")) == {"learning_rate"}
    assert varying(lf.simulate("sgd", {"learning_rate": 0.1}, by="momentum")) == set()
    assert varying(lf.simulate("sgd", {"learning_rate": 0.1}, by="adam")) == {"learning_rate"}
    assert varying(lf.simulate("sgd", {"learning_rate": 0.1}, by="adam", beta2=0.9)) == {"learning_rate"}


@pytest.mark.parametrize("pair", [("momentum", "adam"), ("nesterov", "nadam")], ids=" in ".join)
@pytest.mark.parametrize("rate", RATES)
def test_the_rate_is_the_corrected_one(pair, rate):
    """α_t = ε η_t (1 − γ^(t+1)) / (1 − γ), and over √(1 − β₂^(t+1)) for another β₂ than 0."""
    special, general = pair
    values = {"learning_rate": RATES[rate], "momentum": 0.9}
    plain = lf.simulate(special, values, by=general, epsilon=1e3)
    other = lf.simulate(special, values, by=general, epsilon=1e3, beta2=0.99)
    for t in (0, 1, 2, 10, 40):
        expected = 1e3 * at(RATES[rate], t) * sum(0.9**k for k in range(t + 1))
        assert plain["learning_rate"](t) == pytest.approx(expected, rel=1e-13)
        assert other["learning_rate"](t) == pytest.approx(expected / math.sqrt(1 - 0.99 ** (t + 1)), rel=1e-13)


def test_open_values_are_respected():
    values = {"learning_rate": 0.1, "momentum": 0.9}
    image = lf.simulate("momentum", values, by="adam", beta2=0.99, epsilon=1e3)
    assert (image["beta1"], image["beta2"], image["epsilon"]) == (0.9, 0.99, 1e3)
    image = lf.simulate("momentum", values, by="rmsprop", epsilon=3.0)
    assert image == {"learning_rate": 0.2, "momentum": 0.9, "rho": 1.0, "epsilon": 3.0}
    image = lf.simulate("momentum", values, by="rmsprop", rho=0.9, epsilon=100.0)
    assert image == {"learning_rate": 1.0, "momentum": 0.9, "rho": 0.9, "epsilon": 100.0}
    image = lf.simulate("momentum", values, by="optax.adamw", b2=0.5, eps=1e5)
    assert (image["b1"], image["b2"], image["eps"], image["weight_decay"]) == (0.9, 0.5, 1e5, 0.0)


def trained(rule: str, hyperparameters: Mapping[str, Any]) -> np.ndarray:
    """The parameters after each step, from 1, where a weight decay would show."""
    tx = lf.optimizer(rule, **hyperparameters)

    def step(carry, gradient):
        params, state = carry
        updates, state = tx.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    with jax.enable_x64(True):
        start = jnp.ones(8)
        path = jax.jit(lambda seen: jax.lax.scan(step, (start, tx.init(start)), seen)[1])(jnp.asarray(history()))
    assert path.dtype == np.float64
    return np.asarray(path)


@pytest.mark.parametrize("rate", ["constant", "linear"])
@pytest.mark.parametrize(
    ("special", "general", "open"),
    [
        ("sgd", "adam", {"epsilon": 1e8}),
        ("sgd", "optax.adamw", {"eps": 1e8}),
        ("momentum", "optax.adamw", {"eps": 1e8}),
    ],
    ids=str,
)
def test_a_chain_follows_when_it_trains(special, general, open, rate):
    values = {"learning_rate": RATES[rate]} | ({"momentum": 0.9} if special == "momentum" else {})
    followed = trained(general, lf.simulate(special, values, by=general, **open))
    assert deviation(followed, trained(special, values)) < 1e-6


def test_a_switch_is_followed_or_refused():
    """optax's adam with Nesterov's momentum must not come out as adamw without it."""
    with contextlib.suppress(lf.LevelfieldError):
        image = lf.simulate("optax.adam", {"learning_rate": 0.1, "nesterov": True}, by="optax.adamw")
        assert image.get("nesterov") is True


# What simulate refuses

MOMENTUM = {"learning_rate": 0.1, "momentum": 0.9}
ADAM = {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 1.0}
REFUSED = {
    "a momentum of 1": ("momentum", MOMENTUM | {"momentum": 1.0}, "adam", {}, "adam .*momentum.* 1"),
    "numpy's 1": ("momentum", MOMENTUM | {"momentum": np.float64(1.0)}, "adam", {}, "adam .*momentum.* 1"),
    "through a chain": ("momentum", MOMENTUM | {"momentum": 1.0}, "optax.adamw", {}, "optax.adamw .*momentum.* 1"),
    "beta2 of 1": ("momentum", MOMENTUM, "adam", {"beta2": 1.0}, "beta2"),
    "beta2 beyond 1": ("momentum", MOMENTUM, "adam", {"beta2": 1.5}, "beta2"),
    "special rule": ("momentm", MOMENTUM, "adam", {}, "did you mean 'momentum'"),
    "general rule": ("momentum", MOMENTUM, "adma", {}, "did you mean 'adam'"),
    "optax's rule": ("momentum", MOMENTUM, "optax.adamv", {}, "did you mean 'optax.adam"),
    "hyperparameter": ("momentum", {"learning_rate": 0.1, "momentun": 0.9}, "adam", {}, "did you mean 'momentum'"),
    "nothing for momentum": ("momentum", {"learning_rate": 0.1}, "adam", {}, "momentum needs momentum"),
    "open value": ("momentum", MOMENTUM, "adam", {"epsilom": 1e3}, "did you mean 'epsilon'"),
    "what is not open": ("momentum", MOMENTUM, "adam", {"beta1": 0.5}, "beta1 follows.*open: beta2, epsilon"),
    "open by none of the ways": ("momentum", MOMENTUM, "rmsprop", {"zzz": 1.0}, "'zzz'.*epsilon.*rho"),
    "no inclusion": ("adam", ADAM, "momentum", {}, "momentum .*adam"),
    "no inclusion but others": ("nesterov", MOMENTUM, "adam", {}, "nadam, optax.rmsprop, optax.sgd, rmsterov"),
    "a varying rate": ("nesterov", MOMENTUM | {"learning_rate": linear}, "rmsterov", {}, "constant"),
    "a chain's varying rate": ("momentum", MOMENTUM | {"learning_rate": linear}, "optax.rmsprop", {}, "constant"),
    "a switch": ("optax.sgd", MOMENTUM | {"nesterov": True}, "optax.adam", {}, "optax.adam .*optax.sgd.*nesterov"),
}


@pytest.mark.parametrize(("special", "values", "by", "open", "words"), REFUSED.values(), ids=REFUSED)
def test_simulate_refuses_in_one_line(special, values, by, open, words):
    with pytest.raises(lf.LevelfieldError, match=words) as caught:
        lf.simulate(special, values, by=by, **open)
    assert "\n" not in str(caught.value)
