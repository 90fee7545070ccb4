"""One command: its name, its help, its flags, and the function that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
import os
import sys
from typing import TYPE_CHECKING

from ..errors import InvalidConfig, StartupError

if TYPE_CHECKING:
    from ..config.flags import CommandLine

_ABOUT_OPTIONS = """\
Defaults are in brackets. --help=WORD explains the options whose names contain
WORD, and --help=all explains all.
"""


def importing(module: str, name: str) -> Callable[[], type]:
    """Return a function that imports a class, for Command.load_config.

    Args:
      module: as seen from a module of commands/.
    """
    return lambda: vars(import_module(module, f"{__package__}.commands"))[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of `trioserve`.

    Attributes:
      name: one or two words, such as `bench serve`.
      synopsis: the arguments, as the usage shows them.
      usage: the arguments in short, for the list of commands.
      summary: a few words, for the same list.
      description: the text of --help before the options.
      load_config: imports and returns the dataclass whose fields are the flags.
      run: takes the arguments, and returns the exit code.
      max_words: arguments that may belong to no flag, such as a model.
      choices: the texts that such an argument may be; none if it may be any.
      others: names of flags besides the fields; each has one value, which stays a text.
      short_flags: short spellings of flags, such as -p for --prompt.
    """

    name: str
    synopsis: str
    usage: str = "[options]"
    summary: str
    description: str
    load_config: Callable[[], type]
    run: Callable[[CommandLine], int]
    max_words: int = 0
    choices: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    short_flags: Mapping[str, str] = field(default_factory=dict)

    def main(self, arguments: Sequence[str]) -> int:
        """Read the arguments, run, and return the exit code.

        Raises:
          StartupError: as `read`, or the command cannot begin.
          SystemExit: --help was given (0).
        """
        return self.run(self.read(arguments))

    def read(self, arguments: Sequence[str]) -> CommandLine:
        """Take arguments apart. If --help is given, print the help and end.

        Raises:
          StartupError: a flag is unknown or has a wrong value, there is a word too many, or
            no option's name contains the word of --help.
          SystemExit: after the help (0).
        """
        from ..config.flags import read_command_line

        config = self.load_config()
        # A value of a flag never looks like another flag, so this changes no value.
        spelled = [self.short_flags.get(each, each) for each in arguments]
        line = read_command_line(config, spelled, others=self.others)
        if line.help_word is not None:
            raise SystemExit(write_output(self._describe(config, line.help_word)))
        if len(line.words) > self.max_words:
            word = line.words[self.max_words]
            raise StartupError(f"{self.name}: {word!r} {self._refuse_word(word)}")
        for word in line.words:
            if self.choices and word not in self.choices:
                choices = ", ".join(self.choices)
                raise StartupError(f"{self.name}: {word!r} is not one of {choices}")
        return line

    def _refuse_word(self, word: str) -> str:
        if "--url" in self.synopsis and word.startswith(("http://", "https://")):
            return f"belongs behind --url: write --url {word}"
        return f"is not an option; trioserve {self.name} --help lists them"

    @property
    def takes_model(self) -> bool:
        """True if an argument that belongs to no flag is a model."""
        return "MODEL" in self.synopsis

    def _describe(self, config: type, word: str) -> str:
        from ..config import list_options
        from ..config.help import describe_options

        text = describe_options(list_options(config), word)
        if word:
            return text
        usage = f"usage: trioserve {self.name} {self.synopsis}"
        about = _ABOUT_OPTIONS if "[options]" in self.synopsis else ""
        return f"{usage}\n\n{self.description}{about}\n{text}"


def name_model(line: CommandLine) -> dict[str, str]:
    """Return the model among the words, by the name of its option.

    Raises:
      InvalidConfig: there are several, the word is not one, or there is none and a flag
        may have taken it.
    """
    models = [*line.words]
    if "model" in line.values:
        models.append(line.values["model"])
    if len(models) > 1:
        raise InvalidConfig("model", f"name one model; here are {' and '.join(models)}")
    if not line.words:
        names = line.values.get("served_model_name") or ()
        if not models and len(names) > 1:
            reason = f"takes all words behind it, here {' and '.join(names)}; write MODEL first"
            raise InvalidConfig("served_model_name", reason)
        return {}
    [word] = line.words
    check_word(word)
    return {"model": word}


def check_word(word: str) -> None:
    """Refuse a word that looks like a flag as a model.

    Raises:
      InvalidConfig
    """
    if word.startswith("-"):
        raise InvalidConfig("model", f"{word!r} is not a model")


def write_output(text: str) -> int:
    """Write to standard output, and return the exit code of a command that has done so.

    A reader such as `head` may stop before the end.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
