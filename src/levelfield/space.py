"""Search spaces: dimensions, transforms, and the unit cube they are searched in.

A space maps a point of the unit cube to hyperparameters and back. Its keys say what is searched:

    learning_rate                  the hyperparameter itself
    one_minus_beta1                1 − beta1, so that a log range resolves values close to 1
    learning_rate/epsilon          a ratio, which decouples the two (also learning_rate/sqrt(epsilon))
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from levelfield.errors import SpaceError

Value = float | int | bool | str
Hyperparameters = dict[str, Value]


class Dimension(Protocol):
    """One axis of a space: the unit interval to values, and back."""

    @property
    def free(self) -> bool: ...
    @property
    def ends(self) -> tuple[Value, ...]:
        """The values it lies between; all of them where they are listed."""
        ...

    @property
    def size(self) -> float:
        """How many values it has; infinite for a range."""
        ...

    def value(self, unit: float) -> Value: ...
    def unit(self, value: Value) -> float:
        """The unit coordinate; outside [0, 1] for a value outside the range, NaN where there is none."""
        ...

    def spec(self) -> Any:
        """The dimension as a study file writes it."""
        ...


@dataclass(frozen=True)
class Fixed:
    at: Value
    free = False

    @property
    def ends(self) -> tuple[Value, ...]:
        return (self.at,)

    @property
    def size(self) -> float:
        return 1

    def value(self, unit: float) -> Value:
        return self.at

    def unit(self, value: Value) -> float:
        return 0.5 if value == self.at else math.nan

    def spec(self) -> Value:
        return self.at


@dataclass(frozen=True)
class Uniform:
    low: float
    high: float
    free = True

    def __post_init__(self) -> None:
        _check_range("uniform", self.low, self.high)

    @property
    def ends(self) -> tuple[Value, ...]:
        return (self.low, self.high)

    @property
    def size(self) -> float:
        return math.inf

    def value(self, unit: float) -> float:
        return min(self.low + unit * (self.high - self.low), self.high)  # rounding must not leave the range

    def unit(self, value: Value) -> float:
        return (float(value) - self.low) / (self.high - self.low)

    def spec(self) -> dict[str, list[float]]:
        return {"uniform": [self.low, self.high]}


@dataclass(frozen=True)
class Log:
    low: float
    high: float
    free = True

    def __post_init__(self) -> None:
        if self.low <= 0:
            raise SpaceError(
                f"log = [{self.low:g}, {self.high:g}] starts at {self.low:g}: a log range must be positive"
            )
        _check_range("log", self.low, self.high)

    @property
    def ends(self) -> tuple[Value, ...]:
        return (self.low, self.high)

    @property
    def size(self) -> float:
        return math.inf

    def value(self, unit: float) -> float:
        # Interpolating the logarithms can leave the range by a rounding error.
        inside = math.exp(math.log(self.low) + unit * (math.log(self.high) - math.log(self.low)))
        return min(max(inside, self.low), self.high)

    def unit(self, value: Value) -> float:
        value = float(value)
        if value <= 0:
            return -math.inf
        return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))

    def spec(self) -> dict[str, list[float]]:
        return {"log": [self.low, self.high]}


@dataclass(frozen=True)
class Integer:
    """Every whole number from low to high, both included, equally likely."""

    low: int
    high: int
    free = True

    def __post_init__(self) -> None:
        if not (isinstance(self.low, int) and isinstance(self.high, int)):
            raise SpaceError(f"integer = [{self.low}, {self.high}] must hold whole numbers")
        _check_range("integer", self.low, self.high)

    @property
    def ends(self) -> tuple[Value, ...]:
        return (self.low, self.high)

    @property
    def size(self) -> float:
        return self.high - self.low + 1

    def value(self, unit: float) -> int:
        return min(self.low + math.floor(unit * (self.high - self.low + 1)), self.high)

    def unit(self, value: Value) -> float:
        return (float(value) - self.low + 0.5) / (self.high - self.low + 1)

    def spec(self) -> dict[str, list[int]]:
        return {"integer": [self.low, self.high]}


@dataclass(frozen=True)
class Choice:
    values: tuple[Value, ...]
    free = True

    def __post_init__(self) -> None:
        if not self.values:
            raise SpaceError("choice = [] is empty: list at least one value")
        if len(set(self.values)) != len(self.values):
            raise SpaceError(f"choice = {list(self.values)} lists a value twice")

    @property
    def ends(self) -> tuple[Value, ...]:
        return self.values

    @property
    def size(self) -> float:
        return len(self.values)

    def value(self, unit: float) -> Value:
        return self.values[min(math.floor(unit * len(self.values)), len(self.values) - 1)]

    def unit(self, value: Value) -> float:
        if value not in self.values:
            return math.nan
        return (self.values.index(value) + 0.5) / len(self.values)

    def spec(self) -> dict[str, list[Value]]:
        return {"choice": list(self.values)}


_ROUNDING = 1e-9
_KINDS = ("log", "uniform", "integer", "choice")


def dimension(spec: Any) -> Dimension:
    """A dimension from what a study file holds: a value, or a table with one kind.

    >>> round(dimension({"log": [1e-3, 1e-1]}).value(0.5), 9)
    0.01
    >>> dimension(0.9)
    Fixed(at=0.9)
    """
    if isinstance(spec, bool | str):
        return Fixed(spec)
    if isinstance(spec, int | float):
        if not _is_finite(spec):
            shown = spec if isinstance(spec, float) else "a whole number of that size"
            raise SpaceError(f"{shown} is no usable value: give a finite number")
        return Fixed(spec)
    if not isinstance(spec, Mapping) or len(spec) != 1 or next(iter(spec)) not in _KINDS:
        raise SpaceError(
            f"{_show(spec)} is no dimension: give a value or a table like {{ log = [1e-3, 1e-1] }} "
            f"({', '.join(_KINDS)})"
        )
    kind, content = next(iter(spec.items()))
    if not isinstance(content, Sequence) or isinstance(content, str):
        raise SpaceError(f"{kind} = {content!r} must be a list in brackets")
    if kind == "choice":
        if not all(isinstance(value, bool | int | float | str) for value in content):
            raise SpaceError(f"choice = {content} must list numbers, booleans or strings")
        if not all(isinstance(value, str) or _is_finite(value) for value in content):
            raise SpaceError(f"choice = {content} must list finite numbers")
        return Choice(tuple(content))
    if len(content) != 2 or not all(_is_number(bound) for bound in content):
        raise SpaceError(f"{kind} = {content} must be two numbers, [low, high], both finite")
    low, high = content
    if kind == "integer":
        return Integer(low, high)
    return (Log if kind == "log" else Uniform)(float(low), float(high))


@dataclass(frozen=True)
class Axis:
    """A key of a space, what it means, and its dimension."""

    key: str
    dimension: Dimension
    name: str
    one_minus: bool = False
    divisor: str | None = None
    root: bool = False

    @property
    def extremes(self) -> tuple[Value, ...]:
        """The values the hyperparameter lies between; none for a ratio, whose bounds are not its own."""
        return () if self.divisor else tuple(self.hyperparameter(end, {}) for end in self.dimension.ends)

    def hyperparameter(self, coordinate: Value, others: Mapping[str, Value]) -> Value:
        """The hyperparameter's value from the axis's coordinate (and its divisor's value)."""
        if self.one_minus:
            return 1.0 - float(coordinate)
        if self.divisor:
            return float(coordinate) * self._divisor(others)
        return coordinate

    def coordinate(self, hyperparameters: Mapping[str, Value]) -> Value:
        """The inverse of ``hyperparameter``."""
        value = hyperparameters[self.name]
        if (self.one_minus or self.divisor) and isinstance(self.dimension, Fixed | Choice):
            made = {self.hyperparameter(each, hyperparameters): each for each in self.dimension.ends}
            if value in made:  # found as it was made: the way back may round
                return made[value]
        if self.one_minus:
            return 1.0 - float(value)
        if self.divisor:
            found = float(value) / self._divisor(hyperparameters)
            return round(found) if isinstance(self.dimension, Integer) else found
        return value

    def holds(self, hyperparameters: Mapping[str, Value]) -> bool:
        """Whether these hyperparameters lie in the axis's range; rounding may push them over its end a little."""
        if isinstance(self.dimension, Fixed | Choice):  # compared as they were made: the way back may round
            made = (self.hyperparameter(each, hyperparameters) for each in self.dimension.ends)
            return hyperparameters[self.name] in made
        return -_ROUNDING <= self.dimension.unit(self.coordinate(hyperparameters)) <= 1 + _ROUNDING

    def narrowed(self, kept: Sequence[Any]) -> Axis:
        """The axis with a part of its range: (low, high), None for an end that stays; or the choices that stay."""
        if not self.dimension.free:
            raise SpaceError(f"{self.key} is fixed: there is nothing to narrow")
        if isinstance(kept, str) or not isinstance(kept, Collection):
            raise SpaceError(f"{self.key}: {kept!r} is no range: give (low, high), or the choices that stay in a list")
        if isinstance(self.dimension, Choice):
            for value in kept:
                if value not in self.dimension.values:
                    raise SpaceError(f"{self.key}: {value!r} is none of its choices {list(self.dimension.values)}")
            values = tuple(value for value in self.dimension.values if value in kept)
            if not values:
                raise SpaceError(f"{self.key}: keep at least one of its choices {list(self.dimension.values)}")
            return replace(self, dimension=Choice(values))
        first, last = (float(end) for end in self.dimension.ends)
        if len(kept) != 2:
            raise SpaceError(f"{self.key}: {kept!r} is no range: give (low, high), None for an end that stays")
        low, high = (end if given is None else float(given) for end, given in zip((first, last), kept, strict=True))
        low, high = max(low, first), min(high, last)
        whole = isinstance(self.dimension, Integer)
        if not low < high or (whole and not math.ceil(low) < math.floor(high)):
            raise SpaceError(f"{self.key}: {kept!r} keeps no range within [{first:g}, {last:g}]: give low < high")
        if whole:
            return replace(self, dimension=Integer(math.ceil(low), math.floor(high)))
        return replace(self, dimension=type(self.dimension)(low, high))  # type: ignore[call-arg]

    def _divisor(self, hyperparameters: Mapping[str, Value]) -> float:
        value = float(hyperparameters[self.divisor or ""])
        return math.sqrt(value) if self.root else value


_KEY = re.compile(r"^(?P<name>\w+)(/(sqrt\((?P<root>\w+)\)|(?P<divisor>\w+)))?$", re.ASCII)


def axis(key: str, spec: Any) -> Axis:
    match = _KEY.fullmatch(key)
    if not match or key == "one_minus_":
        raise SpaceError(f"{key!r} is no hyperparameter: write x, one_minus_x, x/y or x/sqrt(y)")
    try:
        found = dimension(spec)
    except SpaceError as error:
        raise SpaceError(f"{key}: {error}") from None
    name, divisor = match["name"], match["divisor"] or match["root"]
    one_minus = name.startswith("one_minus_")
    if one_minus and divisor:
        raise SpaceError(f"{key!r} is both one_minus and a ratio: use one of them")
    if (one_minus or divisor) and not all(_is_number(v) for v in found.ends):
        raise SpaceError(f"{key} = {_show(spec)} must be numeric")
    if one_minus and not all(0 < float(end) <= 1 for end in found.ends):
        raise SpaceError(f"{key} = {_show(spec)} leaves (0, 1]: 1 − x must lie in it, so that 0 ≤ {name[10:]} < 1")
    return Axis(key, found, name[10:] if one_minus else name, one_minus, divisor, bool(match["root"]))


@dataclass(frozen=True)
class Space:
    """Axes in a canonical order, so that a file's order of keys changes nothing."""

    axes: tuple[Axis, ...]

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> Space:
        axes = tuple(axis(key, spec) for key, spec in sorted(table.items()))
        by_name: dict[str, str] = {}
        for one in axes:
            if one.name in by_name:
                raise SpaceError(f"{one.name} is given twice, as {by_name[one.name]!r} and {one.key!r}: keep one")
            by_name[one.name] = one.key
        for one in axes:
            if one.divisor and one.divisor not in by_name:
                raise SpaceError(f"{one.key!r} needs {one.divisor}: give {one.divisor} a range or a value")
            if one.divisor and "/" in by_name[one.divisor]:
                raise SpaceError(f"{one.key!r} divides by {one.divisor}, which is a ratio itself")
            if one.divisor:
                divisor = next(other for other in axes if other.name == one.divisor)
                if not all(_is_number(end) and float(end) > 0 for end in divisor.extremes):
                    raise SpaceError(f"{one.key!r} divides by {one.divisor}, which must be positive throughout")
        return cls(axes)

    @property
    def free(self) -> tuple[Axis, ...]:
        return tuple(one for one in self.axes if one.dimension.free)

    @property
    def size(self) -> float:
        """How many points a grid over the space has; infinite where an axis is a range."""
        return math.prod(one.dimension.size for one in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.axes)

    def __iter__(self) -> Iterator[Axis]:
        return iter(self.axes)

    def hyperparameters(self, unit: Sequence[float] | np.ndarray) -> Hyperparameters:
        """The hyperparameters at a point of the unit cube (one coordinate for each free axis)."""
        if len(unit) != len(self.free):
            raise SpaceError(f"the space has {len(self.free)} free axes, the point {len(unit)} coordinates")
        coordinates = iter(unit)
        raw = {
            one.key: one.dimension.value(float(next(coordinates)) if one.dimension.free else 0.5) for one in self.axes
        }
        values: Hyperparameters = {}
        for one in sorted(self.axes, key=lambda one: one.divisor is not None):  # divisors first
            values[one.name] = one.hyperparameter(raw[one.key], values)
        return {one.name: values[one.name] for one in self.axes}

    def unit(self, hyperparameters: Mapping[str, Value]) -> np.ndarray:
        """The point of the unit cube at these hyperparameters; outside it where they leave the space."""
        return np.array([one.dimension.unit(one.coordinate(hyperparameters)) for one in self.free])

    def spec(self) -> dict[str, Any]:
        return {one.key: one.dimension.spec() for one in self.axes}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)


def _is_finite(value: float) -> bool:
    return abs(value) <= sys.float_info.max  # math.isfinite stumbles over huge whole numbers


def _check_range(kind: str, low: float, high: float) -> None:
    if not low < high:
        remedy = "the low end comes first" if low > high else "for a single value write the value itself"
        raise SpaceError(f"{kind} = [{low:g}, {high:g}] is {'reversed' if low > high else 'empty'}: {remedy}")


def _show(spec: Any) -> str:
    if isinstance(spec, Mapping):
        return "{ " + ", ".join(f"{key} = {value}" for key, value in spec.items()) + " }"
    return repr(spec)
