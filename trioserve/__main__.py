"""The command line.

    trioserve COMMAND ...

The commands are in commands/. Under torchrun `serve` is the server in the process of rank 0,
and a stage elsewhere.

Exit codes: 0 after a requested stop, 1 if `top` or `chat` gets no answer of its server or model
or lines of `run-batch` failed, 2 for a mistake that the user can correct (a wrong option, a model
that cannot be found), 3 if the engine failed or a batch could not be finished, 128 + N if a second
signal N cut the drain short, or the signal N ended `chat` or `run-batch`. A signal that comes before
the server has begun to load a model kills the process, which shells report as 128 + N, too.
"""

from __future__ import annotations

from collections.abc import Sequence
import logging
import os
import signal
import sys
import threading

from ._version import __version__
from .commands import COMMANDS, find_command
from .commands.output import write_output
from .errors import StartupError

_USAGE = """\
usage: trioserve COMMAND ...

{}
For example, the default model on port 8000:

  trioserve serve

`trioserve serve --help` lists all options.
"""

# The column at which the summaries of commands begin.
_COLUMN = 38


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code.

    Args:
      argv: None means that this command is the whole process, and takes its arguments.
    """
    if argv is not None:
        return _run(argv)
    _die_of_interrupts()
    code = _run(sys.argv[1:])
    _leave_threads(code)
    return code


def _die_of_interrupts() -> None:
    """Let SIGINT end the process at once, as SIGTERM does, unless it has a handler.

    Python would raise KeyboardInterrupt in the middle of an import. Before and after
    the time in which the server handles signals, there is nothing to clean up.
    """
    # Scripts start background processes that ignore the signal. This must not change.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave_threads(code: int) -> None:
    """End the process now if threads of a stopped load still run.

    The interpreter would wait for them, for seconds if they import torch.
    """
    others = {*threading.enumerate()} - {threading.main_thread()}
    if any(not thread.daemon for thread in others):
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)


def _run(arguments: Sequence[str]) -> int:
    try:
        return _run_command(arguments)
    except StartupError as error:
        sys.stderr.write(f"trioserve: {error}\n")
        return 2


def _run_command(arguments: Sequence[str]) -> int:
    if found := find_command(arguments):
        command, rest = found
        return command.main(rest)
    match arguments:
        case ["--version" | "-V"]:
            return write_output(f"trioserve {__version__}\n")
        case ["--help" | "-h", *_]:
            return write_output(_describe())
        case [word, *_]:
            sys.stderr.write(f"trioserve: {word!r} is not a command\n\n{_describe()}")
            return 2
        case _:
            # A script that lost its arguments must notice that, so this is an error.
            sys.stderr.write(_describe())
            return 2


def _describe() -> str:
    rows = [(f"{each.name} {each.usage}", each.summary) for each in COMMANDS]
    rows.append(("--version", "print the version"))
    lines = (f"  trioserve {call}".ljust(_COLUMN) + f"{text}\n" for call, text in rows)
    return _USAGE.format("".join(lines))


if __name__ == "__main__":
    sys.exit(main())
