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
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from levelfield.errors import SpaceError

Value = float | int | bool | str
Hyperparameters = dict[str, Value]


class Dimension(Protocol):
    """A mapping between the unit interval and the values of one axis."""

    @property
    def free(self) -> bool: ...
    @property
    def ends(self) -> tuple[Value, ...]:
        """The bounds of a range, or all values of a choice."""
        ...

    @property
    def size(self) -> float:
        """The number of values; infinite for a range."""
        ...

    def value(self, unit: float) -> Value: ...
    def unit(self, value: Value) -> float:
        """Return the unit coordinate: outside [0, 1] for a value outside the range, NaN for one that is not listed."""
        ...

    def spec(self) -> Any:
        """Return the dimension as a study file writes it."""
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
class Range:
    """Numbers from low to high. ``kind`` is what a study file calls it."""

    low: float
    high: float
    kind: ClassVar[str]
    free = True

    def __post_init__(self) -> None:
        shown = f"{self.kind} = [{self.low:g}, {self.high:g}]"
        if self.low > self.high:
            raise SpaceError(f"{shown} is reversed; expected [low, high]")
        if not self.low < self.high:
            raise SpaceError(f"{shown} is empty; give a single value without a range")

    @property
    def ends(self) -> tuple[Value, ...]:
        return (self.low, self.high)

    @property
    def size(self) -> float:
        return math.inf

    def spec(self) -> dict[str, list[float]]:
        return {self.kind: [self.low, self.high]}

    def resized(self, low: float, high: float) -> Self:
        """Return a range of the same kind with other ends."""
        return replace(self, low=float(low), high=float(high))


class Uniform(Range):
    kind = "uniform"

    def value(self, unit: float) -> float:
        return min(self.low + unit * (self.high - self.low), self.high)  # rounding must not leave the range

    def unit(self, value: Value) -> float:
        return (float(value) - self.low) / (self.high - self.low)


class Log(Range):
    kind = "log"

    def __post_init__(self) -> None:
        if self.low <= 0:
            raise SpaceError(f"log = [{self.low:g}, {self.high:g}]: expected positive numbers; use uniform otherwise")
        super().__post_init__()

    def value(self, unit: float) -> float:
        # Rounding errors in the logarithms must not leave the range.
        value = math.exp(math.log(self.low) + unit * (math.log(self.high) - math.log(self.low)))
        return min(max(value, self.low), self.high)

    def unit(self, value: Value) -> float:
        value = float(value)
        if value <= 0:
            return -math.inf
        return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))


@dataclass(frozen=True)
class Integer(Range):
    """Every integer from low to high, both included, equally likely."""

    low: int
    high: int
    kind = "integer"

    def __post_init__(self) -> None:
        if not (isinstance(self.low, int) and isinstance(self.high, int)):
            raise SpaceError(f"integer = [{self.low}, {self.high}]: expected two integers")
        super().__post_init__()

    @property
    def size(self) -> float:
        return self.high - self.low + 1

    def value(self, unit: float) -> int:
        return min(self.low + math.floor(unit * (self.high - self.low + 1)), self.high)

    def unit(self, value: Value) -> float:
        return (float(value) - self.low + 0.5) / (self.high - self.low + 1)

    def resized(self, low: float, high: float) -> Self:
        """Return the integers from low to high."""
        return replace(self, low=math.ceil(low), high=math.floor(high))


@dataclass(frozen=True)
class Choice:
    values: tuple[Value, ...]
    free = True

    def __post_init__(self) -> None:
        if not self.values:
            raise SpaceError("choice = []: expected at least one value")
        if len(set(self.values)) != len(self.values):
            raise SpaceError(f"choice = {list(self.values)}: expected each value once")

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
    """Return the dimension that a study file describes by a value, or by a table with one kind.

    >>> round(dimension({"log": [1e-3, 1e-1]}).value(0.5), 9)
    0.01
    >>> dimension(0.9)
    Fixed(at=0.9)
    """
    if isinstance(spec, bool | str):
        return Fixed(spec)
    if isinstance(spec, int | float):
        if not _is_finite(spec):
            shown = spec if isinstance(spec, float) else "an integer of that size"
            raise SpaceError(f"expected a finite number, got {shown}")
        return Fixed(spec)
    if not isinstance(spec, Mapping) or len(spec) != 1 or next(iter(spec)) not in _KINDS:
        members = (
            "; members of a tuple have their own names: betas_1, betas_2" if isinstance(spec, list | tuple) else ""
        )
        raise SpaceError(
            f"expected a value or a table such as {{ log = [1e-3, 1e-1] }} (one of {', '.join(_KINDS)}), "
            f"got {_show(spec)}{members}"
        )
    kind, content = next(iter(spec.items()))
    if not isinstance(content, Sequence) or isinstance(content, str):
        raise SpaceError(f"{kind} = {content!r}: expected a list")
    if kind == "choice":
        if not all(isinstance(value, bool | int | float | str) for value in content):
            raise SpaceError(f"choice = {content}: expected numbers, booleans or strings")
        if not all(isinstance(value, str) or _is_finite(value) for value in content):
            raise SpaceError(f"choice = {content}: expected finite numbers")
        return Choice(tuple(content))
    if len(content) != 2 or not all(_is_number(bound) for bound in content):
        raise SpaceError(f"{kind} = {content}: expected two finite numbers, [low, high]")
    low, high = content
    if kind == "integer":
        return Integer(low, high)
    return (Log if kind == "log" else Uniform)(float(low), float(high))


@dataclass(frozen=True)
class Axis:
    """A key of a space, the hyperparameter that it stands for, and its dimension."""

    key: str
    dimension: Dimension
    name: str
    one_minus: bool = False
    divisor: str | None = None
    root: bool = False

    @property
    def extremes(self) -> tuple[Value, ...]:
        """The bounds of the hyperparameter; none for a ratio, which bounds only the quotient."""
        return () if self.divisor else tuple(self.hyperparameter(end, {}) for end in self.dimension.ends)

    def hyperparameter(self, coordinate: Value, others: Mapping[str, Value]) -> Value:
        """Return the hyperparameter's value from the axis's coordinate (and its divisor's value)."""
        if self.one_minus:
            return 1.0 - float(coordinate)
        if self.divisor:
            return float(coordinate) * self._divisor(others)
        return coordinate

    def coordinate(self, hyperparameters: Mapping[str, Value]) -> Value:
        """Return the coordinate of the hyperparameter's value; the inverse of ``hyperparameter``."""
        value = hyperparameters[self.name]
        if (self.one_minus or self.divisor) and isinstance(self.dimension, Fixed | Choice):
            # Compare what the listed coordinates give: computing backward could round to an unlisted one.
            coordinates = {self.hyperparameter(listed, hyperparameters): listed for listed in self.dimension.ends}
            if value in coordinates:
                return coordinates[value]
        if self.one_minus:
            return 1.0 - float(value)
        if self.divisor:
            ratio = float(value) / self._divisor(hyperparameters)
            return round(ratio) if isinstance(self.dimension, Integer) else ratio
        return value

    def coordinates(self, points: Sequence[Mapping[str, Value]]) -> list[Value]:
        """Return the coordinate of each point; faster than one by one."""
        if self.divisor or (self.one_minus and isinstance(self.dimension, Fixed | Choice)):
            return [self.coordinate(point) for point in points]
        values = [point[self.name] for point in points]
        return [1.0 - float(value) for value in values] if self.one_minus else values

    def holds(self, hyperparameters: Mapping[str, Value]) -> bool:
        """Return whether these hyperparameters lie in the axis's range, up to rounding errors."""
        if isinstance(self.dimension, Fixed | Choice):
            values = (self.hyperparameter(listed, hyperparameters) for listed in self.dimension.ends)
            return hyperparameters[self.name] in values
        return -_ROUNDING <= self.dimension.unit(self.coordinate(hyperparameters)) <= 1 + _ROUNDING

    def narrowed(self, kept: Sequence[Any]) -> Axis:
        """Return the axis with part of its range: (low, high), None for an end that stays; or the choices to keep."""
        if not self.dimension.free:
            raise SpaceError(f"{self.key} is fixed and cannot be narrowed")
        if isinstance(kept, str) or not isinstance(kept, Collection):
            raise SpaceError(f"{self.key}: expected (low, high) or a list of choices to keep, got {kept!r}")
        if isinstance(self.dimension, Choice):
            return replace(self, dimension=self._kept_choices(self.dimension, kept))
        assert isinstance(self.dimension, Range)
        if len(kept) != 2:
            raise SpaceError(f"{self.key}: expected (low, high), with None for an end that stays, got {kept!r}")
        first, last = (float(end) for end in self.dimension.ends)
        low, high = (end if bound is None else float(bound) for end, bound in zip((first, last), kept, strict=True))
        try:
            return replace(self, dimension=self.dimension.resized(max(low, first), min(high, last)))
        except (SpaceError, ValueError):  # reversed, empty, or not a number
            raise SpaceError(f"{self.key}: expected low < high within [{first:g}, {last:g}], got {kept!r}") from None

    def _kept_choices(self, choice: Choice, kept: Collection[Any]) -> Choice:
        listed = list(choice.values)
        for value in kept:
            if value not in listed:
                raise SpaceError(f"{self.key}: expected values from {listed}, got {value!r}")
        if not kept:
            raise SpaceError(f"{self.key}: expected at least one of {listed}")
        return Choice(tuple(value for value in listed if value in kept))

    def _divisor(self, hyperparameters: Mapping[str, Value]) -> float:
        value = float(hyperparameters[self.divisor or ""])
        return math.sqrt(value) if self.root else value


_ONE_MINUS = "one_minus_"
_KEY = re.compile(r"^(?P<name>\w+)(/(sqrt\((?P<root>\w+)\)|(?P<divisor>\w+)))?$", re.ASCII)


def parse_axis(key: str, spec: Any) -> Axis:
    """Return the axis that a study file describes by a key and a value or range."""
    match = _KEY.fullmatch(key)
    if not match or key == _ONE_MINUS:
        raise SpaceError(f"invalid key {key!r}; expected x, one_minus_x, x/y or x/sqrt(y) for hyperparameters x and y")
    try:
        parsed = dimension(spec)
    except SpaceError as error:
        raise SpaceError(f"{key}: {error}") from None
    name, divisor = match["name"], match["divisor"] or match["root"]
    one_minus = name.startswith(_ONE_MINUS)
    if one_minus and divisor:
        raise SpaceError(f"invalid key {key!r}: one_minus cannot be combined with a ratio")
    if (one_minus or divisor) and not all(_is_number(end) for end in parsed.ends):
        raise SpaceError(f"{key} = {_show(spec)}: expected numbers")
    name = name.removeprefix(_ONE_MINUS)
    if one_minus and not all(0 < float(end) <= 1 for end in parsed.ends):
        raise SpaceError(f"{key} = {_show(spec)}: expected values in (0, 1], so that 0 ≤ {name} < 1")
    return Axis(key, parsed, name, one_minus, divisor, bool(match["root"]))


@dataclass(frozen=True)
class Space:
    """Axes in a canonical order, so that the order of a file's keys changes nothing."""

    axes: tuple[Axis, ...]

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> Space:
        axes = tuple(parse_axis(key, spec) for key, spec in sorted(table.items()))
        by_name: dict[str, Axis] = {}
        for axis in axes:
            if axis.name in by_name:
                raise SpaceError(
                    f"{axis.name} is given twice, as {by_name[axis.name].key!r} and {axis.key!r}; remove one of them"
                )
            by_name[axis.name] = axis
        for axis in axes:
            if axis.divisor:
                _check_divisor(axis, by_name.get(axis.divisor))
        return cls(axes)

    @property
    def free(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if axis.dimension.free)

    @property
    def size(self) -> float:
        """The number of points of a grid over the space; infinite if an axis is a range."""
        return math.prod(axis.dimension.size for axis in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    def __iter__(self) -> Iterator[Axis]:
        return iter(self.axes)

    def hyperparameters(self, unit: Sequence[float] | np.ndarray) -> Hyperparameters:
        """Return the hyperparameters at a point of the unit cube (one coordinate for each free axis)."""
        if len(unit) != len(self.free):
            raise SpaceError(f"expected a point with {len(self.free)} coordinates, one per free axis, got {len(unit)}")
        units = iter(unit)
        coordinates = {
            axis.key: axis.dimension.value(float(next(units)) if axis.dimension.free else 0.5) for axis in self.axes
        }
        values: Hyperparameters = {}
        for axis in sorted(self.axes, key=lambda axis: axis.divisor is not None):  # divisors first
            values[axis.name] = axis.hyperparameter(coordinates[axis.key], values)
        return {name: values[name] for name in self.names}

    def unit(self, hyperparameters: Mapping[str, Value]) -> np.ndarray:
        """Return the point of the unit cube at these hyperparameters; outside of it if they leave the space."""
        return np.array([axis.dimension.unit(axis.coordinate(hyperparameters)) for axis in self.free])

    def spec(self) -> dict[str, Any]:
        return {axis.key: axis.dimension.spec() for axis in self.axes}


def _check_divisor(axis: Axis, divisor: Axis | None) -> None:
    if divisor is None:
        raise SpaceError(f"{axis.key!r} needs {axis.divisor}; give {axis.divisor} a range or a value")
    if divisor.divisor:
        raise SpaceError(f"{axis.key!r} divides by {divisor.name}, which is a ratio itself; give it a range or a value")
    if not all(_is_number(end) and float(end) > 0 for end in divisor.extremes):
        raise SpaceError(f"{axis.key!r} divides by {divisor.name}, whose values must be positive numbers")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)


def _is_finite(value: float) -> bool:
    return abs(value) <= sys.float_info.max  # math.isfinite raises an error for huge integers


def _show(spec: Any) -> str:
    if isinstance(spec, Mapping):
        return "{ " + ", ".join(f"{key} = {value}" for key, value in spec.items()) + " }"
    return repr(spec)
