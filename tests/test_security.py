"""What docs/security.md promises and no other test shows."""

from __future__ import annotations

import ast
import json
import pickle
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from helpers import REPOSITORY
from serve_helpers import STUDY, ask, put, serving

import levelfield as lf
from levelfield.errors import LevelfieldError

SQL = ["'; DROP TABLE trials; --", '" OR "1"="1', "%s :name ?", "sgd' UNION SELECT * FROM levelfield --"]
SOURCES = sorted((REPOSITORY / "src/levelfield").rglob("*.py"))


@pytest.fixture
def study(tmp_path: Path) -> lf.Study:
    (tmp_path / "small.toml").write_text(STUDY)
    return lf.load_study(tmp_path / "small.toml")


# Study files


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"quadratic"', '"{}"'),
        ("steps = 4", 'steps = "{}"'),
        ("{ log = [1e-2, 1e0] }", '"{}"'),
        ("log = [1e-2", 'log = ["{}"'),
        ("[optimizers.sgd]", '[optimizers.x]\nrule = "{}"'),
        ("[optimizers.sgd]", '[optimizers.sgd]\n"{}" = 1'),
    ],
)
def test_a_study_without_code_is_only_data(tmp_path, monkeypatch, old, new):
    monkeypatch.chdir(tmp_path)
    python = "__import__('pathlib').Path('ran').touch()"
    (tmp_path / "study.toml").write_text(STUDY.replace(old, new.format(python), 1))
    with pytest.raises(LevelfieldError, match="__import__"):
        lf.load_study(tmp_path / "study.toml")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["\x1b[2J", "a\rb", "a\nb", "\u202egnp", "\x00"])
def test_names_cannot_control_the_terminal(name):
    with pytest.raises(LevelfieldError) as refused:
        lf.Study(workload="quadratic", steps=1, trials=1, optimizers={name: {"rule": "sgd", "learning_rate": 0.1}})
    assert str(refused.value).isprintable()


# Pickles


def test_no_module_can_load_a_pickle_or_evaluate_a_text():
    """Custom code, which is Python, is the exception."""
    forbidden = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
                assert not forbidden & {name.partition(".")[0] for name in names}, path
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path
            if isinstance(node, ast.Name):
                assert node.id not in ("eval", "exec"), path
            if isinstance(node, ast.Attribute):
                assert node.attr != "exec_module" or path.name == "user_code.py", path


def test_a_store_holds_numbers_and_json(study, tmp_path, monkeypatch):
    put(study, tmp_path / "trials.db", "sgd", {0: 0.5, 1: None})
    connection = sqlite3.connect(tmp_path / "trials.db")
    try:
        for definition, metrics in connection.execute("SELECT definition, metrics FROM optimizers"):
            assert json.loads(definition)["workload"]
            assert json.loads(metrics)
        for steps, curve in connection.execute("SELECT steps, curve FROM trials"):
            assert np.frombuffer(steps, "<i8").tolist() == [2, 4]
            assert np.frombuffer(curve, "<f4").reshape(-1, 2)[:, 0].tolist() == [9.0] * (len(curve) // 8)
    finally:
        connection.close()
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    with lf.Store.open(tmp_path / "trials.db", create=False) as store:
        assert len(lf.Comparison.load(study, store).trials["sgd"]) == 2


# SQL


def test_names_that_look_like_sql_are_names(store):
    optimizers = {name: {"rule": "sgd", "learning_rate": {"log": [1e-3, 1e-1]}} for name in SQL}
    study = lf.Study(workload="quadratic", steps=4, trials=1, pool=2, optimizers=optimizers, name=SQL[0])
    comparison = lf.compare(study, store=store)
    assert {name: len(trials) for name, trials in comparison.trials.items()} == dict.fromkeys(SQL, 2)
    assert lf.Comparison.load(study, store).trials.keys() == set(SQL)
    for name in SQL:
        assert store.trials(name) == []  # as an identity, of which there is none like it
        assert store.statuses(name) == {}
        assert store.provenance(name) == []
        store.keep_code_apart(name, name)
    assert store.count() == 2  # the same definition four times, whatever its names


# serve


def test_serve_only_reads_the_store(study, tmp_path):
    """Every statement that it sends to the database is a question."""
    put(study, tmp_path / "trials.db", "sgd", {0: 0.5, 1: None})
    before = (tmp_path / "trials.db").read_bytes()
    statements: list[str] = []

    def note(_connection, _cursor, statement, *_rest) -> None:
        statements.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        with serving(study, tmp_path / "trials.db") as url:
            for path in ("", "state", "", "nothing"):
                ask(url + path)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert len(statements) > 5
    assert {statement.split()[0] for statement in statements} <= {"BEGIN", "SELECT", "PRAGMA"}
    assert (tmp_path / "trials.db").read_bytes() == before
