"""Compiled programs are kept for the next process, wherever the user wants them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from levelfield.errors import UsageError
from levelfield.training.devices import keep_programs

_TRAIN = """
import jax, levelfield as lf
study = lf.load_study("quadratic").replace(trials=1, pool=1, steps=2).only(["momentum"])
compiled = []
jax.monitoring.register_event_listener(lambda event, **_: compiled.append(event))
with lf.Store.open("sqlite://") as store:
    lf.compare(study, store)
print(sum("cache_misses" in event for event in compiled), sum("cache_hits" in event for event in compiled))
"""


def _train(cache: str) -> tuple[int, int]:
    """Train in a new process; return how many programs it compiled and how many it found."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
    command = [sys.executable, "-W", "error", "-c", _TRAIN]
    done = subprocess.run(command, env=environment | {"LEVELFIELD_CACHE": cache}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    missed, hit = map(int, done.stdout.split())
    return missed, hit


def test_the_next_process_finds_the_compiled_programs(tmp_path: Path) -> None:
    missed, hit = _train(str(tmp_path))
    assert missed > 0
    assert hit == 0
    assert _train(str(tmp_path)) == (0, missed)
    for entry in (tmp_path / "programs").glob("*-cache"):
        entry.write_bytes(b"damaged")
    _train(str(tmp_path))


def test_training_needs_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _train("off")[1] == 0
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")  # this system's folder for caches cannot be written
    assert _train("")[1] == 0


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("LEVELFIELD_CACHE", str(file))
    monkeypatch.setattr("jax.config", SimpleNamespace(jax_compilation_cache_dir=None))
    with pytest.raises(
        UsageError, match=r"LEVELFIELD_CACHE = '.*file': expected a folder that can be written, or 'off'"
    ):
        keep_programs()


_STARTED = """
import jax.numpy, levelfield as lf
from levelfield.training import devices
devices.available_cores = lambda: 7
jax.numpy.zeros(1)
lf.compare(lf.load_study("quadratic").replace(trials=1, pool=1, steps=2).only(["momentum"]), "sqlite://")
"""


def test_training_says_that_jax_has_started_with_one_core() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
    done = subprocess.run([sys.executable, "-c", _STARTED], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "JAX has started with 1 of 7 cores" in done.stderr
