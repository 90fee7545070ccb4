"""Tables as Markdown, with numbers of three digits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def write_markdown(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Write a Markdown table, whose first row is the headings."""
    for index, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if index == 0:
            yield f"|{' --- |' * len(row)}"


def write_number(value: float) -> str:
    """Write three digits, or all digits before the point if these are more."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"
