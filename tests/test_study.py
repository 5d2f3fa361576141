"""Studies: fields and defaults, identity by content, dry runs, and errors in one clear line."""

from __future__ import annotations

import copy
import math
import tomllib

import pytest
from helpers import STUDY_FILE, make_study
from hypothesis import example, given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield.errors import SpaceError, StudyError, UnknownName, UsageError

LOG = {"log": [1e-3, 1e-1]}
LINEAR = {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": 0.1}


def file_content() -> dict:
    return tomllib.loads(STUDY_FILE)


def from_file(**changes) -> lf.Study:
    return lf.Study(**file_content() | changes)


def small(**changes) -> lf.Study:
    """A study of one optimizer, "ours"."""
    return make_study(**{"optimizers": {"ours": {"rule": "sgd", "learning_rate": LOG}}} | changes)


def with_optimizer(study_changes: dict | None = None, **table) -> lf.Study:
    return small(optimizers={"ours": table}, **study_changes or {})


# Fields and defaults


def test_defaults_come_from_the_workload():
    study = lf.Study(workload="fashion_mini", steps=10, trials=3, optimizers={"sgd": {"learning_rate": LOG}})
    assert (study.batch_size, study.eval_interval, study.select) == (64, 250, "valid_error")
    assert (study.trials, study.pool, study.replacement) == (3, 15, True)
    assert (study.seed, study.search, study.target) == (0, "quasirandom", None)
    assert study.optimizer("sgd").schedule == "constant"


def test_a_study_does_not_change_its_arguments():
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
    ours = study.optimizer("ours")
    return ours.schedule, {key: spec for key, spec in ours.space.spec().items() if key != "learning_rate"}


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
def test_an_optimizers_schedule_refines_the_studys_or_replaces_another_kind(own, kind, values):
    assert schedule_of(own, LINEAR) == (kind, values)


def test_an_optimizer_can_have_a_schedule_although_the_study_has_none():
    assert schedule_of(LINEAR) == ("linear", {"decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": 0.1})
    assert schedule_of(None) == ("constant", {})


def test_a_schedules_value_in_the_optimizers_table_is_rejected():
    with pytest.raises(
        StudyError, match=r"ours: decay_factor is given both in the optimizer's table and in its schedule; keep"
    ):
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
        {"description": "a description"},
        {"select": "valid_loss"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_fields_that_do_not_define_trials_do_not_change_their_identity(changes, name):
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
def test_fields_that_define_trials_change_their_identity(changes):
    # The other workload has the same batch size and interval, so that only its name differs.
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


def test_a_transformed_axis_is_a_different_search_from_the_plain_one():
    plain = with_optimizer({}, **ADAM).identity("ours")
    one_minus = {key: spec for key, spec in ADAM.items() if key != "beta1"} | {"one_minus_beta1": 0.5}
    ratio = {key: spec for key, spec in ADAM.items() if key != "learning_rate"}
    ratio |= {"learning_rate/epsilon": {"log": [1e-3, 1.0]}}
    assert (
        len({plain, with_optimizer({}, **one_minus).identity("ours"), with_optimizer({}, **ratio).identity("ours")})
        == 3
    )


def test_an_optimizers_name_protocol_and_order_of_keys_do_not_change_its_identity():
    before = with_optimizer({}, **ADAM).identity("ours")
    assert small(optimizers={"adam": ADAM}).identity("adam") == before
    assert with_optimizer({}, **ADAM, protocol="everything").identity("ours") == before
    assert with_optimizer({}, **dict(reversed(ADAM.items()))).identity("ours") == before
    others = {"sgd": {"learning_rate": LOG}, "ours": ADAM, "momentum": {"learning_rate": LOG, "momentum": 0.9}}
    assert small(optimizers=others).identity("ours") == before


def test_a_shared_schedule_equals_an_optimizers_own():
    own, shared = with_optimizer({}, **ADAM, schedule=LINEAR), with_optimizer({"schedule": LINEAR}, **ADAM)
    assert own.identity("ours") == shared.identity("ours")


def test_explicit_defaults_do_not_change_identity():
    assert small(batch_size=16, seed=0, search="quasirandom").identity("ours") == small().identity("ours")


@pytest.mark.parametrize(
    ("integer", "decimal"),
    [
        ({"epsilon": 1}, {"epsilon": 1.0}),
        ({"learning_rate": {"log": [1, 10]}}, {"learning_rate": {"log": [1.0, 10.0]}}),
        ({"learning_rate": {"choice": [1, 2]}}, {"learning_rate": {"choice": [1.0, 2.0]}}),
    ],
    ids=str,
)
def test_integers_and_floats_of_the_same_value_have_the_same_identity(integer, decimal):
    assert with_optimizer({}, **ADAM | integer).identity("ours") == with_optimizer({}, **ADAM | decimal).identity(
        "ours"
    )


@example(seeds=[2**53, 2**53 + 1])  # as floats they would be equal, and two studies would be mixed up
@given(seeds=st.lists(st.integers(0, 2**64), min_size=2, max_size=2, unique=True))
@settings(deadline=None)
def test_different_seeds_never_have_the_same_identity(seeds):
    first, second = (small(seed=seed).identity("ours") for seed in seeds)
    assert first != second


# replace and only


def test_replace_changes_only_the_named_fields():
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
    assert {optimizer.schedule for optimizer in replaced.optimizers.values()} == {"constant"}
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


def test_only_rejects_an_unknown_optimizer():
    with pytest.raises(UnknownName, match=r"'admm'.*did you mean 'adam'"):
        from_file().only(["admm"])
    with pytest.raises(StudyError, match="optimizers is empty"):
        from_file().only([])


def test_a_study_cannot_be_changed_in_place():
    with pytest.raises(ValueError, match="frozen"):
        from_file().steps = 3


# Errors: one line that says what was expected, what was given and what to do


def error_of(content: dict) -> str:
    with pytest.raises(UsageError) as error:
        lf.Study(**content)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workload": "fashion_minni"}, ["workload", "'fashion_minni'", "did you mean 'fashion_mini'?"]),
        ({"workload": "zzz"}, ["'zzz'", "expected one of:", "fashion_mini", "quadratic"]),
        ({"workload": 3}, ["workload = 3", "string"]),
        ({"sede": 3}, ["'sede'", "did you mean 'seed'?"]),
        ({"self": 3}, ["self"]),
        ({"search": "gird"}, ["search = 'gird'", "'quasirandom', 'grid' or 'imported'"]),
        ({"select": "valid_eror"}, ["metric", "'valid_eror'", "did you mean 'valid_error'?"]),
        ({"target": {"metric": "valid_eror", "value": 0.1}}, ["'valid_eror'", "did you mean 'valid_error'?"]),
        ({"target": {"value": 0.1}}, ["target.metric is missing"]),
        ({"target": {"metric": "valid_error"}}, ["target.value is missing"]),
        ({"target": {"metric": "valid_error", "value": math.nan}}, ["target.value = nan", "finite"]),
        ({"target": {"metric": "valid_error", "value": 0.1, "when": 3}}, ["target.when"]),
        ({"target": {"metrc": "valid_error", "value": 0.1}}, ["target.metrc", "did you mean 'metric'?"]),
        ({"target": 0.066}, ["target = 0.066", "expected a table"]),
        (
            {"target": {"metric": "valid_error", "value": 14}},
            ["target.value = 14: valid_error lies between 0 and 1; for 14% write 0.14"],
        ),
        ({"target": {"metric": "test_error", "value": 101}}, ["target.value = 101: test_error lies between 0 and 1"]),
        ({"target": {"metric": "valid_error", "value": -0.1}}, ["target.value = -0.1: valid_error lies between"]),
        ({"trials": 501}, ["trials = 501", "pool = 500", "raise pool or lower trials"]),
        ({"trials": 0}, ["trials = 0", "expected an integer of at least 1"]),
        ({"pool": -1}, ["pool = -1", "expected an integer of at least 1"]),
        ({"steps": 0}, ["steps = 0", "expected an integer of at least 1"]),
        ({"batch_size": 0}, ["batch_size = 0", "expected an integer of at least 1"]),
        ({"eval_interval": 0}, ["eval_interval = 0", "expected an integer of at least 1"]),
        ({"seed": -1}, ["seed = -1", "expected an integer of at least 0"]),
        ({"optimizers": {}}, ["optimizers is empty", "[optimizers.NAME]"]),
        ({"optimizers": 3}, ["optimizers = 3"]),
        ({"optimizers": {"adam": 3}}, ["optimizers.adam", "3", "table"]),
        ({"schedule": "linear"}, ["schedule = 'linear'"]),
        ({"schedule": {"kind": "linaer"}}, ["schedule", "'linaer'", "did you mean 'linear'?"]),
        ({"schedule": {"kind": ["linear"]}}, ["schedule", "['linear']"]),
        ({"schedule": {"decay_factor": 0.1}}, ["schedule.kind is missing", "linear"]),
        ({"schedule": {"kind": "step", "decay_every": 0.1}}, ["schedule.decay_factor is missing", "step"]),
        (
            {"schedule": {"kind": "cosine", "warmup_steps": 500}},
            ["warmup_steps reaches 500", "a fraction of the steps"],
        ),
        (
            {"schedule": {"kind": "linear", "decay_stepz": 1.0, "decay_factor": 0.1}},
            ["schedule.decay_stepz", "did you mean 'decay_steps'?"],
        ),
        ({"schedule": LINEAR | {"decay_every": 0.1}}, ["schedule.decay_every", "linear"]),
        ({"schedule": {"kind": "constant", "decay_steps": 0.5}}, ["schedule.decay_steps", "constant"]),
        ({"schedule": LINEAR | {"decay_factor": 2.0}}, ["decay_factor", "2", "[0, 1]"]),
        ({"schedule": LINEAR | {"decay_steps": 0.0}}, ["decay_steps", "0"]),
    ],
    ids=str,
)
def test_an_invalid_field_is_rejected(changes, words):
    message = error_of(file_content() | changes)
    for word in words:
        assert word in message


@pytest.mark.parametrize("field", ["steps", "trials", "pool", "batch_size", "eval_interval", "seed"])
@pytest.mark.parametrize("value", [1.5, "10", True, math.inf, math.nan])
def test_a_count_that_is_not_an_integer_is_rejected(field, value):
    message = error_of(file_content() | {field: value})
    assert message.startswith(f"{field} = {value!r}")
    assert "expected an integer" in message


@pytest.mark.parametrize("field", ["workload", "steps", "trials", "optimizers"])
def test_a_missing_field_is_reported(field):
    content = file_content()
    del content[field]
    assert f"{field} is missing" in error_of(content)


@pytest.mark.parametrize(("field", "misspelled"), [("steps", "step"), ("trials", "trails"), ("workload", "worklaod")])
def test_a_misspelled_field_is_reported_before_the_missing_one(field, misspelled):
    content = file_content()
    content[misspelled] = content.pop(field)
    message = error_of(content)
    assert repr(misspelled) in message
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
        (ADAM | {"epsilon": {"log": [1e-2, 1e-6]}}, ["epsilon", "reversed", "expected [low, high]"]),
        (ADAM | {"one_minus_beta1": 0.1}, ["beta1 is given twice", "remove one of them"]),
        (ADAM | {"learning_rate/epsilon": LOG}, ["learning_rate is given twice", "remove one of them"]),
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
def test_an_invalid_optimizer_is_rejected_by_name(table, words):
    content = {"workload": "quadratic", "steps": 10, "trials": 1, "optimizers": {"ours": table}}
    message = error_of(content)
    assert message.startswith("optimizers.ours: ")
    for word in words:
        assert word in message


def test_a_ratio_of_a_bounded_hyperparameter_is_rejected():
    """momentum/rho up to 1.5 with rho up to 0.9 would take the momentum above 1."""
    fixed = {"learning_rate": 0.1, "epsilon": 1.0, "rho": {"uniform": [0.1, 0.9]}}
    with pytest.raises(SpaceError, match=r"momentum/rho: .* in \[0, 1\]; search momentum itself"):
        with_optimizer(rule="rmsprop", **fixed, **{"momentum/rho": {"uniform": [0.5, 1.5]}})


@pytest.mark.parametrize("spec", [-1.0, {"uniform": [-1.0, 1.0]}, {"choice": [-1.0]}], ids=str)
def test_a_ratio_that_makes_the_learning_rate_negative_is_rejected(spec):
    table = {"rule": "adam", "learning_rate/epsilon": spec, "epsilon": 1.0, "beta1": 0.9, "beta2": 0.9}
    with pytest.raises(SpaceError, match="learning_rate/epsilon"):
        with_optimizer({}, **table)


GRID = {"rule": "momentum", "learning_rate": {"choice": [0.1, 0.2]}, "momentum": {"integer": [0, 1]}}


def test_a_grid_has_only_choices_integers_and_fixed_values():
    assert with_optimizer({"search": "grid"}, **GRID).pool == 4
    with pytest.raises(SpaceError, match=r"ours: learning_rate is a range.*choice"):
        with_optimizer({"search": "grid"}, **GRID | {"learning_rate": LOG})


def test_a_grid_that_is_too_large_is_rejected():
    with pytest.raises(StudyError, match=r"a grid of 20,000,002 points: expected at most 10,000,000; use search"):
        with_optimizer({"search": "grid"}, **GRID | {"learning_rate": {"integer": [1, 10_000_001]}})


def test_a_pool_larger_than_the_grid_is_rejected():
    with pytest.raises(StudyError, match=r"ours: pool = 5 exceeds the grid's 4 points.*lower pool"):
        with_optimizer({"search": "grid", "pool": 5}, **GRID)


def test_an_unknown_optimizer_is_rejected():
    for ask in (from_file().optimizer, from_file().identity, from_file().definition):
        with pytest.raises(UnknownName, match=r"'momentun'.*did you mean 'momentum'"):
            ask("momentun")


# Dry runs


def test_scaling_shrinks_steps_trials_and_pool_together():
    study = small(steps=1000, trials=50, pool=250, eval_interval=100).scaled(0.02)
    assert (study.steps, study.trials, study.pool, study.eval_interval) == (20, 1, 5, 5)  # evaluated four times
    assert study.scale == 0.02
    assert study.name.endswith("_0.02x")
    assert study.spec()["optimizers"] == small().spec()["optimizers"]


def test_a_scale_of_1_changes_nothing():
    study = lf.load_study("fashion_mnist")
    assert study.scaled(1) is study


def test_a_scaled_study_keeps_its_interval_or_is_evaluated_four_times():
    study = lf.load_study("fashion_mnist")  # 10,000 steps, evaluated every 500
    intervals = {factor: study.scaled(factor).eval_interval for factor in (0.9, 0.2, 0.1, 0.002)}
    assert intervals == {0.9: 500, 0.2: 500, 0.1: 250, 0.002: 5}


def test_a_scaled_study_has_different_trials():
    study = small(steps=1000)
    (name, *_) = study.optimizers
    assert study.scaled(0.5).identity(name) != study.identity(name)
    assert study.scaled(1).identity(name) == study.identity(name)


def test_a_scaled_study_is_written_and_read_unchanged():
    study = small(steps=1000).scaled(0.1)
    assert lf.Study(**tomllib.loads(study.to_toml())).spec() == study.spec()


@pytest.mark.parametrize("factor", [0, -1, 1.5, float("nan")])
def test_an_invalid_scale_is_rejected(factor):
    with pytest.raises(StudyError, match=rf"scale = {factor:g}: expected a number above 0 and at most 1"):
        small().scaled(factor)


# Corrections


def test_a_correction_is_kept_and_does_not_change_identity():
    plain = with_optimizer(rule="sgd", learning_rate={"log": [1e-2, 1e0]})
    marked = with_optimizer(rule="sgd", learning_rate={"log": [1e-2, 1e0]}, corrected={"learning_rate": "printed 1e4"})
    (name,) = marked.optimizers
    assert marked.optimizer(name).corrected == {"learning_rate": "printed 1e4"}
    assert lf.Study(**tomllib.loads(marked.to_toml())).optimizer(name).corrected == {"learning_rate": "printed 1e4"}
    assert marked.identity(name) == plain.identity(name)


@pytest.mark.parametrize("corrected", [{"learning_rat": "a misprint"}, {"epsilon": "not an axis"}, "learning_rate"])
def test_a_correction_of_an_unknown_axis_is_rejected(corrected):
    with pytest.raises(lf.LevelfieldError, match=r"'learning_rat'|'epsilon'|expected a table"):
        with_optimizer(rule="sgd", learning_rate={"log": [1e-2, 1e0]}, corrected=corrected)


@pytest.mark.parametrize("hyperparameters", [["smooth"], {"smooth": (0, 1)}])
def test_a_rule_without_hyperparameter_records_is_rejected(hyperparameters):
    with pytest.raises(SpaceError, match=r"rule 'own': .*(mapping|Hyperparameter)"):
        lf.register_rule("own", lambda **_: None, hyperparameters)


def test_a_rule_without_a_learning_rate_cannot_be_studied():
    lf.register_rule("own", lambda size: None, {"size": lf.Hyperparameter(low=0.0)})
    with pytest.raises(StudyError, match="rule own has no learning_rate"):
        with_optimizer(rule="own", size=0.1)


@pytest.mark.parametrize("name", ["", " adam", "a,b", "a\nb"])
def test_optimizer_names_that_the_command_line_cannot_write_are_rejected(name):
    with pytest.raises(StudyError, match=r"optimizers\..*expected printable characters without commas"):
        lf.Study(workload="quadratic", steps=10, trials=1, optimizers={name: {"rule": "sgd", "learning_rate": 0.1}})


@pytest.mark.parametrize("name", ["", "..", "../evil", "/tmp/evil", "a\nb", "."])
def test_study_names_that_are_not_folder_names_are_rejected(name):
    with pytest.raises(StudyError, match=r"name = .*: expected a valid folder name"):
        small(name=name)


def test_too_many_steps_are_rejected():
    with pytest.raises(StudyError, match="steps = 3000000000: expected an integer below 2147483648"):
        small(steps=3_000_000_000)


@pytest.mark.parametrize("name", ["constructor", "__proto__", "toString", "@metric", "sgd [fast]", "ε"])
def test_an_optimizer_can_have_any_printable_name(name):
    table = {"rule": "sgd", "learning_rate": LOG}
    study = small(optimizers={name: table})
    assert list(study.optimizers) == [name]
    assert study.identity(name) == small(optimizers={"sgd": table}).identity("sgd")
    assert list(lf.Study(**tomllib.loads(study.to_toml())).optimizers) == [name]


@pytest.mark.parametrize("field", ["steps", "trials", "pool", "batch_size", "eval_interval", "seed"])
def test_a_float_without_a_fraction_is_an_integer(field):
    study = small(**{"pool": 1000} | {field: 1e1 if field == "trials" else 1e3})
    assert getattr(study, field) == (10 if field == "trials" else 1000)
    assert type(getattr(study, field)) is int
    assert study.identity("ours") == small(**{field: getattr(study, field), "pool": 1000}).identity("ours")


@pytest.mark.parametrize("target", [("valid_error", 0.0), ("valid_error", 1.0), ("train_loss", 14.0)])
def test_a_target_can_be_any_value_that_its_metric_can_have(target):
    assert from_file(target=lf.Target(*target)).target.value == target[1]


def test_a_target_can_be_a_record():
    target = lf.Target("valid_error", 0.066)
    assert from_file(target=target).spec() == from_file().spec()
    assert from_file(target=None).replace(target=target).target == target


def test_a_pool_that_was_never_given_is_five_times_trials():
    study = lf.Study(workload="quadratic", steps=10, trials=2, optimizers={"sgd": {"learning_rate": LOG}})
    assert study.replace(trials=3).pool == 15
    assert study.replace(pool=7).replace(trials=3).pool == 7
    with pytest.raises(StudyError, match=r"trials = 5 exceeds pool = 4"):
        small().replace(trials=5)
