"""Shared fixtures, JAX with one device per core and a persistent compilation cache, and which skips CI accepts."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from databases import database, location, postgres, server  # noqa: F401, fixtures
from dataset_files import Toy
from fakes import NOWHERE
from helpers import REPOSITORY
from hypothesis import settings
from skip_policy import SkipPolicy

if TYPE_CHECKING:
    from levelfield import Comparison, Store, Study

# A busy machine must not fail a test. Examples are the same in every run, so that a failure comes from a change;
# `make test-properties` draws new ones.
settings.register_profile("levelfield", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None)
settings.load_profile("levelfield")


def pytest_configure(config: pytest.Config) -> None:
    os.environ["LEVELFIELD_CACHE"] = str(REPOSITORY / ".cache")  # of the processes that tests start
    if os.environ.get("CI"):
        config.pluginmanager.register(SkipPolicy(config))


@pytest.fixture(scope="session", autouse=True)
def _jax() -> None:
    """Keep compiled programs: most of a short test is compilation."""
    import jax

    from levelfield.training.devices import use_every_core

    use_every_core()
    jax.config.update("jax_compilation_cache_dir", str(REPOSITORY / ".cache/jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _forget() -> Iterator[None]:
    """Forget afterwards what was registered and which code files were run."""
    from levelfield import registry, user_code

    with registry.preserved(), user_code.preserved():
        yield


_after_each_file = pytest.fixture(scope="module", autouse=True)(_forget)  # what its fixtures registered
_after_each_test = pytest.fixture(autouse=True)(_forget)


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store in memory."""
    import levelfield as lf

    with lf.Store.open("sqlite://") as opened:
        yield opened


@pytest.fixture
def command(monkeypatch, capfd, tmp_path) -> Callable[..., tuple[int, str, str]]:
    """Run a command in an empty folder (``tmp_path``) and return its exit code, stdout and stderr."""
    from levelfield.cli import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["levelfield", *arguments])
        with pytest.raises(SystemExit) as exit:
            main()
        out, err = capfd.readouterr()
        return exit.value.code or 0, out, err

    return call


Curves = Mapping[str, Sequence[float]]  # metric → values


@pytest.fixture(scope="session")
def made() -> Callable[..., Comparison]:
    """Return the comparison of invented trials.

    ``pools``: optimizer → curves of its trials, with a value for each evaluation; a shorter curve ends early.
    ``infeasible``: optimizer → indices. ``without``: optimizer → metrics that its trials do not have.
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
                left_out = (without or {}).get(name, ())
                metrics = {metric: direction for metric, direction in known.items() if metric not in left_out}
                broken, search, trials = (infeasible or {}).get(name, ()), Search(study, name), []
                for index, curves in enumerate(pool):
                    values = {metric: np.asarray(curves[metric], np.float32) for metric in metrics}
                    steps = study.eval_interval * np.arange(1, 1 + len(next(iter(values.values()))))
                    status = Status.INFEASIBLE if index in broken else Status.FEASIBLE
                    trials.append(Trial(search.point(index), status, Curve(steps, values), seconds=0.5))
                opened.add(study.identity(name), study.definition(name), metrics, trials, NOWHERE)
            return lf.Comparison.load(study, opened)

    return make


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for data sets."""
    monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An empty folder for a publisher's files."""
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


@pytest.fixture
def toy(cache_folder: Path, tmp_path: Path) -> Toy:
    """A registered data set of made-up numbers."""
    import levelfield as lf

    toy = Toy()
    lf.register_dataset("toy", lf.Dataset("", toy.write, installed=(tmp_path,)))
    return toy


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A Ray cluster on this machine, to which this process is connected. Tests may add nodes and remove these again.

    Its head has one CPU, and lost nodes are noticed fast.
    """
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    checks = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 6}
    options = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 10**8, "_system_config": checks}
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(REPOSITORY / ".cache/jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"os\.fork\(\)", RuntimeWarning)  # of JAX; Ray executes programs at once
            cluster = Cluster(initialize_head=True, head_node_args=options)
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="session")
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed; models are checked against it")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, without a network."""
    from page_helpers import browser_path

    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        path = browser_path(playwright.chromium.executable_path)
        if path is None:
            pytest.skip("no Chromium or Chrome on this machine")
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        running = playwright.chromium.launch(executable_path=path, args=arguments)
        yield running
        running.close()


@pytest.fixture
def opened(browser, tmp_path) -> Iterator[Callable[..., Any]]:
    """Open the page of a path or a comparison. Any console message, and any request but the file's, is a failure."""
    contexts, problems = [], []

    def open_page(source: Path | Comparison, **options: Any) -> Any:
        path = source if isinstance(source, Path) else source.write_report(tmp_path / f"{len(contexts)}.html")
        context = browser.new_context(offline=True, **{"viewport": {"width": 1200, "height": 900}} | options)
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}") or dialog.dismiss())
        page.on("request", lambda request: problems.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_function("window.page")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
