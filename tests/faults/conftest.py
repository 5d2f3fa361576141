"""A fast study, the pool of a run that nothing disturbs, and a place to run commands in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import REPOSITORY
from processes import Commands
from stores import Pool, read_pool

# Trials of milliseconds; two thirds of those of sgd diverge, so that the pool grows while it is filled.
STUDY = """
workload = "wilson"
steps = 300
eval_interval = 100
trials = 4
pool = 30

[optimizers.sgd]
learning_rate = { log = [1e-1, 1e2] }

[optimizers.adam]
learning_rate = { log = [1e-3, 1e0] }
one_minus_beta1 = { log = [1e-1, 1e0] }
beta2 = 0.99
epsilon = 1e-2
"""
CACHE = REPOSITORY / ".cache/jax"


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    """Commands in a folder with the study."""
    (tmp_path / "study.toml").write_text(STUDY)
    started = Commands(tmp_path, CACHE)
    yield started
    started.end()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    """The pool of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "study.toml").write_text(STUDY)
    Commands(folder, CACHE).run("run", "study.toml", "--store", "trials.db", "--slots", "4")
    pool = read_pool(folder / "study.toml", str(folder / "trials.db"))
    assert {status for _, status, *_ in pool.values()} == {"feasible", "infeasible"}
    return pool
