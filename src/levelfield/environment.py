"""Settings from environment variables."""

from __future__ import annotations

import os

from levelfield.errors import UsageError


def positive_number(variable: str, default: float, unit: str) -> float:
    """Return the number that an environment variable sets."""
    text = os.environ.get(variable, "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = 0.0
    if not number > 0:
        raise UsageError(f"{variable} = {text!r}: expected a positive number of {unit}")
    return number
