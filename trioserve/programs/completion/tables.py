"""Commands and their flags, as the writers of scripts see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ...config import Option
    from ..command import Command


# What completes a value: nothing, files, or the models of the caches and files.
ValueKind = Literal["text", "file", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One spelling of an option.

    Args:
      name: with its dashes.
      meaning: a short line.
      takes_value: False for a switch.
      kind: of the value, unless there are choices.
    """

    name: str
    meaning: str
    takes_value: bool = True
    kind: ValueKind = "text"
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTable:
    """One command.

    Args:
      name: one or two words.
      word_kind: the kind of arguments without a flag, unless there are choices.
    """

    name: str
    meaning: str
    flags: tuple[Flag, ...]
    word_kind: ValueKind = "text"
    word_choices: tuple[str, ...] = ()

    @property
    def function(self) -> str:
        """Part of a function's name for this command."""
        return self.name.replace(" ", "_").replace("-", "_")


_HELP = Flag(name="--help", meaning="Show the options", takes_value=False)


def make_table(command: Command) -> CommandTable:
    """Collect all that can be completed of a command."""
    from ...config import list_options

    flags = [
        flag for each in list_options(command.load_config()) for flag in _spell(each)
    ]
    flags += [
        Flag(name=f"--{name}", meaning=name, kind="file") for name in command.others
    ]
    long = {flag.name: flag for flag in flags}
    flags += [
        replace(long[name], name=short) for short, name in command.short_flags.items()
    ]
    return CommandTable(
        name=command.name,
        meaning=command.summary,
        flags=(*flags, _HELP),
        word_kind="model" if command.takes_model else "text",
        word_choices=command.choices,
    )


def _spell(option: Option) -> Iterator[Flag]:
    if option.plain_hint is bool:
        off = f"--no-{option.flag.removeprefix('--')}"
        yield Flag(name=option.flag, meaning=option.summary, takes_value=False)
        yield Flag(name=off, meaning=f"Off: {option.summary}", takes_value=False)
        return
    kind: ValueKind = "file" if option.is_path else "text"
    yield Flag(
        name=option.flag,
        meaning=option.summary,
        kind="model" if option.name == "model" else kind,
        choices=option.choices,
    )


def split_names(tables: Iterable[CommandTable]) -> dict[str, dict[str, str]]:
    """Return the first words of commands, and the second words behind each.

    Returns:
      first word -> second word -> meaning. The second word "" is the first word alone.
    """
    words: dict[str, dict[str, str]] = {}
    for table in tables:
        first, _, second = table.name.partition(" ")
        words.setdefault(first, {})[second] = table.meaning
    return words


def describe_first(seconds: dict[str, str]) -> str:
    """Return the meaning of a first word, or the meanings of all its second words."""
    return seconds.get("") or "; ".join(seconds.values())


"""The part of a script that lists cached models, for shells of Bourne's kind.

It reads the names of folders alone, so it takes milliseconds. `trioserve models` looks into
the folders, too.
"""

# {layout} is the folder of the cache's entries. A wheel's entry is NAME/VERSION, beside its
# lock and perhaps an unfinished VERSION.part. A repository is models--ORG--NAME. No name on
# the hub has two dashes together.
LIST_MODELS = """\
    local caches=${{XDG_CACHE_HOME:-$HOME/.cache}}
    local wheels=$caches/trioserve/{layout}/wheels
    local hub=${{HF_HUB_CACHE:-${{HF_HOME:-$caches/huggingface}}/hub}}
    local entry name
    for entry in "$wheels"/*/*/{glob}; do
        name=${{entry#"$wheels"/}}; name=${{name%/}}
        case $name in *'*'* | *.part) continue;; esac
        {add} "pypi:${{name%%/*}}==${{name#*/}}"{end}
    done
    for entry in "$hub"/models--*/{glob}; do
        name=${{entry#"$hub"/models--}}; name=${{name%/}}
        case $name in *'*'*) continue;; esac
        {add} "${{name/--//}}"{end}
    done
"""
