"""Study files: read, written, identified by content, and refused in one clear line."""

from __future__ import annotations

import copy
import math
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield import rules, user_code
from levelfield.errors import SpaceError, StudyError, UnknownName, UsageError
from levelfield.study import built_in_studies

STUDY_FILE = """
workload = "fashion_mini"
steps = 10_000
trials = 100        # K
pool = 500          # N
target = { metric = "valid_error", value = 0.066 }

[schedule]          # tuned with every optimizer
kind = "linear"
decay_steps = { uniform = [0.5, 1.0] }      # × steps
decay_factor = { choice = [1e-3, 1e-2, 1e-1] }

[optimizers.momentum]
learning_rate = { log = [1e-3, 1e-1] }
one_minus_momentum = { log = [1e-3, 1e0] }

[optimizers.adam]
"learning_rate/epsilon" = { log = [1e-1, 1e1] }   # decoupled; rmsprop: "learning_rate/sqrt(epsilon)"
one_minus_beta1 = { log = [1e-3, 1e0] }
one_minus_beta2 = { log = [1e-4, 1e0] }
epsilon = { log = [1e-6, 1e-2] }

[optimizers.adam_default]
rule = "adam"
protocol = "learning rate only"
learning_rate = { log = [1e-5, 1e-1] }
beta1 = 0.9
beta2 = 0.999
epsilon = 1e-8
"""
LOG = {"log": [1e-3, 1e-1]}
LINEAR = {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": 0.1}


def file_content() -> dict:
    return tomllib.loads(STUDY_FILE)


def from_file(**changes) -> lf.Study:
    return lf.Study(**file_content() | changes)


def small(**changes) -> lf.Study:
    """A study of one optimizer, "ours"."""
    content = {"workload": "quadratic", "steps": 100, "trials": 2, "pool": 4}
    return lf.Study(**content | {"optimizers": {"ours": {"rule": "sgd", "learning_rate": LOG}}} | changes)


def with_optimizer(study_changes: dict | None = None, **table) -> lf.Study:
    return small(optimizers={"ours": table}, **study_changes or {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(STUDY_FILE, "utf-8")
    return path


# Reading


def test_the_study_file_of_the_documentation_is_read(path):
    study = lf.load_study(path)
    assert (study.workload, study.steps, study.trials, study.pool) == ("fashion_mini", 10_000, 100, 500)
    assert (study.target.metric, study.target.value) == ("valid_error", 0.066)
    assert list(study.optimizers) == ["momentum", "adam", "adam_default"]
    adam, default = study.optimizer("adam"), study.optimizer("adam_default")
    assert (adam.rule.name, adam.protocol, adam.schedule) == ("adam", "", "linear")
    assert (default.rule.name, default.protocol) == ("adam", "learning rate only")
    assert {one.key for one in adam.space.free} == {
        "learning_rate/epsilon",
        "one_minus_beta1",
        "one_minus_beta2",
        "epsilon",
        "decay_steps",
        "decay_factor",
    }
    assert {one.key for one in default.space.free} == {"learning_rate", "decay_steps", "decay_factor"}


def test_a_study_takes_its_name_from_its_file_unless_it_has_one(path):
    assert lf.load_study(path).name == "mine"
    assert lf.load_study(str(path)).name == "mine"
    path.write_text('name = "other"\n' + STUDY_FILE, "utf-8")
    assert lf.load_study(path).name == "other"


@pytest.mark.parametrize("name", built_in_studies())
def test_every_built_in_study_loads_by_its_name(name):
    assert lf.load_study(name).name == name


def test_what_a_study_leaves_out_comes_from_its_workload():
    study = lf.Study(workload="fashion_mini", steps=10, trials=3, optimizers={"sgd": {"learning_rate": LOG}})
    assert (study.batch_size, study.eval_interval, study.select) == (64, 250, "valid_error")
    assert study.pool == study.trials == 3
    assert (study.seed, study.search, study.target) == (0, "quasirandom", None)
    assert study.optimizer("sgd").schedule == "constant"


def test_a_study_leaves_what_it_is_made_from_alone():
    content = file_content()
    before = copy.deepcopy(content)
    lf.Study(**content)
    assert content == before


def test_an_optimizer_named_after_its_rule_needs_no_rule():
    study = small(optimizers={"sgd": {"learning_rate": LOG}, "ours": {"rule": "sgd", "learning_rate": LOG}})
    assert study.optimizer("sgd").rule is study.optimizer("ours").rule


# Schedules


def schedule_of(own: dict | None, study_schedule: dict | None = None) -> tuple[str, dict]:
    table = {"rule": "sgd", "learning_rate": 0.1} | ({} if own is None else {"schedule": own})
    study = with_optimizer({"schedule": study_schedule} if study_schedule else {}, **table)
    found = study.optimizer("ours")
    return found.schedule, {key: spec for key, spec in found.space.spec().items() if key != "learning_rate"}


@pytest.mark.parametrize(
    ("own", "kind", "values"),
    [
        (None, "linear", {"decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": 0.1}),
        ({}, "linear", {"decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": 0.1}),
        ({"decay_factor": 0.5}, "linear", {"decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": 0.5}),
        ({"kind": "linear", "decay_steps": 0.9}, "linear", {"decay_steps": 0.9, "decay_factor": 0.1}),
        ({"kind": "constant"}, "constant", {}),
        (
            {"kind": "step", "decay_every": 0.1, "decay_factor": 0.2},
            "step",
            {"decay_every": 0.1, "decay_factor": 0.2},
        ),
    ],
)
def test_an_optimizers_own_schedule_adds_to_the_studys_or_replaces_another_kind(own, kind, values):
    assert schedule_of(own, LINEAR) == (kind, values)


def test_an_optimizer_may_have_a_schedule_where_the_study_has_none():
    assert schedule_of(LINEAR) == ("linear", {"decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": 0.1})
    assert schedule_of(None) == ("constant", {})


def test_a_schedules_value_among_the_optimizers_own_is_refused():
    with pytest.raises(StudyError, match=r"ours: decay_factor is given twice.*keep"):
        with_optimizer({"schedule": LINEAR}, rule="sgd", learning_rate=LOG, decay_factor=0.5)


# Identity


@pytest.mark.parametrize("name", ["momentum", "adam", "adam_default"])
@pytest.mark.parametrize(
    "changes",
    [
        {"trials": 7},
        {"pool": 1000},
        {"target": {"metric": "test_loss", "value": 1.0}},
        {"target": None},
        {"name": "another"},
        {"description": "what it is about"},
        {"select": "valid_loss"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_does_not_define_trials_does_not_change_their_identity(changes, name):
    assert from_file(**changes).identity(name) == from_file().identity(name)


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 10_001},
        {"batch_size": 65},
        {"eval_interval": 100},
        {"seed": 1},
        {"workload": "tolstoi_mini", "select": "valid_error", "eval_interval": 200, "batch_size": 64},
        {"schedule": {"kind": "constant"}},
        {"schedule": {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": 0.1}},
        {"schedule": {"kind": "step", "decay_every": 0.1, "decay_factor": {"choice": [1e-3, 1e-2, 1e-1]}}},
    ],
    ids=str,
)
def test_what_defines_trials_changes_their_identity(changes):
    # The changed workload has the same batch size and interval: only its name differs.
    before = from_file(batch_size=64, eval_interval=200)
    after = lf.Study(**file_content() | {"batch_size": 64, "eval_interval": 200} | changes)
    for name in before.optimizers:
        assert after.identity(name) != before.identity(name)


def test_the_kind_of_search_changes_identity():
    grid = {"learning_rate": {"choice": [0.1, 0.2, 0.3, 0.4]}, "rule": "sgd"}
    before, after = with_optimizer({}, **grid), with_optimizer({"search": "grid"}, **grid)
    assert before.identity("ours") != after.identity("ours")


ADAM = {"rule": "adam", "learning_rate": {"log": [1e-3, 1.0]}, "beta1": 0.5, "beta2": 0.5, "epsilon": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"rule": "nadam"},
        {"learning_rate": {"log": [1e-3, 2.0]}},
        {"learning_rate": {"log": [2e-3, 1.0]}},
        {"learning_rate": {"uniform": [1e-3, 1.0]}},
        {"learning_rate": {"choice": [1e-3, 1.0]}},
        {"learning_rate": 1e-3},
        {"beta1": 0.5000000000000001},
        {"beta1": {"uniform": [0.4, 0.5]}},
        {"epsilon": 1e-8},
        {"schedule": LINEAR},
    ],
    ids=str,
)
def test_an_optimizers_rule_ranges_values_and_schedule_change_its_identity(changes):
    assert with_optimizer({}, **ADAM | changes).identity("ours") != with_optimizer({}, **ADAM).identity("ours")


def test_a_transformed_axis_is_another_search_than_the_plain_one():
    plain = with_optimizer({}, **ADAM).identity("ours")
    one_minus = {key: spec for key, spec in ADAM.items() if key != "beta1"} | {"one_minus_beta1": 0.5}
    ratio = {key: spec for key, spec in ADAM.items() if key != "learning_rate"}
    ratio |= {"learning_rate/epsilon": {"log": [1e-3, 1.0]}}
    assert (
        len({plain, with_optimizer({}, **one_minus).identity("ours"), with_optimizer({}, **ratio).identity("ours")})
        == 3
    )


def test_an_optimizers_display_name_protocol_and_order_of_keys_do_not_change_its_identity():
    before = with_optimizer({}, **ADAM).identity("ours")
    assert small(optimizers={"adam": ADAM}).identity("adam") == before
    assert with_optimizer({}, **ADAM, protocol="everything").identity("ours") == before
    assert with_optimizer({}, **dict(reversed(ADAM.items()))).identity("ours") == before
    others = {"sgd": {"learning_rate": LOG}, "ours": ADAM, "momentum": {"learning_rate": LOG, "momentum": 0.9}}
    assert small(optimizers=others).identity("ours") == before


def test_a_schedule_means_the_same_wherever_it_is_written():
    own, shared = with_optimizer({}, **ADAM, schedule=LINEAR), with_optimizer({"schedule": LINEAR}, **ADAM)
    assert own.identity("ours") == shared.identity("ours")


def test_defaults_written_out_do_not_change_identity():
    assert small(batch_size=16, eval_interval=500, seed=0).identity("ours") == small().identity("ours")


@pytest.mark.parametrize(
    ("whole", "decimal"),
    [
        ({"epsilon": 1}, {"epsilon": 1.0}),
        ({"learning_rate": {"log": [1, 10]}}, {"learning_rate": {"log": [1.0, 10.0]}}),
        ({"learning_rate": {"choice": [1, 2]}}, {"learning_rate": {"choice": [1.0, 2.0]}}),
    ],
    ids=str,
)
def test_one_and_one_point_zero_are_the_same_value(whole, decimal):
    assert with_optimizer({}, **ADAM | whole).identity("ours") == with_optimizer({}, **ADAM | decimal).identity("ours")


@example(seeds=[2**53, 2**53 + 1])  # no two floats: an identity that rounds them mixes up two studies
@given(seeds=st.lists(st.integers(0, 2**64), min_size=2, max_size=2, unique=True))
@settings(deadline=None)
def test_different_seeds_are_never_the_same_trials(seeds):
    one, other = (small(seed=seed).identity("ours") for seed in seeds)
    assert one != other


# TOML in and out

RATE = st.floats(1e-6, 1e3)
FRACTIONS = st.floats(0.0, 0.999)


def logs(low: float, high: float) -> st.SearchStrategy[dict]:
    """A log range within [low, high]."""
    split = math.sqrt(low * high)
    ends = st.tuples(st.floats(low, split, exclude_max=True), st.floats(split, high))
    return ends.map(lambda ends: {"log": list(ends)})


def choices(values: st.SearchStrategy) -> st.SearchStrategy[dict]:
    return st.lists(values, min_size=1, max_size=4, unique=True).map(lambda values: {"choice": values})


def fractions(name: str) -> st.SearchStrategy[dict]:
    """A table with one way to give a hyperparameter between 0 and 1."""
    plain = st.one_of(FRACTIONS, choices(FRACTIONS), st.just({"uniform": [0.1, 0.9]}), st.just({"integer": [0, 1]}))
    complement = st.one_of(st.floats(1e-3, 1.0), logs(1e-4, 1.0))
    return st.one_of(plain.map(lambda spec: {name: spec}), complement.map(lambda spec: {f"one_minus_{name}": spec}))


def merged(*tables: st.SearchStrategy[dict]) -> st.SearchStrategy[dict]:
    return st.tuples(*tables).map(lambda tables: {key: spec for table in tables for key, spec in table.items()})


POSITIVES = st.one_of(RATE, logs(1e-6, 1e3), choices(RATE))
LEARNING_RATES = POSITIVES.map(lambda spec: {"learning_rate": spec})
SCALED_RATES = st.tuples(
    st.sampled_from(["learning_rate", "learning_rate/epsilon", "learning_rate/sqrt(epsilon)"]), POSITIVES, POSITIVES
).map(lambda drawn: {drawn[0]: drawn[1], "epsilon": drawn[2]})
RULES = st.one_of(
    merged(st.just({"rule": "sgd"}), LEARNING_RATES),
    merged(st.just({"rule": "nesterov"}), LEARNING_RATES, fractions("momentum")),
    merged(st.just({"rule": "rmsprop"}), SCALED_RATES, fractions("momentum"), fractions("rho")),
    merged(st.just({"rule": "adam"}), SCALED_RATES, fractions("beta1"), fractions("beta2")),
    st.just({"rule": "optax.adamw", "learning_rate": LOG, "nesterov": True}),
)
DECAYS = st.one_of(FRACTIONS, choices(FRACTIONS))
SCHEDULES = st.one_of(
    st.just({"kind": "constant"}),
    DECAYS.map(lambda factor: LINEAR | {"decay_factor": factor}),
    DECAYS.map(lambda factor: {"kind": "step", "decay_every": {"uniform": [0.1, 0.5]}, "decay_factor": factor}),
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# What the page's charts cannot look up: they begin their own names with @, and these every object of theirs has.
IN_EVERY_OBJECT = ["__proto__", "constructor", "hasOwnProperty", "isPrototypeOf"]
IN_EVERY_OBJECT += ["propertyIsEnumerable", "toLocaleString", "toString", "valueOf"]
PLAIN = st.characters(exclude_categories=["C", "Z"], exclude_characters="@,/.")
NAMES = st.text(PLAIN, min_size=1, max_size=20).filter(lambda name: name not in IN_EVERY_OBJECT)
OPTIMIZERS = merged(
    RULES,
    st.one_of(st.just({}), SCHEDULES.map(lambda schedule: {"schedule": schedule})),
    st.one_of(st.just({}), TEXT.map(lambda protocol: {"protocol": protocol})),
)


@st.composite
def study_contents(draw: st.DrawFn) -> dict:
    trials = draw(st.integers(1, 100))
    content = {
        "workload": draw(st.sampled_from(["fashion_mini", "quadratic"])),
        "steps": draw(st.integers(1, 10**6)),
        "trials": trials,
        "pool": trials + draw(st.integers(0, 100)),
        "optimizers": draw(st.dictionaries(NAMES, OPTIMIZERS, min_size=1, max_size=3)),
    }
    if draw(st.booleans()):
        content["target"] = {"metric": "train_loss", "value": draw(st.floats(-1e6, 1e6))}
    optional = {
        "name": NAMES,
        "description": TEXT,
        "batch_size": st.integers(1, 512),
        "eval_interval": st.integers(1, 512),
        "select": st.just("train_loss"),
        "seed": st.integers(0, 2**63),
        "schedule": SCHEDULES,
    }
    return content | draw(st.fixed_dictionaries({}, optional=optional))


@given(content=study_contents())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_a_study_survives_being_written_and_read(content):
    study = lf.Study(**content)
    again = lf.Study(**tomllib.loads(study.to_toml()))
    assert again.spec() == study.spec()
    assert again.to_toml() == study.to_toml()
    for name in study.optimizers:
        assert again.identity(name) == study.identity(name)
        assert again.optimizer(name) == study.optimizer(name)


def test_the_documentations_study_survives_being_written_and_read(path):
    study = lf.load_study(path)
    written = path.with_name("mine.copy.toml")
    written.write_text(study.to_toml(), "utf-8")
    assert lf.load_study(written).spec() == study.spec()


# replace and only


def test_replace_changes_what_it_is_given_and_nothing_else():
    study = from_file()
    changed = study.replace(trials=7, steps=99, seed=None)
    assert changed.spec() == study.spec() | {"trials": 7, "steps": 99}
    assert study.trials == 100


def test_replace_checks_the_study_again():
    with pytest.raises(StudyError, match=r"trials = 501 .*pool = 500"):
        from_file().replace(trials=501)
    with pytest.raises(StudyError, match=r"'trails'.*'trials'"):
        from_file().replace(trails=3)


def test_replacing_the_schedule_changes_every_optimizers_schedule():
    replaced = from_file().replace(schedule={"kind": "constant"})
    assert {one.schedule for one in replaced.optimizers.values()} == {"constant"}
    expected = from_file(schedule={"kind": "constant"})
    for name in expected.optimizers:
        assert replaced.identity(name) == expected.identity(name)


def test_only_keeps_the_named_optimizers_with_their_identity():
    study = from_file()
    fewer = study.only(["adam_default", "momentum"])
    assert list(fewer.optimizers) == ["adam_default", "momentum"]
    for name in fewer.optimizers:
        assert fewer.identity(name) == study.identity(name)
        assert fewer.optimizer(name) == study.optimizer(name)
    assert len(study.optimizers) == 3


def test_only_refuses_an_optimizer_the_study_does_not_have():
    with pytest.raises(UnknownName, match=r"'admm'.*did you mean 'adam'"):
        from_file().only(["admm"])
    with pytest.raises(StudyError, match="optimizers is empty"):
        from_file().only([])


def test_a_study_cannot_be_changed_in_place():
    with pytest.raises(ValueError, match="frozen"):
        from_file().steps = 3


# Refusals: one line that names what was given and what to do instead


def refusal(content: dict) -> str:
    with pytest.raises(UsageError) as error:
        lf.Study(**content)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workload": "fashion_minni"}, ["workload", "'fashion_minni'", "did you mean 'fashion_mini'?"]),
        ({"workload": "zzz"}, ["'zzz'", "known:", "fashion_mini", "quadratic"]),
        ({"workload": 3}, ["workload = 3", "string"]),
        ({"sede": 3}, ["'sede'", "did you mean 'seed'?"]),
        ({"self": 3}, ["self"]),
        ({"search": "gird"}, ["search = 'gird'", "'quasirandom' or 'grid'"]),
        ({"select": "valid_eror"}, ["metric", "'valid_eror'", "did you mean 'valid_error'?"]),
        ({"target": {"metric": "valid_eror", "value": 0.1}}, ["'valid_eror'", "did you mean 'valid_error'?"]),
        ({"target": {"value": 0.1}}, ["target.metric is missing"]),
        ({"target": {"metric": "valid_error"}}, ["target.value is missing"]),
        ({"target": {"metric": "valid_error", "value": math.nan}}, ["target.value", "nan"]),
        ({"target": {"metric": "valid_error", "value": 0.1, "when": 3}}, ["target.when"]),
        ({"target": {"metrc": "valid_error", "value": 0.1}}, ["target.metrc", "did you mean 'metric'?"]),
        ({"target": 0.066}, ["target = 0.066"]),
        ({"trials": 501}, ["trials = 501", "pool = 500", "raise pool or lower trials"]),
        ({"trials": 0}, ["trials = 0", "greater than or equal to 1"]),
        ({"pool": -1}, ["pool = -1", "greater than or equal to 1"]),
        ({"steps": 0}, ["steps = 0", "greater than or equal to 1"]),
        ({"batch_size": 0}, ["batch_size = 0", "greater than or equal to 1"]),
        ({"eval_interval": 0}, ["eval_interval = 0", "greater than or equal to 1"]),
        ({"seed": -1}, ["seed = -1", "greater than or equal to 0"]),
        ({"optimizers": {}}, ["optimizers is empty", "[optimizers.name]"]),
        ({"optimizers": 3}, ["optimizers = 3"]),
        ({"optimizers": {"adam": 3}}, ["optimizers.adam", "3", "table"]),
        ({"schedule": "linear"}, ["schedule = 'linear'"]),
        ({"schedule": {"kind": "linaer"}}, ["schedule", "'linaer'", "did you mean 'linear'?"]),
        ({"schedule": {"kind": ["linear"]}}, ["schedule", "['linear']"]),
        ({"schedule": {"kind": "linear", "decay_steps": 1.0}}, ["schedule.decay_factor is missing", "linear"]),
        (
            {"schedule": {"kind": "linear", "decay_stepz": 1.0, "decay_factor": 0.1}},
            ["schedule.decay_stepz", "did you mean 'decay_steps'?"],
        ),
        ({"schedule": LINEAR | {"decay_every": 0.1}}, ["schedule.decay_every", "linear"]),
        ({"schedule": {"decay_steps": 0.5}}, ["schedule.decay_steps", "constant"]),
        ({"schedule": LINEAR | {"decay_factor": 2.0}}, ["decay_factor", "2", "[0, 1]"]),
        ({"schedule": LINEAR | {"decay_steps": 0.0}}, ["decay_steps", "0"]),
    ],
    ids=str,
)
def test_a_bad_field_is_refused(changes, words):
    message = refusal(file_content() | changes)
    for word in words:
        assert word in message


@pytest.mark.parametrize("field", ["steps", "trials", "pool", "batch_size", "eval_interval", "seed"])
@pytest.mark.parametrize("value", [1.5, 10.0, "10", True, math.inf])
def test_a_count_that_is_no_integer_is_refused(field, value):
    message = refusal(file_content() | {field: value})
    assert message.startswith(f"{field} = {value!r}")
    assert "integer" in message


@pytest.mark.parametrize("field", ["workload", "steps", "trials", "optimizers"])
def test_a_missing_field_is_named(field):
    content = file_content()
    del content[field]
    assert f"{field} is missing" in refusal(content)


@pytest.mark.parametrize(("field", "misspelt"), [("steps", "step"), ("trials", "trails"), ("workload", "worklaod")])
def test_a_misspelt_field_is_named_though_the_right_one_is_missing(field, misspelt):
    content = file_content()
    content[misspelt] = content.pop(field)
    message = refusal(content)
    assert repr(misspelt) in message
    assert f"did you mean {field!r}?" in message


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"rule": "adma"}, ["rule", "'adma'", "did you mean 'adam'?"]),
        ({"rule": 3}, ["rule = 3", "string"]),
        ({}, ["rule", "'ours'"]),
        ({"rule": "optax.adamv", "learning_rate": LOG}, ["'optax.adamv'", "did you mean 'optax.adam"]),
        ({"rule": "optax.chain", "learning_rate": LOG}, ["'optax.chain'", "optax."]),
        ({"rule": "optax.adamw", "learning_rate": LOG, "beta1": 0.9}, ["'beta1'", "optax.adamw", "b1"]),
        ({"rule": "optax.adamw", "b1": 0.9}, ["learning_rate is missing", "optax.adamw"]),
        (
            {"rule": "optax.adamw", "learning_rate": LOG, "nesterov": {"choice": [True, False]}},
            ["nesterov", "cannot be searched over", "one optimizer for each value"],
        ),
        (ADAM | {"epsilom": 1e-8}, ["'epsilom'", "did you mean 'epsilon'?"]),
        (ADAM | {"momentum": 0.9}, ["'momentum'", "adam", "beta1"]),
        ({"rule": "sgd", "learning_rate": LOG, "decay_steps": 0.5}, ["'decay_steps'", "sgd"]),
        ({"rule": "momentum", "learning_rate": LOG}, ["momentum is missing", "range or a value"]),
        ({"rule": "sgd"}, ["learning_rate is missing", "range or a value"]),
        (ADAM | {"beta1": 1.5}, ["beta1", "1.5", "[0, 1]"]),
        (ADAM | {"beta1": {"uniform": [-0.5, 0.5]}}, ["beta1", "-0.5", "[0, 1]"]),
        (ADAM | {"learning_rate": -0.1}, ["learning_rate", "-0.1"]),
        (ADAM | {"epsilon": {"log": [1e-2, 1e-6]}}, ["epsilon", "reversed", "low end comes first"]),
        (ADAM | {"one_minus_beta1": 0.1}, ["beta1 is given twice", "keep one"]),
        (ADAM | {"learning_rate/epsilon": LOG}, ["learning_rate is given twice", "keep one"]),
        (
            {"rule": "sgd", "learning_rate": {"choice": ["low", "high"]}},
            ["learning_rate", "'low'", "one optimizer for each value"],
        ),
        ({"rule": "sgd", "learning_rate": "0.1"}, ["learning_rate", "'0.1'", "number"]),
        ({"rule": "sgd", "learning_rate": True}, ["learning_rate", "True", "number"]),
        ({"rule": "sgd", "learning_rate": math.nan}, ["learning_rate", "nan", "finite"]),
        ({"rule": "sgd", "learning_rate": {"choice": [0.1, math.inf]}}, ["learning_rate", "inf", "finite"]),
        ({"rule": "sgd", "learning_rate": LOG, "protocol": 3}, ["protocol = 3", "string"]),
        (
            {"rule": "momentum", "learning_rate": LOG, "one_minus_momentum": {"log": [1e-8, 1]}},
            ["one_minus_momentum reaches 1e-08", "1e-07", "float32"],
        ),
        ({"rule": "sgd", "learning_rate": LOG, "schedule": "linear"}, ["schedule = 'linear'", "kind"]),
        ({"rule": "sgd", "learning_rate": LOG, "schedule": {"kind": "stpe"}}, ["'stpe'", "did you mean 'step'?"]),
    ],
    ids=str,
)
def test_a_bad_optimizer_is_refused_by_name(table, words):
    content = {"workload": "quadratic", "steps": 10, "trials": 1, "optimizers": {"ours": table}}
    message = refusal(content)
    assert message.startswith("optimizers.ours: ")
    for word in words:
        assert word in message


def test_a_ratio_cannot_keep_a_hyperparameter_below_its_bound():
    """momentum/rho up to 1.5 with rho up to 0.9 would take the momentum above 1."""
    fixed = {"learning_rate": 0.1, "epsilon": 1.0, "rho": {"uniform": [0.1, 0.9]}}
    with pytest.raises(SpaceError, match=r"momentum/rho: .* in \[0, 1\]; search momentum itself"):
        with_optimizer(rule="rmsprop", **fixed, **{"momentum/rho": {"uniform": [0.5, 1.5]}})


@pytest.mark.parametrize("spec", [-1.0, {"uniform": [-1.0, 1.0]}, {"choice": [-1.0]}], ids=str)
def test_a_ratio_that_makes_the_learning_rate_negative_is_refused(spec):
    table = {"rule": "adam", "learning_rate/epsilon": spec, "epsilon": 1.0, "beta1": 0.9, "beta2": 0.9}
    with pytest.raises(SpaceError, match="learning_rate/epsilon"):
        with_optimizer({}, **table)


GRID = {"rule": "momentum", "learning_rate": {"choice": [0.1, 0.2]}, "momentum": {"integer": [0, 1]}}


def test_a_grid_holds_choices_integers_and_values_only():
    assert with_optimizer({"search": "grid"}, **GRID).pool == 4
    with pytest.raises(SpaceError, match=r"ours: learning_rate is a range.*choice"):
        with_optimizer({"search": "grid"}, **GRID | {"learning_rate": LOG})


def test_a_pool_larger_than_the_grid_is_refused():
    with pytest.raises(StudyError, match=r"ours: pool = 5 exceeds the grid's 4 points.*lower pool"):
        with_optimizer({"search": "grid", "pool": 5}, **GRID)


def test_an_optimizer_that_is_asked_for_by_a_wrong_name_is_refused():
    for ask in (from_file().optimizer, from_file().identity, from_file().definition):
        with pytest.raises(UnknownName, match=r"'momentun'.*did you mean 'momentum'"):
            ask("momentun")


# Refusals of files


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('workload = "fashion_mini"\nsteps = = 3\n', ["TOML", "line 2", "column 9"]),
        ('workload = "fashion_mini\n', ["TOML", "line 1"]),
        ("steps = 1\nsteps = 2\n", ["TOML", "line 2"]),
        (STUDY_FILE.replace("log = [1e-6, 1e-2]", "log = [1e-2, 1e-6]"), ["optimizers.adam", "epsilon", "reversed"]),
        (STUDY_FILE.replace("fashion_mini", "fashion_minni"), ["did you mean 'fashion_mini'?"]),
        (STUDY_FILE.replace("trials = 100", "trials = 1_000"), ["trials = 1000", "pool = 500"]),
        ("", ["workload is missing"]),
    ],
    ids=["two equals signs", "open string", "key twice", "reversed range", "workload", "K > N", "empty"],
)
def test_a_bad_file_is_refused_with_its_path_and_the_place(path, text, words):
    path.write_text(text, "utf-8")
    with pytest.raises(StudyError) as error:
        lf.load_study(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_file_that_is_no_text_is_refused(path):
    path.write_bytes(b'workload = "\xff\xfe"')
    with pytest.raises(StudyError, match=r"mine\.toml.*UTF-8.*byte 12"):
        lf.load_study(path)


def test_a_file_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(StudyError, match=r"absent\.toml: no such file"):
        lf.load_study(tmp_path / "absent.toml")


@pytest.mark.parametrize("name", ["fashion_minni", "fashion-mini"])
def test_an_unknown_built_in_study_gets_a_suggestion(name):
    with pytest.raises(UnknownName, match=rf"study.*'{name}'; did you mean 'fashion_mini'"):
        lf.load_study(name)


# Studies in small


def test_scaling_shrinks_steps_trials_and_pool_together():
    study = small(steps=1000, trials=50, pool=250, eval_interval=100).scaled(0.02)
    assert (study.steps, study.trials, study.pool, study.eval_interval) == (20, 1, 5, 5)  # evaluated four times
    assert study.scale == 0.02
    assert study.name.endswith("_0.02x")
    assert study.spec()["optimizers"] == small().spec()["optimizers"]


def test_the_whole_of_a_study_is_the_study():
    study = lf.load_study("fashion_mnist")
    assert study.scaled(1) is study


def test_a_scaled_study_is_evaluated_as_often_or_a_few_times():
    study = lf.load_study("fashion_mnist")  # 10,000 steps, evaluated every 500
    intervals = {factor: study.scaled(factor).eval_interval for factor in (0.9, 0.2, 0.1, 0.002)}
    assert intervals == {0.9: 500, 0.2: 500, 0.1: 250, 0.002: 5}


def test_a_scaled_study_has_trials_of_its_own():
    study = small(steps=1000)
    (name, *_) = study.optimizers
    assert study.scaled(0.5).identity(name) != study.identity(name)
    assert study.scaled(1).identity(name) == study.identity(name)


def test_a_scaled_study_survives_being_written_and_read():
    study = small(steps=1000).scaled(0.1)
    assert lf.Study(**tomllib.loads(study.to_toml())).spec() == study.spec()


@pytest.mark.parametrize("factor", [0, -1, 1.5, float("nan")])
def test_a_scale_that_is_no_share_is_refused(factor):
    with pytest.raises(StudyError, match="scale"):
        small().scaled(factor)


# Corrections


def test_a_correction_is_kept_beside_its_axis_and_defines_no_trial():
    plain = with_optimizer(rule="sgd", learning_rate={"log": [1e-2, 1e0]})
    marked = with_optimizer(rule="sgd", learning_rate={"log": [1e-2, 1e0]}, corrected={"learning_rate": "printed 1e4"})
    (name,) = marked.optimizers
    assert marked.optimizer(name).corrected == {"learning_rate": "printed 1e4"}
    assert lf.Study(**tomllib.loads(marked.to_toml())).optimizer(name).corrected == {"learning_rate": "printed 1e4"}
    assert marked.identity(name) == plain.identity(name)


@pytest.mark.parametrize("corrected", [{"learning_rat": "a slip"}, {"epsilon": "no axis"}, "learning_rate"])
def test_a_correction_of_nothing_is_refused(corrected):
    with pytest.raises(lf.LevelfieldError, match=r"learning_rat|epsilon|no table"):
        with_optimizer(rule="sgd", learning_rate={"log": [1e-2, 1e0]}, corrected=corrected)


@pytest.mark.parametrize("about", [["smooth"], {"smooth": (0, 1)}])
def test_what_says_nothing_of_hyperparameters_is_no_rule(about):
    with pytest.raises(SpaceError, match=r"rule 'own': .*(mapping|Hyperparameter)"):
        lf.register_rule("own", lambda **_: None, about)


def test_a_rule_without_a_learning_rate_cannot_be_studied():
    lf.register_rule("own", lambda size: None, {"size": lf.Hyperparameter(low=0.0)})
    with pytest.raises(StudyError, match="rule own takes no learning_rate"):
        with_optimizer(rule="own", size=0.1)


def test_a_name_that_is_a_file_s_is_guessed(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    with pytest.raises(StudyError, match=rf"did you mean the file {path.stem}\.toml\?"):
        lf.load_study(path.stem)


@pytest.mark.parametrize("name", ["", " adam", "a,b", "a\nb"])
def test_names_of_optimizers_that_no_command_could_give_are_refused(name):
    with pytest.raises(StudyError, match=r"optimizers\..*no command could name it"):
        lf.Study(workload="quadratic", steps=10, trials=1, optimizers={name: {"rule": "sgd", "learning_rate": 0.1}})


@pytest.mark.parametrize("name", ["", "..", "../evil", "/tmp/evil", "a\nb", "."])
def test_names_that_are_no_folder_s_are_refused(name):
    with pytest.raises(StudyError, match=r"name = .*: results go into a folder of this name"):
        small(name=name)


def test_steps_that_cannot_be_counted_are_refused():
    with pytest.raises(StudyError, match="steps = 3000000000"):
        small(steps=3_000_000_000)


def test_a_mark_of_the_encoding_at_a_file_s_start_is_no_part_of_it(path):
    study = lf.load_study(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert lf.load_study(path).spec() == study.spec()


def test_a_file_that_cannot_be_looked_at_is_refused():
    with pytest.raises(StudyError, match="cannot be read"):
        lf.load_study("x" * 5000 + ".toml")


@pytest.mark.parametrize("name", [*IN_EVERY_OBJECT, "@metric"])
def test_names_that_the_charts_cannot_show_are_refused(name):
    with pytest.raises(StudyError, match="charts keep this name"):
        lf.Study(workload="quadratic", steps=10, trials=1, optimizers={name: {"rule": "sgd", "learning_rate": 0.1}})


# ---------------------------------------------------------------------------- code of one's own

OWN = """
import levelfield as lf
from beside import rate

lf.register_rule("own", lambda learning_rate: rate(learning_rate), {"learning_rate": lf.Hyperparameter(low=0.0)})
"""
OWN_STUDY = 'code = "own.py"\nworkload = "quadratic"\nsteps = 10\ntrials = 1\n[optimizers.own]\nlearning_rate = 0.1\n'


@pytest.fixture
def own(tmp_path) -> Path:
    """A study file with code beside it, and a module beside that."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "beside.py").write_text("import optax\nrate = optax.sgd\n")
    (folder / "own.py").write_text(OWN)
    (folder / "study.toml").write_text(OWN_STUDY)
    return folder / "study.toml"


def test_a_studys_code_is_run_before_the_study_is_read(own):
    study = lf.load_study(own)
    assert study.optimizer("own").rule.name == "own"
    rule = study.optimizer("own").rule
    assert study.replace(steps=20).optimizer("own").rule is rule  # it is run once
    assert lf.load_study(own).identity("own") == study.identity("own")
    assert lf.Study(**study.spec()).identity("own") == study.identity("own")


def test_code_that_has_changed_is_run_again(own):
    study = lf.load_study(own)
    (own.parent / "own.py").write_text(OWN.replace("low=0.0)}", "low=0.0)}, version=2"))
    again = lf.load_study(own)
    assert (study.optimizer("own").rule.version, again.optimizer("own").rule.version) == (1, 2)
    assert again.identity("own") != study.identity("own")


def test_code_is_run_again_once_a_module_beside_it_has_changed(own):
    lf.load_study(own)
    before = rules.get_rule("own").build(0.5)
    (own.parent / "beside.py").write_text("import optax\nrate = lambda learning_rate: optax.sgd(2 * learning_rate)\n")
    lf.load_study(own)
    steps = [tx.update(1.0, tx.init(1.0))[0] for tx in (before, rules.get_rule("own").build(0.5))]
    assert steps == [-0.5, -1.0]


def test_each_code_has_the_modules_beside_it(own, tmp_path):
    """Two folders with a module of the same name each; a module that is imported late is found, too."""
    lf.load_study(own)
    other = tmp_path / "other"
    other.mkdir()
    (other / "beside.py").write_text("rate = 'the other'\n")
    (other / "late.py").write_text("found = True\n")
    (other / "own.py").write_text(
        "import beside\nfound = beside.rate\ndef later():\n    import late\n    return late.found\n"
    )
    user_code.run_code(str(other / "own.py"))
    (module,) = (each for name, each in sys.modules.items() if getattr(each, "__file__", "") == str(other / "own.py"))
    assert module.found == "the other"
    assert module.later()
    assert rules.get_rule("own").build(0.5).init  # the first one's own are still its


def test_trials_of_other_code_are_told(own, command, monkeypatch):
    """Its digest is kept with each trial: what changed may not be told by the version."""
    monkeypatch.chdir(own.parent)
    code, out, err = command("compare", "study.toml")
    assert code == 0, err
    assert "other code" not in err
    (own.parent / "beside.py").write_text("import optax\nrate = lambda learning_rate: optax.sgd(2 * learning_rate)\n")
    code, out, err = command("compare", "study.toml", "--pool", "2")
    assert code == 0, err
    assert "own: stored trials were trained with other code" in err
    assert "Its trials were trained with 2 versions of the study's own code" in out


def test_code_may_run_its_own_study(own):
    """As a script does that ends in a comparison."""
    (own.parent / "own.py").write_text(OWN + "lf.compare(lf.load_study(__file__[:-6] + 'study.toml'), 'sqlite://')")
    assert lf.load_study(own).optimizer("own")


def test_code_that_was_interrupted_is_run_again(own):
    wait = "import pathlib\nif not pathlib.Path(__file__).with_name('go').exists():\n    raise KeyboardInterrupt\n"
    (own.parent / "own.py").write_text(wait + OWN)
    with pytest.raises(KeyboardInterrupt):
        lf.load_study(own)
    (own.parent / "go").touch()
    assert lf.load_study(own).optimizer("own")


def test_code_may_be_mended_after_it_has_failed(own):
    (own.parent / "own.py").write_text(OWN + "1 / 0")
    with pytest.raises(StudyError, match="ZeroDivisionError"):
        lf.load_study(own)
    (own.parent / "own.py").write_text(OWN)
    assert lf.load_study(own).optimizer("own")


def test_two_files_cannot_register_the_same_name(own, tmp_path):
    lf.load_study(own)
    other = tmp_path / "other"
    shutil.copytree(own.parent, other)
    with pytest.raises(StudyError, match=r"rule 'own' is already registered by .*project/own\.py"):
        lf.load_study(other / "study.toml")


def test_a_study_with_code_can_be_written_anywhere(own, tmp_path):
    study = lf.load_study(own)
    elsewhere = tmp_path / "deep" / "down"
    elsewhere.mkdir(parents=True)
    (tmp_path / "link").symlink_to(elsewhere)
    (tmp_path / "link" / "new.toml").write_text(study.to_toml(tmp_path / "link"))
    assert lf.load_study(elsewhere / "new.toml").code == study.code == str(own.parent / "own.py")
    assert 'code = "own.py"' in study.to_toml()  # no path of this machine in a report


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, ["own.py", "no such file"]),
        ("x = 1\nraise ValueError('no\\nluck')", ["own.py", "line 2", "ValueError: no luck"]),
        ("x = (", ["own.py", "SyntaxError"]),
        ("import nothing_of_this_name", ["own.py", "line 1", "nothing_of_this_name"]),
        ("raise SystemExit(0)", ["own.py", "line 1", "SystemExit"]),
        ("import levelfield as lf\nlf.register_rule('adam', None, {})", ["own.py", "adam"]),
        ("", ["optimizers.own", "no rule is called 'own'"]),
    ],
)
def test_code_that_fails_is_refused_in_one_line(own, code, words):
    if code is None:
        (own.parent / "own.py").unlink()
    else:
        (own.parent / "own.py").write_text(code)
    with pytest.raises(StudyError) as caught:
        lf.load_study(own)
    assert "\n" not in str(caught.value)
    for word in ["study.toml", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("code", ["3", "[]", "true"])
def test_code_that_is_no_path_is_refused(own, code):
    own.write_text(OWN_STUDY.replace('"own.py"', code))
    with pytest.raises(StudyError, match="code"):
        lf.load_study(own)


def test_a_rule_of_another_version_has_trials_of_its_own(own):
    study = lf.load_study(own)
    rules.register_rule("own", lambda **_: None, {"learning_rate": lf.Hyperparameter(low=0.0)})
    assert lf.load_study(own).identity("own") == study.identity("own")
    rules.register_rule("own", lambda **_: None, {"learning_rate": lf.Hyperparameter(low=0.0)}, version=2)
    assert lf.load_study(own).identity("own") != study.identity("own")
