"""Readers of command-line options that several benches have."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
import math
from pathlib import Path


def read_positive(text: str) -> int:
    """Read a number from 1 up."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("wants a number from 1 up")
    return number


def read_count(text: str) -> int:
    """Read a number from 0 up."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("wants a number from 0 up")
    return number


def read_seconds(text: str) -> float:
    """Read a time above zero."""
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError("wants seconds above 0")
    return seconds


def read_choice(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Read names with commas between them.

    Raises:
      argparse.ArgumentTypeError: one of them is unknown.
    """
    names = tuple(text.split(","))
    if unknown := sorted(set(names) - set(known)):
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown)}: not one of {', '.join(known)}"
        )
    return names


def check_folders(paths: Iterable[Path | None]) -> None:
    """Refuse to start a run whose results could not be saved.

    Raises:
      ValueError: a file's folder does not exist.
    """
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"{path.parent} is not a folder")
