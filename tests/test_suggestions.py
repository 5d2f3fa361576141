"""Starting points for search spaces: every rule has one, it makes a valid study, and its ranges are what it says."""

from __future__ import annotations

import json
import tomllib

import pytest
from helpers import make_study
from typer.testing import CliRunner

import levelfield as lf
from levelfield.cli import app
from levelfield.errors import UnknownName, UsageError
from levelfield.executors._jax import JaxExecutor
from levelfield.hyperparameters import Hyperparameter
from levelfield.optax_optimizers import refusal
from levelfield.optax_signatures import known_optimizers
from levelfield.rules import get_rule
from levelfield.study import load_study, workload_of
from levelfield.suggestions import known_suggestion, suggested_study, suggested_tables, suggestion
from levelfield.usual import departures

PAPER = ("sgd", "momentum", "nesterov", "rmsprop", "rmsterov", "adam", "nadam")
WORKLOADS = {"images": "fashion_mini", "text": "tolstoi_mini", "": "quadratic"}
SOURCES = {
    "": ("fashion_mnist_initial",),
    "images": ("fashion_mnist", "cifar10_resnet32", "fashion_mini"),
    "text": ("lm1b_transformer", "war_and_peace", "tolstoi_mini"),
}


def newer_rules() -> list[str]:
    """Return the rules besides the paper's and optax's that this version has."""
    return [name for name in ("soap", "cautious_adamw") if _exists(name)]


def _exists(name: str) -> bool:
    try:
        return bool(get_rule(name))
    except UnknownName:
        return False


def every_rule() -> list[str]:
    trainable = [f"optax.{name}" for name in known_optimizers() if not refusal(name)]
    return [*PAPER, *newer_rules(), *trainable]


@pytest.mark.parametrize("kind", WORKLOADS)
def test_every_suggestion_makes_a_study_without_departures(kind):
    for rule in every_rule():
        study = lf.Study(**tomllib.loads(suggested_study([rule], WORKLOADS[kind])))
        assert study.workload == WORKLOADS[kind]
        (name,) = study.optimizers
        assert study.optimizer(name).rule.name == rule
        assert study.optimizer(name).space.free, rule
        assert not departures(study), rule


def test_all_rules_of_optax_and_the_paper_fit_into_one_study():
    content = tomllib.loads(suggested_study(every_rule(), "fashion_mini"))
    assert len(content["optimizers"]) == len(every_rule())
    assert not departures(lf.Study(**content))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`optimistic_adam` is deprecated")
def test_every_suggestion_can_be_trained():
    study = lf.Study(**tomllib.loads(suggested_study(every_rule(), "quadratic")))
    JaxExecutor().check(study)


def joined(rule: str, kind: str) -> dict[str, tuple[float, float]]:
    """Return the smallest ranges that hold those of the studies that a suggestion names."""
    ends: dict[str, list[float]] = {}
    for study in map(load_study, SOURCES[kind]):
        if rule in study.optimizers:
            known = get_rule(rule).hyperparameters
            for axis in study.optimizer(rule).space:
                if axis.name in known and axis.dimension.free:
                    ends.setdefault(axis.key, []).extend(float(end) for end in axis.dimension.ends)
    return {key: (min(values), max(values)) for key, values in ends.items()}


@pytest.mark.parametrize("kind", WORKLOADS)
@pytest.mark.parametrize("rule", [name for name in PAPER if name != "rmsterov"])
def test_suggestions_for_the_papers_rules_join_the_ranges_of_the_built_in_studies(rule, kind):
    suggested = {axis.key: tuple(map(float, axis.dimension.ends)) for axis in suggestion(rule, kind).space}
    expected = joined(rule, kind)
    assert suggested == {key: expected[key] for key in suggested}
    assert {axis.name for axis in suggestion(rule, kind).space} == set(get_rule(rule).hyperparameters)


@pytest.mark.parametrize("name", ["fashion_mini", "tolstoi_mini", "quadratic", "wilson"])
def test_the_embedded_studies_search_what_is_suggested(name):
    """On each axis that both have, they share values. Spaces with the rule's defaults exist to show how these fail."""
    study = load_study(name)
    for optimizer in map(study.optimizer, study.optimizers):
        if optimizer.name == optimizer.rule.name:
            own = {axis.key: axis.dimension for axis in optimizer.space}
            for axis in suggestion(optimizer.rule.name, workload_of(study).kind).space:
                if axis.key in own:
                    (low, high), (first, last) = own[axis.key].ends, axis.dimension.ends
                    assert max(low, first) < min(high, last), (optimizer.name, axis.key)


def test_a_suggestion_says_where_it_comes_from():
    assert "Choi et al. 2020" in suggestion("adam", "images").source
    assert "Chen et al. 2023" in suggestion("optax.lion", "text").source
    assert suggestion("optax.novograd").source.startswith("derived")


def test_a_rule_without_an_entry_gets_a_decade_either_side_of_its_defaults():
    lf.register_rule(
        "suggested_by_default",
        lambda learning_rate, beta1, gain: None,
        {
            "learning_rate": Hyperparameter(low=0.0, default=0.03),
            "beta1": Hyperparameter(low=0.0, high=1.0, default=0.95, required=False),
            "gain": Hyperparameter(usual_range=(0.0, 2.0)),
        },
    )
    table = suggestion("suggested_by_default", "images").table
    assert table["learning_rate"]["log"] == [pytest.approx(0.003), pytest.approx(0.3)]
    assert table["one_minus_beta1"]["log"] == [pytest.approx(0.005), pytest.approx(0.5)]
    assert table["gain"] == {"uniform": [0.0, 2.0]}
    assert known_suggestion("suggested_by_default") is None
    table = {"rule": "suggested_by_default", "learning_rate": 1e4, "gain": 1.0}
    assert not departures(make_study({"far": table})), "what is derived from a default is not common sense"


def test_a_rule_of_which_nothing_is_known_says_what_to_declare():
    lf.register_rule(
        "suggested_not_at_all",
        lambda learning_rate, gain: None,
        {"learning_rate": Hyperparameter(low=0.0), "gain": Hyperparameter()},
    )
    with pytest.raises(UsageError, match=r"it needs gain.*usual_range"):
        suggestion("suggested_not_at_all")


def test_a_workload_is_no_kind_of_workload():
    with pytest.raises(UsageError, match="unknown kind 'fashion_mini' of workload; expected one of: images, text"):
        suggestion("adam", "fashion_mini")


def test_a_range_a_decade_from_the_suggestion_is_a_departure():
    far = {"rule": "optax.contrib.muon", "learning_rate": {"log": [1e-6, 2e-5]}}
    (found,) = departures(make_study({"muon": far}, workload="fashion_mini"))
    assert str(found) == (
        "muon: learning_rate in 1e-06 … 2e-05 is a decade or more from what is suggested for optax.contrib.muon on "
        "images (nearest: learning_rate 0.001 … 0.1)."
    )
    near = far | {"learning_rate": {"log": [1e-6, 2e-4]}}
    assert not departures(make_study({"muon": near}, workload="fashion_mini"))


def test_names_of_optimizers_do_not_collide():
    content = tomllib.loads(suggested_tables(["adam", "optax.adam", "optax.lion"]))
    assert list(content["optimizers"]) == ["adam", "optax.adam", "lion"]
    assert content["optimizers"]["optax.adam"].get("rule", "optax.adam") == "optax.adam"


# The command


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["suggest", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_prints_tables_to_paste():
    text = invoke("optax.lion", "--workload", "fashion_mini")
    assert text.startswith("# Source: Chen et al. 2023")
    table = tomllib.loads(text)["optimizers"]["lion"]
    study = make_study({"lion": table}, workload="fashion_mini")
    assert study.optimizer("lion").rule.name == "optax.lion"
    shown = json.loads(invoke("optax.lion", "--json"))["optax.lion"]
    assert shown["space"]["learning_rate"] == {"log": [1e-5, 3e-3]}
    assert "Chen" in shown["source"]


def test_the_command_writes_a_whole_study(tmp_path):
    path = tmp_path / "mine.toml"
    invoke("adam", "optax.lion", "--workload", "fashion_mini", "-o", str(path))
    study = load_study(path)
    assert list(study.optimizers) == ["adam", "lion"]
    assert study.steps == load_study("fashion_mini").steps
    with pytest.raises(UsageError, match="exists"):
        invoke("adam", "--workload", "fashion_mini", "-o", str(path))
    with pytest.raises(UsageError, match="--workload"):
        invoke("adam", "-o", str(tmp_path / "other.toml"))


def test_misspelled_names_are_corrected():
    with pytest.raises(UnknownName, match="did you mean 'adam'"):
        invoke("adma")
    with pytest.raises(UnknownName, match=r"did you mean 'optax\.lion'"):
        invoke("optax.loin")
    with pytest.raises(UnknownName, match="did you mean 'fashion_mini'"):
        invoke("adam", "--workload", "fashion_mni")
