"""Train fashion_mini's own pool for benchmarks/calibration.py: 400 feasible trials each of adam and momentum.

    python benchmarks/fashion_mini_pool.py

Writes the final validation error of each trial to benchmarks/data/fashion_mini.csv; NaN is an infeasible trial.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import levelfield as lf

FILE = Path(__file__).parent / "data" / "fashion_mini.csv"


def main() -> None:
    study = lf.load_study("fashion_mini").only(["adam", "momentum"]).replace(trials=80, pool=400)
    comparison = lf.compare(study, store="sqlite://")
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["optimizer", "trial", "valid_error"])
        for name, trials in comparison.trials.items():
            for trial in trials:
                error = trial.curve.final("valid_error") if trial.feasible else math.nan
                writer.writerow([name, trial.point.index, f"{error:.4f}"])
    for line in comparison.provenance:
        print(line)


if __name__ == "__main__":
    main()
