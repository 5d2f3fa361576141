"""Where good trials can lie in a range, and which range they call for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from levelfield.hyperparameters import CLOSEST_TO_1, Hyperparameter
from levelfield.rounding import half_decade
from levelfield.space import Axis, Choice, Dimension, Integer, Log, Range, Value, dimension

_DECADES = (1.0, 2.0)  # a log range is widened by its own width, but by at least and at most this much
_LITTLE = 0.05  # decades: a little beyond a round number counts as that number
_TINY = 1e-30  # stands for "above 0"
_ROUNDING = 1e-9


class Place(StrEnum):
    """Where the good trials lie."""

    INSIDE = "inside"
    LOWER = "at the lower border"
    UPPER = "at the upper border"
    WIDE = "too wide"
    FLAT = "flat"
    FIXED = "fixed"
    UNKNOWN = "unknown"


def proposed_range(axis: Axis, domain: Hyperparameter, place: Place, good: Sequence[Value]) -> Dimension | None:
    """Return the range that the good trials call for, within the hyperparameter's domain; None if this one can stay."""
    if place not in (Place.LOWER, Place.UPPER, Place.WIDE):
        return None
    old = axis.dimension
    if isinstance(old, Choice):
        return _longer_choice(axis, domain, place)
    assert isinstance(old, Range)
    first, last = (float(end) for end in old.ends)
    low, high = (float(end) for end in good)
    log = isinstance(old, Log)
    if log:
        first, last, low, high = (math.log10(value) for value in (first, last, low, high))
    width = last - first
    step = min(max(width, _DECADES[0]), _DECADES[1]) if log else width / 2
    margin = max(0.5, (high - low) / 2) if log else max(0.1 * width, (high - low) / 2)
    new_low = first - step if place is Place.LOWER else max(first, low - margin)
    new_high = last + step if place is Place.UPPER else min(last, high + margin)
    rounded_low, rounded_high = rounded_ends(old, new_low, new_high, log)
    if log:  # rounding does not reach beyond the most decades
        rounded_low = max(rounded_low, half_decade(first - _DECADES[1] - _LITTLE, up=True))
        rounded_high = min(rounded_high, half_decade(last + _DECADES[1] + _LITTLE, up=False))
    # An end that stays is not rounded: inward, that could cut off good trials; outward, it would widen the range.
    rounded_low = float(old.ends[0]) if new_low == first else rounded_low
    rounded_high = float(old.ends[-1]) if new_high == last else rounded_high
    lowest, highest = limits(axis, domain)
    lowest = lowest if place is Place.LOWER else max(lowest, float(old.ends[0]))
    highest = highest if place is Place.UPPER else min(highest, float(old.ends[-1]))
    ends = max(rounded_low, lowest), min(rounded_high, highest)
    if isinstance(old, Integer):
        ends = math.ceil(ends[0]), math.floor(ends[1])
    if not ends[0] < ends[1] < math.inf:
        return None
    new = old.resized(*ends)
    moved = {Place.LOWER: ends[0] < float(old.ends[0]), Place.UPPER: ends[1] > float(old.ends[-1])}.get(place, True)
    return new if moved and new != old else None


def rounded_ends(old: Dimension, low: float, high: float, log: bool) -> tuple[float, float]:
    """Round outward: to half-decades, to integers, or to two digits of the old range's width."""
    if log:
        return half_decade(low + _LITTLE, up=False), half_decade(high - _LITTLE, up=True)
    if isinstance(old, Integer):
        return math.floor(low), math.ceil(high)
    first, last = (float(end) for end in old.ends)
    unit = 10.0 ** math.floor(math.log10((last - first) / 10))
    return round(math.floor(low / unit + 1e-9) * unit, 12), round(math.ceil(high / unit - 1e-9) * unit, 12)


def limits(axis: Axis, domain: Hyperparameter) -> tuple[float, float]:
    """Return the values between which the axis's coordinate must stay."""
    if axis.one_minus:
        return max(CLOSEST_TO_1, 1 - domain.high), min(1.0, 1 - domain.low)
    if axis.divisor:
        return _TINY, math.inf
    positive = isinstance(axis.dimension, Log) or (domain.open and domain.low >= 0)
    return max(domain.low, _TINY) if positive else domain.low, domain.high


def closed_ends(axis: Axis, domain: Hyperparameter) -> tuple[bool, bool]:
    """Return whether the hyperparameter can take no value below, and none above the range."""
    ends = as_numbers(axis.dimension.ends)
    if not ends:
        return True, True
    lowest, highest = limits(axis, domain)
    return min(ends) <= lowest * (1 + _ROUNDING), max(ends) >= highest * (1 - _ROUNDING)


def as_numbers(values: Sequence[Value]) -> list[float]:
    """Return the values if all are numbers."""
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return [float(value) for value in values] if is_number else []


def _longer_choice(axis: Axis, domain: Hyperparameter, place: Place) -> Dimension | None:
    """Return the choice with one more value beyond the winning end, as far from it as its neighbor."""
    values = sorted(float(value) for value in axis.dimension.ends)
    if place is Place.WIDE or len(values) < 2:
        return None
    end, neighbor = (values[0], values[1]) if place is Place.LOWER else (values[-1], values[-2])
    beyond = end * end / neighbor if min(values) > 0 else 2 * end - neighbor
    beyond = float(f"{beyond:.3g}")
    lowest, highest = limits(axis, domain)
    if not lowest <= beyond <= highest:
        return None
    old = axis.dimension.ends
    longer = [beyond, *old] if old[0] == end else [*old, beyond]
    return dimension({"choice": longer})
