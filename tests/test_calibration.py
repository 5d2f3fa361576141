"""A reduced form of benchmarks/calibration.py: claims and intervals are wrong no more often than they say.

The seeds are fixed, and a bar is missed only by more than three standard errors.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

STUDIES = 100


@pytest.fixture(scope="module")
def calibration() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
        module = importlib.import_module("calibration")
        patch.setattr(module, "OPTIMIZERS", (2, 6))
        module.prepare(None, "")
        yield module


@pytest.mark.parametrize(
    ("part", "name", "n", "k"),
    [
        ("final", "heavy-tailed (Cauchy)", 25, 5),
        ("final", "with ties (rounded)", 20, 10),
        ("final", "infeasible (0% to 60%)", 25, 5),
        ("final", "search, Sobol'", 50, 10),
        ("steps", "50% reach it, 4 evaluations", 25, 5),
    ],
)
def test_a_cell_meets_its_bars(calibration: ModuleType, part: str, name: str, n: int, k: int) -> None:
    simulation, population = calibration.POPULATIONS[part, name]
    counts = simulation(population, n, k, STUDIES, np.random.default_rng(n + k))
    assert counts["false claims, 6"][1] == STUDIES
    assert calibration.missed_bars({(name, n, k): counts}) == []


def test_the_tests_of_a_pair_keep_their_level(calibration: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = 2_000
    monkeypatch.setattr(calibration, "PAIR_CHUNK", pairs)
    for so, total in calibration.equal_pairs(25, 5, chunk=0).values():
        assert total == pairs
        assert 0 < so <= pairs * 0.05 + 3 * np.sqrt(pairs * 0.05 * 0.95)


def test_a_method_that_claims_too_much_misses_its_bar(calibration: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing the pools' own minima finds a winner in almost every study."""
    monkeypatch.setattr(calibration, "claims", lambda pools, k: [int(np.argmin([pool.min() for pool in pools]))])
    simulation, population = calibration.POPULATIONS["final", "normal"]
    counts = simulation(population, 25, 5, 20, np.random.default_rng(0))
    missed = calibration.missed_bars({("normal", 25, 5): counts})
    assert [line.split(":")[1].strip() for line in missed] == [
        "false claims, 2 100.0%, bar 5%",
        "false claims, 6 100.0%, bar 5%",
    ]


def test_the_populations_truth(calibration: ModuleType) -> None:
    """The median best of k, against the minima of many draws, and the deviation of a normal distribution."""
    random = np.random.default_rng(1)
    for (part, name), (_, population) in calibration.POPULATIONS.items():
        pools = [population.pool(random, 40, i) for i in range(1000)]
        assert all(np.sum(~np.isnan(pool)) == 40 for pool in pools), (part, name)
        if "Sobol'" not in name:  # whose points are not independent
            below = np.mean([np.nanmin(pool) <= population.median_best(40) for pool in pools])
            above = np.mean([np.nanmin(pool) >= population.median_best(40) for pool in pools])
            assert min(below, above) > 0.5 - 4 * 0.5 / np.sqrt(1000), (part, name)
    assert calibration.POPULATIONS["final", "normal"][1].deviation == pytest.approx(1, abs=1e-3)
