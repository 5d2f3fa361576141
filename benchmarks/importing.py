"""How long an import takes: 30,000 trials with curves of 50 points, from Parquet with one row per step.

python benchmarks/importing.py [--trials 30000] [--points 50]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars


def table(trials: int, points: int) -> polars.DataFrame:
    """Return random trials of three optimizers, one row per step."""
    random = np.random.default_rng(0)
    steps = np.tile(np.arange(1, points + 1) * 100, trials)
    rates, betas = 10 ** random.uniform(-5, 0, trials), 1 - 10 ** random.uniform(-4, 0, trials)
    loss = np.repeat(np.abs(np.log10(rates) + 2), points) + 1 / np.sqrt(steps) + random.normal(0, 0.01, trials * points)
    return polars.DataFrame(
        {
            "run": np.repeat(np.arange(trials), points),
            "optimizer": np.repeat(np.array(["adam", "sgd", "mine"])[np.arange(trials) % 3], points),
            "config/learning_rate": np.repeat(rates, points),
            "config/beta": np.repeat(betas, points),
            "seed": np.repeat(np.arange(trials), points),
            "step": steps,
            "train_loss": loss,
            "valid_error": loss + 0.1,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30_000)
    parser.add_argument("--points", type=int, default=50)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table(arguments.trials, arguments.points).write_parquet(Path(folder, "trials.parquet"))
        options = ["--infer", "--sampling", "random", "--map", "trial=run", "--map", "hyperparameters=config/*"]
        begun = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "levelfield", "import", "trials.parquet", *options], cwd=folder, check=True
        )
        seconds = time.perf_counter() - begun
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        size = sum(file.stat().st_size for file in Path(folder).rglob("*.db"))
        print(f"{arguments.trials:,} trials with {arguments.points} points: {seconds:.1f} s, {memory / 1e9:.2f} GB")
        print(f"the store has {size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
