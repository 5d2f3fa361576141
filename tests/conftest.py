"""What all tests share: JAX with one device a core, and a compilation cache that outlives the run."""

from __future__ import annotations

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
