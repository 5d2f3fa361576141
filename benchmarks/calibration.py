"""How often levelfield's claims and intervals are wrong, over many simulated studies.

    python benchmarks/calibration.py [--studies 400]

Each cell draws studies whose truth is known: pools of N independent trials for each optimizer, all from the same
distribution for the false claims, and two distributions 1 apart (one standard deviation of the normal population) for
the power. "False claims" is the share of studies in which any pair is called separated, "covers" how often the 90%
interval holds the true median best of K, "open" how often its lower end is open, and "power" how often the two
distributions are separated.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from aligned import table

import levelfield as lf

Population = Callable[[np.random.Generator, int], np.ndarray]

# Tests and intervals depend on ranks alone, so all continuous populations give the same false claims and coverage.
POPULATIONS: dict[str, Population] = {
    "continuous": lambda random, n: random.normal(size=n),
    "with ties": lambda random, n: random.normal(size=n).round(1),
}
SIZES = ((20, 20), (25, 5), (50, 10), (100, 20))
OPTIMIZERS = (2, 6)


def true_median(population: Population, k: int) -> float:
    """The median best of k, from two million trials."""
    values = np.sort(population(np.random.default_rng(0), 2_000_000))
    return float(values[math.ceil((1 - 0.5 ** (1 / k)) * len(values)) - 1])


def cell(name: str, n: int, k: int, studies: int) -> list[str]:
    population = POPULATIONS[name]
    random, truth = np.random.default_rng(1), true_median(population, k)
    false = [
        np.mean([bool(lf.separated({str(i): population(random, n) for i in range(count)}, k)) for _ in range(studies)])
        for count in OPTIMIZERS
    ]
    intervals = [lf.interval(population(random, n), k) for _ in range(5 * studies)]
    covered = np.mean([interval.low <= truth <= interval.high for interval in intervals])
    opened = np.mean([math.isinf(interval.low) for interval in intervals])
    power = np.mean(
        [bool(lf.separated({"a": population(random, n), "b": population(random, n) + 1}, k)) for _ in range(studies)]
    )
    return [name, str(n), str(k), *(f"{100 * share:.1f}%" for share in (*false, covered, opened, power))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=400)
    studies = parser.parse_args().studies
    headings = ["population", "N", "K", *(f"false claims, {count} optimizers" for count in OPTIMIZERS)]
    cells = [(name, n, k, studies) for name in POPULATIONS for n, k in SIZES]
    with ProcessPoolExecutor() as pool:
        rows = list(pool.map(cell, *zip(*cells, strict=True)))
    print(table([[*headings, "covers", "open", "power"], *rows]))


if __name__ == "__main__":
    main()
