"""Inclusions put to the test: the general rule at the witness's hyperparameters over random gradient histories."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import qmc

from levelfield.errors import UsageError
from levelfield.rules import get_rule
from levelfield.study import Study
from levelfield.taxonomy.inclusions import Inclusion, known_inclusions, registered_inclusions
from levelfield.taxonomy.order import inclusions
from levelfield.training.following import deviations

POINTS, STEPS, PARAMETERS = 16, 60, 8
ROUNDING = 1e-10  # an exact inclusion must hold to this in float64
CONVERGED = 1e-5  # and a limit must come this close,
LEAST_ORDER = 0.5  # at this order at least
_FLOAT64_FLOOR, _FAR = 1e-11, 0.1  # errors between them tell the order of convergence
_DECADES = np.arange(0.0, 13.0)
_LAST = 4  # decades that are looked at: a limit that stops short of its aim has fallen well before


@dataclass(frozen=True)
class Verification:
    """What the test of an inclusion found. Errors are the largest, relative to how far the special rule goes."""

    inclusion: Inclusion
    error: float  # in float64; of a limit, the smallest on the way to it
    order: float | None = None  # of a limit: the error falls as (limit parameter)^−order
    path: tuple[tuple[float, float], ...] = ()  # of a limit: (limit parameter, error in float64)
    single_stops: float | None = None  # of a limit: where float32 stops improving
    single_error: float | None = None  # and the error it is left with

    @property
    def holds(self) -> bool:
        if self.inclusion.exact or all(error <= ROUNDING for _, error in self.path):
            return self.error <= ROUNDING
        return self.error <= CONVERGED and self.order is not None and self.order >= LEAST_ORDER

    def as_dict(self) -> dict[str, Any]:
        way = self.inclusion
        about = {"special": way.special, "general": way.general, "limit": way.limit, "equations": way.equations}
        if way.limit:
            about |= {"towards": "infinity" if way.towards else "0"}
        found = {name: value for name, value in asdict(self).items() if name != "inclusion"}
        return about | {"schedules": way.lifts, "verified": self.holds} | found


def verify(inclusion: Inclusion, seed: int = 0) -> Verification:
    """Follow the special rule over random hyperparameters and gradients, under a learning rate that varies at random
    where the inclusion claims that it may."""
    generator = np.random.default_rng(seed)
    scales = 10 ** generator.uniform(-1, 1, size=(POINTS, 1, PARAMETERS))
    gradients = scales * generator.normal(size=(POINTS, STEPS, PARAMETERS))
    rates = generator.uniform(0.5, 1.5, STEPS) if inclusion.lifts else None
    space = inclusion.space
    cube = qmc.Sobol(len(space.free), rng=seed).random(POINTS) if space.free else np.empty((POINTS, 0))
    points = [space.hyperparameters(unit) | dict(inclusion.where) for unit in cube]
    values = 10 ** (_DECADES if inclusion.towards else -_DECADES)
    opens = [inclusion.open | ({inclusion.limit: value} if inclusion.limit else {}) for value in values]

    def errors(single: bool) -> np.ndarray:
        rules = get_rule(inclusion.special), get_rule(inclusion.general)
        chosen = opens if inclusion.limit else opens[:1]
        found = deviations(*rules, inclusion.image, points, chosen, gradients, rates, single=single)
        worst: np.ndarray = np.where(np.isnan(found), np.inf, found).max(0)
        return worst

    if not inclusion.limit:
        return Verification(inclusion, float(errors(single=False)[0]))
    double, single = errors(single=False), errors(single=True)
    stops = int(np.argmax(single <= 2 * single.min()))
    return Verification(
        inclusion,
        float(double.min()),
        _order(double),
        tuple(zip(values.tolist(), double.tolist(), strict=True)),
        float(values[stops]),
        float(single.min()),
    )


def _order(errors: np.ndarray) -> float | None:
    """Decades that the error falls by for each decade of the limit parameter, as far along as it can be seen."""
    seen = np.flatnonzero((errors < _FAR) & (errors > _FLOAT64_FLOOR))[-_LAST:]
    if len(seen) < 2:
        return None
    return float(-np.polyfit(_DECADES[seen], np.log10(errors[seen]), 1)[0])


def check_registered(study: Study) -> None:
    """Refuse inclusions of one's own that a study would go by and that do not hold; levelfield's are tested with it."""
    used = {witness for edge in inclusions(study) for way in edge.ways for witness in way.witnesses}
    for way in registered_inclusions():
        if used.isdisjoint(way.witnesses):
            continue
        found = verify(way)
        if not found.holds:
            raise UsageError(
                f"{way.special} ⊆ {way.general} is registered but does not hold: {way.general} goes elsewhere, by "
                f"{found.error:.2g} of the way that {way.special} goes; mend the witness"
            )


def verify_all() -> list[Verification]:
    """All known inclusions, each put to the test."""
    return [verify(each) for each in known_inclusions()]
