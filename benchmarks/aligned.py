"""The text table that the benchmarks print."""

from __future__ import annotations


def table(rows: list[list[str]]) -> str:
    """Return rows as aligned text, with names on the left and numbers right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *numbers in rows:
        aligned = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *aligned]))
    return "\n".join(lines)
