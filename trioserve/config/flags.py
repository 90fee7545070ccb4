"""Flags of the command line, one for each option: read, and written for the log."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
import shlex
from typing import Any, get_args, get_origin

from ..errors import ForeignOption, InvalidConfig
from .foreign import explain_foreign
from .options import Option, explain_unknown, list_changes, list_options

_SEE_HELP = "there is no such option; --help lists all"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """The arguments of a command, taken apart.

    Args:
      values: texts of the flags that were given, by the options' names; True or False for
        a switch.
      words: arguments that belong to no flag.
      help_word: None, or the word of --help=WORD; "" for --help alone.
    """

    values: dict[str, Any]
    words: list[str]
    help_word: str | None = None


def read_command_line(
    config_type: type, arguments: Sequence[str], *, others: Iterable[str] = ()
) -> CommandLine:
    """Sort arguments into the values of flags and other words.

    Args:
      others: names of more flags; each has one value.

    Raises:
      ForeignOption: a flag is another server's.
      InvalidConfig: a flag is unknown, or lacks its value.
    """
    options = {option.name: option for option in list_options(config_type)}
    parser = _make_parser(options.values(), others)
    try:
        known, rest = parser.parse_known_args([_spell(each) for each in arguments])
    except argparse.ArgumentError as error:
        raise _explain(error) from None
    values = vars(known)
    help_word = values.pop("help", None)
    flags = [_name_flag(each) for each in rest if _is_flag(each)]
    if flags and help_word is None:
        if explanation := explain_foreign(flags):
            raise ForeignOption(explanation)
        name = flags[0].lstrip("-")
        raise InvalidConfig(name, explain_unknown(name, options) or _SEE_HELP)
    return CommandLine(values=values, words=rest, help_word=help_word)


def _make_parser(
    options: Iterable[Option], others: Iterable[str]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--help")
    for name in others:
        parser.add_argument(f"--{name}")
    for option in options:
        parser.add_argument(option.flag, **_choose_action(option))
    return parser


def _choose_action(option: Option) -> dict[str, Any]:
    hint = option.plain_hint
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(hint) is not tuple:
        return {}
    if get_args(hint)[-1] is ...:
        # A flag that is given twice adds to its first values.
        return {"action": "extend", "nargs": "*"}
    return {"nargs": len(get_args(hint))}


def _explain(error: argparse.ArgumentError) -> InvalidConfig:
    # A switch is called "--NAME/--no-NAME".
    name = (error.argument_name or "").partition("/")[0].removeprefix("--")
    if error.message.startswith("ignored"):
        return InvalidConfig(name, f"takes no value: write --{name} or --no-{name}")
    return InvalidConfig(name, error.message.replace("argument", "value"))


def _is_flag(argument: str) -> bool:
    # A lone dash, and a negative number, are words.
    return argument.startswith("-") and not argument[1:2].isdigit() and argument != "-"


def _name_flag(argument: str) -> str:
    return argument.partition("=")[0]


def _spell(argument: str) -> str:
    """Take --max_num_seqs for --max-num-seqs, and --help alone for --help=."""
    if argument in ("-h", "--help"):
        return "--help="
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def write_flags(config: object) -> list[str]:
    """Return the flags of all options that differ from their defaults, with values."""
    return [_write_flag(option, value) for option, value in list_changes(config)]


def _write_flag(option: Option, value: object) -> str:
    if isinstance(value, bool):
        return option.flag if value else option.flag.replace("--", "--no-", 1)
    values = value if isinstance(value, tuple) else (value,)
    return " ".join([option.flag, *(shlex.quote(str(each)) for each in values)])
