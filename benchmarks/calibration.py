"""How often levelfield's claims and intervals are wrong, over many simulated studies whose truth is known.

    python benchmarks/calibration.py [--studies 1000] [--runs 200] [--pools DIR] [--quick]
    python benchmarks/calibration.py --pairs 100000

Each cell of the grid draws studies of N trials for each optimizer from a population (benchmarks/populations.py):

- false claims: all optimizers draw from the same population; the share of studies in which any pair is separated
- the interval of the median best of K, of P(A beats B), of steps to a target and of the chance to reach it: how often
  the 90% interval holds the true value of the population
- power: how often two optimizers one standard deviation apart are separated in the right direction
- optimizers with the same win rate but different spreads: how often they are separated, though neither is better
- studies that are actually run: six copies of adam on the quadratic workload, whose ranges differ by a millionth

With ``--pools``, other people's trials are populations, too. The last lines name the cells that miss their bar by more
than three standard errors: 5% for false claims, 90% for the exact intervals, 85% for P(A beats B).

With ``--pairs``, only the tests themselves are simulated, over many more pairs of equal pools: how often one of two is
called better, and how often the audit would say that the general optimizer is worse.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import numpy as np
from populations import STEPS, SYNTHETIC, Population, drawn, fashion_mini, published
from scipy.optimize import brentq
from scipy.special import ndtri

import levelfield as lf
from levelfield.analysis.best_of import probability_better
from levelfield.analysis.intervals import chance_of_any, one_sided_tests
from levelfield.taxonomy.audit import SIGNIFICANT

SIZES = ((20, 20), (100, 100), (20, 10), (25, 5), (50, 10), (100, 20), (500, 100))
OPTIMIZERS = (2, 3, 6, 10)
LARGE = 6
SPREADS = (2, 5)  # standard deviations, against 1
RUNS = ((10, 10), (20, 20), (50, 10), (100, 20))
RUN_STEPS = 50
COPIES = 6
CHUNK = 50  # studies per task
PAIR_CHUNK = 5_000
RUN_CHUNK = 10
ATLEAST, ATMOST = 1, -1
BARS = {"false claims": (0.05, ATMOST), "covers": (0.9, ATLEAST), "win rate covers": (0.85, ATLEAST)}

Cell = tuple[str, int, int]  # population, N, K
Counts = dict[str, tuple[int, int]]  # measure → how often it held, out of how many


class Tally:
    """Counts how often statements hold."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, measure: str, *observations: bool) -> None:
        self.counts[measure][0] += sum(map(bool, observations))
        self.counts[measure][1] += len(observations)

    def result(self) -> Counts:
        return {measure: (so, total) for measure, (so, total) in self.counts.items()}


def claims(pools: Iterable[np.ndarray], k: int) -> list[tuple[str, str]]:
    return lf.separated({str(i): pool for i, pool in enumerate(pools)}, k)


def covers(interval: lf.Interval, truth: float) -> bool:
    return interval.low <= truth <= interval.high


def study(
    population: Population, n: int, k: int, index: int, random: np.random.Generator, tally: Tally
) -> list[np.ndarray]:
    """Draw a pool for each optimizer and tell whether they make a claim; return the pools."""
    pools = [population.pool(random, n, i) for i in range(max(OPTIMIZERS))]
    for count in OPTIMIZERS:
        if count <= LARGE or index % 2 == 0:  # large studies take long, so only every other one is tested
            tally.add(f"false claims, {count}", bool(claims(pools[:count], k)))
    return pools


def final_values(population: Population, n: int, k: int, studies: int, random: np.random.Generator) -> Counts:
    """Simulate studies of optimizers that draw from the same population, and of two that are one deviation apart."""
    tally, apart, median = Tally(), population.deviation, population.median_best(k)
    even = probability_better(population.trials, population.trials, k)
    ahead = probability_better(population.trials, population.trials + apart, k)
    for i in range(studies):
        pools = study(population, n, k, i, random, tally)
        intervals = [lf.interval(pool, k) for pool in pools]
        tally.add("covers", *(covers(interval, median) for interval in intervals))
        tally.add("open", *(math.isinf(interval.low) for interval in intervals))
        tally.add("open above", *(math.isinf(interval.high) for interval in intervals))
        ours, same, worse = pools[0], pools[1], pools[1] + apart
        for truth, theirs, name in ((even, same, "equal"), (ahead, worse, "apart")):
            chance = lf.beats(ours, theirs, k)
            tally.add(f"win rate covers, {name}", chance.low - 1e-9 <= truth <= chance.high + 1e-9)
        tally.add("power", claims([ours, worse], k) == [("0", "1")])
    return tally.result()


def steps_to_target(population: Population, n: int, k: int, studies: int, random: np.random.Generator) -> Counts:
    """Simulate steps to a target, where a miss is infinite."""
    tally, median = Tally(), population.median_best(k)
    reaching = 1 - (1 - float(np.isfinite(population.trials).mean())) ** k
    for i in range(studies):
        pools = study(population, n, k, i, random, tally)
        tally.add("covers", *(covers(lf.interval(pool, k), median) for pool in pools))
        chances = [chance_of_any(int(np.isfinite(pool).sum()), n, k) for pool in pools]
        tally.add("covers, chance", *(chance.low <= reaching + 1e-12 and reaching <= chance.high for chance in chances))
    return tally.result()


def even_spreads(population: Population, n: int, k: int, studies: int, random: np.random.Generator) -> Counts:
    """Simulate two optimizers that win equally often, though one spreads more and has the worse median trial."""
    tally, narrow = Tally(), population.trials[8::16]
    for spread in SPREADS:

        def imbalance(shift: float, spread: int = spread) -> float:
            wide = spread * narrow + shift
            return probability_better(narrow, wide, k) - probability_better(wide, narrow, k)

        shift = float(brentq(imbalance, 0, 20 * spread, xtol=1e-3))
        for _ in range(studies):
            wide = spread * population.pool(random, n, 1) + shift
            tally.add(f"claims, {spread}", bool(claims([population.pool(random, n, 0), wide], k)))
    return tally.result()


def identical_runs(k: int, n: int, seeds: Iterable[int]) -> list[tuple[bool, list[np.ndarray]]]:
    """Run studies of copies of adam; return whether each made a claim, and its pools."""
    space = {
        "learning_rate/epsilon": {"log": [1e-2, 1e2]},
        "one_minus_beta1": {"log": [1e-2, 1e0]},
        "one_minus_beta2": {"log": [1e-4, 1e0]},
        "epsilon": {"log": [1e-4, 1e4]},
    }
    optimizers = {
        f"adam_{i}": {"rule": "adam"} | space | {"learning_rate/epsilon": {"log": [1e-2, 1e2 * (1 + 1e-6 * i)]}}
        for i in range(COPIES)
    }
    results = []
    for seed in seeds:
        study = lf.Study(
            name="identical",
            workload="quadratic",
            steps=RUN_STEPS,
            eval_interval=RUN_STEPS,
            trials=k,
            pool=n,
            seed=seed,
            optimizers=optimizers,
        )
        comparison = lf.compare(study, store="sqlite://")
        results.append((bool(comparison.separated()), [comparison.outcome(name).ranked() for name in optimizers]))
    return results


def run_copies(executor: Executor, studies: int) -> dict[Cell, Counts]:
    """Run many studies; the population of the intervals is all trials of all studies with the same N and K."""
    counts = {}
    for n, k in RUNS:
        chunks = [range(start, min(start + RUN_CHUNK, studies)) for start in range(0, studies, RUN_CHUNK)]
        futures = [executor.submit(identical_runs, k, n, chunk) for chunk in chunks]
        results = [result for future in futures for result in future.result()]
        pools = [pool for _, pools in results for pool in pools]
        everything = Population("", np.sort(np.concatenate(pools)), lambda *_: np.array([]))
        tally = Tally()
        tally.add(f"false claims, {COPIES}", *(claimed for claimed, _ in results))
        tally.add("covers", *(covers(lf.interval(pool, k), everything.median_best(k)) for pool in pools))
        counts["adam on quadratic", n, k] = tally.result()
        print(f"ran {studies} studies with N = {n}, K = {k}", file=sys.stderr)
    return counts


Simulation = Callable[[Population, int, int, int, np.random.Generator], Counts]
POPULATIONS: dict[tuple[str, str], tuple[Simulation, Population]] = {}  # of a worker process


def prepare(folder: Path | None, only: str) -> None:
    """Make the populations of each part of the calibration whose names contain ``only``."""
    finals, steps = published(folder) if folder else ([], [])
    parts: dict[str, tuple[Simulation, Iterable[Population]]] = {
        "final": (final_values, [*SYNTHETIC, *fashion_mini(), *finals]),
        "steps": (steps_to_target, [*STEPS, *steps]),
        "even": (even_spreads, [drawn("normal", ndtri)]),
    }
    POPULATIONS.update(
        ((part, population.name), (simulation, population))
        for part, (simulation, populations) in parts.items()
        for population in populations
        if only in population.name
    )


def task(part: str, name: str, n: int, k: int, chunk: int) -> Counts:
    simulation, population = POPULATIONS[part, name]
    seed = [chunk, n, k, *f"{part} {name}".encode()]
    return simulation(population, n, k, CHUNK, np.random.default_rng(seed))


def simulate(executor: Executor, chunks: int) -> dict[tuple[str, str, int, int], Counts]:
    """Run all cells of the grid, the longest first."""
    cells = [(part, name, n, k) for n, k in sorted(SIZES, reverse=True) for part, name in POPULATIONS]
    futures = [(cell, executor.submit(task, *cell, chunk)) for cell in cells for chunk in range(chunks)]
    merged: dict[tuple[str, str, int, int], Counts] = defaultdict(dict)
    for cell, future in futures:
        for measure, (so, total) in future.result().items():
            before = merged[cell].get(measure, (0, 0))
            merged[cell][measure] = before[0] + so, before[1] + total
    return merged


def equal_pairs(n: int, k: int, chunk: int) -> Counts:
    """Test pairs of pools of uniform numbers; tests depend on ranks alone, so any distribution without ties will do."""
    tally, random = Tally(), np.random.default_rng([n, k, chunk])
    pairs = list(random.random((PAIR_CHUNK, 2, n)))
    tally.add("two-sided", *(bool(claims(pair, k)) for pair in pairs))
    tally.add("one-sided", *(p < SIGNIFICANT for p in one_sided_tests(pairs, k)))
    return tally.result()


def print_levels(pairs: int) -> None:
    """Print how often the tests of one pair are wrong. All tests with the same N and K use the same permutations."""
    chunks = max(1, pairs // PAIR_CHUNK)
    with ProcessPoolExecutor() as executor:
        print("| N/K | two-sided | one-sided (audit) |\n|---|---|---|")
        for n, k in SIZES:
            results = list(executor.map(equal_pairs, [n] * chunks, [k] * chunks, range(chunks)))
            shares = [sum(each[side][0] for each in results) / (chunks * PAIR_CHUNK) for side in results[0]]
            print(f"| {n}/{k} | {' | '.join(f'{100 * share:.2f}' for share in shares)} |")
    error = math.sqrt(0.05 * 0.95 / (chunks * PAIR_CHUNK))
    print(f"percent of {chunks * PAIR_CHUNK:,} pairs; 5% has a standard error of {100 * error:.2f} points")


def percent(count: tuple[int, int]) -> str:
    return f"{100 * count[0] / count[1]:.1f}"


def print_table(title: str, cells: Mapping[Cell, Counts], measures: Iterable[str]) -> None:
    """Print one measure, or several separated by slashes, in percent: populations × (N, K)."""
    if not cells:
        return
    sizes = list(dict.fromkeys((n, k) for _, n, k in cells))
    sizes.sort(key=lambda size: (size not in SIZES, SIZES.index(size) if size in SIZES else size))
    print(f"\n{title}:\n\n| | {' | '.join(f'{n}/{k}' for n, k in sizes)} |")
    print("|---" * (len(sizes) + 1) + "|")
    for name in dict.fromkeys(name for name, _, _ in cells):
        shown = [" / ".join(percent(cells[name, n, k][measure]) for measure in measures) for n, k in sizes]
        print(f"| {name} | {' | '.join(shown)} |")


def print_tables(final: Mapping[Cell, Counts], steps: Mapping[Cell, Counts], even: Mapping[Cell, Counts]) -> None:
    counts = " / ".join(map(str, OPTIMIZERS))
    false = [f"false claims, {count}" for count in OPTIMIZERS]
    print_table(f"False claims, studies of {counts} optimizers", final, false)
    print_table("The interval of the median best of K covers it", final, ["covers"])
    print_table("Its lower end is open", final, ["open"])
    win_rates = ["win rate covers, equal", "win rate covers, apart"]
    print_table("The interval of P(A beats B) covers it: same population / one deviation apart", final, win_rates)
    print_table("Power against one standard deviation", final, ["power"])
    print_table(f"False claims about steps to target, studies of {counts} optimizers", steps, false)
    print_table("The interval of the median steps covers it", steps, ["covers"])
    print_table("The interval of the chance to reach the target covers it", steps, ["covers, chance"])
    spreads = " / ".join(f"1 and {spread}" for spread in SPREADS)
    print_table(
        f"Claims where both win equally often but spread {spreads}", even, [f"claims, {spread}" for spread in SPREADS]
    )


def missed_bars(cells: Mapping[Cell, Counts]) -> list[str]:
    """Return the measures that miss their bar by more than three standard errors."""
    lines = []
    for (name, n, k), counts in cells.items():
        for measure, (so, total) in counts.items():
            bar, sign = BARS.get(measure.split(", ")[0], (0.0, ATLEAST))
            share, error = so / total, math.sqrt(bar * (1 - bar) / total)
            if sign * (share - bar) < -3 * error:
                lines.append(f"{name}, N = {n}, K = {k}: {measure} {share:.1%}, bar {bar:.0%}")
            if measure in ("open", "open above") and n >= 5 * k and so:
                lines.append(f"{name}, N = {n}, K = {k}: {so} of {total} intervals are open")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000, help=f"simulated studies per cell, a multiple of {CHUNK}")
    parser.add_argument("--runs", type=int, default=200, help="studies of adam's copies to run; 0: none")
    parser.add_argument("--pools", type=Path, help="folder with taskset/ and deberta/, other people's trials")
    parser.add_argument("--only", default="", help="only populations whose name contains this")
    parser.add_argument("--quick", action="store_true", help="100 simulated studies per cell and 10 runs")
    parser.add_argument("--pairs", type=int, help=f"only test so many pairs of pools, a multiple of {PAIR_CHUNK:,}")
    arguments = parser.parse_args()
    if arguments.pairs:
        print_levels(arguments.pairs)
        return
    studies, runs = (100, min(10, arguments.runs)) if arguments.quick else (arguments.studies, arguments.runs)
    start = time.perf_counter()
    prepare(arguments.pools, arguments.only)
    with ProcessPoolExecutor(initializer=prepare, initargs=(arguments.pools, arguments.only)) as executor:
        simulated = simulate(executor, max(1, studies // CHUNK))
    final, steps, even = (
        {cell[1:]: counts for cell, counts in simulated.items() if cell[0] == part}
        for part in ("final", "steps", "even")
    )
    print(f"{max(1, studies // CHUNK) * CHUNK} studies per cell; columns are N/K, all numbers percent")
    print_tables(final, steps, even)
    missed = missed_bars(final) + missed_bars(steps)
    if runs:
        # JAX does not survive a fork.
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as executor:
            copies = run_copies(executor, runs)
        print(f"\n{runs} studies really run per cell")
        print_table("Six copies of adam: false claims", copies, [f"false claims, {COPIES}"])
        print_table("The interval of the median best of K covers it", copies, ["covers"])
        missed += missed_bars(copies)
    print("\nMissed bars:", *(missed or ["none"]), sep="\n")
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
