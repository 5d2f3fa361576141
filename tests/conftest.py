"""What all tests share: JAX with one device a core, and a compilation cache that outlives the run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("levelfield", deadline=None)  # a busy machine is no failure
settings.load_profile("levelfield")

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="session", autouse=True)
def _jax() -> None:
    """Compiling is most of a short test: a second run reads what the first compiled."""
    import jax

    from levelfield.training.program import use_every_core

    use_every_core()
    jax.config.update("jax_compilation_cache_dir", str(REPOSITORY / ".cache/jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture
def command(monkeypatch, capfd) -> Callable[..., tuple[int, str, str]]:
    """Run a command; returns its exit code, stdout and stderr."""
    from levelfield.cli import main

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["levelfield", *arguments])
        with pytest.raises(SystemExit) as exit:
            main()
        out, err = capfd.readouterr()
        return exit.value.code or 0, out, err

    return call
