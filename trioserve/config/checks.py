"""Checks of the values of options, and the type of those that name a file."""

from __future__ import annotations

from dataclasses import dataclass
import math
from pathlib import Path
from typing import Annotated

from ..errors import InvalidConfig

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


# A text such as 2GiB, or a number of bytes.
Size = str | int


def parse_bytes(name: str, size: Size) -> int:
    """Read a size such as 2GiB, 512M or 65536 (powers of 1024).

    Raises:
      InvalidConfig: the text is not a size, or a size of zero; `name` is the field.
    """
    text = str(size)
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    try:
        num_bytes = int(float(number.removesuffix(unit)) * _UNITS[unit])
    except (ValueError, OverflowError):
        raise InvalidConfig(name, f"{text!r} is not a size such as 2GiB") from None
    if num_bytes < 1:
        raise InvalidConfig(name, f"{text!r} is not greater than zero")
    return num_bytes


def check_at_least(name: str, value: int | None, low: int) -> None:
    """Refuse a number below `low`; None is not a number.

    Raises:
      InvalidConfig
    """
    if value is not None and value < low:
        raise InvalidConfig(name, f"must be at least {low}, got {value}")


def check_seconds(name: str, value: float, *, may_be_zero: bool = False) -> None:
    """Refuse a time that is not positive and finite.

    Raises:
      InvalidConfig
    """
    if may_be_zero and not 0 <= value < math.inf:
        raise InvalidConfig(name, f"must be 0 or more, and finite, got {value}")
    if not may_be_zero and not 0 < value < math.inf:
        raise InvalidConfig(name, f"must be greater than 0, and finite, got {value}")


def check_plain_file(name: str, path: Path) -> None:
    """Refuse a file that exists but is not plain: reading a pipe waits for its writer.

    Raises:
      InvalidConfig
    """
    if path.exists() and not path.is_file():
        raise InvalidConfig(name, f"{path} is not a plain file")


@dataclass(frozen=True, slots=True)
class PathMark:
    """Marks a type whose values are paths: help calls them FILE, and shells complete them."""


@dataclass(frozen=True, slots=True)
class RepeatMark:
    """Marks a list whose flag may be repeated: each one adds to the list."""


# The text of a path, for checkers and for the command line; the mark is found by
# options.list_options.
FilePath = Annotated[str, PathMark()]
