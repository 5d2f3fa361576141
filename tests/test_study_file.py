"""Study files: read, written, and rejected with their path and the place of the error."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest
from helpers import STUDY_FILE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield.errors import StudyError, UnknownName
from levelfield.study import built_in_studies
from levelfield.study_file import table_toml

LOG = {"log": [1e-3, 1e-1]}
LINEAR = {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": 0.1}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(STUDY_FILE, "utf-8")
    return path


def test_a_study_file_is_read(path):
    study = lf.load_study(path)
    assert (study.workload, study.steps, study.trials, study.pool) == ("fashion_mini", 10_000, 100, 500)
    assert (study.target.metric, study.target.value) == ("valid_error", 0.066)
    assert list(study.optimizers) == ["momentum", "adam", "adam_default"]
    adam, default = study.optimizer("adam"), study.optimizer("adam_default")
    assert (adam.rule.name, adam.protocol, adam.schedule) == ("adam", "", "linear")
    assert (default.rule.name, default.protocol) == ("adam", "learning rate only")
    assert {axis.key for axis in adam.space.free} == {
        "learning_rate/epsilon",
        "one_minus_beta1",
        "one_minus_beta2",
        "epsilon",
        "decay_steps",
        "decay_factor",
    }
    assert {axis.key for axis in default.space.free} == {"learning_rate", "decay_steps", "decay_factor"}


def test_a_study_is_named_after_its_file_unless_it_has_a_name(path):
    assert lf.load_study(path).name == "mine"
    assert lf.load_study(str(path)).name == "mine"
    path.write_text('name = "other"\n' + STUDY_FILE, "utf-8")
    assert lf.load_study(path).name == "other"


@pytest.mark.parametrize("name", built_in_studies())
def test_every_built_in_study_loads_by_its_name(name):
    assert lf.load_study(name).name == name


# Writing and reading


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e10, "1e10"),
        (-1.25e7, "-1.25e7"),
        (1e300, "1e300"),
        (1000000.0, "1e6"),
        (123456.0, "123456.0"),
        (1234567.0, "1234567.0"),
        (12345678.5, "12345678.5"),
        (1e-10, "1e-10"),
        (10_000_000, "10000000"),
    ],
)
def test_a_number_is_written_shortly_and_read_back_as_it_was(value, text):
    assert table_toml({"x": value}) == f"x = {text}\n"
    read = tomllib.loads(f"x = {text}")["x"]
    assert (read, type(read)) == (value, type(value))


RATE = st.floats(1e-6, 1e3)
FRACTIONS = st.floats(0.0, 0.999)


def logs(low: float, high: float) -> st.SearchStrategy[dict]:
    """Log ranges within [low, high]."""
    split = math.sqrt(low * high)
    ends = st.tuples(st.floats(low, split, exclude_max=True), st.floats(split, high))
    return ends.map(lambda ends: {"log": list(ends)})


def choices(values: st.SearchStrategy) -> st.SearchStrategy[dict]:
    return st.lists(values, min_size=1, max_size=4, unique=True).map(lambda values: {"choice": values})


def fractions(name: str) -> st.SearchStrategy[dict]:
    """Tables that describe a hyperparameter between 0 and 1."""
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
PRINTABLE = st.characters(exclude_categories=["C", "Z"], exclude_characters=",/.")
NAMES = st.text(PRINTABLE, min_size=1, max_size=20)
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
def test_a_study_is_written_and_read_unchanged(content):
    study = lf.Study(**content)
    again = lf.Study(**tomllib.loads(study.to_toml()))
    assert again.spec() == study.spec()
    assert again.to_toml() == study.to_toml()
    for name in study.optimizers:
        assert again.identity(name) == study.identity(name)
        assert again.optimizer(name) == study.optimizer(name)


def test_a_study_file_is_written_and_read_unchanged(path):
    study = lf.load_study(path)
    written = path.with_name("mine.copy.toml")
    written.write_text(study.to_toml(), "utf-8")
    assert lf.load_study(written).spec() == study.spec()


# Errors


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
def test_an_invalid_file_is_rejected_with_its_path_and_the_place(path, text, words):
    path.write_text(text, "utf-8")
    with pytest.raises(StudyError) as error:
        lf.load_study(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_file_that_is_not_utf8_is_rejected(path):
    path.write_bytes(b'workload = "\xff\xfe"')
    with pytest.raises(StudyError, match=r"mine\.toml.*UTF-8.*byte 12"):
        lf.load_study(path)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(StudyError, match=r"absent\.toml: no such file"):
        lf.load_study(tmp_path / "absent.toml")


@pytest.mark.parametrize("name", ["fashion_minni", "fashion-mini"])
def test_an_unknown_built_in_study_gets_a_suggestion(name):
    with pytest.raises(UnknownName, match=rf"study.*'{name}'; did you mean 'fashion_mini'"):
        lf.load_study(name)


def test_an_unknown_study_says_what_a_study_can_be():
    """Listing all built-in studies would hide that a file can be named, too."""
    with pytest.raises(UnknownName, match=r"unknown study 'mine'; expected the path to a \.toml file") as refused:
        lf.load_study("mine")
    assert "levelfield studies" in str(refused.value)
    assert "wilson" not in str(refused.value)


def test_a_file_name_without_its_suffix_gets_a_suggestion(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    with pytest.raises(StudyError, match=rf"did you mean the file {path.stem}\.toml\?"):
        lf.load_study(path.stem)


def test_a_byte_order_mark_is_ignored(path):
    study = lf.load_study(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert lf.load_study(path).spec() == study.spec()


def test_a_file_that_cannot_be_read_is_reported():
    with pytest.raises(StudyError, match="cannot read the file"):
        lf.load_study("x" * 5000 + ".toml")


def test_counts_can_be_written_in_scientific_notation(path):
    study = lf.load_study(path)
    path.write_text(STUDY_FILE.replace("steps = 10_000", "steps = 1e4").replace("pool = 500 ", "pool = 5e2 "), "utf-8")
    assert lf.load_study(path).spec() == study.spec()
