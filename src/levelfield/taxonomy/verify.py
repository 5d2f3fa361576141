"""Numerical verification: the general rule at the witness's hyperparameters, over random gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import qmc

from levelfield.errors import UsageError
from levelfield.rules import get_rule
from levelfield.study import Study
from levelfield.taxonomy.inclusions import TOWARDS, Inclusion, known_inclusions, registered_inclusions
from levelfield.taxonomy.order import inclusions

POINTS, STEPS = 16, 60
PARAMETERS = 2, 4  # a matrix, because some rules treat matrices in their own way
ROUNDING = 1e-10  # the error in float64 up to which an exact inclusion holds
CONVERGED = 1e-5  # the error that a limit must reach,
LEAST_ORDER = 0.5  # and the order of convergence that it must have at least
_FLOAT64_FLOOR, _FAR = 1e-11, 0.1  # errors between these show the order of convergence
_DECADES = np.arange(0.0, 13.0)
_LAST = 4  # decades that determine the order: a limit that stops short of its aim falls well before


@dataclass(frozen=True)
class Verification:
    """The result of testing an inclusion. Errors are the largest ones, relative to how far the special rule goes."""

    inclusion: Inclusion
    error: float  # in float64; for a limit, the smallest on the way to it
    # For a limit: the error falls as (distance from the limit)^order, or as value^−order if the limit is infinite.
    order: float | None = None
    path: tuple[tuple[float, float], ...] = ()  # for a limit: (limit parameter, error in float64)
    single_stops: float | None = None  # for a limit: where float32 stops improving,
    single_error: float | None = None  # and its error there

    @property
    def holds(self) -> bool:
        if self.inclusion.exact or self.reached:
            return self.error <= ROUNDING
        return self.error <= CONVERGED and self.order is not None and self.order >= LEAST_ORDER

    @property
    def reached(self) -> bool:
        """Whether the limit is reached at a finite value, beyond which the general rule follows exactly."""
        return bool(self.path) and all(error <= ROUNDING for _, error in self.path[-_LAST:])

    def as_dict(self) -> dict[str, Any]:
        inclusion = self.inclusion
        claim: dict[str, Any] = {"special": inclusion.special, "general": inclusion.general}
        claim |= {"limit": inclusion.limit, "equations": inclusion.equations}
        if inclusion.limit:
            claim |= {"towards": TOWARDS[inclusion.towards].replace("∞", "infinity")}
        numbers = {name: value for name, value in asdict(self).items() if name != "inclusion"}
        return claim | {"schedules": inclusion.lifts, "verified": self.holds} | numbers


def verify(inclusion: Inclusion, seed: int = 0) -> Verification:
    """Test whether the general rule follows the special one over random hyperparameters and gradients.

    If the inclusion claims to hold under any schedule, the learning rate varies at random, too.
    """
    from levelfield.training.following import deviations  # loads JAX

    generator = np.random.default_rng(seed)
    scales = 10 ** generator.uniform(-1, 1, size=(POINTS, 1, *PARAMETERS))
    gradients = scales * generator.normal(size=(POINTS, STEPS, *PARAMETERS))
    rates = generator.uniform(0.5, 1.5, STEPS) if inclusion.lifts else None
    space = inclusion.space
    cube = qmc.Sobol(len(space.free), rng=seed).random(POINTS) if space.free else np.empty((POINTS, 0))
    points = [space.hyperparameters(unit) | dict(inclusion.where) for unit in cube]
    limits = np.array([inclusion.near_limit(decade) for decade in _DECADES])
    opens = [inclusion.open | {inclusion.limit: limit} for limit in limits] if inclusion.limit else [inclusion.open]
    rules = get_rule(inclusion.special), get_rule(inclusion.general)
    if inclusion.lifts and (error := _declaration_error(inclusion, points[:4])) > ROUNDING:
        return Verification(inclusion, error)

    def errors(single: bool) -> np.ndarray:
        relative = deviations(*rules, inclusion.image, points, opens, gradients, rates, single=single)
        worst: np.ndarray = np.where(np.isnan(relative), np.inf, relative).max(0)
        return worst

    if not inclusion.limit:
        return Verification(inclusion, float(errors(single=False)[0]))
    double, single = errors(single=False), errors(single=True)
    stops = int(np.argmax(single <= 2 * single.min()))
    return Verification(
        inclusion,
        float(double.min()),
        _order(double),
        tuple(zip(limits.tolist(), double.tolist(), strict=True)),
        float(limits[stops]),
        float(single.min()),
    )


def _declaration_error(inclusion: Inclusion, points: Sequence[Mapping[str, Any]]) -> float:
    """Return how much values vary, relative to their size, that are declared constant at a constant learning rate.

    A constant rate must have the same image as a function of the step that is constant.
    """
    largest = 0.0
    for point in points:
        if "learning_rate" not in point:
            continue
        rate = point["learning_rate"]
        at_number = inclusion.image(point)
        at_function = inclusion.image({**point, "learning_rate": lambda step, rate=rate: rate})
        for name, value in at_function.items():
            if callable(value) and not callable(at_number[name]):
                values = np.array([value(step) for step in range(STEPS)], float)
                error = np.abs(values - at_number[name]).max() / max(np.abs(values).max(), 1e-300)
                largest = max(largest, float(error))
    return largest


def _order(errors: np.ndarray) -> float | None:
    """Return the decades by which the error falls per decade of the limit parameter, as far along as it can be seen."""
    usable = np.flatnonzero((errors < _FAR) & (errors > _FLOAT64_FLOOR))[-_LAST:]
    if len(usable) < 2:
        return None
    return float(-np.polyfit(_DECADES[usable], np.log10(errors[usable]), 1)[0])


def check_registered(study: Study) -> None:
    """Raise if an inclusion that a user registered and that the study relies on does not hold.

    levelfield's own inclusions are verified by its tests.
    """
    used = {witness for edge in inclusions(study) for way in edge.ways for witness in way.witnesses}
    for inclusion in registered_inclusions():
        if used.isdisjoint(inclusion.witnesses):
            continue
        verification = verify(inclusion)
        if not verification.holds:
            raise UsageError(
                f"{inclusion.special} ⊆ {inclusion.general}: verification failed "
                f"(relative error {verification.error:.2g}); the witness is wrong"
            )


def verify_all() -> Iterator[Verification]:
    """Verify all known inclusions, one at a time."""
    return map(verify, known_inclusions())
