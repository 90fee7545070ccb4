"""The command line.

    trioserve COMMAND ...

The commands are in commands/. Under torchrun `serve` is the server in the process of rank 0,
and a stage elsewhere.

Exit codes: 0 after a requested stop, 1 if `top` or `chat` gets no answer of its server or model
or lines of `run-batch` failed, 2 for a mistake that the user can correct (a wrong option, a model
that cannot be found), 3 if the engine failed or a batch could not be finished, 128 + N if a second
signal N cut the drain short, or the signal N ended `chat`, `run-batch` or `bench serve`. A signal
that comes before the server has begun to load a model kills the process, which shells report as
128 + N, too.
"""

from __future__ import annotations

import sys

# pip refuses older versions. A checkout is run without it, and would fail at some import.
if sys.version_info < (3, 11):
    sys.exit(f"trioserve needs Python 3.11 or newer, and {sys.executable} is older")

from collections.abc import Sequence
import logging
import os
import signal
import threading

from .errors import StartupError, escape
from .programs.command import write_output
from .programs.commands import COMMANDS, explain_unknown_command, find_command
from .types.version import __version__

_USAGE = """\
usage: trioserve COMMAND ...

{}
For example, the default model on port 8000:

  trioserve serve

`trioserve serve --help` lists all options.
"""

# The column at which the summaries of commands begin.
_COLUMN = 40


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
        # It may quote a server or a file, and control the terminal.
        sys.stderr.write(f"trioserve: {escape(str(error))}\n")
        return 2
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        # Of our own modules none may be missing. Then the traceback helps more.
        if package in ("", "trioserve"):
            raise
        sys.stderr.write(f"trioserve: {_explain_missing(package)}\n")
        return 2


def _explain_missing(package: str) -> str:
    """Say how to install what trioserve requires, in an environment that lacks it."""
    from pathlib import Path

    root = Path(__file__).parent.parent
    # A checkout has this file beside the package; an installation does not.
    target = str(root) if (root / "setup.cfg").is_file() else "trioserve"
    return (
        f"{package} is not installed for {sys.executable}: run "
        f"`{sys.executable} -m pip install {target}`"
    )


def _run_command(arguments: Sequence[str]) -> int:
    if found := find_command(arguments):
        command, rest = found
        return command.main(rest)
    # No `match`: an older Python must be able to read this file, to say that it is too old.
    word = arguments[0] if arguments else ""
    if [*arguments] in (["--version"], ["-V"]):
        return write_output(f"trioserve {__version__}\n")
    if word in ("--help", "-h"):
        return write_output(_describe())
    if word:
        raise StartupError(explain_unknown_command(word, arguments[1:]))
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
