"""Coverage, before any training: how much of a special optimizer's space the general one's can express.

A quasi-random sample of the special space goes through the witness. A point is covered if the general space holds
its image, and, for a limit, holds it with a limit parameter at which the general rule really follows: over random
gradients of the workload's size it must stay within a tenth of the way the special rule goes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from levelfield.errors import UsageError
from levelfield.formatting import format_number
from levelfield.space import Choice, Hyperparameters, Log, Space
from levelfield.study import Study
from levelfield.taxonomy.inclusions import Inclusion
from levelfield.taxonomy.order import (
    Edge,
    Missing,
    bearing,
    carried,
    inclusions,
    missing,
    needed,
    overshoot,
    sample,
    translated,
)

TOLERANCE = 0.1
POINTS = 128
_STEPS, _PARAMETERS = 40, 4
_FAR = 1e3  # lengths of a range
# Where a limit parameter is looked for, besides the general space's range.
_LIMITS = [digit * 10.0**power for power in range(-20, 21) for digit in (1, 3)]


@dataclass(frozen=True)
class Shortfall:
    """An axis whose range is too short: what it has and what it would need."""

    key: str
    low: float
    high: float
    needs_low: float
    needs_high: float

    def __str__(self) -> str:
        said = []
        if self.needs_high > self.high:
            said.append(f"{self.key} ≤ {format_number(self.high)} would have to reach {format_number(self.needs_high)}")
        if self.needs_low < self.low:
            said.append(f"{self.key} ≥ {format_number(self.low)} would have to reach {format_number(self.needs_low)}")
        return " and ".join(said)


@dataclass(frozen=True)
class Coverage:
    """How much of the special optimizer's space the general one's covers, and what is short."""

    edge: Edge
    share: float
    short: tuple[Shortfall, ...] = ()
    lacking: tuple[str, ...] = ()  # axes that lack a value which no longer range would bring

    @property
    def whole(self) -> bool:
        return self.share > 0.995

    @property
    def why(self) -> str:
        """What is short, and what it would take."""
        return "; ".join([*map(str, self.short), *(f"{key} lacks a value" for key in self.lacking)])

    def as_dict(self) -> dict[str, Any]:
        about = {"special": self.edge.special, "general": self.edge.general, "share": self.share}
        how = [way.how for way in self.edge.ways]
        return about | {"how": how, "short": [asdict(each) for each in self.short], "lacking": list(self.lacking)}

    def __str__(self) -> str:
        special, general = self.edge.special, self.edge.general
        if self.whole:
            return f"{general}'s space covers {special}'s"
        reach = f"covers {self.share:.0%} of {special}'s" if self.share else f"cannot express {special} here"
        return f"{general}'s space {reach}{': ' if self.why else ''}{self.why}"


def edge_coverage(study: Study, edge: Edge, gradient_scale: float) -> Coverage:
    """How much of the special optimizer's space the general one's covers, by any of the ways."""
    points = sample(study.optimizer(edge.special).space, POINTS)
    tried = [_Images(study, edge, way, points, gradient_scale) for way in edge.ways]
    covered = np.any([each.covered for each in tried], axis=0)
    best = min(tried, key=lambda each: (-each.covered.mean(), each.distance))
    return Coverage(edge, float(covered.mean()), *best.shortfalls())


class _Images:
    """The images of points of the special space by one witness, and where they lie in the general space."""

    def __init__(
        self, study: Study, edge: Edge, way: Inclusion, points: Sequence[Hyperparameters], scale: float
    ) -> None:
        theirs = study.optimizer(edge.general)
        opens = _opens(way, theirs.space)
        values = translated(study, edge.special, edge.general, way, points, opens)
        self.axes = bearing(theirs, values)
        shape = (len(points), *(len(value) for value in opens.values() if np.ndim(value)))  # × limit parameters
        places = [needed(values, one, shape) for one in self.axes]
        beyond = [[overshoot(one, at) for at in each] for one, each in zip(self.axes, places, strict=True)]
        # What no range would hold counts as far, but not so far as to hide all else.
        far = np.minimum(beyond, _FAR).sum(0).reshape(len(points), -1)
        self.covered = far.min(1) == 0
        if way.limit:
            follows = _follows(study, edge, way, points, opens, scale)
            self.covered = np.any((far == 0) & follows, axis=1)
            follows[~follows.any(1), -1 if way.towards else 0] = True  # where nothing does, as far as was looked
            far = np.where(follows, far, np.inf)
        self.distance = far.min(1).sum()
        # Of each point's images, the one that needs the least beyond the ranges.
        chosen = np.arange(len(points)) * far.shape[1] + far.argmin(1)
        self.places = [[each[i] for i in chosen] for each in places]
        self.beyond = [[each[i] for i in chosen] for each in beyond]

    def shortfalls(self) -> tuple[tuple[Shortfall, ...], tuple[str, ...]]:
        """The axes that are too short, and those that lack a value which no longer range would bring."""
        short, lacking = [], []
        for one, places, beyond in zip(self.axes, self.places, self.beyond, strict=True):
            if not any(beyond):
                continue
            unknown = None in places or not all(map(math.isfinite, map(float, places)))
            if not one.dimension.free or isinstance(one.dimension, Choice) or unknown:
                lacking.append(one.key)
                continue
            ends = [float(end) for end in one.dimension.ends]
            found = np.array(places, float)
            low, high = min(ends[0], found.min()), max(ends[1], found.max())
            rounded = _round if isinstance(one.dimension, Log) else _two_digits
            low = rounded(low, up=False) if low < ends[0] else low
            high = rounded(high, up=True) if high > ends[1] else high
            if low == 0 and isinstance(one.dimension, Log):
                lacking.append(one.key)  # no log range reaches 0
            else:
                short.append(Shortfall(one.key, ends[0], ends[1], float(low), float(high)))
        return tuple(short), tuple(lacking)


def _opens(way: Inclusion, space: Space) -> dict[str, Any]:
    """What the witness leaves open: as close to its default as the space allows; for the limit, all there is."""
    by_name = {one.name: one for one in space}
    opens: dict[str, Any] = {}
    for name, default in way.open.items():
        one = by_name.get(carried(way, name))
        # What a ratio allows depends on its divisor.
        known = one if one and not one.divisor else None
        within = [known.hyperparameter(known.dimension.value(u), {}) for u in np.linspace(0, 1, 9)] if known else []
        if name == way.limit:
            opens[name] = np.unique([*_LIMITS, *map(float, within)])
        else:
            # A number of numpy's: dividing by zero makes it infinite, not an error.
            opens[name] = np.float64(min(map(float, within), key=lambda value: abs(value - default), default=default))
    return opens


def _round(value: float, up: bool) -> float:
    """The next 1 or 3 times a power of ten in a direction: the steps in which people choose ranges."""
    if value <= 0 or not math.isfinite(value):
        return value
    decade = math.floor(math.log10(value))
    steps = [digit * 10.0**power for power in (decade - 1, decade, decade + 1) for digit in (1, 3)]
    close = 1 + 1e-9
    return min(s for s in steps if s * close >= value) if up else max(s for s in steps if s <= value * close)


def _two_digits(value: float, up: bool) -> float:
    """Rounded to two digits, in a direction."""
    if value == 0 or not math.isfinite(value):
        return value
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return (math.ceil(value / step - 1e-9) if up else math.floor(value / step + 1e-9)) * step


def _follows(
    study: Study,
    edge: Edge,
    way: Inclusion,
    points: Sequence[Hyperparameters],
    opens: Mapping[str, Any],
    scale: float,
) -> np.ndarray:
    """Whether the general rule follows the special one (points × limit parameters) over gradients of this size."""
    from levelfield.training.following import deviations

    special, general = (study.optimizer(name).rule for name in (edge.special, edge.general))
    own = [{name: value for name, value in each.items() if name in special.hyperparameters} for each in points]
    # Entries of this size, weighted by their share of the squared norm: a normal one's root mean square is less.
    gradients = scale / math.sqrt(3) * np.random.default_rng(0).normal(size=(len(points), _STEPS, _PARAMETERS))
    assert way.limit
    chosen = [{**opens, way.limit: value} for value in opens[way.limit]]
    with np.errstate(all="ignore"):
        return deviations(special, general, way.image, own, chosen, gradients) <= TOLERANCE


def gradient_scale(study: Study) -> float:
    """The size of the gradients' entries where the study's training starts, measured on its workload."""
    from levelfield.executors.local import job
    from levelfield.search import Search
    from levelfield.training.gradients import gradient_scale

    first = next(iter(study.optimizers))
    return gradient_scale(job(study, first), Search(study, first).point(0).hyperparameters)


@dataclass(frozen=True)
class StudyCoverage:
    """What a study's search spaces can express, before any training."""

    covered: tuple[Coverage, ...]
    missing: tuple[Missing, ...]
    gradient_scale: float | None  # None where no limit had to be judged

    def lines(self) -> Iterator[str]:
        if self.covered or self.missing:
            yield "  inclusions  how much of the special optimizer's space the general one's can express"
        if self.covered and self.gradient_scale is not None:
            yield f"              (entries of a gradient at the start: about {format_number(self.gradient_scale)})"
        pairs = [f"{each.edge.special} ⊆ {each.edge.general}" for each in self.covered]
        width = max(map(len, pairs), default=0)
        for pair, each in zip(pairs, self.covered, strict=True):
            why = "" if each.whole else f"  {each.why}" if each.share else f"  cannot express it here: {each.why}"
            yield f"    {pair:<{width}} {each.share:>5.0%}{why}"
        for gap in self.missing:
            yield f"    {gap.special} ⊄ {gap.general}: {gap.reason}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "gradient_scale": self.gradient_scale,
            "inclusions": [each.as_dict() for each in self.covered],
            "not_included": [asdict(each) for each in self.missing],
        }


def coverage(study: Study, scale: float | None = None) -> StudyCoverage:
    """The coverage of every inclusion of a study. ``scale`` is the size of the gradients' entries; measured if not
    given."""
    if scale is not None and not 0 < scale < math.inf:
        raise UsageError(f"gradient scale {scale:g}: give the positive size of a gradient's entries")
    found = inclusions(study)
    if scale is None and any(way.limit for edge in found for way in edge.ways):
        scale = gradient_scale(study)
    return StudyCoverage(
        tuple(edge_coverage(study, edge, scale or 0.0) for edge in found), tuple(missing(study)), scale
    )
