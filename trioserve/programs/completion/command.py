"""The command that prints the script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import StartupError
from ..command import Command, write_output

if TYPE_CHECKING:
    from ...config.flags import CommandLine

_DESCRIPTION = """\
Print a script that completes commands, options, their values, files and cached
models when you press Tab. It starts no Python. Install it once, and again after an
update of trioserve:

  bash:  trioserve completion bash > ~/.trioserve.bash
         echo 'source ~/.trioserve.bash' >> ~/.bashrc
  zsh:   trioserve completion zsh > ~/.trioserve.zsh
         echo 'source ~/.trioserve.zsh' >> ~/.zshrc    # after compinit
  fish:  mkdir -p ~/.config/fish/completions
         trioserve completion fish > ~/.config/fish/completions/trioserve.fish
"""

_SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionConfig:
    """The script has no options."""


def with_completion(commands: tuple[Command, ...]) -> tuple[Command, ...]:
    """Return the commands, and one that completes all of them, itself included."""

    def run(line: CommandLine) -> int:
        if not line.words:
            shells = ", ".join(_SHELLS)
            raise StartupError(f"completion: name your shell, one of {shells}")
        return write_output(_write_script(line.words[0], whole))

    completion = Command(
        name="completion",
        synopsis="bash|zsh|fish",
        usage="bash|zsh|fish",
        summary="print a script for completion in your shell",
        description=_DESCRIPTION,
        load_config=lambda: CompletionConfig,
        run=run,
        max_words=1,
        choices=_SHELLS,
    )
    whole = (*commands, completion)
    return whole


def _write_script(shell: str, commands: tuple[Command, ...]) -> str:
    from . import bash, fish, zsh
    from ...weights import cache_folder
    from .tables import make_table

    writers = {"bash": bash.write, "zsh": zsh.write, "fish": fish.write}
    tables = [make_table(command) for command in commands]
    return writers[shell](tables, cache_folder().name)
