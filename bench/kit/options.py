"""Readers of command-line options that several benches have."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
import math
from pathlib import Path
from typing import Any

import msgspec


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Make a parser whose --help shows a bench's whole docstring, unchanged."""
    return argparse.ArgumentParser(
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def read_positive(text: str) -> int:
    """Read an integer of 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def read_count(text: str) -> int:
    """Read an integer of 0 or more."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number


def read_seconds(text: str) -> float:
    """Read a time in seconds, above 0."""
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError("must be a time above 0, in seconds")
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


def read_option(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE, an option of the engine.

    Raises:
      argparse.ArgumentTypeError: there is no "=".
    """
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    # Numbers and flags; all else is a text.
    with suppress(msgspec.DecodeError):
        return name, msgspec.json.decode(value)
    return name, value


def read_output(text: str) -> Path:
    """Read the path of a file to write; a wrong path is refused before the run.

    Raises:
      argparse.ArgumentTypeError: its folder does not exist.
    """
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path.parent} is not a folder")
    return path


def add_compare(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add --compare, which reads saved results."""
    parser.add_argument(
        "--compare",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE.json",
        help=meaning,
    )


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add --json and --plot."""
    parser.add_argument(
        "--json", type=read_output, metavar="FILE", help="save the result"
    )
    parser.add_argument(
        "--plot", type=read_output, metavar="FILE.png", help="draw the result"
    )
