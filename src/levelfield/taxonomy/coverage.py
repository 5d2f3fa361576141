"""Coverage, before any training: how much of a special optimizer's space the general one's can express.

A quasi-random sample of the special space goes through the witness. A point is covered if the general space holds its
image and, for a limit, holds it with a limit parameter at which the general rule really follows: over random gradients
of the workload's size, it must stay within a tenth of the distance that the special rule goes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from levelfield.formatting import MISSING, format_number, format_percent
from levelfield.rounding import half_decade
from levelfield.rules import Rule
from levelfield.space import Choice, Hyperparameters, Log, Space
from levelfield.study import Study
from levelfield.taxonomy.inclusions import Inclusion
from levelfield.taxonomy.order import (
    Edge,
    Missing,
    Places,
    column,
    inclusions,
    missing,
    places_on,
    relevant_axes,
    sample,
    translated,
)
from levelfield.taxonomy.trajectories import deviation, trajectory

TOLERANCE = 0.1
POINTS = 128
_STEPS, _PARAMETERS = 40, 4
_FAR = 1e3  # lengths of a range
# Limit parameters to try, in addition to values of the general space's range.
_LIMITS = [digit * 10.0**power for power in range(-20, 21) for digit in (1, 3)]
_CLOSE_TO_1 = [1 - digit * 10.0**-power for power in range(1, 13) for digit in (1, 3)]


@dataclass(frozen=True)
class Shortfall:
    """An axis whose range is too short: the range that it has and the one that it needs."""

    key: str
    low: float
    high: float
    needs_low: float
    needs_high: float

    def __str__(self) -> str:
        ends = []
        if self.needs_low < self.low:
            ends.append(f"{format_number(self.needs_low)} (now ≥ {format_number(self.low)})")
        if self.needs_high > self.high:
            ends.append(f"{format_number(self.needs_high)} (now ≤ {format_number(self.high)})")
        return f"{self.key} must reach {' and '.join(ends)}"


@dataclass(frozen=True)
class Coverage:
    """How much of the special optimizer's space the general one's covers, and which ranges are too short."""

    edge: Edge
    share: float | None  # None: not evaluated
    short: tuple[Shortfall, ...] = ()
    lacking: tuple[str, ...] = ()  # axes that lack a value that no longer range would add
    obstacle: str = ""  # why it was not evaluated

    @property
    def evaluated(self) -> bool:
        return self.share is not None

    @property
    def whole(self) -> bool:
        return self.share is not None and self.share > 0.995

    @property
    def text(self) -> str:
        """The share as a percentage."""
        return "unknown" if self.share is None else format_percent(self.share)

    @property
    def why(self) -> str:
        """What is missing, or why the coverage was not evaluated."""
        if not self.evaluated:
            return f"not evaluated: {self.obstacle}"
        return "; ".join([*map(str, self.short), *(f"{key} lacks the needed value" for key in self.lacking)])

    def as_dict(self) -> dict[str, Any]:
        pair = {"special": self.edge.special, "general": self.edge.general, "share": self.share}
        ways = {"how": [way.how for way in self.edge.ways]}
        missing = {"short": [asdict(shortfall) for shortfall in self.short], "lacking": list(self.lacking)}
        return pair | ways | missing | ({} if self.evaluated else {"obstacle": self.obstacle})

    def __str__(self) -> str:
        special, general = self.edge.special, self.edge.general
        if not self.evaluated:
            return f"whether {general}'s space covers {special}'s was {self.why}"
        if self.whole:
            return f"{general}'s space covers {special}'s"
        reach = f"covers {self.text} of {special}'s" if self.share else f"cannot express {special}"
        return f"{general}'s space {reach}{': ' if self.why else ''}{self.why}"


def edge_coverage(study: Study, edge: Edge, gradient_scale: float | None, *, use_jax: bool = False) -> Coverage:
    """Return how much of the special optimizer's space the general one's covers, by any of the ways.

    A limit cannot be judged without the size of the gradients, nor, unless JAX may be loaded (``use_jax``), for rules
    whose equations levelfield does not have. If that leaves the coverage open, it is not evaluated.
    """
    points = sample(study.optimizer(edge.special).space, POINTS)
    obstacles = {way: _obstacle(study, edge, way, gradient_scale, use_jax) for way in edge.ways}
    images = [_Images(study, edge, way, points, gradient_scale) for way in edge.ways if not obstacles[way]]
    covered = np.any([image.covered for image in images], axis=0) if images else np.zeros(len(points), bool)
    if any(obstacles.values()) and not covered.all():
        return Coverage(edge, None, obstacle=next(filter(None, obstacles.values())))
    best = min(images, key=lambda image: (-image.covered.mean(), image.distance))
    return Coverage(edge, float(covered.mean()), *best.shortfalls())


def _obstacle(study: Study, edge: Edge, way: Inclusion, gradient_scale: float | None, use_jax: bool) -> str:
    """Return what keeps a way from being judged, or an empty string."""
    if not way.limit:
        return ""
    if gradient_scale is None or not 0 < gradient_scale < math.inf:
        return "the size of the gradients is unknown"
    rules = [study.optimizer(name).rule for name in (edge.general, edge.special)]
    foreign = [rule.name for rule in rules if not rule.equations]
    return f"{foreign[0]} can only be run with JAX" if foreign and not use_jax else ""


class _Images:
    """The images of points of the special space by one witness, and where they lie in the general space."""

    def __init__(
        self, study: Study, edge: Edge, way: Inclusion, points: Sequence[Hyperparameters], scale: float | None
    ) -> None:
        general = study.optimizer(edge.general)
        opens = _opens(way, general.space)
        values = translated(study, edge.special, edge.general, way, points, opens)
        shape = (len(points), *(len(value) for value in opens.values() if np.ndim(value)))  # × limit parameters
        all_places = [places_on(axis, values, shape) for axis in relevant_axes(general, values)]
        # What no range would hold counts as far, but not so far that it hides everything else.
        far = np.sum([np.minimum(places.beyond, _FAR) for places in all_places], axis=0).reshape(len(points), -1)
        self.covered = far.min(1) == 0
        if way.limit:
            assert scale is not None
            special = study.optimizer(edge.special)
            follows = _follows(special.rule, general.rule, way, points, opens, scale)
            self.covered = np.any((far == 0) & follows, axis=1)
            follows[~follows.any(1), -1 if way.towards > 0 else 0] = True  # if no value follows, the most extreme one
            far = np.where(follows, far, np.inf)
        self.distance = far.min(1).sum()
        # Of each point's images, the one that needs the least beyond the ranges.
        chosen = np.arange(len(points)) * far.shape[1] + far.argmin(1)
        self.places = [
            Places(places.axis, places.coordinates.ravel()[chosen], places.beyond.ravel()[chosen])
            for places in all_places
        ]

    def shortfalls(self) -> tuple[tuple[Shortfall, ...], tuple[str, ...]]:
        """Return the axes that are too short, and those that lack a value that no longer range would add."""
        short, lacking = [], []
        for places in self.places:
            if not places.beyond.any():
                continue
            axis, coordinates = places.axis, places.coordinates.tolist()
            unknown = None in coordinates or not all(map(math.isfinite, map(float, coordinates)))
            if not axis.dimension.free or isinstance(axis.dimension, Choice) or unknown:
                lacking.append(axis.key)
                continue
            ends = [float(end) for end in axis.dimension.ends]
            low, high = min(ends[0], *map(float, coordinates)), max(ends[1], *map(float, coordinates))
            rounded = _round_log if isinstance(axis.dimension, Log) else _round_to_two_digits
            low = rounded(low, up=False) if low < ends[0] else low
            high = rounded(high, up=True) if high > ends[1] else high
            if low == 0 and isinstance(axis.dimension, Log):
                lacking.append(axis.key)  # no log range reaches 0
            else:
                short.append(Shortfall(axis.key, ends[0], ends[1], low, high))
        return tuple(short), tuple(lacking)


def _opens(way: Inclusion, space: Space) -> dict[str, Any]:
    """Return values for what the witness leaves open: the closest to its default that the space allows.

    For the limit, return all values that are to be tried.
    """
    axes = {axis.name: axis for axis in space}
    opens: dict[str, Any] = {}
    for name, default in way.open.items():
        axis = axes.get(way.carried(name))
        values: list[float] = []
        if axis and not axis.divisor:  # the values that a ratio allows depend on its divisor
            units = np.linspace(0, 1, 9)
            values = [float(axis.hyperparameter(axis.dimension.value(unit), {})) for unit in units]
        if name == way.limit:
            opens[name] = np.unique([*_limits(way.towards), *values])
        else:
            # A numpy number: dividing by zero makes it infinite instead of raising an error.
            opens[name] = np.float64(min(values, key=lambda value: abs(value - default), default=default))
    return opens


def _limits(towards: float) -> list[float]:
    """Return limit parameters to try on the way to a limit."""
    if towards == 1:
        return _CLOSE_TO_1
    return [-value for value in _LIMITS] if towards < 0 else _LIMITS


def _round_log(value: float, up: bool) -> float:
    """Round to 1 or 3 times a power of ten in a direction."""
    return half_decade(math.log10(value), up) if 0 < value < math.inf else value


def _round_to_two_digits(value: float, up: bool) -> float:
    """Round to two significant digits in a direction."""
    if value == 0 or not math.isfinite(value):
        return value
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return (math.ceil(value / step - 1e-9) if up else math.floor(value / step + 1e-9)) * step


def _follows(
    special: Rule,
    general: Rule,
    way: Inclusion,
    points: Sequence[Hyperparameters],
    opens: Mapping[str, Any],
    scale: float,
) -> np.ndarray:
    """Return whether the general rule follows the special one over such gradients (points × limit parameters)."""
    assert way.limit
    # The scale weights entries by their share of the squared norm; the root mean square of normal entries is less.
    gradients = scale / math.sqrt(3) * np.random.default_rng(0).normal(size=(len(points), _STEPS, _PARAMETERS))
    values = [{name: point[name] for name in point if name in special.hyperparameters} for point in points]
    with np.errstate(all="ignore"):
        if special.equations and general.equations:
            columns = {name: column([point[name] for point in values], (-1, 1)) for name in values[0]}
            steps_first = np.moveaxis(gradients, 0, -1)[..., None]  # × parameters × points × limit parameters
            expected = trajectory(special.equations, columns, steps_first)
            deviations = deviation(trajectory(general.equations, way.image(columns, opens), steps_first), expected)
        else:
            from levelfield.training import following

            chosen = [{**opens, way.limit: value} for value in opens[way.limit]]
            deviations = following.deviations(special, general, way.image, values, chosen, gradients)
        follows: np.ndarray = deviations <= TOLERANCE
        return follows


@dataclass(frozen=True)
class StudyCoverage:
    """What a study's search spaces can express, before any training."""

    covered: tuple[Coverage, ...]
    missing: tuple[Missing, ...]
    gradient_scale: float | None  # None if no limit had to be judged, or if it is unknown

    def lines(self) -> Iterator[str]:
        """Yield what is known of each inclusion."""
        pairs = [f"{coverage.edge.special} ⊆ {coverage.edge.general}" for coverage in self.covered]
        width = max(map(len, pairs), default=0)
        for pair, coverage in zip(pairs, self.covered, strict=True):
            share = f"{coverage.text if coverage.evaluated else MISSING:>5}"
            nothing = "cannot express it: " if coverage.share == 0 else ""
            yield f"{pair:<{width}} {share}" + ("" if coverage.whole else f"  {nothing}{coverage.why}")
        for gap in self.missing:
            yield f"{gap.special} ⊄ {gap.general}: {gap.reason}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "gradient_scale": self.gradient_scale,
            "inclusions": [coverage.as_dict() for coverage in self.covered],
            "not_included": [asdict(gap) for gap in self.missing],
        }


def study_coverage(study: Study, gradient_scale: float | None, *, use_jax: bool = False) -> StudyCoverage:
    """Return the coverage of every inclusion of a study, as ``edge_coverage`` does for one."""
    covered = [edge_coverage(study, edge, gradient_scale, use_jax=use_jax) for edge in inclusions(study)]
    return StudyCoverage(tuple(covered), tuple(missing(study)), gradient_scale)
