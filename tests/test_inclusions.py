"""Inclusions between rules: the known ones verify, wrong ones are refused, and custom ones can be registered."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import levelfield as lf
from levelfield.errors import LevelfieldError, SpaceError, UnknownName, UsageError
from levelfield.hyperparameters import NOT_NEGATIVE, POSITIVE
from levelfield.rules import get_rule
from levelfield.taxonomy.inclusions import Inclusion, inclusions_between, known_inclusions
from levelfield.taxonomy.order import inclusions
from levelfield.taxonomy.witnesses import Witness
from levelfield.training import following

INFINITY = math.inf


def named(inclusion: Any) -> str:
    return f"{inclusion.special} in {inclusion.general}, {inclusion.limit or 'exact'}"


KNOWN = known_inclusions()
RULES = sorted({rule for inclusion in KNOWN for rule in (inclusion.special, inclusion.general)})
verification = functools.cache(lf.verify)
between = functools.cache(inclusions_between)
CHAINS = [chain for pair in itertools.permutations(RULES, 2) for chain in between(*pair) if len(chain.witnesses) > 1]


def at(value: Any, t: int) -> Any:
    return value(t) if callable(value) else value


def linear(t: Any) -> Any:
    return 0.1 * (1 - t / 60)


# The known inclusions verify


@pytest.mark.parametrize("inclusion", KNOWN, ids=named)
def test_a_known_inclusion_verifies(inclusion):
    result = verification(inclusion)
    assert result.holds
    if inclusion.exact:
        assert result.error <= 1e-13
    elif inclusion.towards == -INFINITY:  # a bound on the loss that is low enough no longer matters
        assert result.reached
        assert result.error <= 1e-13
        assert -1e6 <= result.single_stops <= -1e1
    else:
        assert result.error <= 1e-8
        assert 0.8 <= result.order <= 1.2
        assert 1e-8 < result.single_error < 1e-5  # no better than float32 can be
        if inclusion.towards == INFINITY:
            assert 1e6 <= result.single_stops <= 1e10
        else:
            assert 1e-12 <= abs(result.single_stops - inclusion.towards) <= 1.01e-6


def test_the_papers_inclusions_are_known():
    exact = {(known.special, known.general) for known in KNOWN if known.exact}
    limits = {(known.special, known.general, known.limit, known.towards) for known in KNOWN if not known.exact}
    assert {("sgd", "momentum"), ("sgd", "nesterov"), ("momentum", "rmsprop"), ("nesterov", "rmsterov")} <= exact
    assert {("momentum", "adam", "epsilon", INFINITY), ("nesterov", "nadam", "epsilon", INFINITY)} <= limits


def test_at_least_six_are_between_optax_optimizers():
    assert sum(known.special.startswith("optax.") and known.general.startswith("optax.") for known in KNOWN) >= 6


@pytest.mark.parametrize("pair", [("momentum", "adam"), ("nesterov", "nadam")], ids=" in ".join)
def test_float32_stops_where_the_notes_say(pair):
    """Near ε = 1e8, where |g|/ε falls below the resolution of float32."""
    (inclusion,) = (known for known in KNOWN if (known.special, known.general) == pair)
    assert 1e7 <= verification(inclusion).single_stops <= 1e9


# Wrong witnesses are refused


def printed_in_the_paper(step, learning_rate, momentum, *, epsilon):
    """α_t = ε η_t (1 − γ^t): there is no first step, and the size of the others is wrong."""
    rate = epsilon * learning_rate * (1 - momentum**step)
    return {"learning_rate": rate, "beta1": momentum, "beta2": 0.0, "epsilon": epsilon}


def without_the_division(step, learning_rate, momentum, *, epsilon):
    rate = epsilon * learning_rate * (1 - momentum ** (step + 1))
    return {"learning_rate": rate, "beta1": momentum, "beta2": 0.0, "epsilon": epsilon}


def corrected_in_optaxs_names(step, learning_rate, momentum, *, eps):
    rate = eps * learning_rate * (1 - momentum ** (step + 1)) / (1 - momentum)
    return {"learning_rate": rate, "b1": momentum, "b2": 0.0, "eps": eps}


def the_same(learning_rate, momentum):
    """The paper's RMSProp(η_t, γ, ρ = 1, ε = 0), which is Momentum as long as η_t does not vary."""
    return {"learning_rate": learning_rate, "momentum": momentum, "rho": 1.0, "epsilon": 0.0}


def with_the_rates_ratio(learning_rate, momentum, previous):
    ratio = learning_rate / previous["learning_rate"]
    return {"learning_rate": learning_rate, "momentum": momentum * ratio, "rho": 1.0, "epsilon": 0.0}


def the_same_rate(learning_rate):
    return {"learning_rate": learning_rate, "b1": 0.9}


def with_bases(learning_rate, beta1, beta2, epsilon):
    """Adam in the eigenbases is not Adam."""
    return {"learning_rate": learning_rate, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}


BY_THE_RATIO = Witness(with_the_rates_ratio, varies_with_rate=("learning_rate", "momentum"))
WRONG = {
    "printed, adam": Inclusion("momentum", "adam", (Witness(printed_in_the_paper),), limit="epsilon"),
    "printed, nadam": Inclusion("nesterov", "nadam", (Witness(printed_in_the_paper),), limit="epsilon"),
    "printed, constant": Inclusion("momentum", "adam", (Witness(printed_in_the_paper),), limit="epsilon", lifts=False),
    "no division, adam": Inclusion("momentum", "adam", (Witness(without_the_division),), limit="epsilon"),
    "no division, nadam": Inclusion("nesterov", "nadam", (Witness(without_the_division),), limit="epsilon"),
    # optax's nadam corrects its two terms separately, and no single rate undoes both.
    "optax.nadam": Inclusion("nesterov", "optax.nadam", (Witness(corrected_in_optaxs_names),), limit="eps"),
    "rmsterov, varying": Inclusion("nesterov", "rmsterov", (Witness(the_same),)),
    "rmsterov, varying, by the ratio": Inclusion("nesterov", "rmsterov", (BY_THE_RATIO,)),
    "rmsprop, varying": Inclusion("momentum", "rmsprop", (Witness(the_same),)),
    # Its first step only measures the gradients.
    "adopt": Inclusion("momentum", "optax.contrib.adopt", (Witness(corrected_in_optaxs_names),), limit="eps"),
    # It trains other weights than it ends with, and the average that it ends with is another.
    "schedule_free_sgd": Inclusion("sgd", "optax.contrib.schedule_free_sgd", (Witness(the_same_rate),)),
    "soap": Inclusion("adam", "soap", (Witness(with_bases),)),
}


@pytest.mark.parametrize("inclusion", WRONG.values(), ids=WRONG)
def test_a_wrong_witness_is_refused(inclusion):
    result = verification(inclusion)
    assert not result.holds
    assert 1e-2 < result.error < 2  # because it is wrong, not because it is NaN


@pytest.mark.parametrize("special", ["momentum", "nesterov"])
def test_an_inclusion_that_fails_at_a_varying_rate_holds_at_a_constant_one(special):
    general = {"momentum": "rmsprop", "nesterov": "rmsterov"}[special]
    assert verification(Inclusion(special, general, (Witness(the_same),), lifts=False)).holds


def test_a_limit_that_stops_short_is_refused():
    """optax's yogi starts its first moment at 1e-6: the error falls to about that and no further."""
    start = optax.yogi(1.0).init(jnp.zeros(()))
    assert 1e-7 < float(jax.tree.leaves(start)[1]) < 1e-5
    result = verification(Inclusion("momentum", "optax.yogi", (Witness(corrected_in_optaxs_names),), limit="eps"))
    assert result.path[-1][1] > 1e-8  # at eps = 1e12, where a limit would be at 1e-11
    assert not result.holds


def test_a_limit_may_be_exact_already():
    """With β₁ = 0, optax's adabelief is sgd at every eps."""
    (inclusion,) = between("sgd", "optax.adabelief")
    result = verification(inclusion)
    assert result.error <= 1e-13
    assert result.holds


# True, but not known: a study cannot use them


def test_optaxs_nadam_in_simplified_ademamix_needs_a_mixture_that_varies():
    def witness(step, learning_rate, b1=0.9, b2=0.999, eps=1e-8, eps_root=0.0):
        ahead = 1 - b1 ** (step + 2)
        rate = learning_rate * b1 * (1 - b1) / ahead
        same = {"b1": b1, "b2": b2, "eps": eps, "eps_root": eps_root}
        return {"learning_rate": rate, **same, "alpha": ahead / (b1 * (1 - b1 ** (step + 1)))}

    space = {"learning_rate": {"log": [1e-3, 1.0]}, "b1": {"uniform": [0.1, 0.95]}, "b2": {"uniform": [0.0, 0.95]}}
    varies = ("learning_rate", "alpha")
    pair = ("optax.nadam", "optax.contrib.simplified_ademamix")
    assert verification(Inclusion(*pair, (Witness(witness, varies, varies),), over=space)).holds
    assert between(*pair) == []


@pytest.mark.parametrize(("shape", "follows"), [((4, 4), True), ((4, 2), True), ((2, 4), False), ((4,), False)])
def test_muon_follows_sgd_on_some_matrices_alone(shape, follows):
    """Without orthogonalization (coefficients 1, 0, 0), and with ``adaptive``, which undoes the normalization.

    It scales a matrix with more columns than rows, and trains a vector by AdamW, so no study has this inclusion.
    """
    gradients = jax.random.normal(jax.random.key(0), (20, *shape))
    coefficients = {"ns_coeffs_1": 1.0, "ns_coeffs_2": 0.0, "ns_coeffs_3": 0.0}
    switches = {"nesterov": False, "adaptive": True}
    values = {"learning_rate": lambda t: 0.1 * (1 - 0.9 ** (t + 1)) / (1 - 0.9), "beta": 0.9, "eps": 0.0}
    muon = following.trajectory(get_rule("optax.contrib.muon"), values | coefficients | switches, gradients)
    sgd = following.trajectory(get_rule("optax.sgd"), {"learning_rate": 0.1, "momentum": 0.9}, gradients)
    assert jnp.allclose(muon, sgd, rtol=1e-3, atol=1e-4) == follows
    assert between("optax.sgd", "optax.contrib.muon") == []


# Inclusions between any two rules


def test_inclusions_are_transitive():
    """A ⊆ B ⊆ C may have at most one limit, and nesterov in optax's sgd is not plain momentum."""
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
        ("nesterov", "optax.adam"),  # through optax.sgd, nesterov = True
        ("nesterov", "optax.adamw"),
        ("nesterov", "adam"),
        ("momentum", "nesterov"),
        ("momentum", "optax.adagrad"),
        ("adam", "momentum"),
        ("sgd", "optax.lion"),
        ("sgd", "optax.nadam"),
    ],
)
def test_there_is_no_inclusion_where_none_follows(special, general):
    assert between(special, general) == []


def test_no_rule_includes_one_that_includes_it():
    assert [(a, b) for a, b in itertools.combinations(RULES, 2) if between(a, b) and between(b, a)] == []


def test_exact_inclusions_come_first_and_short_ones_before_long_ones():
    assert [inclusion.exact for inclusion in between("momentum", "rmsprop")] == [True, False]
    for pair in itertools.permutations(RULES, 2):
        order = [(not inclusion.exact, len(inclusion.witnesses)) for inclusion in between(*pair)]
        assert order == sorted(order)


def through(witnesses, values: Mapping[str, Any], open: Mapping[str, Any], t: int) -> dict[str, Any]:
    """The witnesses' functions one after the other at a step; ``previous`` is what they returned one step before."""
    if not witnesses:
        return {name: at(value, t) for name, value in values.items()}
    *first, last = witnesses
    now, previous = (through(first, values, open, step) for step in (t, max(t - 1, 0)))
    marked = {f"{name}_": value for name, value in open.items()}  # next to the special rule's of the same name
    known = {**open, **marked, **now, "step": t, "previous": previous}
    parameters = inspect.signature(last.function).parameters
    return last.function(**{name: known[name] for name in parameters if name in known})


EXAMPLES: dict[str, dict[str, Any]] = {
    "adam": {"beta1": 0.8, "beta2": 0.7, "epsilon": 0.3},
    "optax.adamw": {"b1": 0.8, "b2": 0.7, "eps": 0.3, "eps_root": 0.2, "weight_decay": 0.05},
    "sgd": {},
    "momentum": {"momentum": 0.8},
    "nesterov": {"momentum": 0.8},
    "rmsprop": {"momentum": 0.8, "rho": 0.7, "epsilon": 0.3},
    "rmsterov": {"momentum": 0.8, "rho": 0.7, "epsilon": 0.3},
    "optax.sgd": {"momentum": 0.8, "nesterov": False},
    "optax.adam": {"b1": 0.8, "b2": 0.7, "eps": 0.3, "eps_root": 0.2},
    "optax.nadam": {"b1": 0.8, "b2": 0.7, "eps": 0.3, "eps_root": 0.2},
    "optax.adamax": {"b1": 0.8, "b2": 0.7, "eps": 0.3},
    "optax.sign_sgd": {},
    "optax.signum": {"beta": 0.8},
}
RATES = {"constant": 0.1, "linear": linear, "to zero": lambda t: max(0.1 * (1 - t / 10), 0.0)}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("inclusion", [*KNOWN, *CHAINS], ids=named)
def test_an_image_is_what_the_witnesses_return_at_each_step(inclusion, rate):
    """So nothing that varies with the step is declared constant."""
    if callable(RATES[rate]) and not inclusion.lifts:
        return  # it claims nothing
    values = {"learning_rate": RATES[rate]} | EXAMPLES[inclusion.special]
    image = inclusion.image(values)
    for t in (0, 1, 2, 9, 10, 11, 17):
        expected = through(inclusion.witnesses, values, inclusion.open, t)
        assert {name: at(value, t) for name, value in image.items()} == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("inclusion", [*KNOWN, *CHAINS], ids=named)
def test_nothing_but_a_learning_rate_is_declared_to_vary_at_a_constant_rate(inclusion):
    """optax's optimizers take no other function of the step."""
    image = inclusion.image({"learning_rate": 0.1} | EXAMPLES[inclusion.special])
    assert {name for name, value in image.items() if callable(value)} <= {"learning_rate"}


@pytest.mark.parametrize("inclusion", [*KNOWN, *CHAINS], ids=named)
def test_open_values_arrive_under_the_name_that_is_declared(inclusion):
    distinct = {name: 0.11 + 0.07 * i for i, name in enumerate(inclusion.open)}
    image = inclusion.image({"learning_rate": 0.1} | EXAMPLES[inclusion.special], distinct)
    assert {name: image[inclusion.carried(name)] for name in distinct} == distinct


def test_declared_renames_are_what_the_witnesses_do():
    renamed = [(known, *names) for known in KNOWN for names in known.witnesses[0].renames.items()]
    assert len(renamed) >= 8
    for inclusion, before, after in renamed:
        values = {"learning_rate": 0.1} | EXAMPLES[inclusion.special]
        assert inclusion.image(values)[after] == values[before]


@pytest.mark.parametrize("chain", CHAINS, ids=named)
def test_a_chain_verifies(chain):
    result = verification(chain)
    assert result.holds
    assert result.error <= (1e-13 if chain.exact else 1e-8)


# Custom inclusions


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
def test_a_custom_witness_is_verified(own, special, witness, more, right):
    registered = lf.register_inclusion(special, own, witness, **more)
    assert registered in known_inclusions()
    assert lf.verify(registered).holds == right


@pytest.mark.parametrize("right", [True, False])
def test_a_run_refuses_a_custom_inclusion_that_does_not_hold(own, right, tmp_path):
    lf.register_inclusion("sgd", own, scaled if right else unscaled, limit="scale")
    rate, scale = {"log": [1e-3, 1e-1]}, {"log": [1e-1, 1e3]}
    tables = {"sgd": {"learning_rate": rate}, own: {"learning_rate": rate, "scale": scale}}
    study = lf.Study(workload="quadratic", steps=2, eval_interval=2, trials=1, optimizers=tables)
    if right:
        assert [edge.special for edge in inclusions(study)] == ["sgd"]
        lf.compare(study, tmp_path / "trials.db")
    else:
        words = r"sgd ⊆ test_softsign: verification failed \(relative error .*\); the witness is wrong"
        with pytest.raises(UsageError, match=words):
            lf.compare(study, tmp_path / "trials.db")
        assert not (tmp_path / "trials.db").exists()


@pytest.mark.parametrize(
    ("witness", "words"),
    [
        (lambda learning_rate: 3, "returns no hyperparameters of test_softsign by name"),
        (lambda learning_rate: 1 / 0, "by name (ZeroDivisionError"),
        (
            lambda learning_rate: {"learning_rate": learning_rate, "scal": 0.0},
            "'scal' of test_softsign; did you mean 'scale'?",
        ),
    ],
)
def test_a_witness_that_returns_no_hyperparameters_is_not_registered(own, witness, words):
    with pytest.raises(LevelfieldError) as caught:
        lf.register_inclusion("sgd", own, witness)
    assert words in str(caught.value)


def test_a_custom_inclusion_is_used(own):
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
    """Open, but not the limit: it needs a default."""
    return {"learning_rate": learning_rate, "scale": scale}


UNREGISTERED = {
    "towards": ("sgd", scaled, {"limit": "scale", "towards": 2.0}, lf.LevelfieldError, "2.0.*infinity.*0 or 1"),
    "minus infinity": (
        "sgd",
        scaled,
        {"limit": "scale", "towards": -INFINITY},
        lf.LevelfieldError,
        "-inf: scale of .* is in",
    ),
    "takes what the special has not": ("sgd", of_neither, {}, UnknownName, "'momentum' of sgd"),
    "opens what the general has not": ("sgd", misspelt, {"limit": "scael"}, UnknownName, "did you mean 'scale'"),
    "limit not open": ("sgd", hard, {"limit": "scale"}, lf.LevelfieldError, "'scale'.*open"),
    "limit of no rule": ("sgd", hard, {"limit": "epsilon"}, lf.LevelfieldError, "'epsilon'"),
    "unbounded": ("optax.signum", hard, {}, SpaceError, "of optax.signum has no bounds; set over="),
    "unknown rule": ("sgdd", hard, {}, UnknownName, "did you mean 'sgd'"),
    "unknown switch": ("sgd", hard, {"where": {"nesterov": False}}, UnknownName, "'nesterov' of sgd"),
    "open without a default": ("sgd", without_a_default, {}, lf.LevelfieldError, "'scale'"),
}


@pytest.mark.parametrize(("special", "witness", "more", "error", "words"), UNREGISTERED.values(), ids=UNREGISTERED)
def test_an_inclusion_that_cannot_be_verified_is_not_registered(own, special, witness, more, error, words):
    before = known_inclusions()
    with pytest.raises(error, match=words) as caught:
        lf.register_inclusion(special, own, witness, **more)
    assert "\n" not in str(caught.value)
    assert known_inclusions() == before


# What a custom witness declares


def takes_the_step(step, learning_rate, momentum, *, epsilon):
    """α_t = ε η_t (1 − γ^(t+1)) / (1 − γ)"""
    correction = (1 - momentum ** (step + 1)) / (1 - momentum)
    return {"learning_rate": epsilon * learning_rate * correction, "beta1": momentum, "beta2": 0.0, "epsilon": epsilon}


ADAM = {"limit": "epsilon", "renames": {"momentum": "beta1"}}
RMSPROP: dict[str, Any] = {"varies_with_rate": ("learning_rate", "momentum")}


@pytest.mark.parametrize(
    ("general", "witness", "declaration", "right"),
    [
        ("adam", takes_the_step, ADAM, True),
        ("adam", takes_the_step, ADAM | {"varies": ()}, False),
        ("adam", takes_the_step, ADAM | {"varies": (), "varies_with_rate": ()}, False),
        ("rmsprop", with_the_rates_ratio, RMSPROP, True),
        ("rmsprop", with_the_rates_ratio, {}, False),
        ("rmsprop", with_the_rates_ratio, {"varies_with_rate": ("momentum",)}, False),
        ("rmsprop", with_the_rates_ratio, {"lifts": False}, True),
        # Declaring too much costs nothing.
        ("rmsprop", with_the_rates_ratio, RMSPROP | {"varies": ("learning_rate", "rho")}, True),
    ],
)
def test_a_wrong_declaration_fails_the_verification(general, witness, declaration, right):
    assert lf.verify(lf.register_inclusion("momentum", general, witness, **declaration)).holds == right


def test_a_declared_name_is_carried_through_a_chain(own):
    """The limit of sgd ⊆ test_softsign has another name in the next rule."""
    names = ("learning_rate", "width")
    lf.register_rule("test_wide", lambda **_: optax.identity(), dict.fromkeys(names, POSITIVE))
    lf.register_inclusion("sgd", own, scaled, limit="scale")
    lf.register_inclusion(
        own,
        "test_wide",
        lambda learning_rate, scale: {"learning_rate": learning_rate, "width": scale},
        renames={"scale": "width"},
    )
    (chain,) = inclusions_between("sgd", "test_wide")
    assert chain.carried("scale") == "width"
    assert chain.image({"learning_rate": 0.1}, {"scale": 3.0})["width"] == 3.0


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        ({"varies": ("scael",)}, "did you mean 'scale'"),
        ({"varies_with_rate": ("rate",)}, "'rate'"),
        ({"renames": {"momentum": "scale"}}, "'momentum'"),
        ({"renames": {"learning_rate": "scael"}}, "did you mean 'scale'"),
        ({"renames": {"learning_rate": "scale"}}, "the witness does not return learning_rate as scale"),
    ],
)
def test_a_declaration_of_unknown_names_is_not_registered(own, declaration, words):
    with pytest.raises(LevelfieldError, match=words):
        lf.register_inclusion("sgd", own, hard, **declaration)
