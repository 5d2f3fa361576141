"""Hyperparameters: which values they can take, what is usual, and when a ladder of tuning protocols tunes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from levelfield.errors import SpaceError, UnknownName
from levelfield.space import Axis, Value

Kind = Literal["number", "integer", "switch", "text", "object", "any"]
_EXPECTED = {"number": "a number", "integer": "an integer", "switch": "true or false", "text": "a string"}

# The groups of hyperparameters, in the order in which a ladder of tuning protocols frees them; "" holds the rest.
GROUPS = ("learning rate", "schedule", "momentum", "epsilon", "")

CLOSEST_TO_1 = 1e-7  # trials train in float32, in which a value much closer to 1 is 1


@dataclass(frozen=True)
class Hyperparameter:
    """The values that a hyperparameter can take, and how it is usually set."""

    low: float = -math.inf
    high: float = math.inf
    required: bool = True
    open: bool = False  # low itself is excluded
    traced: bool = True  # can differ between trials; otherwise it is part of the compiled program
    kind: Kind = "number"  # an "object" can be passed in Python but not set in a study; "any" is not checked
    default: Any = None  # the value if it is not required and not given
    usual: float | None = None  # the common value when it is not tuned
    group: str = ""  # the group of GROUPS with which a ladder tunes it
    usual_range: tuple[float, float] | None = None  # lowest and highest value that people use
    unit: str = ""  # what the number counts, if that is not obvious

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UnknownName.of("kind of hyperparameter", str(self.kind), get_args(Kind))
        if self.group not in GROUPS:
            raise UnknownName.of("group of hyperparameters", str(self.group), filter(None, GROUPS))
        if self.usual_range is not None and not _is_range(self.usual_range):
            raise SpaceError(
                f"usual_range = {self.usual_range!r}: expected two finite numbers, (low, high), low < high"
            )

    def allows(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.open and value == self.low)

    @property
    def numeric(self) -> bool:
        return self.kind in ("number", "integer")

    @property
    def interval(self) -> str:
        return f"{'(' if self.open else '['}{self.low:g}, {self.high:.7g}]"


def _is_range(ends: Any) -> bool:
    """Return whether these are two finite numbers in ascending order."""
    if not isinstance(ends, tuple | list) or len(ends) != 2 or not all(isinstance(end, int | float) for end in ends):
        return False
    return bool(-math.inf < ends[0] < ends[1] < math.inf)


POSITIVE = Hyperparameter(low=0.0, open=True)
NOT_NEGATIVE = Hyperparameter(low=0.0)
FRACTION = Hyperparameter(low=0.0, high=1.0)


def check_hyperparameters(owner: str, hyperparameters: Any) -> None:
    """Raise unless ``hyperparameters`` maps names to Hyperparameter records."""
    if not isinstance(hyperparameters, Mapping):
        raise SpaceError(
            f"{owner}: hyperparameters = {hyperparameters!r}: expected a mapping from names to Hyperparameter"
        )
    for name, hyperparameter in hyperparameters.items():
        if not isinstance(hyperparameter, Hyperparameter):
            raise SpaceError(f"{owner}: {name} = {hyperparameter!r}: expected a Hyperparameter(low=…, high=…)")


def check_domain(axis: Axis, hyperparameter: Hyperparameter) -> None:
    """Raise if an axis of a search space reaches values that the hyperparameter cannot take."""
    if hyperparameter.kind == "any":
        return
    if hyperparameter.kind == "object":
        raise SpaceError(f"{axis.key} cannot be set in a study: it is not a number, a switch or a string; leave it out")
    if axis.one_minus:
        for end in axis.dimension.ends:
            if float(end) < CLOSEST_TO_1 * (1 - 1e-9):
                raise SpaceError(
                    f"{axis.key} reaches {end:g}: float32 cannot tell {axis.name} from 1 there; "
                    f"use at least {CLOSEST_TO_1:g}"
                )
    if axis.divisor and (hyperparameter.low not in (0.0, -math.inf) or hyperparameter.high != math.inf):
        raise SpaceError(
            f"{axis.key}: a ratio cannot keep {axis.name} in {hyperparameter.interval}; search {axis.name} itself"
        )
    # A divisor is positive, so a ratio has the sign of its hyperparameter.
    for end in axis.dimension.ends if axis.divisor else axis.extremes:
        _check_value(axis, hyperparameter, end)
    if axis.dimension.free and not hyperparameter.traced:
        raise SpaceError(f"{axis.key} cannot be searched over: it shapes the compiled program; fix it to a value")


def _check_value(axis: Axis, hyperparameter: Hyperparameter, value: Value) -> None:
    if isinstance(value, bool | str):
        if axis.dimension.free:
            raise SpaceError(f"{axis.key}: {value!r} cannot be searched over; define one optimizer for each value")
        fits = hyperparameter.kind == ("switch" if isinstance(value, bool) else "text")
    else:
        whole = hyperparameter.kind != "integer" or isinstance(value, int)
        fits = hyperparameter.numeric and (whole or axis.divisor is not None)
    if not fits:
        raise SpaceError(f"{axis.key} = {value!r}: expected {_EXPECTED[hyperparameter.kind]}")
    if not isinstance(value, bool | str) and not hyperparameter.allows(value):
        unit = f": it is {hyperparameter.unit}" if hyperparameter.unit else ""
        raise SpaceError(f"{axis.key} reaches {value:g}, outside {hyperparameter.interval}{unit}")
