"""The commands of `trioserve`: their arguments, their help, and how each one begins.

A command here is thin: it turns arguments into a configuration, and calls the door of the room
that does the work. Importing this room imports none of those rooms: the process answers an
interrupt from the first moment on, and --help at once. So each command imports what it needs
when it runs.

The doors are COMMANDS, find_command and explain_unknown_command (unknown.py). A new command is
one file with a Command (../command.py), and one row in COMMANDS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..command import Command
from ..completion import with_completion
from .bench import BENCH_SERVE, BENCH_THROUGHPUT
from .chat import CHAT
from .env import ENV
from .models import MODELS, MODELS_RM
from .models_check import MODELS_CHECK
from .run_batch import RUN_BATCH
from .serve import SERVE
from .simulate import SIMULATE
from .top import TOP

# In the order of `trioserve --help`.
COMMANDS: Final[tuple[Command, ...]] = with_completion(
    (SERVE, CHAT, RUN_BATCH, BENCH_SERVE, BENCH_THROUGHPUT)
    + (TOP, MODELS, MODELS_CHECK, MODELS_RM, ENV, SIMULATE)
)


def find_command(arguments: Sequence[str]) -> tuple[Command, Sequence[str]] | None:
    """Return the command that the first words name, and the arguments behind them.

    A name may have two words, such as `bench serve`. It wins over a name that is the first
    of them.
    """
    by_name = {command.name: command for command in COMMANDS}
    for num_words in (2, 1):
        command = by_name.get(" ".join(arguments[:num_words]))
        if command is not None:
            return command, arguments[num_words:]
    return None


def explain_unknown_command(word: str, others: Sequence[str]) -> str:
    """Say in one sentence what to write in place of a word that is not a command.

    Args:
      word: the first argument.
      others: the arguments behind it.
    """
    from .unknown import explain

    return explain(COMMANDS, word, others)


__all__ = ["COMMANDS", "Command", "explain_unknown_command", "find_command"]
