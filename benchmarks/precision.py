"""Compare the final errors of trials trained in different precisions, at the same points and seeds.

    python benchmarks/precision.py [STUDY] [--optimizer adam] [--pool 32] [--steps 3000] [--precisions tf32,bfloat16]

STUDY is a built-in study or a file, by default fashion_mini. Each precision trains the first --pool feasible points of
the optimizer's search. Points that are feasible in both are also compared pair by pair: the median difference to the
first precision, with its 90% confidence interval. The trials stay in --store, so that an interrupted run continues.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from aligned import table
from data_sets import prepare

import levelfield as lf
from levelfield.executors import get_executor
from levelfield.reading import read_pools
from levelfield.run import run
from levelfield.store import Store


def finals(study: lf.Study, optimizer: str, store: Store, slots: int | None) -> tuple[dict[int, float], float]:
    """Train what is missing; return the final values by point, and the seconds that this took."""
    begun = time.perf_counter()
    executor = get_executor("local", slots)
    executor.check(study)
    if shortage := run(study, store, executor):
        raise shortage
    seconds = time.perf_counter() - begun
    trials = read_pools(study, store).outcomes[optimizer].pool
    return {trial.point.index: trial.curve.final(study.select) for trial in trials}, seconds


def difference(ours: dict[int, float], reference: dict[int, float]) -> str:
    """Return the median difference over the points of both, with its 90% confidence interval."""
    common = sorted(ours.keys() & reference.keys())
    middle = lf.interval([ours[index] - reference[index] for index in common], k=1)
    return f"{middle.median:+.2g} ({middle.low:+.2g} to {middle.high:+.2g}; {len(common)} pairs)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", default="fashion_mini")
    parser.add_argument("--optimizer", help="default: the study's last")
    parser.add_argument("--pool", type=int, default=32, help="feasible trials in each precision")
    parser.add_argument("--steps", type=int, help="default: the study's")
    parser.add_argument("--precisions", default="tf32,bfloat16", help="comma-separated; the first is the reference")
    parser.add_argument("--slots", type=int, help="default: measured")
    parser.add_argument("--store", type=Path, default=Path("precision.db"))
    arguments = parser.parse_args()
    full = lf.load_study(arguments.study)
    optimizer = arguments.optimizer or list(full.optimizers)[-1]
    study = full.only([optimizer]).replace(steps=arguments.steps, pool=arguments.pool, trials=1)
    prepare([study.workload], random=False)
    print(f"{study.workload}, {optimizer}, {study.steps} steps, {study.pool} feasible trials in each precision")
    values: dict[str, dict[int, float]] = {}
    rows = [["precision", f"median {study.select}", "its 90% interval", "median difference", "seconds"]]
    with Store.open(arguments.store) as store:
        for precision in arguments.precisions.split(","):
            values[precision], seconds = finals(study.replace(precision=precision), optimizer, store, arguments.slots)
            found = list(values[precision].values())
            middle = lf.interval(found, k=1)
            reference = next(iter(values.values()))
            paired = difference(values[precision], reference) if len(values) > 1 else "–"
            interval = f"{middle.low:.4g} to {middle.high:.4g}"
            rows.append([precision, f"{middle.median:.4g}", interval, paired, f"{seconds:.0f}"])
            print(", ".join(rows[-1]), flush=True)
    print(table(rows))
    pools = {precision: list(found.values()) for precision, found in values.items()}
    print("separated:", lf.separated(pools, k=1) or "none")


if __name__ == "__main__":
    main()
