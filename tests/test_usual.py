"""Ranges and values that people do not use: which are named, and which never are."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from helpers import make_study
from hypothesis import given
from hypothesis import strategies as st

import levelfield as lf
from levelfield.errors import SpaceError, UnknownName
from levelfield.report.narrative import search_sentences
from levelfield.rules import get_rule
from levelfield.schedules import SCHEDULES
from levelfield.study import built_in_studies
from levelfield.usual import departures, usual_interval
from levelfield.workloads import get_workload

PAPER = ("sgd", "momentum", "nesterov", "rmsprop", "rmsterov", "adam", "nadam")
ADAM = {"learning_rate": {"log": [1e-4, 1e-2]}, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
RMSPROP = {"learning_rate": {"log": [1e-4, 1e-2]}, "momentum": 0.0, "rho": 0.9, "epsilon": 1e-10}
NESTEROV = {"learning_rate": {"log": [1e-2, 1e0]}, "momentum": 0.9}


def changed(table: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return an optimizer's table in which these keys replace their hyperparameters' keys."""
    names = {key.removeprefix("one_minus_").split("_over_")[0] for key in changes}
    kept = {key: value for key, value in table.items() if key not in names}
    ratios = {
        "learning_rate_over_epsilon": "learning_rate/epsilon",
        "learning_rate_over_root": "learning_rate/sqrt(epsilon)",
    }
    return kept | {ratios.get(key, key): value for key, value in changes.items()}


def found(optimizers: dict[str, Any], workload: str = "fashion_mini", **changes: Any) -> list[str]:
    return [str(departure) for departure in departures(make_study(optimizers, workload=workload, **changes))]


def interval(rule: str, table: dict[str, Any], key: str) -> tuple[float, float] | None:
    study = make_study({rule: table})
    (axis,) = (axis for axis in study.optimizer(rule).space if axis.key == key)
    return usual_interval(study, rule, axis)


# What leaves out every usual value


@pytest.mark.parametrize(
    ("rule", "table", "axis", "name"),
    [
        ("adam", changed(ADAM, one_minus_beta1={"log": [1e-4, 1e-3]}), "one_minus_beta1 in 1e-04 … 0.001", "beta1"),
        ("adam", changed(ADAM, beta2={"uniform": [0.1, 0.5]}), "beta2 in 0.1 … 0.5", "beta2"),
        ("adam", changed(ADAM, learning_rate=10.0), "learning_rate = 10", "learning_rate"),
        ("adam", changed(ADAM, learning_rate={"choice": [1, 10]}), "learning_rate in {1, 10}", "learning_rate"),
        ("rmsprop", changed(RMSPROP, learning_rate={"log": [1e-6, 1e-5]}), "learning_rate in 1e-06 … 1e-05", ""),
        ("rmsprop", changed(RMSPROP, rho=0.3), "rho = 0.3", "rho"),
        ("nesterov", changed(NESTEROV, learning_rate={"log": [1e2, 1e4]}), "learning_rate in 100 … 10000", ""),
        ("nesterov", changed(NESTEROV, momentum=0.0), "momentum = 0", "momentum"),
        ("sgd", {"learning_rate": {"log": [1e3, 1e4]}}, "learning_rate in 1000 … 10000", "learning_rate"),
        ("optax.adam", {"learning_rate": 1e-3, "one_minus_b1": {"log": [1e-4, 1e-3]}}, "one_minus_b1 in", "b1"),
        ("optax.lion", {"learning_rate": {"log": [1e-1, 1e1]}}, "learning_rate in 0.1 … 10", "learning_rate"),
    ],
)
def test_a_range_without_usual_values_is_named(rule, table, axis, name):
    (text,) = found({"mine": {"rule": rule} | table})
    assert text.startswith(f"mine: {axis}")
    assert f"leaves out every usual value of {name}" in text


def test_a_schedule_that_an_optimizer_is_not_meant_for_is_named():
    free = {"rule": "optax.contrib.schedule_free_adamw", "learning_rate": {"log": [1e-3, 1e-2]}}
    (text,) = found({"free": free}, schedule={"kind": "cosine"})
    assert text == "free: schedule is cosine, but optax.contrib.schedule_free_adamw is meant for a constant one."
    assert not found({"free": free | {"schedule": {"kind": "constant", "warmup_steps": 0.1}}})


def test_two_decades_above_a_built_in_study_is_named():
    low, high = lf.load_study("tolstoi_mini").optimizer("nesterov").space.spec()["learning_rate"]["log"]
    above = changed(NESTEROV, learning_rate={"log": [100 * low, 100 * high]})
    (text,) = found({"nesterov": above}, workload="tolstoi_mini")
    assert text.startswith("nesterov: learning_rate in 100 … 3000 ")


def test_the_end_that_a_range_shares_is_named():
    """A range that only touches the usual values almost never tries one."""
    (text,) = found({"rmsprop": changed(RMSPROP, learning_rate={"log": [1e-6, 1e-5]})})
    assert text.endswith("every usual value of learning_rate (1e-05 … 0.1) except at 1e-05.")
    assert not found({"rmsprop": changed(RMSPROP, learning_rate=1e-5)})


@pytest.mark.parametrize("epsilon", [1.0, {"log": [1e-2, 1e4]}])
def test_with_a_large_epsilon_any_learning_rate_is_usual(epsilon):
    assert not found({"adam": changed(ADAM, learning_rate={"log": [1e1, 1e3]}, epsilon=epsilon)})
    assert found({"adam": changed(ADAM, learning_rate={"log": [1e1, 1e3]}, epsilon={"log": [1e-8, 1e4]})})


def test_a_ratio_is_judged_by_the_values_that_it_reaches():
    ratio = {"log": [1e-1, 1e1]}
    small, large = {"log": [1e-10, 1e-8]}, {"log": [1e-5, 1e-3]}
    (text,) = found({"adam": changed(ADAM, learning_rate_over_epsilon=ratio, epsilon=small)})
    assert text.startswith("adam: learning_rate/epsilon in 0.1 … 10 leaves out every usual value of learning_rate")
    assert not found({"adam": changed(ADAM, learning_rate_over_epsilon=ratio, epsilon=large)})
    assert not found({"rmsprop": changed(RMSPROP, learning_rate_over_root=ratio, epsilon=small)})
    assert interval("adam", changed(ADAM, learning_rate_over_epsilon=ratio, epsilon=1e-8), "learning_rate/epsilon") == (
        pytest.approx(1e-5 / 1e-8),
        pytest.approx(1e-1 / 1e-8),
    )
    rooted = changed(RMSPROP, learning_rate_over_root=ratio, epsilon=1e-8)
    assert interval("rmsprop", rooted, "learning_rate/sqrt(epsilon)") == (pytest.approx(1e-1), pytest.approx(1e3))


def test_the_usual_interval_is_in_the_coordinate_of_the_axis():
    assert interval("nesterov", NESTEROV, "momentum") == (0.5, 0.999)
    flipped = changed(NESTEROV, one_minus_momentum={"log": [1e-3, 1e0]})
    assert interval("nesterov", flipped, "one_minus_momentum") == (pytest.approx(1e-3), 0.5)
    close = {"learning_rate": lf.Hyperparameter(low=0.0), "keep": lf.Hyperparameter(0.0, 1.0, usual_range=(0.9, 1.0))}
    lf.register_rule("close", lambda **_: None, close)
    table = {"learning_rate": 0.1, "one_minus_keep": {"log": [1e-3, 1e0]}}
    assert interval("close", table, "one_minus_keep") == (1e-7, pytest.approx(0.1))
    assert interval("close", table, "learning_rate") is None
    assert interval("adam", changed(ADAM, epsilon=1.0), "learning_rate") is None


# What is never named


@pytest.mark.parametrize("name", built_in_studies())
def test_built_in_studies_are_usual(name):
    study = lf.load_study(name)
    assert departures(study) == []
    assert departures(study.replace(steps=7, seed=1)) == []


def test_only_a_first_guess_of_the_paper_lacks_usual_values():
    """The ranges would pass on any other data, except one that the paper's authors replaced."""
    every = get_workload("imagenet_resnet50").hyperparameters | get_workload("cifar10_vgg16").hyperparameters
    lf.register_workload(replace(get_workload("quadratic"), name="other", hyperparameters=every))
    unusual = []
    for name in built_in_studies():
        study = lf.load_study(name)
        other = make_study(study.spec()["optimizers"], workload="other")
        unusual += [(name, departure.optimizer, departure.axis) for departure in departures(other)]
    assert unusual == [("cifar10_resnet32_initial", "adam", "learning_rate/epsilon")]


DEFAULTS = [  # of TensorFlow, PyTorch and optax, and values from papers
    ("sgd", {"learning_rate": [0.01, 1e-3, 30.0]}),  # AWD-LSTM
    ("momentum", {"learning_rate": [0.01, 0.1, 12.8], "momentum": [0.9, 0.99, 0.5]}),
    ("nesterov", {"learning_rate": [0.01, 0.1], "momentum": [0.9, 0.95]}),
    (
        "rmsprop",
        {"learning_rate": [1e-3, 1e-2, 0.045], "rho": [0.9, 0.99], "momentum": [0.0, 0.9], "epsilon": [1e-7, 1.0]},
    ),
    ("adam", {"learning_rate": [1e-3, 2e-5], "beta1": [0.9, 0.0, 0.5], "beta2": [0.999, 0.95, 0.98, 0.9]}),
    ("adam", {"epsilon": [1e-7, 1e-8, 0.1, 9475.0]}),
    ("nadam", {"learning_rate": [1e-3, 2e-3], "beta1": [0.9], "beta2": [0.999], "epsilon": [1e-7]}),
    ("optax.adamw", {"learning_rate": [3e-4], "b1": [0.9], "b2": [0.95], "eps": [1e-8], "weight_decay": [1e-4, 0.1]}),
    (
        "optax.lion",
        {"learning_rate": [1e-4, 3e-5], "b1": [0.9, 0.95], "b2": [0.99, 0.98], "weight_decay": [1e-3, 10.0]},
    ),
    ("optax.sgd", {"learning_rate": [0.1, 20.0], "momentum": [0.9]}),
    ("optax.novograd", {"learning_rate": [0.01], "b2": [0.25, 0.98]}),
    ("optax.adabelief", {"eps": [1e-16], "eps_root": [1e-16]}),
    ("optax.adafactor", {"learning_rate": [1e-2], "eps": [1e-30]}),
    ("optax.adadelta", {"learning_rate": [1.0, 1e-3], "rho": [0.9, 0.95]}),
]


@pytest.mark.parametrize(("rule", "values"), DEFAULTS)
def test_common_values_are_usual(rule, values):
    for name, common in values.items():
        low, high = get_rule(rule).hyperparameters[name].usual_range
        assert all(low <= value <= high for value in common), name


def test_every_hyperparameter_of_the_paper_has_usual_values():
    kinds = [get_rule(rule).hyperparameters for rule in PAPER] + list(SCHEDULES.values())
    kinds += [get_workload(name).hyperparameters for name in ("imagenet_resnet50", "cifar10_vgg16")]
    for hyperparameters in kinds:
        for name, hyperparameter in hyperparameters.items():
            low, high = hyperparameter.usual_range
            assert hyperparameter.low <= low < high <= hyperparameter.high, name
            for value in (hyperparameter.usual, hyperparameter.default):
                assert value is None or low <= value <= high, name


@given(st.data())
def test_a_range_with_usual_values_never_leaves_out_all_of_them(data):
    rule = get_rule(data.draw(st.sampled_from(PAPER)))
    table: dict[str, Any] = {}
    for name, hyperparameter in rule.hyperparameters.items():
        low, high = hyperparameter.usual_range
        value = data.draw(st.floats(max(low, 1e-12), high), name)
        factor = data.draw(st.floats(1.01, 1e6), f"{name} wider")
        if hyperparameter.high == 1.0:
            one_minus = {"log": [max((1 - value) / factor, 1e-7), min((1 - value) * factor, 1.0)]}
            choices = st.sampled_from([{name: value}, {f"one_minus_{name}": one_minus}])
        else:
            choices = st.sampled_from([{name: value}, {name: {"log": [value / factor, value * factor]}}])
        table |= data.draw(choices)
    study = make_study({rule.name: {"rule": rule.name} | table})
    assert not [departure for departure in departures(study) if "usual value" in departure.why]


# What is far from the built-in studies


def test_a_range_far_from_what_is_suggested_is_named():
    """No study of sgd on images searches below 0.001; those on text do."""
    low = {"learning_rate": {"log": [2e-5, 1e-4]}}
    (text,) = found({"sgd": low})
    assert text == (
        "sgd: learning_rate in 2e-05 … 1e-04 is a decade or more from what is suggested for sgd on "
        "images (nearest: learning_rate 0.001 … 10)."
    )
    assert not found({"sgd": {"learning_rate": {"log": [2e-5, 1.2e-4]}}})
    assert not found({"sgd": low}, workload="tolstoi_mini")
    assert not found({"sgd": low}, workload="quadratic")  # neither images nor text: compared with all


def test_zero_is_far_from_nothing():
    """Regularization that is off says nothing about its scale."""
    sgd = {"learning_rate": {"log": [1e-2, 1e0]}}
    assert not found({"sgd": sgd | {"l2": 0.0}}, workload="cifar10_resnet32")
    (text,) = found({"sgd": sgd | {"l2": {"log": [1e-9, 1e-7]}}}, workload="cifar10_resnet32")
    assert text.startswith("sgd: l2 in 1e-09 … 1e-07 is a decade or more from")


def test_schedules_are_compared_with_their_own_kind():
    sgd = {"sgd": {"learning_rate": {"log": [1e-2, 1e0]}}}
    halved = {"kind": "step", "decay_every": 0.1, "decay_factor": 0.5}
    assert not found(sgd, schedule=halved)
    (text,) = found(sgd, schedule=halved | {"decay_every": 0.005})
    assert "decay_every = 0.005 is a decade or more from" in text
    linear = {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": {"uniform": [0.6, 1.0]}}
    (text,) = found(sgd, schedule=linear)
    assert "leaves out every usual value of decay_factor" in text


# Rules of one's own


def test_a_registered_rule_declares_what_is_usual():
    hyperparameters = {
        "learning_rate": lf.Hyperparameter(low=0.0, usual_range=(1e1, 1e3)),
        "momentum": lf.Hyperparameter(0.0, 1.0),
        "softness": lf.Hyperparameter(low=0.0, usual=1.0, group="epsilon"),
        "twist": lf.Hyperparameter(),
    }
    lf.register_rule("soft", lambda **_: None, hyperparameters)
    table = {"rule": "soft", "learning_rate": 1e2, "momentum": 0.9, "softness": 1.0, "twist": 1e30}
    assert not found({"soft": table})
    (text,) = found({"soft": changed(table, learning_rate=1e-3)})
    assert text == "soft: learning_rate = 0.001 leaves out every usual value of learning_rate (10 … 1000)."
    (text,) = found({"soft": changed(table, one_minus_momentum={"log": [1e-6, 1e-5]})})
    assert "every usual value of momentum (0 … 0.999)" in text  # by its name


@pytest.mark.parametrize("usual_range", [(1.0,), (1.0, 1.0), (2.0, 1.0), "ab", (0.0, float("inf"))])
def test_an_invalid_usual_range_is_refused(usual_range):
    with pytest.raises(SpaceError, match=r"^usual_range = .*: expected two finite numbers"):
        lf.Hyperparameter(usual_range=usual_range)


def test_an_unknown_kind_of_workload_is_refused():
    workload = get_workload("quadratic")
    assert replace(workload, kind="text").kind == "text"
    with pytest.raises(UnknownName, match="unknown kind 'image' of workload; did you mean 'images'"):
        replace(workload, kind="image")


# Where they are shown

STUDY = """
workload = "quadratic"
steps = 20
trials = 2
pool = 4

[optimizers.sgd]
learning_rate = { log = [1e-2, 1e0] }

[optimizers.adam]
learning_rate = { log = [1e-4, 1e-2] }
one_minus_beta1 = { log = [1e-4, 1e-3] }
beta2 = 0.1
epsilon = 1e-8
"""


def test_check_prints_departures_and_succeeds(command, tmp_path):
    (tmp_path / "mine.toml").write_text(STUDY)
    code, out, err = command("check", "mine.toml")
    assert (code, err) == (0, "")
    heading, *lines = out.splitlines()[-3:]
    assert heading == "  ranges      warning: 2 unusual settings"
    assert lines[0].startswith("    adam: beta2 = 0.1 leaves out")
    assert lines[1].startswith("    adam: one_minus_beta1 in 1e-04 … 0.001 leaves out")
    code, out, _ = command("check", "mine.toml", "--json")
    assert code == 0
    assert [(row["optimizer"], row["axis"]) for row in json.loads(out)["departures"]] == [
        ("adam", "beta2"),
        ("adam", "one_minus_beta1"),
    ]
    assert "unusual" not in command("check", "mine.toml", "--optimizers", "sgd")[1]


def test_the_diagnosis_of_the_searches_names_departures(made, tmp_path):
    study = make_study({"adam": changed(ADAM, beta2=0.1)})
    comparison = made(study, {"adam": [{"train_loss": [1.0, 0.5]}] * study.pool})
    (text,) = map(str, departures(study))
    assert search_sentences(comparison.results)[0] == text
    page = comparison.write_report(tmp_path / "report.html").read_text("utf-8")
    assert f"<p>{text}</p>" in page
    assert "1 unusual setting" in page
