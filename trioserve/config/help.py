"""The text of --help: flags by topic, a short line for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
import shutil
import textwrap
from typing import Any, get_args, get_origin

from ..errors import StartupError
from .options import Option

# The column at which the short lines begin: behind most flags, with room for both on 80
# columns.
_COLUMN = 34

# Longer lines are hard to read.
_MAX_WIDTH = 100

_PLACEHOLDERS = {int: "N", float: "X", str: "TEXT"}


def describe_options(options: Iterable[Option], word: str = "") -> str:
    """Return the list of options.

    Args:
      word: "" lists all options shortly, "all" explains all of them, and another word
        explains those whose names contain it.

    Raises:
      StartupError: no option's name contains the word.
    """
    width = min(shutil.get_terminal_size().columns, _MAX_WIDTH)
    wanted = word.removeprefix("--").replace("-", "_")
    chosen = [each for each in options if word in ("", "all") or wanted in each.name]
    if word and not chosen:
        raise StartupError(f"--help: no option's name contains {word!r}")
    lines: list[str] = []
    for topic, group in groupby(chosen, lambda option: option.topic):
        lines += ["", *textwrap.wrap(f"{topic}:", width)]
        for option in group:
            lines += _summarise(option, width) if not word else _explain(option, width)
    return "\n".join([*lines[1:], ""])


def _summarise(option: Option, width: int) -> list[str]:
    """Return the flag and its short line beside it."""
    choices = [f"({', '.join(option.choices)})"] if option.choices else []
    text = " ".join([option.summary, *choices, *_describe_default(option)])
    indent = " " * _COLUMN
    lines = textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, **_WHOLE_WORDS
    )
    head = f"  {_describe_flag(option)}"
    if len(head) > _COLUMN - 2:
        return [head, *lines]
    return [head.ljust(_COLUMN) + lines[0].lstrip(), *lines[1:]]


def _explain(option: Option, width: int) -> Iterator[str]:
    """Return the flag, and its whole meaning below it."""
    yield f"  {_describe_flag(option)}"
    text = " ".join([option.meaning, *_describe_default(option)])
    indent = " " * 6
    yield from textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, **_WHOLE_WORDS
    )
    if option.choices:
        yield from textwrap.wrap(
            f"One of {', '.join(option.choices)}.",
            width,
            initial_indent=indent,
            subsequent_indent=indent,
        )


_WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def _describe_flag(option: Option) -> str:
    hint = option.plain_hint
    if hint is bool:
        return f"--[no-]{option.flag.removeprefix('--')}"
    return f"{option.flag} {_describe_value(option)}"


def _describe_value(option: Option) -> str:
    hint = option.plain_hint
    if option.choices:
        return "CHOICE"
    if get_origin(hint) is not tuple:
        return _name_value(option, hint)
    item, *others = get_args(hint)
    name = _name_value(option, item)
    return f"{name} ..." if others == [...] else " ".join([name] * (1 + len(others)))


def _name_value(option: Option, hint: type) -> str:
    return "FILE" if option.is_path else _PLACEHOLDERS[hint]


def _describe_default(option: Option) -> list[str]:
    """Return the default in brackets; an empty list if there is none to show."""
    if option.default in (None, (), ""):
        return []
    if isinstance(option.default, bool):
        return ["[on]" if option.default else "[off]"]
    if isinstance(option.default, tuple):
        return [f"[{' '.join(map(str, option.default))}]"]
    number = isinstance(option.default, float)
    return [f"[{option.default:g}]" if number else f"[{option.default}]"]
