"""Verdicts on search ranges, compared with the truth from other people's trials.

TaskSet (Metz et al. 2020) has 1,000 random trials of Adam for each task. A study that searched only one third of one
range would have had some of them. Its verdict on that range is compared with the trials in the other thirds.
"""

from __future__ import annotations

import itertools
import json
import lzma
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from levelfield.analysis.boundaries import judge_axes
from levelfield.analysis.intervals import Interval, interval
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.ranges import Place
from levelfield.hyperparameters import FRACTION, POSITIVE
from levelfield.space import Axis, parse_axis
from levelfield.trial import Curve, Direction, Point, Status, Trial

SIZES = ((5, 25), (10, 50), (20, 100))  # (K, N)
PARTS = 3
STEPS = 10_000
METRICS = {"train_loss": Direction.MINIMIZE, "valid_loss": Direction.MINIMIZE}
KEYS = (
    "learning_rate",
    "one_minus_beta1",
    "one_minus_beta2",
    "epsilon",
    "l1",
    "l2",
    "linear_decay",
    "exponential_decay",
)


def read_trials(file: Path) -> list[Trial]:
    """Return the trials whose losses stay finite."""
    with lzma.open(file, "rt") as stream:
        rows = json.load(stream)
    trials = []
    for index, row in enumerate(rows):
        values = {f"{split}_loss": np.array(row[split]["loss"], float) for split in ("train", "valid")}
        if all(np.isfinite(losses).all() for losses in values.values()):
            steps = np.linspace(0, STEPS, len(values["train_loss"]), dtype=int)
            trials.append(Trial(Point(index, row["hp"], 0), Status.FEASIBLE, Curve(steps, values)))
    return trials


def axes_of(trials: Sequence[Trial]) -> list[Axis]:
    """Return the space that the trials were drawn from, as far as they show it: all ranges are logarithmic."""
    axes = []
    for key in KEYS:
        axis = parse_axis(key, {"log": [1e-3, 1e0]})
        values = [float(axis.coordinate(trial.point.hyperparameters)) for trial in trials]
        axes.append(parse_axis(key, {"log": [min(values), max(values)]}))
    return axes


class Task:
    """All trials of a task, split into thirds along each axis."""

    def __init__(self, file: Path) -> None:
        self.trials = read_trials(file)
        self.axes = axes_of(self.trials)
        self.parts = [
            [[trial for trial in self.trials if third.holds(trial.point.hyperparameters)] for third in thirds(axis)]
            for axis in self.axes
        ]

    def verdict(self, axis: int, part: int, k: int, n: int, random: np.random.Generator) -> Place:
        """Return the verdict on an axis that was searched only in one part, from n random trials in it."""
        within = self.parts[axis][part]
        drawn = [within[i] for i in random.choice(len(within), n, replace=False)]
        axes = [thirds(own)[part] if i == axis else own for i, own in enumerate(self.axes)]
        domains = [FRACTION if own.one_minus else POSITIVE for own in axes]
        return judge_axes(Outcome("adam", drawn, n, METRICS, "valid_loss"), axes, domains, k)[axis].place

    def truth(self, axis: int, k: int) -> list[Interval]:
        """Return the median best of k of each part, with its interval."""
        return [interval([trial.curve.final("valid_loss") for trial in part], k) for part in self.parts[axis]]


def thirds(axis: Axis) -> list[Axis]:
    ends = [axis.dimension.value(i / PARTS) for i in range(PARTS + 1)]
    return [axis.narrowed(pair) for pair in itertools.pairwise(ends)]


def is_wrong(place: Place, part: int, truth: Sequence[Interval]) -> bool | None:
    """Return whether a verdict is clearly wrong; None if the trials cannot tell.

    It is wrong to leave a range as it is if another part is clearly better. A border is wrong if the part beyond it is
    clearly worse.
    """
    if place in (Place.LOWER, Place.UPPER):
        beyond = part + (1 if place is Place.UPPER else -1)
        return truth[beyond].median > truth[part].high if 0 <= beyond < PARTS else None
    return any(truth[part].median > other.high for other in truth)


def print_taskset(folder: Path, repetitions: int, seed: int) -> None:
    """Print how often each verdict was given, and how often it was wrong."""
    files = sorted(folder.glob("*.json.xz"))
    if not files:
        raise SystemExit(f"{folder}: no *.json.xz there; expected TaskSet's trials in the format of DPL")
    tasks, random = [Task(file) for file in files], np.random.default_rng(seed)
    counts: defaultdict[int, Counter[tuple[Place, bool | None]]] = defaultdict(Counter)
    for k, n in SIZES:
        for _ in range(repetitions):
            task = tasks[random.integers(len(tasks))]
            axis, part = int(random.integers(len(task.axes))), int(random.integers(PARTS))
            if len(task.parts[axis][part]) >= n:
                place = task.verdict(axis, part, k, n, random)
                counts[n][place, is_wrong(place, part, task.truth(axis, k))] += 1
    print(f"{len(tasks)} tasks, {repetitions} repetitions, seed {seed}; wrong / verdicts that can be checked (all)\n")
    print(f"| | {' | '.join(f'N = {n}, K = {k}' for k, n in SIZES)} |\n|---{'|---' * len(SIZES)}|")
    for place in Place:
        if any(seen is place for count in counts.values() for seen, _ in count):
            print(f"| {place} | {' | '.join(shown(counts[n], place) for _, n in SIZES)} |")


def shown(counts: Counter[tuple[Place, bool | None]], place: Place) -> str:
    wrong, right, unknown = (counts[place, answer] for answer in (True, False, None))
    return f"{wrong} / {wrong + right} ({wrong + right + unknown})"
