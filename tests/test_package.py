"""The package as a whole: its public names, and which libraries imports and commands load."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import FIXTURES, OLD_STUDIES

import levelfield as lf

JAX = {"jax", "flax", "optax"}


def test_public_names():
    assert set(lf.__all__) == {
        "BaseWorkload",
        "Comparison",
        "Data",
        "Dataset",
        "Estimate",
        "Executor",
        "Hyperparameter",
        "Inclusion",
        "Interval",
        "LevelfieldError",
        "Outcome",
        "Pass",
        "Rule",
        "Store",
        "Stream",
        "Study",
        "Summary",
        "Target",
        "Trainable",
        "TrialRun",
        "Workload",
        "beats",
        "best_of",
        "compare",
        "coverage",
        "departures",
        "inclusions",
        "interval",
        "ladder",
        "load_study",
        "optimizer",
        "refine",
        "register_dataset",
        "register_inclusion",
        "register_rule",
        "register_workload",
        "rerun_study",
        "separated",
        "simulate",
        "suggestion",
        "summary",
        "trainable",
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
    """Not even when they read a data set."""
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
    """A machine that only trains does not need them."""
    code = "import levelfield.executors._jax, levelfield.run, levelfield.store, levelfield.models.fashion_mini"
    assert not loaded_by(code) & {"altair", "polars", "vl_convert", "typer", "jinja2"}


READING = {
    "status": ["status"],
    "report": ["report"],
    "export": ["export", "-o", "trials.csv"],
    "plan": ["plan"],
    "refine": ["refine", "-o", "refined.toml"],
}


@pytest.mark.parametrize("study", OLD_STUDIES)
@pytest.mark.parametrize("name", READING)
def test_reading_a_store_loads_no_jax(name, study, tmp_path):
    shutil.copy(FIXTURES / "old_store.sqlite", tmp_path / "trials.db")
    assert not loaded_by_command(tmp_path, *READING[name], OLD_STUDIES[study], "--store", "trials.db") & JAX


def test_a_summary_loads_no_jax(tmp_path):
    shutil.copy(FIXTURES / "old_store.sqlite", tmp_path / "trials.db")
    assert not loaded_by_command(tmp_path, "summary", *OLD_STUDIES.values(), "--store", "trials.db") & JAX


@pytest.mark.parametrize("arguments", [["studies"], ["workloads"], ["data", "list"]], ids=" ".join)
def test_lists_load_no_jax(arguments, tmp_path):
    assert not loaded_by_command(tmp_path, *arguments) & JAX


def loaded_by_command(folder: Path, *arguments: str) -> set[str]:
    """Run a command in a process of its own and return the modules that it has loaded."""
    code = f"""
import sys
from levelfield.cli import main
sys.argv = {["levelfield", *arguments]!r}
try:
    main()
except SystemExit as exit:
    assert not exit.code, exit.code
with open("modules", "w") as file:
    print(*sys.modules, file=file)
"""
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
    modules = set((folder / "modules").read_text().split())
    assert "levelfield.cli" in modules
    return modules
