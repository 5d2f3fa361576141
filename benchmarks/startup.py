"""How long the reading commands take, from process start to exit, and how much memory they need.

python benchmarks/startup.py [--runs 5]

Trains a small pool of fashion_mini in a temporary folder first. Each command then runs in a process of its own; the
table shows the median over the runs and the largest resident set.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aligned import table

SMALL = ["--pool", "6", "--trials", "3", "--steps", "40"]
COMMANDS = {
    "status": ["status", "fashion_mini", *SMALL],
    "studies": ["studies"],
    "workloads": ["workloads"],
    "data list": ["data", "list"],
    "plan": ["plan", "fashion_mini", *SMALL],
    "refine": ["refine", "fashion_mini", *SMALL, "--json", "-o", "new.toml"],
    "export": ["export", "fashion_mini", *SMALL],
    "report": ["report", "fashion_mini", *SMALL],
    "check": ["check", "fashion_mini"],
}


def measure(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Run a command; return its seconds and its peak memory in MB."""
    for file in folder.glob("new.toml"):
        file.unlink()
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "levelfield", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"levelfield {' '.join(arguments)} failed")
    return elapsed, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure(["run", "fashion_mini", *SMALL], folder)
        rows = [["command", "seconds", "MB"]]
        for command, arguments in COMMANDS.items():
            times, peaks = zip(*(measure(arguments, folder) for _ in range(runs)), strict=True)
            rows.append([command, f"{statistics.median(times):.2f}", f"{max(peaks):.0f}"])
    print(table(rows))


if __name__ == "__main__":
    main()
