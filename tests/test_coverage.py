"""Coverage before any training: shares that are worked out by hand, and gradients measured again in numpy."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from helpers import make_study
from hypothesis import given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield.errors import UsageError
from levelfield.executors import get_executor
from levelfield.taxonomy.coverage import Coverage, Shortfall, StudyCoverage, study_coverage

FEW = 0.04  # the error of a share that 128 quasi-random points may have
WIDE, ALL = {"log": [1e-6, 1e6]}, {"log": [1e-3, 1e0]}
SGD = {"learning_rate": {"log": [1e-2, 1e0]}}
MOMENTUM = {"learning_rate": WIDE, "one_minus_momentum": ALL}
ADAM = {"learning_rate/epsilon": WIDE, "one_minus_beta1": ALL, "one_minus_beta2": ALL, "epsilon": {"log": [1e-6, 1e6]}}
RMSPROP = {
    "learning_rate/sqrt(epsilon)": WIDE,
    "one_minus_momentum": ALL,
    "one_minus_rho": ALL,
    "epsilon": {"log": [1e-6, 1e6]},
}
LINEAR = {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": {"choice": [1e-3, 1e-2, 1e-1]}}


def study_of(optimizers: dict[str, Any], **changes: Any) -> lf.Study:
    return make_study(optimizers, **{"steps": 2000} | changes)


def edge_of(coverage: StudyCoverage, special: str, general: str) -> Coverage:
    (edge,) = (edge for edge in coverage.covered if (edge.edge.special, edge.edge.general) == (special, general))
    return edge


def covered(special: dict[str, Any], general: dict[str, Any], scale: float | None = None, **changes: Any) -> Coverage:
    """How one optimizer covers the other; they are named by their rules if these differ."""
    names = special.get("rule", "special"), general.get("rule", "general")
    names = names if names[0] != names[1] else ("special", "general")
    return edge_of(lf.coverage(study_of(dict(zip(names, (special, general), strict=True)), **changes), scale), *names)


def sgd(**changes: Any) -> dict[str, Any]:
    return {"rule": "sgd", **SGD, **changes}


def momentum(**changes: Any) -> dict[str, Any]:
    return {"rule": "momentum", **MOMENTUM, **changes}


def adam(**changes: Any) -> dict[str, Any]:
    return {"rule": "adam", **ADAM, **changes}


def shortfall(coverage: Coverage, key: str) -> Shortfall:
    (match,) = (shortfall for shortfall in coverage.short if shortfall.key == key)
    return match


# Exact inclusions


def test_half_a_learning_rate():
    coverage = covered(sgd(learning_rate={"log": [1e-1, 1e1]}), momentum(learning_rate={"log": [1e-2, 1e0]}))
    assert coverage.share == pytest.approx(0.5, abs=FEW)
    assert not coverage.whole
    assert [shortfall.key for shortfall in coverage.short] == ["learning_rate"]
    assert shortfall(coverage, "learning_rate").needs_high == pytest.approx(10)
    assert shortfall(coverage, "learning_rate").needs_low == pytest.approx(1e-2)  # nothing is missing there
    assert coverage.why == "learning_rate must reach 10 (now ≤ 1)"
    assert str(coverage) == "momentum's space covers 50% of sgd's: learning_rate must reach 10 (now ≤ 1)"


def test_both_ends_too_short():
    coverage = covered(sgd(learning_rate={"log": [1e-3, 1e1]}), momentum(learning_rate={"log": [1e-2, 1e0]}))
    assert coverage.share == pytest.approx(2 / 4, abs=FEW)
    assert "learning_rate must reach 0.001 (now ≥ 0.01) and 10 (now ≤ 1)" in coverage.why


@pytest.mark.parametrize(
    ("axis", "words"),
    [
        ({"one_minus_momentum": {"log": [1e-3, 0.5]}}, "one_minus_momentum must reach 1 (now ≤ 0.5)"),
        ({"momentum": {"uniform": [0.5, 0.9]}}, "momentum must reach 0 (now ≥ 0.5)"),
    ],
)
def test_without_momentum_zero_nothing_is_covered(axis, words):
    coverage = covered(sgd(), {"rule": "momentum", "learning_rate": WIDE, **axis})
    assert coverage.share == 0
    assert coverage.why == words
    assert str(coverage) == f"momentum's space cannot express sgd: {words}"


def test_a_momentum_range_that_is_too_short():
    """1 − γ in [0.01, 1] against [0.1, 1]: one of two decades."""
    special = momentum(learning_rate=SGD["learning_rate"], one_minus_momentum={"log": [1e-2, 1e0]})
    general = {"rule": "rmsprop", **RMSPROP, "one_minus_momentum": {"log": [1e-1, 1e0]}, "rho": {"uniform": [0, 1]}}
    del general["one_minus_rho"]
    assert covered(special, general, 1.0).share == pytest.approx(0.5, abs=FEW)


def test_wide_spaces_cover_everything():
    coverage = lf.coverage(
        study_of(
            {
                "sgd": SGD,
                "momentum": momentum(learning_rate={"log": [1e-3, 1e0]}),
                "nesterov": {**MOMENTUM, "learning_rate": {"log": [1e-3, 1e0]}},
                "rmsprop": RMSPROP,
                "adam": ADAM,
                "nadam": ADAM,
            }
        ),
        gradient_scale=1.0,
    )
    assert len(coverage.covered) == 8
    for edge in coverage.covered:
        assert (edge.share, edge.whole, edge.short, edge.lacking, edge.why) == (1.0, True, (), (), "")


# The same rule: boxes

BOX = st.tuples(st.integers(-6, 0), st.integers(1, 4))  # where it starts and how long it is, in decades


def log_range(start: int, length: int) -> dict[str, list[float]]:
    return {"log": [10.0**start, 10.0 ** (start + length)]}


def overlap(ours: tuple[int, int], theirs: tuple[int, int]) -> float:
    low, high = max(ours[0], theirs[0]), min(sum(ours), sum(theirs))
    return max(0, high - low) / ours[1]


@settings(max_examples=60)
@given(ours=st.tuples(BOX, BOX), theirs=st.tuples(BOX, BOX))
def test_a_box_is_covered_as_far_as_they_overlap(ours, theirs):
    """Learning rate and ε of adam, with β₁ fixed in the special one and free in the general one."""
    fixed = {"rule": "adam", "beta1": 0.9, "beta2": 0.999}
    special = {**fixed, "learning_rate": log_range(*ours[0]), "epsilon": log_range(*ours[1])}
    general = {**fixed, "learning_rate": log_range(*theirs[0]), "epsilon": log_range(*theirs[1])}
    coverage = covered(special, {**general, "beta1": {"uniform": [0.0, 0.99]}})
    shares = [overlap(*pair) for pair in zip(ours, theirs, strict=True)]
    assert coverage.share == pytest.approx(math.prod(shares), abs=FEW)
    # Only axes that are too short are named, with how far they must reach.
    short = {shortfall.key: shortfall for shortfall in coverage.short}
    assert short.keys() == {key for key, share in zip(("learning_rate", "epsilon"), shares, strict=True) if share < 1}
    for key, our, their in zip(("learning_rate", "epsilon"), ours, theirs, strict=True):
        if key in short:
            assert short[key].needs_low == pytest.approx(10.0 ** min(our[0], their[0]))
            assert short[key].needs_high == pytest.approx(10.0 ** max(sum(our), sum(their)))
    # A space that contains another covers it, and only then.
    assert coverage.whole == all(share == 1 for share in shares)


def widened(table: dict[str, Any], coverage: Coverage) -> dict[str, Any]:
    """The general optimizer with its ranges as long as they must be."""
    change = {}
    for shortfall in coverage.short:
        ((kind, _),) = table[shortfall.key].items()
        change[shortfall.key] = {kind: [float(shortfall.needs_low), float(shortfall.needs_high)]}
    return {**table, **change}


@pytest.mark.parametrize(
    ("special", "general"),
    [
        (sgd(), momentum(learning_rate={"log": [0.3, 20.0]}, one_minus_momentum={"log": [1e-2, 0.2]})),
        (sgd(), {"rule": "momentum", "learning_rate": {"log": [0.02, 0.2]}, "momentum": {"uniform": [0.2, 0.9]}}),
        (sgd(), adam(epsilon={"log": [1e-8, 1e-3]})),
        (sgd(), adam(**{"learning_rate/epsilon": {"log": [0.1, 0.2]}, "epsilon": {"log": [1e-8, 1e-3]}})),
        (
            momentum(learning_rate={"log": [1e-3, 0.7]}, one_minus_momentum={"log": [0.02, 1.0]}),
            adam(one_minus_beta1={"log": [0.1, 0.5]}, epsilon={"log": [1e-4, 2.0]}),
        ),
    ],
)
def test_ranges_as_long_as_they_must_be_cover_everything(special, general):
    coverage = covered(special, general, 1.0)
    assert not coverage.whole
    assert covered(special, widened(general, coverage), 1.0).whole


# Limits


def smallest_epsilon(rule: str, scale: float) -> float:
    """The ε from which a rule, written out in numpy, follows sgd to a tenth on each of 128 random walks."""
    gradients = scale / math.sqrt(3) * np.random.default_rng(99).normal(size=(128, 40, 4))
    walk = np.cumsum(gradients, axis=1)
    unit = scale if rule == "adam" else scale**2
    for epsilon in unit * 10 ** np.arange(-2, 4, 0.05):
        # Without memory the second moment is the square of the gradient; the rate has made up for ε.
        damped = 1 / (1 + np.abs(gradients) / epsilon) if rule == "adam" else 1 / np.sqrt(1 + gradients**2 / epsilon)
        error = np.linalg.norm(np.cumsum(damped * gradients, axis=1) - walk, axis=-1).max(1)
        if np.all(error <= 0.1 * np.linalg.norm(walk, axis=-1).max(1)):
            return float(epsilon)
    raise AssertionError


@pytest.fixture(scope="module")
def tiny_epsilon() -> dict[float, StudyCoverage]:
    """By gradient scale: adam and rmsprop whose ε stays far too small."""
    tiny = {"log": [1e-16, 1e-8]}
    study = study_of({"sgd": SGD, "adam": {**ADAM, "epsilon": tiny}, "rmsprop": {**RMSPROP, "epsilon": tiny}})
    return {scale: lf.coverage(study, scale) for scale in (1e-2, 1.0, 1e2)}


@pytest.mark.parametrize("rule", ["adam", "rmsprop"])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e2])
def test_a_tiny_epsilon_cannot_express_sgd(tiny_epsilon, rule, scale):
    coverage = edge_of(tiny_epsilon[scale], "sgd", rule)
    assert coverage.share == 0
    assert [shortfall.key for shortfall in coverage.short] == ["epsilon"]
    assert coverage.short[0].high == pytest.approx(1e-8)
    # Roughly ten times the gradients' size (rmsprop's ε is a square); numpy gives it more precisely.
    needs = coverage.short[0].needs_high
    assert smallest_epsilon(rule, scale) / 1.5 <= needs <= 10 * smallest_epsilon(rule, scale)
    if rule == "adam":
        assert scale <= needs <= 100 * scale
    assert tiny_epsilon[scale].gradient_scale == scale


@pytest.mark.parametrize(("rule", "power"), [("adam", 1), ("rmsprop", 2)])
def test_the_epsilon_that_it_needs_scales_with_the_gradients(tiny_epsilon, rule, power):
    needs = [edge_of(tiny_epsilon[scale], "sgd", rule).short[0].needs_high for scale in (1e-2, 1.0, 1e2)]
    assert needs[1] / needs[0] == pytest.approx(100**power)
    assert needs[2] / needs[1] == pytest.approx(100**power)


def test_gradients_beyond_all_epsilons_ask_for_a_larger_one():
    """For entries of 1e7, rmsprop's ε must be above 1e14, so no smaller one is missing."""
    general = {"rule": "rmsprop", "learning_rate": WIDE, "momentum": 0.0, "rho": 0.9, "epsilon": {"log": [1e-6, 1e6]}}
    coverage = covered(sgd(), general, 1e7)
    assert coverage.share == 0
    assert "epsilon" in coverage.why
    assert "now ≥" not in coverage.why


def test_an_adam_that_cannot_move_covers_nothing():
    """With β₂ = 1 its bias correction is zero, and so is every step."""
    general = {"rule": "adam", "learning_rate": WIDE, "beta1": 0.0, "beta2": 1.0, "epsilon": WIDE}
    assert all(edge.share == 0 for edge in lf.coverage(study_of({"sgd": SGD, "adam": general}), 1.0).covered)


@pytest.mark.parametrize(("low", "high", "share"), [(1e-1, 1e1, 1 / 2), (1e-3, 1e1, 1.0), (1e-3, 1e-1, 1 / 2)])
def test_a_ratio_is_compared_with_the_learning_rate_itself(low, high, share):
    """With γ = 0 and β₂ = 0, α / ε is sgd's learning rate."""
    axes = {"learning_rate/epsilon": {"log": [low, high]}, "one_minus_beta2": 1.0, "epsilon": {"log": [1e2, 1e4]}}
    coverage = covered(sgd(), adam(**axes), 1.0)
    assert coverage.share == pytest.approx(share, abs=FEW)


@pytest.mark.parametrize(
    ("beta2", "share"),
    [
        (0.0, 1 / 2),
        # In the middle of 60 steps its correction of the second moment has the rate 1 / √(1 − 0.999³¹) times as large.
        (0.999, (1 - math.log10(1 - 0.999**31) / 2) / 2),
    ],
)
def test_a_plain_learning_rate_goes_with_epsilon(beta2, share):
    """α = η ε in [1e3, 1e5] with ε in [1e2, 1e4]: η must be in [0.1, 1e3], half of [0.01, 1]."""
    plain = {"rule": "adam", "learning_rate": {"log": [1e3, 1e5]}, "epsilon": {"log": [1e2, 1e4]}}
    coverage = covered(sgd(), {**plain, "one_minus_beta1": ALL, "beta2": beta2}, 1.0, steps=60)
    assert coverage.share == pytest.approx(share, abs=FEW)


def test_a_momentum_close_to_one_needs_a_large_ratio():
    """α / ε = η / (1 − γ), up to 1 / 0.01: with at most 1, what has η ≤ 1 − γ, half of a square."""
    special = momentum(learning_rate={"log": [1e-2, 1e0]}, one_minus_momentum={"log": [1e-2, 1e0]})
    general = adam(**{"learning_rate/epsilon": {"log": [1e-3, 1e0]}, "one_minus_beta2": 1.0})
    coverage = covered(special, general, 1.0)
    assert coverage.share == pytest.approx(1 / 2, abs=FEW)
    assert coverage.why == "learning_rate/epsilon must reach 100 (now ≤ 1)"


# Schedules


def test_choices_that_differ():
    general = momentum(schedule={**LINEAR, "decay_factor": {"choice": [1e-2, 1e-1, 0.5]}})
    coverage = covered(sgd(schedule=LINEAR), general)
    assert coverage.share == pytest.approx(2 / 3, abs=FEW)
    assert coverage.lacking == ("decay_factor",)
    assert coverage.short == ()
    assert coverage.why == "decay_factor lacks the needed value"


def test_a_longer_list_covers_a_shorter_one():
    general = momentum(schedule={**LINEAR, "decay_factor": {"choice": [1e-1, 0.5, 1e-3, 1e-2]}})
    assert covered(sgd(schedule=LINEAR), general).whole


def test_half_the_lengths_of_a_decay():
    general = momentum(schedule={**LINEAR, "decay_steps": {"uniform": [0.75, 2.0]}})
    coverage = covered(sgd(schedule=LINEAR), general)
    assert coverage.share == pytest.approx(1 / 2, abs=FEW)
    assert shortfall(coverage, "decay_steps").needs_low == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("factor", "share"), [({"uniform": [0.1, 1.0]}, 1.0), ({"choice": [0.1, 1]}, 1.0), ({"uniform": [0.1, 0.5]}, 0.0)]
)
def test_a_constant_rate_is_a_decay_by_one(factor, share):
    constant, decaying = {"kind": "constant"}, {**LINEAR, "decay_factor": factor}
    coverage = covered(sgd(schedule=constant), momentum(schedule=decaying))
    assert coverage.share == share
    assert ("decay_factor" in coverage.why) == (share < 1)


# The coverage of a study


@pytest.fixture(scope="module")
def mixed() -> StudyCoverage:
    """An inclusion of each sort: covered whole, in part and not at all, and not included."""
    default = {"rule": "adam", "learning_rate": WIDE, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
    short = {"learning_rate": {"log": [1e-1, 1e1]}, "one_minus_momentum": ALL}
    tiny = {**ADAM, "epsilon": {"log": [1e-12, 1e-8]}}
    return lf.coverage(
        study_of({"sgd": SGD, "momentum": short, "default": default, "adam": tiny, "nesterov": MOMENTUM})
    )


def test_lines_and_dict_say_the_same(mixed):
    lines, content = list(mixed.lines()), mixed.as_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    shares = {(row["special"], row["general"]): row["share"] for row in content["inclusions"]}
    assert shares.keys() == {("sgd", "momentum"), ("sgd", "adam"), ("sgd", "nesterov"), ("momentum", "adam")} | {
        ("default", "adam")
    }
    for pair, share in shares.items():
        (line,) = (line for line in lines if re.search(rf"{pair[0]} ⊆ {pair[1]}\s", line))
        assert f" {share:.0%}" in line
        (row,) = (row for row in content["inclusions"] if (row["special"], row["general"]) == pair)
        assert (share == 1) == (not row["short"] and not row["lacking"])
        assert ("cannot express" in line) == (share == 0)
        for short in row["short"]:
            assert short["key"] in line
            assert short["needs_low"] <= short["low"] < short["high"] <= short["needs_high"]
    assert [(gap["special"], gap["general"]) for gap in content["not_included"]] == [
        ("sgd", "default"),
        ("momentum", "default"),
    ]
    for gap in content["not_included"]:
        (line,) = (line for line in lines if f"{gap['special']} ⊄ {gap['general']}" in line)
        assert gap["reason"] in line
    assert len(lines) == len(content["inclusions"]) + len(content["not_included"])


def test_shortfalls_are_found_where_they_are(mixed):
    assert edge_of(mixed, "sgd", "momentum").share == pytest.approx(1 / 2, abs=FEW)
    assert edge_of(mixed, "sgd", "nesterov").whole
    # At ε = 1e-8 the ratio goes from 1e2 to 1e14; up to 1e6 are 4 of these 12 decades.
    assert edge_of(mixed, "default", "adam").share == pytest.approx(4 / 12, abs=FEW)
    assert edge_of(mixed, "momentum", "adam").share == 0
    assert "(now ≤ 1e-08)" in edge_of(mixed, "momentum", "adam").why


def test_nothing_is_measured_if_no_limit_has_to_be_judged():
    coverage = lf.coverage(study_of({"sgd": SGD, "momentum": MOMENTUM}))
    assert coverage.gradient_scale is None
    alone = lf.coverage(study_of({"sgd": SGD}))
    assert (list(alone.lines()), alone.covered, alone.missing) == ([], (), ())


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_gradient_scale_that_is_not_positive_is_refused(scale):
    with pytest.raises(UsageError, match=f"gradient_scale = {scale:g}: expected a positive number"):
        lf.coverage(study_of({"sgd": SGD, "adam": ADAM}), scale)


# Limits that cannot be judged

OPTAX = {"learning_rate": WIDE, "b1": {"uniform": [0.0, 0.9]}, "eps": {"log": [1e-6, 1e6]}, "weight_decay": 0.0}


def test_without_the_size_of_the_gradients_a_limit_is_not_evaluated():
    coverage = study_coverage(study_of({"sgd": SGD, "momentum": MOMENTUM, "adam": ADAM}), None)
    assert edge_of(coverage, "sgd", "momentum").whole  # exact: it needs no gradients
    unknown = edge_of(coverage, "sgd", "adam")
    assert (unknown.evaluated, unknown.share, unknown.whole) == (False, None, False)
    assert str(unknown) == ("whether adam's space covers sgd's was not evaluated: the size of the gradients is unknown")
    (line,) = (line for line in coverage.lines() if "sgd ⊆ adam" in line)
    assert line.endswith("–  not evaluated: the size of the gradients is unknown")
    (row,) = (row for row in coverage.as_dict()["inclusions"] if (row["special"], row["general"]) == ("sgd", "adam"))
    assert (row["share"], row["obstacle"]) == (None, "the size of the gradients is unknown")
    assert all("obstacle" not in row for row in coverage.as_dict()["inclusions"] if row["share"] is not None)


def test_an_exact_way_that_covers_everything_needs_no_gradients():
    """rmsprop follows momentum exactly with ρ = 1, and in the limit ε → ∞."""
    general = {**RMSPROP, "rho": {"uniform": [0.0, 1.0]}}
    del general["one_minus_rho"]
    study = study_of({"momentum": momentum(learning_rate={"log": [1e-3, 1e0]}), "rmsprop": general})
    (coverage,) = study_coverage(study, None).covered
    assert len(coverage.edge.ways) == 2
    assert coverage.whole
    short = {**general, "learning_rate/sqrt(epsilon)": {"log": [1e-6, 1e-5]}}
    (coverage,) = study_coverage(study_of({"momentum": MOMENTUM, "rmsprop": short}), None).covered
    assert not coverage.evaluated


def test_a_rule_without_equations_is_evaluated_only_with_jax():
    study = study_of({"sgd": SGD, "optax.adamw": OPTAX})
    (coverage,) = study_coverage(study, 1.0).covered
    assert str(coverage).endswith("was not evaluated: optax.adamw can only be run with JAX")
    (coverage,) = study_coverage(study, 1.0, use_jax=True).covered
    assert coverage.whole
    assert lf.coverage(study, 1.0).covered[0].as_dict() == coverage.as_dict()


def test_importing_the_taxonomy_does_not_load_optax():
    code = "from levelfield.taxonomy import coverage, simulation, trajectories, verify; import sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"levelfield.training.following", "optax"} & set(loaded)


# The gradients' size


def entries_by_their_share(gradient: np.ndarray) -> np.ndarray:
    """The root mean square of a gradient's entries, each weighted by its share of the squared norm."""
    weights = gradient**2 / np.sum(gradient**2, axis=-1, keepdims=True)
    return np.sqrt(np.sum(weights * gradient**2, axis=-1))


def test_the_gradients_of_the_noisy_quadratic(mixed):
    """The mean over four starts, against a simulation of many."""
    h, generator = 1 / np.arange(1, 101), np.random.default_rng(1)
    start, noise = generator.normal(size=(2, 20_000, 100))
    simulated = entries_by_their_share(h * start + np.sqrt(h / 16) * noise)
    assert mixed.gradient_scale is not None
    assert mixed.gradient_scale > 0
    assert abs(mixed.gradient_scale - simulated.mean()) < 4 * simulated.std() / math.sqrt(4)


def test_an_executor_measures_the_gradients_of_each_batch_size():
    """Of the noisy quadratic, a single example has a much noisier gradient than many."""
    study, executor = study_of({"sgd": SGD, "adam": ADAM}), get_executor("local")
    large, small = (executor.gradient_scale(study.replace(batch_size=size)) for size in (1024, 1))
    assert small > 1.5 * large
    assert executor.gradient_scale(study.replace(batch_size=1024)) == large


def test_the_gradients_of_wilsons_problem():
    """All 50 examples at zero weights: the gradient is −Xᵀy / 50."""
    labels = np.array([1.0, 1.0, 1.0, -1.0, -1.0] * 10)
    features = np.zeros((50, 3 + 5 * 50))
    for i, label in enumerate(labels):
        features[i, :3] = label, 1, 1
        features[i, 3 + 5 * i : 3 + 5 * i + (1 if label > 0 else 5)] = 1
    expected = entries_by_their_share(-features.T @ labels / 50)
    study = study_of({"sgd": SGD, "adam": ADAM}, workload="wilson")
    assert lf.coverage(study).gradient_scale == pytest.approx(expected, rel=0.01)


# The commands

STUDY = """
workload = "quadratic"
steps = 60
trials = 2
pool = 4

[optimizers.sgd]
learning_rate = { log = [1e-2, 1e0] }

[optimizers.momentum]
learning_rate = { log = [1e-1, 1e1] }
one_minus_momentum = { log = [1e-1, 1e0] }

[optimizers.adam]
"learning_rate/epsilon" = { log = [1e-3, 1e2] }
one_minus_beta1 = { log = [1e-2, 1e0] }
one_minus_beta2 = { log = [1e-2, 1e0] }
epsilon = { log = [1e-3, 1e-1] }

[optimizers.adam_default]
rule = "adam"
learning_rate = { log = [1e-5, 1e-1] }
beta1 = 0.9
beta2 = 0.999
epsilon = 1e-8
"""


@pytest.fixture
def cli(command, tmp_path):
    """Commands in a folder with the study."""
    (tmp_path / "study.toml").write_text(STUDY)
    return command


def test_check_prints_coverage(cli, tmp_path):
    code, out, err = cli("check", "study.toml")
    assert (code, err) == (0, "")
    assert re.search(r"sgd ⊆ momentum +50%  learning_rate must reach 0.01 \(now ≥ 0.1\)\n", out)
    assert re.search(r"momentum ⊆ adam +0%  cannot express it: .*epsilon must reach .* \(now ≤ 0.1\)", out)
    assert "sgd ⊄ adam_default: beta1 is fixed at 0.9 and epsilon is fixed at 1e-08\n" in out
    assert "adam_default ⊄ adam: " in out
    assert [path.name for path in tmp_path.iterdir()] == ["study.toml"]


def test_check_as_json_with_a_given_gradient_scale(cli):
    """Gradients that are a thousand times smaller need a smaller ε."""
    code, out, _ = cli("check", "study.toml", "--json", "--gradient-scale", "1e-3")
    content = json.loads(out)
    assert code == 0
    assert content["trial_steps"] == 4 * 4 * 60
    assert content["precision"] == "tf32"
    assert content["gradient_scale"] == 1e-3
    shares = {(row["special"], row["general"]): row["share"] for row in content["inclusions"]}
    assert shares == {
        ("sgd", "momentum"): pytest.approx(0.5, abs=FEW),
        ("sgd", "adam"): 1.0,
        ("momentum", "adam"): pytest.approx(1.0, abs=FEW),
    }
    assert {(row["special"], row["general"]) for row in content["not_included"]} == {
        ("sgd", "adam_default"),
        ("momentum", "adam_default"),
        ("adam_default", "adam"),
    }


@pytest.mark.parametrize("scale", ["0", "-1", "nan", "inf", "much"])
def test_check_refuses_a_gradient_scale_that_is_not_positive_in_one_line(cli, scale):
    code, out, err = cli("check", "study.toml", "--gradient-scale", scale)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert re.search("gradient.scale", err)


def test_taxonomy_verifies_every_inclusion(cli):
    code, out, _ = cli("taxonomy", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {("sgd", "momentum"), ("momentum", "adam"), ("optax.adam", "optax.adamw")} <= {
        (row["special"], row["general"]) for row in rows
    }
    assert all(row["verified"] is True for row in rows)
    assert all(row["equations"] for row in rows)


def test_a_ratio_that_the_witness_leaves_open():
    """What ε/η allows depends on η: a wide one covers what the plain ranges cover."""
    table = {"rule": "adam", "learning_rate": {"log": [1e-4, 1e6]}, "epsilon": {"log": [1e-8, 1e8]}}
    table |= {"one_minus_beta1": {"log": [1e-3, 1e0]}, "beta2": 0.999}
    ratio = {key: value for key, value in table.items() if key != "epsilon"} | {
        "epsilon/learning_rate": {"log": [1e-8, 1e8]}
    }
    assert covered(sgd(), ratio, 1.0).share == pytest.approx(covered(sgd(), table, 1.0).share, abs=FEW)
