"""docs/optimizers.md says what the code says."""

from __future__ import annotations

import runpy
from typing import Any

import jax
import pytest
from helpers import REPOSITORY

from levelfield.optax_optimizers import optax_optimizers
from levelfield.workload import Workload
from levelfield.workloads import get_workload, workload_names


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    return runpy.run_path(str(REPOSITORY / "tools/optimizer_tables.py"))


@pytest.fixture(scope="module")
def document() -> str:
    return (REPOSITORY / "docs/optimizers.md").read_text("utf-8")


def test_the_tables_are_up_to_date(tables: dict[str, Any], document: str) -> None:
    assert tables["written"](document) == document, "run: python tools/optimizer_tables.py"


def test_every_optimizer_has_one_row(document: str) -> None:
    for name in optax_optimizers():
        assert document.count(f"\n| optax.{name} |") == 1


def test_muon_updates_matrices_and_reshaped_kernels(tables: dict[str, Any]) -> None:
    for workload in filter(lambda one: isinstance(one, Workload), map(get_workload, workload_names())):
        axes = [leaf.ndim for leaf in jax.tree.leaves(jax.eval_shape(workload.init, jax.random.key(0))[0])]
        assert len(tables["updated_by_muon"](workload)) == axes.count(2)
        assert len(tables["updated_by_muon"](workload, reshape=True)) == sum(count > 1 for count in axes)
