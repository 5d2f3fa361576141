"""What the package promises as a whole: its public names, what an import loads, its layers."""

from __future__ import annotations

import subprocess
import sys

import levelfield as lf


def test_public_names():
    assert set(lf.__all__) == {
        "Comparison",
        "Data",
        "Dataset",
        "Estimate",
        "Hyperparameter",
        "Inclusion",
        "LevelfieldError",
        "Outcome",
        "Store",
        "Study",
        "Target",
        "Workload",
        "best_of",
        "compare",
        "coverage",
        "inclusions",
        "ladder",
        "load_study",
        "optimizer",
        "refine",
        "register_dataset",
        "register_inclusion",
        "register_rule",
        "register_workload",
        "rerun_study",
        "simulate",
        "verify",
    }
    for name in lf.__all__:
        assert getattr(lf, name) is not None


def loaded_by(code: str) -> set[str]:
    listing = "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{listing}"], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_levelfield_loads_no_heavy_library():
    assert not loaded_by("import levelfield") & {"jax", "numpy", "polars", "altair", "sqlalchemy", "pydantic"}


def test_the_commands_help_loads_no_heavy_library():
    assert not loaded_by("import levelfield.cli") & {"jax", "numpy", "scipy", "polars", "altair", "sqlalchemy"}


def test_workloads_load_no_jax():
    code = """
from levelfield.workloads import get_workload, workload_names
from levelfield.study import load_study
assert len(workload_names()) > 5
for name in workload_names():
    assert get_workload(name) is get_workload(name)
load_study("fashion_mini")
"""
    assert not loaded_by(code) & {"jax", "flax", "optax"}


def test_the_data_commands_load_no_jax(tmp_path):
    """Neither do they when they read a data set."""
    code = """
import os, sys
from pathlib import Path
import numpy as np
import levelfield as lf
from levelfield.cli import main
os.environ["LEVELFIELD_DATA"] = {cache!r}
lf.register_dataset("toy", lf.Dataset("", lambda source, writer, sample, report: writer.add("one", np.ones(1))))
for command in (["list"], ["get", "toy", "--from", {cache!r}], ["list", "--json"]):
    sys.argv = ["levelfield", "data", *command]
    try:
        main()
    except SystemExit as exit:
        assert not exit.code
"""
    loaded = loaded_by(code.format(cache=str(tmp_path)))
    assert "levelfield.datasets.lm1b" in loaded
    assert not loaded & {"jax", "flax", "optax", "grain", "tokenizers"}


def test_training_runs_without_the_reporting_libraries():
    """A machine that only trains need not have them."""
    code = "import levelfield.executors.local, levelfield.run, levelfield.store, levelfield.models.fashion_mini"
    assert not loaded_by(code) & {"altair", "polars", "vl_convert", "typer", "jinja2"}
