"""The inclusions between the optimizers of a study: cases worked out by hand, and properties of an order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from helpers import make_study
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield.space import Fixed
from levelfield.taxonomy.order import Edge, missing, reduction

RATE, FRACTION, EPSILON = {"log": [1e-4, 1e0]}, {"uniform": [0.0, 0.999]}, {"log": [1e-10, 1e4]}
SGD = {"rule": "sgd", "learning_rate": RATE}
MOMENTUM = {"rule": "momentum", "learning_rate": RATE, "momentum": FRACTION}
NESTEROV = {**MOMENTUM, "rule": "nesterov"}
RMSPROP = {"rule": "rmsprop", "learning_rate": RATE, "momentum": FRACTION, "rho": FRACTION, "epsilon": EPSILON}
RMSTEROV = {**RMSPROP, "rule": "rmsterov"}
ADAM = {"rule": "adam", "learning_rate": RATE, "beta1": FRACTION, "beta2": FRACTION, "epsilon": EPSILON}
NADAM = {**ADAM, "rule": "nadam"}
ALL = {table["rule"]: table for table in (SGD, MOMENTUM, NESTEROV, RMSPROP, RMSTEROV, ADAM, NADAM)}
DEFAULT = {**ADAM, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}

CONSTANT = {"kind": "constant"}
LINEAR = {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": {"uniform": [0.01, 1.0]}}
STEP = {"kind": "step", "decay_every": {"uniform": [0.1, 1.0]}, "decay_factor": {"uniform": [0.01, 1.0]}}


def study_of(optimizers: dict[str, Any], **changes: Any) -> lf.Study:
    return make_study(optimizers, **{"steps": 60} | changes)


def pairs(study: lf.Study) -> set[tuple[str, str]]:
    pairs = [(edge.special, edge.general) for edge in lf.inclusions(study)]
    assert len(set(pairs)) == len(pairs)
    return set(pairs)


def gaps(study: lf.Study) -> list[tuple[str, str]]:
    return [(gap.special, gap.general) for gap in missing(study)]


def included(special: dict[str, Any], general: dict[str, Any]) -> bool:
    return ("special", "general") in pairs(study_of({"special": special, "general": general}))


def reason(special: dict[str, Any], general: dict[str, Any]) -> str:
    """Why the general optimizer does not include the special one, although its rule does."""
    study = study_of({"special": special, "general": general})
    assert ("special", "general") not in pairs(study)
    (reason,) = (gap.reason for gap in missing(study) if (gap.special, gap.general) == ("special", "general"))
    return reason


def without(table: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in names}


def ratio(table: dict[str, Any], key: str, spec: Any) -> dict[str, Any]:
    """The same optimizer, its learning rate searched as a ratio."""
    return {**without(table, "learning_rate"), key: spec}


# The paper's optimizers

PAPER = {
    ("sgd", "momentum"),
    ("sgd", "nesterov"),
    ("momentum", "rmsprop"),
    ("momentum", "adam"),
    ("nesterov", "rmsterov"),
    ("nesterov", "nadam"),
    # and the pairs that follow
    ("sgd", "rmsprop"),
    ("sgd", "adam"),
    ("sgd", "rmsterov"),
    ("sgd", "nadam"),
}


def test_the_papers_order():
    study = study_of(ALL)
    assert pairs(study) == PAPER
    assert missing(study) == []
    assert {(edge.special, edge.general) for edge in reduction(lf.inclusions(study))} == {
        pair for pair in PAPER if pair[0] != "sgd" or pair[1] in ("momentum", "nesterov")
    }


@pytest.mark.parametrize("names", list(itertools.combinations(ALL, 2)), ids="-".join)
def test_a_pair_that_follows_holds_without_the_one_in_the_middle(names):
    assert pairs(study_of({name: ALL[name] for name in names})) == {pair for pair in PAPER if set(pair) == set(names)}


def test_an_edge_lists_its_ways():
    ways = {(edge.special, edge.general): [way.how for way in edge.ways] for edge in lf.inclusions(study_of(ALL))}
    assert ways["sgd", "momentum"] == ["exact"]
    assert ways["momentum", "rmsprop"] == ["exact", "epsilon → ∞"]
    assert ways["momentum", "adam"] == ways["sgd", "adam"] == ["epsilon → ∞"]


def test_the_built_in_study_has_the_papers_order():
    assert pairs(lf.load_study("quadratic")) == {pair for pair in PAPER if "rmsterov" not in pair}


@given(
    order=st.permutations(sorted(ALL)),
    names=st.lists(st.text("abcdefghij_", min_size=1, max_size=8), min_size=len(ALL), max_size=len(ALL), unique=True),
    protocols=st.lists(st.sampled_from(["", "everything", "learning rate only"]), min_size=len(ALL), max_size=len(ALL)),
)
@settings(max_examples=20)
def test_neither_names_nor_order_nor_protocol_matter(order, names, protocols):
    name_of = dict(zip(order, names, strict=True))
    protocol_of = dict(zip(order, protocols, strict=True))
    study = study_of({name_of[rule]: {**ALL[rule], "protocol": protocol_of[rule]} for rule in order})
    assert pairs(study) == {(name_of[special], name_of[general]) for special, general in PAPER}


# Fixed values: the same rule


@pytest.mark.parametrize(
    ("epsilon", "inside"),
    [([1e-10, 1e-2], True), ([1e-8, 1e-2], True), ([1e-12, 1e-8], True), ([1e-6, 1e-2], False), ([1e-12, 9e-9], False)],
)
@pytest.mark.parametrize("axes", ["plain", "ratio", "one_minus"])
def test_adam_with_epsilon_fixed_is_included_if_the_range_holds_it(epsilon, inside, axes):
    tuned = {**ADAM, "epsilon": {"log": epsilon}}
    if axes == "ratio":
        tuned = ratio(tuned, "learning_rate/epsilon", {"log": [1e-2, 1e9]})
    if axes == "one_minus":
        betas = {"one_minus_beta1": {"log": [0.1, 1.0]}, "one_minus_beta2": {"log": [1e-3, 1.0]}}  # ends at DEFAULT's
        tuned = {**without(tuned, "beta1", "beta2"), **betas}
    assert included(DEFAULT, tuned) == inside
    assert not included(tuned, DEFAULT)
    if not inside:
        explanation = reason(DEFAULT, tuned)
        assert "epsilon = 1e-08" in explanation
        assert "beta" not in explanation


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"beta1": {"uniform": [0.0, 0.8]}}, "beta1 = 0.9"),
        ({"beta2": {"uniform": [0.0, 0.99]}}, "beta2 = 0.999"),
        ({"beta1": 0.5}, "beta1 is fixed at 0.5"),
        ({"beta2": 0.99}, "beta2 is fixed at 0.99"),
    ],
)
def test_any_fixed_value_must_be_within_reach(change, words):
    assert words in reason(DEFAULT, {**ADAM, **change})


def test_a_fixed_one_minus_is_the_same_as_the_value():
    fixed = {**without(ADAM, "beta1", "beta2"), "one_minus_beta1": 0.1, "one_minus_beta2": 0.001, "epsilon": 1e-8}
    assert included(fixed, DEFAULT)
    assert included(DEFAULT, fixed)
    assert included(fixed, ADAM)
    low = {**without(ADAM, "beta1"), "one_minus_beta1": {"log": [0.2, 1.0]}}
    assert "one_minus_beta1 = 0.1" in reason(fixed, low)


def test_a_ratio_out_of_reach_is_seen():
    """learning_rate 0.1 at ε = 1e-8 is a ratio of 1e7."""
    fixed = {**DEFAULT, "learning_rate": 0.1}
    assert included(fixed, ratio(ADAM, "learning_rate/epsilon", {"log": [1e0, 1e8]}))
    assert "learning_rate/epsilon = 1e+07" in reason(fixed, ratio(ADAM, "learning_rate/epsilon", {"log": [1e0, 1e6]}))


@pytest.mark.parametrize(
    ("ours", "theirs", "there", "back"),
    [
        ([1e-3, 1e-1], [1e-4, 1e0], True, False),
        ([1e-3, 1e-1], [1e-3, 1e-1], True, True),
        ([1e-3, 1e-1], [1e-3, 1e0], True, False),
        ([1e-3, 1e-1], [1e-2, 1e0], False, False),
        ([1e-3, 1e-2], [1e-1, 1e0], False, False),
    ],
)
@pytest.mark.parametrize("base", [SGD, MOMENTUM, ADAM], ids=lambda base: base["rule"])
def test_with_the_same_hyperparameters_free_the_space_must_be_contained(base, ours, theirs, there, back):
    first, second = {**base, "learning_rate": {"log": ours}}, {**base, "learning_rate": {"log": theirs}}
    assert included(first, second) == there
    assert included(second, first) == back
    if not there:
        assert "learning_rate" in reason(first, second)


def test_the_axes_of_a_space_do_not_matter():
    plain = {**without(MOMENTUM, "momentum"), "momentum": {"uniform": [0.5, 0.9]}}
    other = {**without(MOMENTUM, "momentum"), "one_minus_momentum": {"log": [0.1, 0.5]}}
    assert included(plain, other)
    assert included(other, plain)


def test_all_fixed():
    here, there = {"rule": "sgd", "learning_rate": 0.1}, {"rule": "sgd", "learning_rate": 0.2}
    assert included(here, here)
    assert "learning_rate is fixed at 0.2" in reason(here, there)
    assert included(here, {**MOMENTUM, "momentum": 0.0, "learning_rate": 0.1})
    assert included(here, SGD)


# Fixed values: another rule


def test_beta1_fixed_includes_only_that_momentum():
    adam = {**ADAM, "beta1": 0.9}
    assert reason(MOMENTUM, adam) == "beta1 is fixed at 0.9"
    assert reason({**MOMENTUM, "momentum": 0.5}, adam) == "beta1 is fixed at 0.9"
    assert reason(SGD, adam) == "beta1 is fixed at 0.9"
    assert included({**MOMENTUM, "momentum": 0.9}, adam)
    assert included({**without(MOMENTUM, "momentum"), "one_minus_momentum": 0.1}, adam)
    assert included(SGD, {**ADAM, "beta1": 0.0})


@pytest.mark.parametrize("rule", ["adam", "nadam"])
def test_epsilon_fixed_includes_nothing(rule):
    special = {"adam": MOMENTUM, "nadam": NESTEROV}[rule]
    assert reason(special, {**ADAM, "rule": rule, "epsilon": 1e-8}) == "epsilon is fixed at 1e-08"
    # However large: a limit must be free.
    for large in (1e6, 1e12):
        assert "epsilon is fixed" in reason(SGD, {**ADAM, "rule": rule, "epsilon": large})
    explanation = reason(special, {**DEFAULT, "rule": rule})
    assert "beta1 is fixed at 0.9" in explanation
    assert "epsilon is fixed at 1e-08" in explanation


def test_rmsprop_follows_momentum_by_either_rho_or_epsilon():
    assert included(MOMENTUM, {**RMSPROP, "epsilon": 1e-3})
    assert included(MOMENTUM, {**RMSPROP, "rho": 0.9})
    assert included(MOMENTUM, {**RMSPROP, "rho": 1.0, "epsilon": 1e-3})
    assert "fixed" in reason(MOMENTUM, {**RMSPROP, "rho": 0.9, "epsilon": 1e-3})
    assert "momentum is fixed at 0.5" in reason(MOMENTUM, {**RMSPROP, "momentum": 0.5})
    assert included(SGD, {**RMSPROP, "momentum": 0.0})


def test_a_fixed_learning_rate_does_not_follow_a_free_one():
    assert "learning_rate is fixed" in reason(SGD, {**MOMENTUM, "learning_rate": 0.1})
    assert "learning_rate is fixed" in reason(MOMENTUM, {**ADAM, "learning_rate": 0.1})
    assert included({"rule": "sgd", "learning_rate": 0.1}, {**MOMENTUM, "learning_rate": 0.1})


def test_ranges_do_not_matter_for_another_rule():
    """They matter for coverage."""
    assert included(SGD, {**MOMENTUM, "learning_rate": {"log": [1e3, 1e4]}, "momentum": {"uniform": [0.5, 0.9]}})
    assert included(MOMENTUM, {**ADAM, "epsilon": {"log": [1e-12, 1e-8]}})


def test_rules_that_do_not_include_each_other_are_not_missed():
    study = study_of({"momentum": MOMENTUM, "nesterov": NESTEROV, "adam": ADAM, "rmsprop": RMSPROP})
    assert ("momentum", "nesterov") not in gaps(study)
    assert pairs(study) == {("momentum", "adam"), ("momentum", "rmsprop")}


# Schedules


def scheduled(table: dict[str, Any], schedule: dict[str, Any]) -> dict[str, Any]:
    return {**table, "schedule": schedule}


@pytest.mark.parametrize("decaying", [LINEAR, STEP], ids=lambda schedule: schedule["kind"])
def test_a_constant_rate_is_one_that_does_not_decay(decaying):
    constant, general = scheduled(SGD, CONSTANT), scheduled(MOMENTUM, decaying)
    assert included(constant, general)
    assert included(constant, scheduled(MOMENTUM, {**decaying, "decay_factor": 1.0}))
    assert "decay_factor is fixed at 0.1" in reason(constant, scheduled(MOMENTUM, {**decaying, "decay_factor": 0.1}))


def test_the_length_of_a_decay_does_not_matter_if_nothing_decays():
    assert included(scheduled(SGD, CONSTANT), scheduled(MOMENTUM, {**LINEAR, "decay_steps": 0.5}))
    assert "decay_steps is fixed at 0.5" in reason(
        scheduled(SGD, LINEAR), scheduled(MOMENTUM, {**LINEAR, "decay_steps": 0.5})
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(LINEAR, CONSTANT), (STEP, CONSTANT), (LINEAR, STEP), (STEP, LINEAR)],
    ids=["lc", "sc", "ls", "sl"],
)
def test_another_schedule_is_not_followed(ours, theirs):
    explanation = reason(scheduled(SGD, ours), scheduled(MOMENTUM, theirs))
    assert "schedule" in explanation
    assert ours["kind"] in explanation
    assert theirs["kind"] in explanation


def test_a_constant_rate_is_included_in_a_decaying_one_of_the_same_rule():
    constant, linear = scheduled(SGD, CONSTANT), scheduled(SGD, LINEAR)
    assert included(constant, linear)
    assert not included(linear, constant)
    # Here the range does not reach 1, so that nothing in it is constant.
    short = scheduled(SGD, {**LINEAR, "decay_factor": {"uniform": [0.01, 0.5]}})
    assert "decay_factor" in reason(constant, short)


def test_under_a_schedule_the_order_is_the_same_except_for_rmsterov():
    """RMSterov follows Nesterov only at a constant rate."""
    assert pairs(study_of(ALL, schedule=LINEAR)) - {("sgd", "rmsterov")} == PAPER - {
        ("sgd", "rmsterov"),
        ("nesterov", "rmsterov"),
    }


# optax's optimizers

OPTAX_SGD = {"rule": "optax.sgd", "learning_rate": RATE, "momentum": FRACTION}
OPTAX_ADAMW = {"rule": "optax.adamw", "learning_rate": RATE, "b1": FRACTION, "eps": EPSILON, "weight_decay": 0.0}
OPTAX_RMSPROP = {
    "rule": "optax.rmsprop",
    "learning_rate": RATE,
    "momentum": FRACTION,
    "decay": FRACTION,
    "eps": EPSILON,
}
AS_THE_PAPER = {"initial_scale": 1.0, "eps_in_sqrt": True}


def test_optax_adamw_includes_sgd_with_momentum():
    assert included(OPTAX_SGD, OPTAX_ADAMW)
    assert included({**OPTAX_SGD, "nesterov": False}, OPTAX_ADAMW)
    assert included(OPTAX_SGD, {**OPTAX_ADAMW, "weight_decay": {"uniform": [0.0, 0.1]}})
    assert included(MOMENTUM, OPTAX_ADAMW)
    assert included(SGD, OPTAX_ADAMW)


@pytest.mark.parametrize("decay", [0.1, {"uniform": [0.0, 0.1]}])
def test_the_weight_decay_of_a_rule_is_not_the_option(decay):
    """optax's also shrinks biases, and no hyperparameter of adamw spares them."""
    adamw = {**OPTAX_ADAMW, "weight_decay": {"uniform": [0.0, 0.2]}}
    assert "weight_decay is the option" in reason({**OPTAX_SGD, "weight_decay": decay}, adamw)
    assert included({**OPTAX_SGD, "weight_decay": 0.0}, adamw)


def test_a_switch_keeps_optax_sgd_out():
    assert "nesterov" in reason({**OPTAX_SGD, "nesterov": True}, OPTAX_ADAMW)
    assert not included(NESTEROV, OPTAX_ADAMW)


def test_a_hyperparameter_of_optax_that_is_left_out_stays_at_its_default():
    assert reason(OPTAX_SGD, without(OPTAX_ADAMW, "weight_decay")) == "weight_decay stays at 0.0001"
    assert reason(OPTAX_SGD, without(OPTAX_ADAMW, "eps")) == "eps stays at 1e-08"
    assert reason(OPTAX_SGD, without(OPTAX_ADAMW, "b1")) == "b1 stays at 0.9"
    assert included({**OPTAX_SGD, "momentum": 0.9}, without(OPTAX_ADAMW, "b1"))


def test_momentum_and_nesterov_in_optax_sgd():
    nesterov = {**OPTAX_SGD, "nesterov": True}
    assert included(MOMENTUM, OPTAX_SGD)
    assert included(NESTEROV, nesterov)
    assert "nesterov" in reason(NESTEROV, OPTAX_SGD)
    assert "nesterov" in reason(MOMENTUM, nesterov)
    assert included(SGD, OPTAX_SGD)
    assert included(SGD, nesterov)


def test_optax_sgd_without_momentum_is_sgd():
    assert included(SGD, without(OPTAX_SGD, "momentum"))


def test_optax_rmsprop_needs_the_papers_start():
    assert "initial_scale stays at 0" in reason(RMSPROP, {**OPTAX_RMSPROP, "eps_in_sqrt": True})
    assert "initial_scale stays at 0" in reason(RMSPROP, OPTAX_RMSPROP)
    assert included(RMSPROP, {**OPTAX_RMSPROP, **AS_THE_PAPER})
    assert included(RMSPROP, {**OPTAX_RMSPROP, "initial_scale": 1.0})  # optax has ε in the root by default
    assert "eps_in_sqrt" in reason(RMSPROP, {**OPTAX_RMSPROP, **AS_THE_PAPER, "eps_in_sqrt": False})
    assert "nesterov" in reason(RMSTEROV, {**OPTAX_RMSPROP, **AS_THE_PAPER})
    assert included(RMSTEROV, {**OPTAX_RMSPROP, **AS_THE_PAPER, "nesterov": True})


# An order: random studies

RATES = st.sampled_from([0.1, RATE, RATE, {"log": [1e-2, 1e-1]}, {"log": [1e-6, 1e2]}])
FRACTIONS = st.sampled_from([0.0, 0.9, FRACTION, FRACTION, FRACTION, {"uniform": [0.5, 0.95]}])
EPSILONS = st.sampled_from([1e-8, EPSILON, EPSILON, {"log": [1e-12, 1e-6]}, {"log": [1e-4, 1e2]}])
DECAYS = st.sampled_from([CONSTANT, CONSTANT, LINEAR, {**LINEAR, "decay_steps": 0.5, "decay_factor": 0.1}])
DOMAINS = {
    "learning_rate": RATES,
    **dict.fromkeys(("momentum", "rho", "beta1", "beta2", "b1", "decay"), FRACTIONS),
    **dict.fromkeys(("epsilon", "eps"), EPSILONS),
    "weight_decay": st.sampled_from([0.0, 0.1]),
    "nesterov": st.booleans(),
}
OPTAX = [{**OPTAX_SGD, "nesterov": False}, OPTAX_ADAMW, {**OPTAX_RMSPROP, **AS_THE_PAPER, "nesterov": False}]


@st.composite
def optimizers(draw: st.DrawFn) -> dict[str, Any]:
    base = draw(st.sampled_from([*ALL.values(), SGD, MOMENTUM, NESTEROV, *OPTAX]))
    drawn = {name: draw(DOMAINS[name]) for name in base if name in DOMAINS}
    return scheduled({**base, **drawn}, draw(DECAYS))


STUDIES = st.lists(optimizers(), min_size=3, max_size=6).map(
    lambda tables: study_of({f"o{number}": table for number, table in enumerate(tables)})
)


ADAMS = st.lists(
    st.builds(
        lambda beta1, beta2, epsilon: {**ADAM, "beta1": beta1, "beta2": beta2, "epsilon": epsilon},
        st.sampled_from([0.9, FRACTION]),
        st.sampled_from([0.999, FRACTION]),
        st.sampled_from([1e-8, 1e-2, {"log": [1e-9, 1e-1]}, {"log": [1e-9, 1e-7]}, {"log": [1e-3, 1e-1]}]),
    ),
    min_size=3,
    max_size=5,
).map(lambda tables: study_of({f"o{number}": table for number, table in enumerate(tables)}))


def test_an_inclusion_can_follow_through_a_third_optimizer():
    """1e-8 is outside the last one's range; the inclusion follows through the second."""
    second = {**DEFAULT, "epsilon": {"log": [1e-9, 1e-7]}}
    third = {**ADAM, "epsilon": {"log": [1e-3, 1e-1]}}
    study = study_of({"first": DEFAULT, "second": second, "third": third})
    assert pairs(study) == {("first", "second"), ("second", "third"), ("first", "third")}
    assert ("first", "third") not in gaps(study)


def test_sgd_under_a_schedule_is_included_in_optaxs_rmsprop_through_the_papers():
    """Through momentum, it would need a momentum that varies with the rate, which optax does not take."""
    linear = {"schedule": {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": 0.01}}
    rate, epsilon = {"log": [1e-4, 1.0]}, {"log": [1e-10, 1e4]}
    fixed = {"momentum": 0.0, "decay": 0.0, "initial_scale": 1.0, "eps_in_sqrt": True, "nesterov": False}
    study = study_of(
        {
            "sgd": {"learning_rate": 0.1, **linear},
            "rmsprop": {"learning_rate": rate, "momentum": 0.0, "rho": 0.0, "epsilon": epsilon, **linear},
            "optax.rmsprop": {"learning_rate": rate, "eps": epsilon, **fixed, **linear},
        }
    )
    assert pairs(study) >= {("sgd", "rmsprop"), ("rmsprop", "optax.rmsprop"), ("sgd", "optax.rmsprop")}


@settings(max_examples=150)
@given(STUDIES | ADAMS)
def test_inclusions_are_transitive(study):
    # A momentum of 0 is sgd, which rmsprop follows at any rate; levelfield does not see that optax's does, too.
    for optimizer in study.optimizers.values():
        if optimizer.rule.name in ("momentum", "nesterov") and optimizer.schedule != "constant":
            assume(all(axis.dimension != Fixed(0.0) for axis in optimizer.space))
    included = pairs(study)
    for a, b, c in itertools.permutations(study.optimizers, 3):
        assert not {(a, b), (b, c)} <= included or (a, c) in included


@settings(max_examples=30)
@given(STUDIES)
def test_a_pair_is_included_or_missing_but_not_both(study):
    assert not pairs(study) & set(gaps(study))
    assert len(set(gaps(study))) == len(gaps(study))
    assert all(gap.reason for gap in missing(study))


@settings(max_examples=30)
@given(STUDIES)
def test_an_optimizer_and_its_twin_include_each_other(study):
    """What includes one of them includes the other."""
    doubled = study.replace(optimizers=study.spec()["optimizers"] | {"twin": study.optimizer("o0").spec()})
    included = pairs(doubled)
    assert {("o0", "twin"), ("twin", "o0")} <= included
    for name in study.optimizers.keys() - {"o0"}:
        assert (("o0", name) in included) == (("twin", name) in included)
        assert ((name, "o0") in included) == ((name, "twin") in included)


# The reduction


def reachable(pairs: set[tuple[str, str]], start: str, end: str, least: int = 1) -> bool:
    """Whether a path of at least ``least`` edges leads from the start to the end."""
    edge = (start, end) in pairs
    middles = {b for a, b in pairs if a == start and b != end}
    rest = {(a, b) for a, b in pairs if start not in (a, b)}
    return (edge and least <= 1) or any(reachable(rest, middle, end) for middle in middles)


@given(st.integers(1, 6), st.data())
def test_the_reduction_drops_exactly_what_follows(n, data):
    """Random orders: some pairs i < j, and all pairs that follow from them."""
    names = [f"o{i}" for i in range(n)]
    drawn = {pair for pair in itertools.combinations(names, 2) if data.draw(st.booleans())}
    order = {pair for pair in itertools.combinations(names, 2) if reachable(drawn, *pair)}
    kept = reduction([Edge(*pair, ()) for pair in data.draw(st.permutations(sorted(order)))])
    assert {(edge.special, edge.general) for edge in kept} == {p for p in order if not reachable(order, *p, least=2)}


@settings(max_examples=30)
@given(STUDIES)
def test_the_reduction_loses_nothing(study):
    kept = {(edge.special, edge.general) for edge in reduction(lf.inclusions(study))}
    assert kept <= pairs(study)
    assert all(reachable(kept, *pair) for pair in pairs(study))
