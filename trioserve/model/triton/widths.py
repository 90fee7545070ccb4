"""The sizes of blocks of numbers: Triton wants powers of two."""

from __future__ import annotations

# The smallest side of a product on tensor cores.
_LEAST_SIDE = 16


def round_up(number: int) -> int:
    """Return the next power of two; 0 for 0."""
    return 1 << (number - 1).bit_length() if number else 0


def round_side(number: int) -> int:
    """Return the next power of two that a side of a product can have."""
    return max(_LEAST_SIDE, round_up(number))
