"""How often the intervals of a summary of several studies hold the truth, over many simulated summaries.

    python benchmarks/summary.py [--summaries 400]

Each cell simulates studies whose truth is known: pools of N independent trials for each optimizer. Steps to target are
log-normal, or rounded up to an evaluation every 50 steps with a last one at 500 and 30% of trials that never reach the
target. "covers" is how often the interval of the first optimizer's score holds the score that infinite pools would
give, "width" its mean width, and "bootstrap" how often a 90% bootstrap interval of the pools would have held it.
"ranks" is how often all rank intervals of all studies hold the true ranks, that is, no two equal optimizers are
separated; it is measured over five times as many summaries, in the hardest of the cases that do not take too long.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from aligned import table

from levelfield.analysis.intervals import Contest
from levelfield.analysis.profiles import credit, ratio_bounds
from levelfield.analysis.summary import separated_pairs

FIRST, LAST, INTERVAL, MISSES = 50, 500, 50, 0.3
Steps = Callable[[np.random.Generator, int, float], np.ndarray]


def continuous(random: np.random.Generator, n: int, shift: float) -> np.ndarray:
    return 200 * np.exp(shift + 0.6 * random.normal(size=n))


def evaluated(random: np.random.Generator, n: int, shift: float) -> np.ndarray:
    steps = np.ceil(continuous(random, n, shift) / INTERVAL) * INTERVAL
    return np.where((steps > LAST) | (random.random(n) < MISSES), np.inf, steps)


POPULATIONS: dict[str, Steps] = {"continuous": continuous, "evaluated": evaluated}
# How much slower the first optimizer is than the others, in standard deviations of a trial, in each study.
CASES: dict[str, Callable[[int], float]] = {
    "equal": lambda study: 0.0,
    "slower": lambda study: 1.0,
    "mixed": lambda study: 1.0 if study % 2 else -1.0,
}
COUNTS = ((2, 2), (4, 4), (8, 6))  # studies, optimizers
SIZES = ((25, 5), (50, 5))  # N, K
MOST_TESTED = 16  # pools in a summary, if its ranks are measured


def median_of_fastest(steps: np.ndarray, k: int) -> np.ndarray:
    """The median of the fastest of k, along the last axis."""
    return np.sort(steps, axis=-1)[..., math.ceil((1 - 0.5 ** (1 / k)) * steps.shape[-1] - 1e-12) - 1]


def score_of_first(medians: np.ndarray) -> np.ndarray:
    """The score of the first optimizer, given the medians as [..., study, optimizer]."""
    with np.errstate(invalid="ignore"):
        ratios = medians[..., 0] / medians.min(axis=-1)
    return np.mean(np.clip((4 - np.where(np.isnan(ratios), np.inf, ratios)) / 3, 0, 1), axis=-1)


def bootstrap(pools: np.ndarray, k: int, random: np.random.Generator, draws: int = 200) -> Sequence[float]:
    """The naive interval: resample each pool, and take percentiles of the score."""
    drawn = random.integers(pools.shape[-1], size=(draws, *pools.shape))
    again = np.take_along_axis(np.broadcast_to(pools, drawn.shape), drawn, axis=-1)
    return np.quantile(score_of_first(median_of_fastest(again, k)), [0.05, 0.95])


def cell(name: str, case: str, studies: int, optimizers: int, n: int, k: int, summaries: int) -> list[str]:
    draw, random = POPULATIONS[name], np.random.default_rng(1)
    shifts = np.zeros((studies, optimizers))
    shifts[:, 0] = [0.6 * CASES[case](study) for study in range(studies)]
    large = {shift: median_of_fastest(draw(random, 1_000_000, shift), k) for shift in np.unique(shifts)}
    truth = score_of_first(np.vectorize(large.get)(shifts))
    covered, widths, naive, ranked = [], [], [], []
    for _ in range(summaries):
        pools = np.array([[draw(random, n, shift) for shift in row] for row in shifts])
        named = [{str(i): pool for i, pool in enumerate(study)} for study in pools]
        ratios = [ratio_bounds(study, k, FIRST if name == "evaluated" else 1.0).get("0") for study in named]
        low, high = (sum(credit(getattr(ratio, end)) for ratio in ratios if ratio) / studies for end in ("high", "low"))
        covered.append(low - 1e-9 <= truth <= high + 1e-9)
        widths.append(high - low)
        low, high = bootstrap(pools, k, random)
        naive.append(low - 1e-9 <= truth <= high + 1e-9)
    if case == "equal" and studies * optimizers <= MOST_TESTED:
        for _ in range(5 * summaries):
            equal = [Contest.of({str(i): draw(random, n, 0.0) for i in range(optimizers)}, k) for _ in range(studies)]
            ranked.append(not any(separated_pairs(equal)))
    shares = [f"{100 * np.mean(column):.0f}%" if column else "" for column in (covered, naive, ranked)]
    width = f"{np.mean(widths):.2f}"
    return [name, case, str(studies), str(optimizers), str(n), str(k), shares[0], width, *shares[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--summaries", type=int, default=400)
    summaries = parser.parse_args().summaries
    cells = [
        (name, case, *counts, *sizes, summaries)
        for sizes in SIZES
        for counts in COUNTS
        for name in POPULATIONS
        for case in CASES
    ]
    headings = ["steps", "first optimizer", "studies", "optimizers", "N", "K", "covers", "width", "bootstrap"]
    with ProcessPoolExecutor() as pool:
        rows = list(pool.map(cell, *zip(*cells, strict=True)))
    print(table([[*headings, "ranks"], *rows]))


if __name__ == "__main__":
    main()
