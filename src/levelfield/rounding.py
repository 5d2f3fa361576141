"""Rounding to 1 or 3 times a power of ten: the steps in which people choose ranges."""

from __future__ import annotations

import math

_THREE = math.log10(3)


def half_decade(exponent: float, up: bool) -> float:
    """Return the next 1 or 3 × 10ⁿ above or below 10^exponent; a value that is one of these, up to rounding, stays.

    >>> half_decade(-3.0, up=True), half_decade(-3.4, up=False), half_decade(-3.4, up=True)
    (0.001, 0.0003, 0.001)
    """
    whole = math.floor(exponent + 1e-9)
    below = 3 if exponent - whole > _THREE - 1e-9 else 1
    if not up or abs(exponent - whole - math.log10(below)) < 1e-9:
        return float(f"{below}e{whole}")
    return float(f"3e{whole}" if below == 1 else f"1e{whole + 1}")


def two_digits_up(value: float) -> int:
    """Return an integer of two significant digits that is not smaller.

    >>> two_digits_up(263), two_digits_up(41.2), two_digits_up(7)
    (270, 42, 7)
    """
    unit: int = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit - 1e-9) * unit
