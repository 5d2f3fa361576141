"""Measure how long it takes to load and analyze a large study: pools of 5,000 trials, curves of 100 points.

    python benchmarks/analysis.py [--pool 5000] [--points 100]

Nothing is trained. The trials of fashion_mnist are synthetic: their curves fall to final values drawn from the same
distribution for every optimizer, and one trial in ten is infeasible. The store is a file in a temporary folder.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from aligned import table

import levelfield as lf
from levelfield.analysis.permutation import p_value
from levelfield.search import Search
from levelfield.trial import Curve, Status, Trial
from levelfield.workloads import get_workload

PROVENANCE = {"devices": 0, "device": "none", "backend": "none", "precision": "none", "versions": {}}
INFEASIBLE = 0.1  # share of the trials


def add_synthetic_trials(study: lf.Study, store: lf.Store) -> int:
    """Fill the store with synthetic trials and return how many there are."""
    metrics = get_workload(study.workload).metrics
    steps = np.arange(study.eval_interval, study.steps + 1, study.eval_interval)
    generator = np.random.default_rng(0)
    count = 0
    for name in study.optimizers:
        search, trials, feasible = Search(study, name), [], 0
        while feasible < study.pool:
            status = Status.INFEASIBLE if generator.random() < INFEASIBLE else Status.FEASIBLE
            final = generator.lognormal(size=(len(metrics), 1))
            values = final + np.exp(-5 * steps / study.steps) + 0.01 * generator.random((len(metrics), len(steps)))
            curve = Curve(steps, dict(zip(metrics, values, strict=True)))
            trials.append(Trial(search.point(len(trials)), status, curve))
            feasible += status is Status.FEASIBLE
        store.add(study.identity(name), study.definition(name), metrics, trials, PROVENANCE)
        count += len(trials)
    return count


def seconds(work: Callable[[], Any], times: int = 1) -> float:
    """Return the average seconds that a call takes."""
    start = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - start) / times


def win_rates(comparison: lf.Comparison) -> None:
    """Compute P(one beats the other) with its confidence interval for every two optimizers."""
    study = comparison.study
    for ours, theirs in itertools.combinations(study.optimizers, 2):
        lf.beats(comparison.outcome(ours).ranked(), comparison.outcome(theirs).ranked(), study.trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pool", type=int, default=5_000, help="feasible trials per optimizer")
    parser.add_argument("--points", type=int, default=100, help="points per curve")
    arguments = parser.parse_args()

    study = lf.load_study("fashion_mnist")
    study = study.replace(pool=arguments.pool, eval_interval=study.steps // arguments.points)
    with tempfile.TemporaryDirectory() as folder, lf.Store.open(Path(folder) / "trials.db") as store:
        trials = add_synthetic_trials(study, store)
        start = time.perf_counter()
        comparison = lf.Comparison.load(study, store)
        load_seconds = time.perf_counter() - start
    parts: dict[str, Callable[[], Any]] = {
        "rows": comparison.rows,
        "beats matrix": comparison.beats_matrix,
        "rank probabilities": comparison.rank_probabilities,
        "settles": comparison.settles,
        "pair tests": comparison.separated,
        "intervals": lambda: [comparison.interval(name) for name in study.optimizers],
        "win rates with intervals": lambda: win_rates(comparison),
        "audit": comparison.audit,
        "plan": comparison.plan,
    }
    part_seconds = {name: seconds(part) for name, part in parts.items()}
    total = load_seconds + sum(part_seconds.values())
    counts = len(study.optimizers), trials, arguments.points, len(get_workload(study.workload).metrics)
    print("{} optimizers, {:,} trials, curves of {} points, {} metrics".format(*counts), end="\n\n")
    timings = {"load": load_seconds, **part_seconds, "total": total}
    print(table([["", "seconds"], *([name, f"{value:.2f}"] for name, value in timings.items())]), end="\n\n")

    sgd, momentum = (comparison.outcome(name) for name in ("sgd", "momentum"))
    calls: dict[str, Callable[[], Any]] = {
        "outcome.best(k=100), first call": lambda: sgd.at().best(k=100),
        "outcome.best(k=100), second call": lambda: sgd.best(k=100),
        "at another step, first call": lambda: sgd.at(step=study.steps // 2).best(k=100),
    }
    timings = {name: seconds(call, times=20) for name, call in calls.items()}
    behind = momentum.ranked() + 1  # a lead that no permutation reaches, so the test runs to its end
    timings["p-value of a clear lead"] = seconds(lambda: p_value(sgd.ranked(), behind, 100))
    print(table([["call", "milliseconds"], *([name, f"{1000 * value:.1f}"] for name, value in timings.items())]))


if __name__ == "__main__":
    main()
