"""Numbers, ranges, times and lists as text, the same in the terminal, the page and LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

MISSING = "–"  # shown where there is no value
SHARE_DECIMALS = 2  # of errors and accuracies, in percent
METRIC_DIGITS = 4  # of other metrics
P_VALUE_DIGITS = 2


def format_number(value: Any) -> str:
    """Format with three significant digits; close to 1, with all leading nines and two digits more.

    >>> format_number(0.000123456), format_number(0.13), format_number(1234.5), format_number(float("nan"))
    ('1.23e-04', '0.13', '1234', '–')
    >>> format_number(1e-8)
    '1e-08'
    >>> format_number(0.9996789)
    '0.99968'
    """
    if isinstance(value, bool | str):
        return str(value)
    if math.isnan(value):
        return MISSING
    if 0.99 < value < 1:
        return f"{value:.{1 - math.floor(math.log10(1 - value))}f}".rstrip("0")
    if value == 0 or 1e-3 <= abs(value) < 999.5:
        return f"{value:.3g}"
    return f"{value:.0f}" if 999.5 <= abs(value) < 1e6 else re.sub(r"\.?0+e", "e", f"{value:.2e}")


def format_range(dimension: Any) -> str:
    """Format a dimension: its kind and ends, its choices, or its fixed value."""
    spec = dimension.spec()
    if not isinstance(spec, Mapping):
        return format_number(spec)
    kind, content = next(iter(spec.items()))
    values = ", ".join(format_number(value) for value in content)
    return f"{kind} [{values}]" if kind != "choice" else f"{{{values}}}"


def format_metric(metric: str, value: float) -> str:
    """Format errors and accuracies as percentages, everything else as a number."""
    if math.isnan(value):
        return MISSING
    return f"{100 * value:.{SHARE_DECIMALS}f}%" if is_share(metric) else f"{value:.{METRIC_DIGITS}g}"


def format_interval(metric: str, low: float, high: float) -> str:
    """
    >>> format_interval("valid_error", 0.12, 0.13), format_interval("valid_error", -math.inf, 0.13)
    ('12.00% – 13.00%', '≤ 13.00%')
    """
    return format_ends(format_metric(metric, low), format_metric(metric, high), low, high)


def format_ends(low_text: str, high_text: str, low: float, high: float) -> str:
    """Format an interval whose ends may be open, that is infinite."""
    if math.isinf(low) and math.isinf(high):
        return "unknown"
    if math.isinf(low):
        return f"≤ {high_text}"
    return f"≥ {low_text}" if math.isinf(high) else f"{low_text} – {high_text}"


def is_share(metric: str) -> bool:
    """Return whether a metric, on any split, is shown as a percentage."""
    return metric.partition("_")[2] in ("error", "accuracy")


def format_percent(value: float) -> str:
    """
    >>> format_percent(0.954), format_percent(float("nan"))
    ('95%', '–')
    """
    return MISSING if math.isnan(value) else f"{value:.0%}"


def percent_rounded_down(share: float) -> str:
    """Format a share so that 99.9% does not read as 100%.

    >>> percent_rounded_down(0.999)
    '99%'
    """
    return f"{math.floor(100 * share + 1e-9)}%"


def format_count(value: float) -> str:
    """
    >>> format_count(1234.4), format_count(float("nan"))
    ('1,234', '–')
    """
    return MISSING if math.isnan(value) else f"{value:,.0f}"


def format_ordinal(number: int) -> str:
    """
    >>> format_ordinal(1), format_ordinal(2), format_ordinal(11), format_ordinal(23)
    ('1st', '2nd', '11th', '23rd')
    """
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def format_p_value(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:.{P_VALUE_DIGITS}g}"


def format_hyperparameters(hyperparameters: Mapping[str, Any]) -> str:
    """Format hyperparameters, the learning rate first and its schedule last.

    >>> format_hyperparameters({"decay_steps": 0.5, "epsilon": 1e-8, "learning_rate": 0.1})
    'learning_rate 0.1, epsilon 1e-08, decay_steps 0.5'
    """
    names = sorted(hyperparameters, key=display_order)
    return ", ".join(f"{name} {format_number(hyperparameters[name])}" for name in names)


def display_order(name: str) -> tuple[bool, bool]:
    """Return a sort key for hyperparameters: the learning rate first, its schedule last."""
    return name.startswith("decay_"), name != "learning_rate"


def format_duration(seconds: float) -> str:
    """
    >>> format_duration(0.0016), format_duration(99.7), format_duration(3600), format_duration(5400)
    ('1.6 ms', '100 s', '1 hour', '1.5 hours')
    >>> format_duration(3.6e6)
    '1,000 hours'
    """
    return format_seconds(seconds) if seconds < 360 else _two_digits(seconds / 3600, "hour", "hours")


def format_seconds(seconds: float) -> str:
    """
    >>> [format_seconds(seconds) for seconds in (2.34e-5, 0.00234, 0.1234, 12.34, 1234.0)]
    ['0.023 ms', '2.3 ms', '0.12 s', '12 s', '1,200 s']
    """
    if not math.isfinite(seconds):
        return MISSING
    return _two_digits(1000 * seconds, "ms") if 0 < seconds < 0.1 else _two_digits(seconds, "s")


def _two_digits(value: float, unit: str, plural: str = "") -> str:
    rounded = float(f"{value:.2g}")
    number = f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"
    return f"{number} {unit if rounded == 1 else plural or unit}"


def pluralize(number: int, noun: str) -> str:
    """
    >>> pluralize(1, "trial"), pluralize(2000, "trial")
    ('1 trial', '2,000 trials')
    """
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def join_words(words: Sequence[str], conjunction: str = "and") -> str:
    """
    >>> join_words(["a", "b", "c"]), join_words(["a", "b"], "or"), join_words(["a"])
    ('a, b, and c', 'a or b', 'a')
    """
    if len(words) < 3:
        return f" {conjunction} ".join(words)
    return f"{', '.join(words[:-1])}, {conjunction} {words[-1]}"
