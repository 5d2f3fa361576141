"""Compiled programs are kept for the next process, wherever the user wants them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("cache", ["off", "/dev/null/folder"])
def test_training_needs_no_cache(cache: str) -> None:
    assert _train(cache)[1] == 0
