"""Inclusions between rules: what is known verifies, what is wrong is refused, and numpy agrees with both."""

from __future__ import annotations

import contextlib
import functools
import inspect
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
from levelfield.errors import LevelfieldError, SpaceError, UnknownName, UsageError
from levelfield.hyperparameters import NOT_NEGATIVE, POSITIVE
from levelfield.taxonomy.inclusions import Inclusion, inclusions_between, known_inclusions
from levelfield.taxonomy.order import inclusions

INFINITY = math.inf


def named(way: Any) -> str:
    return f"{way.special} in {way.general}, {way.limit or 'exact'}" if isinstance(way, Inclusion) else str(way)


KNOWN = known_inclusions()
RULES = sorted({rule for way in KNOWN for rule in (way.special, way.general)})
verification = functools.cache(lf.verify)
between = functools.cache(inclusions_between)
CHAINS = [way for pair in itertools.permutations(RULES, 2) for way in between(*pair) if len(way.witnesses) > 1]


# The paper's rules once more, in numpy. Each yields the steps θ_{t+1} − θ_t; any hyperparameter may vary with t.


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


def deviation(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest distance, relative to how far the expected one goes."""
    return float(np.linalg.norm(found - expected, axis=1).max() / np.linalg.norm(expected, axis=1).max())


def linear(t: Any) -> Any:
    return 0.1 * (1 - t / 60)


# All that is known verifies


@pytest.mark.parametrize("way", KNOWN, ids=named)
def test_a_known_inclusion_verifies(way):
    found = verification(way)
    assert found.holds
    if way.exact:
        assert found.error <= 1e-13
    else:
        assert found.error <= 1e-8
        assert 0.8 <= found.order <= 1.2
        assert 1e-8 < found.single_error < 1e-5  # no better than float32 can be
        low, high = (1e6, 1e10) if way.towards == INFINITY else (1e-12, 1e-6)
        assert low <= found.single_stops <= high


def test_the_papers_inclusions_are_known():
    exact = {(way.special, way.general) for way in KNOWN if way.exact}
    limits = {(way.special, way.general, way.limit, way.towards) for way in KNOWN if not way.exact}
    assert {("sgd", "momentum"), ("sgd", "nesterov"), ("momentum", "rmsprop"), ("nesterov", "rmsterov")} <= exact
    assert {("momentum", "adam", "epsilon", INFINITY), ("nesterov", "nadam", "epsilon", INFINITY)} <= limits


def test_at_least_six_are_between_optaxs_own():
    assert sum(way.special.startswith("optax.") and way.general.startswith("optax.") for way in KNOWN) >= 6


@pytest.mark.parametrize("pair", [("momentum", "adam"), ("nesterov", "nadam")], ids=" in ".join)
def test_float32_stops_where_the_notes_say(pair):
    """Near ε = 1e8: there |g|/ε falls below what float32 tells from nothing."""
    (way,) = (way for way in KNOWN if (way.special, way.general) == pair)
    assert 1e7 <= verification(way).single_stops <= 1e9


# What does not hold is refused


def printed_in_the_paper(step, learning_rate, momentum, *, epsilon):
    """α_t = ε η_t (1 − γ^t): it takes no first step, and its size is wrong after that."""
    rate = epsilon * learning_rate * (1 - momentum**step)
    return {"learning_rate": rate, "beta1": momentum, "beta2": 0.0, "epsilon": epsilon}


def without_the_division(step, learning_rate, momentum, *, epsilon):
    rate = epsilon * learning_rate * (1 - momentum ** (step + 1))
    return {"learning_rate": rate, "beta1": momentum, "beta2": 0.0, "epsilon": epsilon}


def corrected_in_optaxs_names(step, learning_rate, momentum, *, eps):
    rate = eps * learning_rate * (1 - momentum ** (step + 1)) / (1 - momentum)
    return {"learning_rate": rate, "b1": momentum, "b2": 0.0, "eps": eps}


def the_same(learning_rate, momentum):
    """The paper's RMSProp(η_t, γ, ρ = 1, ε = 0), which is Momentum while η_t does not vary."""
    return {"learning_rate": learning_rate, "momentum": momentum, "rho": 1.0, "epsilon": 0.0}


def with_the_rates_ratio(learning_rate, momentum, previous):
    ratio = learning_rate / previous["learning_rate"]
    return {"learning_rate": learning_rate, "momentum": momentum * ratio, "rho": 1.0, "epsilon": 0.0}


WRONG = {
    "printed, adam": Inclusion("momentum", "adam", (printed_in_the_paper,), limit="epsilon"),
    "printed, nadam": Inclusion("nesterov", "nadam", (printed_in_the_paper,), limit="epsilon"),
    "printed, constant": Inclusion("momentum", "adam", (printed_in_the_paper,), limit="epsilon", lifts=False),
    "no division, adam": Inclusion("momentum", "adam", (without_the_division,), limit="epsilon"),
    "no division, nadam": Inclusion("nesterov", "nadam", (without_the_division,), limit="epsilon"),
    # optax's nadam corrects its two terms apart, and no one rate undoes both.
    "optax.nadam": Inclusion("nesterov", "optax.nadam", (corrected_in_optaxs_names,), limit="eps"),
    "rmsterov, varying": Inclusion("nesterov", "rmsterov", (the_same,)),
    "rmsterov, varying, by the ratio": Inclusion("nesterov", "rmsterov", (with_the_rates_ratio,)),
    "rmsprop, varying": Inclusion("momentum", "rmsprop", (the_same,)),
}


@pytest.mark.parametrize("way", WRONG.values(), ids=WRONG)
def test_a_wrong_witness_is_refused(way):
    found = verification(way)
    assert not found.holds
    assert 1e-2 < found.error < 2  # for being wrong, not for being no number


@pytest.mark.parametrize("special", ["momentum", "nesterov"])
def test_what_fails_for_a_varying_rate_holds_for_a_constant_one(special):
    general = {"momentum": "rmsprop", "nesterov": "rmsterov"}[special]
    assert verification(Inclusion(special, general, (the_same,), lifts=False)).holds


def test_a_limit_that_stops_short_is_refused():
    """optax's yogi starts its first moment at 1e-6: the error falls to about that and no further."""
    start = optax.yogi(1.0).init(jnp.zeros(()))
    assert 1e-7 < float(jax.tree.leaves(start)[1]) < 1e-5
    found = verification(Inclusion("momentum", "optax.yogi", (corrected_in_optaxs_names,), limit="eps"))
    assert found.path[-1][1] > 1e-8  # at eps = 1e12, where a limit would be at 1e-11
    assert not found.holds


def test_a_limit_may_be_exact_already():
    """With β₁ = 0 the belief of optax's adabelief is certain: it is sgd at every eps."""
    (way,) = between("sgd", "optax.adabelief")
    found = verification(way)
    assert found.error <= 1e-13
    assert found.holds


# By numpy alone: the general rule at what simulate returns, against the special one

LIMITS = [
    ("momentum", "adam", {}),
    ("momentum", "adam", {"beta2": 0.9}),
    ("nesterov", "nadam", {}),
    ("nesterov", "nadam", {"beta2": 0.9}),
    ("momentum", "rmsprop", {"rho": 0.5}),
]
RATES = {"constant": 0.1, "function": lambda t: 0.1, "linear": linear}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("special", "general", "open"), LIMITS, ids=named)
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


def test_what_does_not_vary_is_a_number():
    assert lf.simulate("sgd", {"learning_rate": 0.1}, by="nesterov") == {"learning_rate": 0.1, "momentum": 0.0}
    found = lf.simulate("momentum", {"learning_rate": 0.1, "momentum": 0.9}, by="rmsprop")
    assert found == {"learning_rate": 0.1, "momentum": 0.9, "rho": 1.0, "epsilon": 0.0}
    # Without momentum there is no bias to correct.
    found = lf.simulate("momentum", {"learning_rate": 0.1, "momentum": 0.0}, by="adam", epsilon=1e4)
    assert found == {"learning_rate": 1e3, "beta1": 0.0, "beta2": 0.0, "epsilon": 1e4}


def varying(found: Mapping[str, Any]) -> set[str]:
    return {name for name, value in found.items() if callable(value)}


def test_what_varies_is_a_function_of_the_step():
    still, moving = ({"learning_rate": rate, "momentum": 0.9} for rate in (0.1, linear))
    assert varying(lf.simulate("momentum", still, by="adam")) == {"learning_rate"}
    assert varying(lf.simulate("momentum", moving, by="adam")) == {"learning_rate"}
    assert varying(lf.simulate("momentum", moving, by="optax.sgd")) == {"learning_rate"}
    assert varying(lf.simulate("momentum", moving, by="rmsprop")) == {"learning_rate", "momentum"}
    assert varying(lf.simulate("sgd", {"learning_rate": linear}, by="rmsprop")) == {"learning_rate"}
    # β₂ = 0 leaves nothing to correct, another β₂ does.
    assert varying(lf.simulate("sgd", {"learning_rate": 0.1}, by="adam")) == set()
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
    found = lf.simulate("momentum", values, by="adam", beta2=0.99, epsilon=1e3)
    assert (found["beta1"], found["beta2"], found["epsilon"]) == (0.9, 0.99, 1e3)
    found = lf.simulate("momentum", values, by="rmsprop", epsilon=3.0)
    assert found == {"learning_rate": 0.2, "momentum": 0.9, "rho": 1.0, "epsilon": 3.0}
    found = lf.simulate("momentum", values, by="rmsprop", rho=0.9, epsilon=100.0)
    assert found == {"learning_rate": 1.0, "momentum": 0.9, "rho": 0.9, "epsilon": 100.0}
    found = lf.simulate("momentum", values, by="optax.adamw", b2=0.5, eps=1e5)
    assert (found["b1"], found["b2"], found["eps"], found["weight_decay"]) == (0.9, 0.5, 1e5, 0.0)


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
        found = jax.jit(lambda seen: jax.lax.scan(step, (start, tx.init(start)), seen)[1])(jnp.asarray(history()))
    assert found.dtype == np.float64
    return np.asarray(found)


@pytest.mark.parametrize("rate", ["constant", "linear"])
@pytest.mark.parametrize(
    ("special", "general", "open"),
    [
        ("sgd", "adam", {"epsilon": 1e8}),
        ("sgd", "optax.adamw", {"eps": 1e8}),
        ("momentum", "optax.adamw", {"eps": 1e8}),
    ],
    ids=named,
)
def test_a_chain_follows_when_it_trains(special, general, open, rate):
    values = {"learning_rate": RATES[rate]} | ({"momentum": 0.9} if special == "momentum" else {})
    followed = trained(general, lf.simulate(special, values, by=general, **open))
    assert deviation(followed, trained(special, values)) < 1e-6


def test_a_switch_is_followed_or_refused():
    """optax's adam with Nesterov's momentum must not come out as adamw without it."""
    with contextlib.suppress(lf.LevelfieldError):
        found = lf.simulate("optax.adam", {"learning_rate": 0.1, "nesterov": True}, by="optax.adamw")
        assert found.get("nesterov") is True


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


# Inclusions between any two rules


def test_inclusions_are_transitive():
    """A ⊆ B ⊆ C needs one limit at most, and what comes into optax's sgd from nesterov is not plain momentum."""
    implied = {
        (a, c)
        for a, b, c in itertools.permutations(RULES, 3)
        for first, second in itertools.product(between(a, b), between(b, c))
        if (first.exact or second.exact) and (a, b) != ("nesterov", "optax.sgd")
    }
    assert {
        ("sgd", "adam"),
        ("sgd", "optax.adamw"),
        ("momentum", "optax.rmsprop"),
        ("nesterov", "optax.rmsprop"),
    } < implied
    assert [pair for pair in implied if not between(*pair)] == []


@pytest.mark.parametrize(
    ("special", "general"),
    [
        ("nesterov", "optax.adam"),  # its way through optax.sgd has nesterov = True
        ("nesterov", "optax.adamw"),
        ("nesterov", "adam"),
        ("momentum", "nesterov"),
        ("momentum", "optax.adagrad"),
        ("adam", "momentum"),
        ("sgd", "optax.lion"),
        ("sgd", "optax.nadam"),
    ],
)
def test_what_does_not_follow_is_not_there(special, general):
    assert between(special, general) == []


def test_no_rule_includes_one_that_includes_it():
    assert [(a, b) for a, b in itertools.combinations(RULES, 2) if between(a, b) and between(b, a)] == []


def test_exact_ways_come_first_and_short_ones_before_long_ones():
    assert [way.exact for way in between("momentum", "rmsprop")] == [True, False]
    for pair in itertools.permutations(RULES, 2):
        order = [(not way.exact, len(way.witnesses)) for way in between(*pair)]
        assert order == sorted(order)


def through(witnesses, given: Mapping[str, Any], open: Mapping[str, Any], t: int) -> dict[str, Any]:
    """The witnesses one after the other at a step; ``previous`` is what they gave one step before."""
    if not witnesses:
        return {name: at(value, t) for name, value in given.items()}
    *first, last = witnesses
    now, previous = (through(first, given, open, step) for step in (t, max(t - 1, 0)))
    known = {**open, **now, "step": t, "previous": previous}
    return last(**{name: known[name] for name in inspect.signature(last).parameters if name in known})


EXAMPLES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.8},
    "nesterov": {"momentum": 0.8},
    "optax.sgd": {"momentum": 0.8, "nesterov": False},
    "optax.sign_sgd": {},
}


@pytest.mark.parametrize("chain", CHAINS, ids=named)
def test_a_chain_is_one_witness_after_the_other(chain):
    values = {"learning_rate": linear if chain.lifts else 0.1} | EXAMPLES[chain.special]
    found = chain.image(values)
    for t in (0, 1, 2, 17):
        expected = through(chain.witnesses, values, chain.open, t)
        assert {name: at(value, t) for name, value in found.items()} == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("chain", CHAINS, ids=named)
def test_a_chain_verifies(chain):
    found = verification(chain)
    assert found.holds
    assert found.error <= (1e-13 if chain.exact else 1e-8)


# A user's own


@pytest.fixture
def own():
    """A registered rule: −η g / (s + |g|)."""

    def build(learning_rate, scale):
        soft = optax.stateless(lambda g, _: jax.tree.map(lambda g: g / (scale + jnp.abs(g)), g))
        return optax.chain(soft, optax.scale_by_learning_rate(learning_rate))

    hyperparameters = {"learning_rate": POSITIVE, "scale": NOT_NEGATIVE}
    return lf.register_rule("test_softsign", build, hyperparameters).name


OVER = {"learning_rate": {"log": [1e-3, 1.0]}}


def scaled(learning_rate, *, scale):
    return {"learning_rate": learning_rate * scale, "scale": scale}


def unscaled(learning_rate, *, scale):
    return {"learning_rate": learning_rate, "scale": scale}


def hard(learning_rate):
    return {"learning_rate": learning_rate, "scale": 0.0}


def half_as_hard(learning_rate):
    return {"learning_rate": learning_rate / 2, "scale": 0.0}


@pytest.mark.parametrize(
    ("special", "witness", "more", "right"),
    [
        ("sgd", scaled, {"limit": "scale"}, True),
        ("sgd", unscaled, {"limit": "scale"}, False),
        ("sgd", scaled, {"limit": "scale", "towards": 0.0}, False),
        ("optax.sign_sgd", hard, {"over": OVER}, True),
        ("optax.sign_sgd", half_as_hard, {"over": OVER}, False),
        ("optax.sign_sgd", unscaled, {"over": OVER, "limit": "scale", "towards": 0.0}, True),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
def test_a_users_witness_is_put_to_the_test(own, special, witness, more, right):
    registered = lf.register_inclusion(special, own, witness, **more)
    assert registered in known_inclusions()
    assert lf.verify(registered).holds == right


@pytest.mark.parametrize("right", [True, False])
def test_a_run_goes_by_no_inclusion_of_the_users_that_does_not_hold(own, right, tmp_path):
    lf.register_inclusion("sgd", own, scaled if right else unscaled, limit="scale")
    rate, scale = {"log": [1e-3, 1e-1]}, {"log": [1e-1, 1e3]}
    tables = {"sgd": {"learning_rate": rate}, own: {"learning_rate": rate, "scale": scale}}
    study = lf.Study(workload="quadratic", steps=2, eval_interval=2, trials=1, optimizers=tables)
    if right:
        assert [edge.special for edge in inclusions(study)] == ["sgd"]
        lf.compare(study, tmp_path / "trials.db")
    else:
        with pytest.raises(UsageError, match="sgd ⊆ test_softsign is registered but does not hold"):
            lf.compare(study, tmp_path / "trials.db")
        assert not (tmp_path / "trials.db").exists()


@pytest.mark.parametrize(
    ("witness", "words"),
    [
        (lambda learning_rate: 3, "gives no hyperparameters of test_softsign by name"),
        (lambda learning_rate: 1 / 0, "by name (ZeroDivisionError"),
        (lambda learning_rate: {"learning_rate": learning_rate, "scal": 0.0}, "'scal'; did you mean 'scale'?"),
    ],
)
def test_a_witness_that_gives_no_hyperparameters_is_not_registered(own, witness, words):
    with pytest.raises(LevelfieldError) as caught:
        lf.register_inclusion("sgd", own, witness)
    assert words in str(caught.value)


def test_a_users_inclusion_is_used(own):
    lf.register_inclusion("sgd", own, scaled, limit="scale")
    assert lf.simulate("sgd", {"learning_rate": 0.1}, by=own, scale=100.0) == {"learning_rate": 10.0, "scale": 100.0}
    halved = {"size": POSITIVE}
    lf.register_rule("test_halved", lambda size: optax.sgd(size / 2), halved)
    lf.register_inclusion("test_halved", "sgd", lambda size: {"learning_rate": size / 2}, lifts=False)
    assert lf.simulate("test_halved", {"size": 0.2}, by=own, scale=100.0) == {"learning_rate": 10.0, "scale": 100.0}
    assert lf.simulate("test_halved", {"size": 0.2}, by="momentum") == {"learning_rate": 0.1, "momentum": 0.0}


def test_a_chain_has_one_limit_at_most(own):
    def narrow(learning_rate, scale, *, width):
        return {"learning_rate": learning_rate, "scale": scale, "width": width}

    names = ("learning_rate", "scale", "width")
    lf.register_rule("test_other", lambda **_: optax.identity(), dict.fromkeys(names, POSITIVE))
    lf.register_inclusion(own, "test_other", narrow, limit="width", towards=0.0)
    lf.register_inclusion("sgd", own, scaled, limit="scale")
    lf.register_inclusion("optax.sign_sgd", own, hard, over=OVER)
    assert inclusions_between("sgd", "test_other") == []
    (chain,) = inclusions_between("optax.sign_sgd", "test_other")
    assert (chain.limit, chain.towards) == ("width", 0.0)
    followed = chain.image({"learning_rate": 0.1}, {"width": 1e-3})
    assert followed == {"learning_rate": 0.1, "scale": 0.0, "width": 1e-3}


def misspelt(learning_rate, *, scael):
    return {"learning_rate": learning_rate, "scale": scael}


def of_neither(learning_rate, momentum):
    return {"learning_rate": learning_rate, "scale": momentum}


def without_a_default(learning_rate, *, scale):
    """Open, but no limit: nothing says which value it has where nobody gives one."""
    return {"learning_rate": learning_rate, "scale": scale}


UNREGISTERED = {
    "towards": ("sgd", scaled, {"limit": "scale", "towards": 1.0}, lf.LevelfieldError, "1.0.*infinity.*0"),
    "minus infinity": ("sgd", scaled, {"limit": "scale", "towards": -INFINITY}, lf.LevelfieldError, "-inf"),
    "takes what the special has not": ("sgd", of_neither, {}, UnknownName, "sgd .*'momentum'"),
    "opens what the general has not": ("sgd", misspelt, {"limit": "scael"}, UnknownName, "did you mean 'scale'"),
    "limit not open": ("sgd", hard, {"limit": "scale"}, lf.LevelfieldError, "'scale'.*open"),
    "limit of no rule": ("sgd", hard, {"limit": "epsilon"}, lf.LevelfieldError, "'epsilon'"),
    "unbounded": ("optax.sign_sgd", hard, {}, SpaceError, "learning_rate.*over="),
    "unknown rule": ("sgdd", hard, {}, UnknownName, "did you mean 'sgd'"),
    "unknown switch": ("sgd", hard, {"where": {"nesterov": False}}, UnknownName, "sgd .*'nesterov'"),
    "open without a default": ("sgd", without_a_default, {}, lf.LevelfieldError, "'scale'"),
}


@pytest.mark.parametrize(("special", "witness", "more", "error", "words"), UNREGISTERED.values(), ids=UNREGISTERED)
def test_an_inclusion_that_cannot_be_verified_is_not_registered(own, special, witness, more, error, words):
    before = known_inclusions()
    with pytest.raises(error, match=words) as caught:
        lf.register_inclusion(special, own, witness, **more)
    assert "\n" not in str(caught.value)
    assert known_inclusions() == before
