"""Flags of the command line, one for each option: read, and written for the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
import math
import re
import shlex
from typing import Any, get_args, get_origin

from ..errors import ForeignOption, InvalidConfig, StartupError
from .foreign import explain_foreign
from .options import Option, explain_unknown, list_changes, list_options

_SEE_HELP = "there is no such option; --help lists all"

# A lone dash, and a negative number such as -2GiB or -.5, are not flags.
_FLAG = re.compile(r"-[^\d.]")

# Values that users write behind a switch, although it has none.
_ON = frozenset({"true", "on", "yes", "1"})
_OFF = frozenset({"false", "off", "no", "0"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """The arguments of a command, taken apart.

    Args:
      values: of the flags that were given, by the options' names; empty beside --help.
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
      others: names of more flags; each has one value, which stays a text.

    Raises:
      ForeignOption: a flag is another server's.
      StartupError: a flag is unknown.
      InvalidConfig: a flag has no value, too many or one of a wrong type.
    """
    options = {option.name: option for option in list_options(config_type)}
    reader = _Reader(options.values(), others, arguments)
    reader.read()
    if reader.help_word is not None:
        return CommandLine(values={}, words=[], help_word=reader.help_word)
    if reader.unknown:
        if explanation := explain_foreign(reader.unknown):
            raise ForeignOption(explanation)
        flag = reader.unknown[0]
        reason = explain_unknown(flag.lstrip("-"), options) or _SEE_HELP
        raise StartupError(f"{flag}: {reason}")
    values = {
        name: options[name].read(value) if name in options else value
        for name, value in reader.values.items()
    }
    return CommandLine(values=values, words=reader.words)


class _Reader:
    """Takes arguments apart, from left to right. Of a flag that is repeated the last wins,
    unless each adds to a list.

    Attributes:
      values: a text, a list of texts, or True or False for a switch, by the options' names.
      words: arguments that belong to no flag.
      unknown: flags that are not options, as the user wrote them.
      help_word: as in CommandLine.
    """

    def __init__(
        self, options: Iterable[Option], others: Iterable[str], arguments: Iterable[str]
    ) -> None:
        self._left = deque(arguments)
        self._switches: dict[str, tuple[str, bool]] = {}
        self._valued: dict[str, Option | None] = {f"--{name}": None for name in others}
        for option in options:
            if option.plain_hint is bool:
                self._switches[option.flag] = (option.name, True)
                self._switches[f"--no-{option.flag[2:]}"] = (option.name, False)
            else:
                self._valued[option.flag] = option
        self.values: dict[str, Any] = {}
        self.words: list[str] = []
        self.unknown: list[str] = []
        self.help_word: str | None = None

    def read(self) -> None:
        while self._left:
            argument = self._left.popleft()
            if _is_flag(argument):
                self._read_flag(argument)
            else:
                self.words.append(argument)

    def _read_flag(self, argument: str) -> None:
        written, equals, text = argument.partition("=")
        given = [text] if equals else []
        flag = _spell(written)
        if flag in ("-h", "--help"):
            self.help_word = text
        elif flag in self._switches:
            self._turn(flag, given)
        elif flag in self._valued:
            self._take_values(flag, given)
        else:
            self.unknown.append(written)

    def _turn(self, flag: str, given: list[str]) -> None:
        name, is_on = self._switches[flag]
        if not given and self._left and self._left[0].lower() in _ON | _OFF:
            given = [self._left[0]]
        if given:
            raise InvalidConfig(name, _explain_switch(name, is_on, given[0].lower()))
        self.values[name] = is_on

    def _take_values(self, flag: str, values: list[str]) -> None:
        """Take the values that follow a flag.

        Args:
          values: the value behind "=", if there is one.
        """
        option = self._valued[flag]
        name = flag[2:] if option is None else option.name
        least, most = _count_values(option)
        while len(values) < most and self._has_word():
            values.append(self._left.popleft())
        if len(values) < least:
            count = "one value" if least == 1 else f"{least} values"
            raise InvalidConfig(name, f"expected {count}")
        if option is not None and option.repeats:
            values = [*self.values.get(name, ()), *values]
        self.values[name] = values if most > 1 else values[0]

    def _has_word(self) -> bool:
        return bool(self._left) and not _is_flag(self._left[0])


def _explain_switch(name: str, is_on: bool, value: str) -> str:
    """Say what to write for a switch that was given a value.

    Args:
      is_on: the switch was not written with --no-.
    """
    flags = {True: f"--{name}".replace("_", "-")}
    flags[False] = f"--no-{flags[True][2:]}"
    if value not in _ON | _OFF:
        return f"takes no value: write {flags[True]} or {flags[False]}"
    return f"takes no value: write {flags[is_on is (value in _ON)]} alone"


def _count_values(option: Option | None) -> tuple[int, float]:
    """Return the least and the most values of a flag."""
    hint = None if option is None else option.plain_hint
    if get_origin(hint) is not tuple:
        return 1, 1
    items = get_args(hint)
    # Never none: `--api-key $KEY` of an empty variable would serve everybody.
    return (1, math.inf) if items[-1] is ... else (len(items), len(items))


def _is_flag(argument: str) -> bool:
    return _FLAG.match(argument) is not None


def _spell(flag: str) -> str:
    """Take --max_num_seqs for --max-num-seqs."""
    return flag.replace("_", "-")


def write_flags(config: object) -> list[str]:
    """Return the flags of all options that differ from their defaults, with values."""
    return [_write_flag(option, value) for option, value in list_changes(config)]


def _write_flag(option: Option, value: object) -> str:
    if isinstance(value, bool):
        return option.flag if value else option.flag.replace("--", "--no-", 1)
    values = value if isinstance(value, tuple) else (value,)
    return " ".join([option.flag, *(shlex.quote(str(each)) for each in values)])
