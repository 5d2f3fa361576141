"""Settings from environment variables, and the cores to use."""

from __future__ import annotations

import os
from pathlib import Path

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


def cache_folder() -> Path | None:
    """Return where compiled programs and measured speeds are kept; None if they are not.

    It is ``$LEVELFIELD_CACHE``, or this system's folder for caches. "off" keeps nothing.
    """
    chosen = os.environ.get("LEVELFIELD_CACHE", "")
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_cache_path  # only runs that train need it

    return user_cache_path("levelfield")


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def stall_seconds() -> float:
    """Return after how many seconds without an evaluation training seems to hang."""
    return 60 * positive_number("LEVELFIELD_STALL_MINUTES", 60.0, "minutes")
