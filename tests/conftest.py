"""What all tests share: JAX with one device a core, and a compilation cache that outlives the run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from levelfield import Comparison, Study

# A busy machine is no failure. Draws are the same every time, so that a change fails for what it changed; fresh ones
# are `make test-properties`.
settings.register_profile("levelfield", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None)
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


@pytest.fixture(autouse=True)
def _registries(monkeypatch) -> Iterator[None]:
    """What a test registers, and which code files it has run, is forgotten afterwards."""
    from levelfield import registry, user_code

    for name in ("_run", "_folders"):
        monkeypatch.setattr(user_code, name, getattr(user_code, name).copy())
    monkeypatch.setattr(sys, "path", sys.path.copy())
    with registry.preserved():
        yield


@pytest.fixture(scope="module")
def no_gradients() -> Iterator[None]:
    """What the audit says of limits needs gradients, and with them JAX: any number will do here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("levelfield.taxonomy.audit.gradient_scale", lambda _: 1.0)
        yield


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


Curves = Mapping[str, Sequence[float]]  # metric → values
NOWHERE = {"devices": 1, "device": "none", "backend": "none", "precision": "none", "versions": {"levelfield": "0"}}


@pytest.fixture(scope="session")
def made() -> Callable[..., Comparison]:
    """The comparison of trials that nobody trained: optimizer → curves of its trials, and which are infeasible.

    A curve has a value for each evaluation; a shorter one broke off. ``without`` names metrics that an optimizer's
    trials do not have.
    """
    import levelfield as lf
    from levelfield.search import Search
    from levelfield.trial import Curve, Status, Trial
    from levelfield.workloads import get_workload

    def make(
        study: Study,
        pools: Mapping[str, Sequence[Curves]],
        infeasible: Mapping[str, Sequence[int]] | None = None,
        without: Mapping[str, Sequence[str]] | None = None,
        store: Path | str = "sqlite://",
    ) -> Comparison:
        known = get_workload(study.workload).metrics
        with lf.Store.open(store) as opened:
            for name, pool in pools.items():
                metrics = {key: way for key, way in known.items() if key not in (without or {}).get(name, ())}
                broken, search, trials = (infeasible or {}).get(name, ()), Search(study, name), []
                for index, curves in enumerate(pool):
                    values = {metric: np.asarray(curves[metric], np.float32) for metric in metrics}
                    steps = study.eval_interval * np.arange(1, 1 + len(next(iter(values.values()))))
                    status = Status.INFEASIBLE if index in broken else Status.FEASIBLE
                    trials.append(Trial(search.point(index), status, Curve(steps, values), seconds=0.5))
                opened.add(study.identity(name), study.definition(name), metrics, trials, NOWHERE)
            return lf.Comparison.load(study, opened)

    return make
