"""A store written by an earlier version opens, and gives the same numbers.

tests/fixtures/old_store.sqlite was written, and old_store.json was printed, before the code was reorganized, by the
studies in tests/fixtures/old_studies:

    levelfield compare wilson.toml --seed-inclusions
    levelfield rerun wilson.toml --seeds 2
    levelfield compare quadratic.toml

Since then, only the p-values of the audit have changed: they have a margin of three standard errors (3/√200 of each).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from helpers import FIXTURES, OLD_STUDIES

import levelfield as lf
from levelfield.derive.follow import followings
from levelfield.derive.rerun import rerun_study
from levelfield.search import Search

EXPECTED: dict[str, Any] = json.loads((FIXTURES / "old_store.json").read_text("utf-8"))


@pytest.fixture
def old_store(tmp_path: Path) -> Path:
    """A copy, because the fixture must not change."""
    return Path(shutil.copy(FIXTURES / "old_store.sqlite", tmp_path / "trials.db"))


def trials_of(path: Path) -> list[tuple[Any, ...]]:
    columns = 'optimizer, "index", status, seed, hyperparameters, steps, curve, started, seconds, provenance'
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT {columns} FROM trials ORDER BY 1, 2").fetchall()


def same(actual: Any, expected: Any, path: str = "") -> None:
    """Compare numbers up to the last bits, which may depend on the version of NumPy, and all else exactly."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            same(actual[key], value, f"{path}.{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), path
        for index, value in enumerate(expected):
            same(actual[index], value, f"{path}[{index}]")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=1e-12, abs=1e-15), path
    else:
        assert actual == expected, path


@pytest.mark.parametrize("name", OLD_STUDIES)
def test_the_old_store_gives_the_same_numbers(name, old_store, command):
    code, out, err = command("report", OLD_STUDIES[name], "--store", str(old_store), "--json")
    assert code == 0, err
    expected = {key: value for key, value in EXPECTED[name].items() if key != "reruns"}
    assert all(expected[key] for key in ("rows", "beats", "audit", "boundaries", "health"))
    same(json.loads(out), expected)


def test_followed_trials_and_reruns_are_found(old_store):
    comparison = lf.Comparison.load(lf.load_study(OLD_STUDIES["wilson"]), old_store)
    assert len(comparison.followed) == len(EXPECTED["wilson"]["seeded"]) == 3
    assert comparison.reruns.keys() == EXPECTED["wilson"]["reruns"].keys()
    for optimizer, expected in EXPECTED["wilson"]["reruns"].items():
        outcome = comparison.reruns[optimizer]
        assert (outcome.tried, len(outcome.pool)) == (expected.pop("seeds"), expected.pop("feasible")) == (2, 2)
        for metric, over_seeds in expected.items():
            values = outcome.values(metric)
            same({"mean": values.mean(), "min": values.min(), "max": values.max()}, over_seeds)


def test_identities_and_points_are_the_stored_ones(old_store):
    """Every stored trial belongs to one of the studies, at the point that its search defines."""
    studies = [lf.load_study(path) for path in OLD_STUDIES.values()]
    results = lf.Comparison.load(studies[0], old_store).results
    studies += [following.study for following in followings(results)]
    studies.append(rerun_study(results, seeds=2))
    with sqlite3.connect(old_store) as connection:
        rows = connection.execute('SELECT optimizer, "index", hyperparameters, seed FROM trials').fetchall()
    connection.close()
    optimizers = {study.identity(name): (study, name) for study in studies for name in study.optimizers}
    assert {identity for identity, *_ in rows} == optimizers.keys()
    assert len(rows) > 50
    for identity, index, hyperparameters, seed in rows:
        point = Search(*optimizers[identity]).point(index)
        assert (point.hyperparameters, point.seed) == (json.loads(hyperparameters), seed)


@pytest.mark.parametrize("name", OLD_STUDIES)
def test_nothing_is_left_to_train(name, old_store, command):
    """A run on the old store trains nothing and leaves its trials unchanged."""
    before = trials_of(old_store)
    code, _, err = command("run", OLD_STUDIES[name], "--store", str(old_store))
    assert code == 0, err
    assert "nothing to run" in err
    assert trials_of(old_store) == before
