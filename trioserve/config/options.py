"""The options that the fields of configurations define.

A configuration is a dataclass. A field whose type is another dataclass stands for a group of
options; each other field is one option. Its class's docstring explains it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
import inspect
import re
import types
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from ..errors import ForeignOption, InvalidConfig
from .checks import PathMark, RepeatMark
from .foreign import explain_foreign, rename_value

# "  name: text" below Args, and the lines that continue the text.
_ARGUMENT = re.compile(r"^  (\w+): (.*(?:\n    .*)*)", re.MULTILINE)

# The end of a meaning's first statement.
_END = re.compile(r"[.;](?=\s|$)")

# A whole number of thousands or millions, decimal (4k) or binary (4K).
_THOUSANDS = re.compile(r"(\d+)([kKmM])")
_FACTORS = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}

_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}

_PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: a flag of the command line, a key of the file and a keyword.

    Args:
      hint: its type.
      meaning: its explanation, as in docs/options.rst.
      topic: the first sentence of the docstring of its class.
      is_path: whether its values are paths of files or folders.
      repeats: whether its flag may be repeated, and each one adds to its list.
    """

    name: str
    hint: Any
    default: Any
    meaning: str
    topic: str
    is_path: bool = False
    repeats: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def summary(self) -> str:
        """The meaning up to its first period or semicolon: a line of --help."""
        return _END.split(self.meaning, maxsplit=1)[0]

    @property
    def plain_hint(self) -> Any:
        """The type without None. The type of a size is str."""
        if get_origin(self.hint) in (Union, types.UnionType):
            return next(each for each in get_args(self.hint) if each is not type(None))
        return self.hint

    @property
    def is_size(self) -> bool:
        """True if it takes a text such as 2GiB, or a number of bytes."""
        return {str, int} <= set(get_args(self.hint))

    @property
    def choices(self) -> tuple[str, ...]:
        hint = self.plain_hint
        return get_args(hint) if get_origin(hint) is Literal else ()

    def read(self, value: Any) -> Any:
        """Return the value of a flag.

        Args:
          value: a text, a list of texts, or True or False for a switch. The text None
            unsets an option that is not set by default.

        Raises:
          InvalidConfig: the type is wrong.
        """
        if self._is_unset_by(value):
            return None
        hint = self.plain_hint
        read = get_args(hint)[0] if get_origin(hint) is tuple else hint
        if read in (int, float):
            number = _read_whole if read is int else float
            try:
                value = (
                    [*map(number, value)] if isinstance(value, list) else number(value)
                )
            except ValueError:
                raise self._refuse_words(value) from None
        return self.convert(value)

    def convert(self, value: object) -> Any:
        """Check the type of a value from a file or a program.

        A text alone stands for a list with this text.

        Raises:
          InvalidConfig: the type is wrong.
        """
        if isinstance(value, str) and get_args(self.plain_hint) == (str, ...):
            value = [value]
        try:
            return msgspec.convert(value, self.hint)
        except msgspec.ValidationError:
            raise self._refuse(value) from None

    def _is_unset_by(self, value: object) -> bool:
        if isinstance(value, list):
            value = value[0] if len(value) == 1 else None
        is_optional = type(None) in get_args(self.hint)
        return is_optional and isinstance(value, str) and value.lower() == "none"

    def _refuse(self, value: object) -> InvalidConfig:
        meant = rename_value(self.name, value)
        advice = "" if meant is None else f"; write {meant}"
        reason = f"{value!r} is not {self._describe_type()}{advice}"
        return InvalidConfig(self.name, reason)

    def _refuse_words(self, value: str | list[str]) -> InvalidConfig:
        """Return the refusal of a flag's words; some people put commas between them."""
        if isinstance(value, str):
            return self._refuse(value)
        reason = f"is not {self._describe_type()} with blanks between"
        return InvalidConfig(self.name, f"{' '.join(value)!r} {reason}")

    def _describe_type(self) -> str:
        hint = self.plain_hint
        if self.is_size:
            return "a size such as 2GiB, or a number of bytes"
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if get_origin(hint) is not tuple:
            return _NOUNS[hint]
        item, *others = get_args(hint)
        count = "" if others == [...] else f"{1 + len(others)} "
        return f"a list of {count}{_PLURALS[item]}"


def _read_whole(text: str) -> int:
    """Read a whole number; 4k is 4,000, and 4K is 4,096, as vLLM reads them.

    Raises:
      ValueError
    """
    if match := _THOUSANDS.fullmatch(text):
        return int(match[1]) * _FACTORS[match[2]]
    return int(text)


def list_options(config_type: type) -> tuple[Option, ...]:
    """List all options of a configuration, in the order of its fields."""
    return _list_once(config_type)


# A function of its own: to mypy the classes of list_options' callers are not hashable.
@cache
def _list_once(config_type: type) -> tuple[Option, ...]:
    return tuple(_read_options(config_type))


def _read_options(config_type: type) -> Iterator[Option]:
    hints = get_type_hints(config_type)
    marked = get_type_hints(config_type, include_extras=True)
    docstring = inspect.getdoc(config_type) or ""
    meanings = _read_meanings(docstring)
    for field in fields(config_type):
        hint = hints[field.name]
        if is_dataclass(hint):
            assert isinstance(hint, type), "a hint is a class"
            yield from list_options(hint)
        else:
            yield Option(
                name=field.name,
                hint=hint,
                default=field.default,
                meaning=meanings.get(field.name, ""),
                topic=_END.split(docstring, maxsplit=1)[0],
                is_path=_has_mark(marked[field.name], PathMark),
                repeats=_has_mark(marked[field.name], RepeatMark),
            )


def _has_mark(hint: Any, mark: type) -> bool:
    if get_origin(hint) is Annotated:
        return any(isinstance(each, mark) for each in hint.__metadata__)
    return any(_has_mark(each, mark) for each in get_args(hint))


def _read_meanings(docstring: str) -> dict[str, str]:
    """Return the explanations of a docstring's arguments, by name."""
    return {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(docstring)}


Config = TypeVar("Config")


def build_config(config_type: type[Config], values: Mapping[str, object]) -> Config:
    """Make a configuration from the values of options.

    Args:
      values: by the options' names; other options have their defaults.

    Raises:
      InvalidConfig: an option is unknown, or has a wrong type or value.
      ForeignOption: an option belongs to another server.
    """
    known = {option.name: option for option in list_options(config_type)}
    if explanation := explain_foreign(values.keys() - known.keys()):
        raise ForeignOption(explanation)
    for name in values:
        if name not in known:
            raise InvalidConfig(name, _explain_key(name, known))
    converted = {name: known[name].convert(value) for name, value in values.items()}
    config: Config = _build(config_type, converted)
    return config


def _explain_key(name: str, known: Mapping[str, Option]) -> str:
    spelled = name.replace("-", "_")
    if spelled in known:
        return f"write {spelled}, with underscores"
    return explain_unknown(name, known) or "there is no such option here"


def explain_unknown(name: str, known: Mapping[str, Option]) -> str:
    """Return a message with the most similar name; "" if no name is similar."""
    matches = get_close_matches(name.replace("-", "_"), known, n=1)
    if not matches:
        return ""
    return f"there is no such option; did you mean {known[matches[0]].flag}?"


def list_changes(config: object) -> list[tuple[Option, Any]]:
    """Return the options that differ from their defaults, with their values."""
    values = dict(_list_values(config))
    return [
        (option, values[option.name])
        for option in list_options(type(config))
        if values[option.name] != option.default
    ]


def reset_options(config: Config, names: Collection[str]) -> Config:
    """Return a configuration in which some options have their defaults."""
    defaults = {each.name: each.default for each in list_options(type(config))}
    own: dict[str, Any] = {}
    for field in fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if is_dataclass(value):
            own[field.name] = reset_options(value, names)
        elif field.name in names:
            own[field.name] = defaults[field.name]
    return replace(config, **own)  # type: ignore[type-var]


def _list_values(config: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from _list_values(value)
        else:
            yield field.name, value


def _build(config_type: Any, values: Mapping[str, object]) -> Any:
    hints = get_type_hints(config_type)
    own = {}
    for field in fields(config_type):
        if is_dataclass(hints[field.name]):
            own[field.name] = _build(hints[field.name], values)
        elif field.name in values:
            own[field.name] = values[field.name]
    return config_type(**own)
