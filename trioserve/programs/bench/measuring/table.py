"""Figures as text: numbers with about three digits, rows as tables."""

from __future__ import annotations

from collections.abc import Sequence

from .statistics import Spread


def align(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Write rows as columns that are aligned on the right.

    Args:
      left: the columns of texts, which are aligned on the left.
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    )


def write_milliseconds(seconds: float | None) -> str:
    """Write a duration in milliseconds with about three digits; a dash for None."""
    if seconds is None:
        return "-"
    milliseconds = 1000 * seconds
    digits = 2 if milliseconds < 10 else 1 if milliseconds < 100 else 0
    return f"{milliseconds:.{digits}f}"


def write_spread(durations: Spread | None, columns: Sequence[str]) -> list[str]:
    """Write some of a Spread's fields in milliseconds; dashes for None."""
    return [
        write_milliseconds(None if durations is None else getattr(durations, column))
        for column in columns
    ]


def write_ratio(over: float | None, under: float | None) -> str:
    """Write over / under; a dash if one is missing, or `under` is 0."""
    if over is None or not under:
        return "-"
    ratio = over / under
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
