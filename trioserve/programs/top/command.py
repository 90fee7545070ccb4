"""One table, or the live screen."""

from __future__ import annotations

from collections.abc import Callable
import shutil
import signal
import sys

from ...errors import escape
from .choices import Choices
from .client import Client, TopError
from .config import TopConfig
from .poller import Poller
from .table import sort, write_table

# The width of a table outside of a terminal.
_WIDTH = 120


def run_top(config: TopConfig, write: Callable[[str], int]) -> int:
    """Show the requests of a server; returns the exit code.

    Args:
      write: prints a text, and returns the exit code.

    Raises:
      InvalidConfig: a file cannot be read.
    """
    client = Client(config.remote)
    try:
        # A wrong key or address is told before the screen is cleared.
        requests, engines = client.list_requests(), client.describe_engines()
    except TopError as error:
        # The message may be the server's.
        sys.stderr.write(f"trioserve: {escape(str(error))}\n")
        return 1
    is_terminal = sys.stdout.isatty() and sys.stdin.isatty()
    if config.screen.once or not is_terminal:
        width = shutil.get_terminal_size((_WIDTH, 24)).columns
        rows = sort(requests, config.screen.sort, reverse=False)
        lines = write_table(rows, width, engines=engines)
        return write("".join(f"{line}\n" for line in lines))
    return _run_screen(config, Poller(client, config.screen.interval, tuple(requests)))


def _run_screen(config: TopConfig, poller: Poller) -> int:
    # Here, because some builds of Python have no curses.
    try:
        import curses

        from .screen import Screen
    except ImportError as error:
        return _refuse_terminal(error)
    try:
        curses.setupterm()
    except curses.error as error:
        return _refuse_terminal(error)

    # The screen is left in order, whichever signal comes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    curses.set_escdelay(100)
    screen = Screen(
        poller,
        Choices(poller, config.screen.sort),
        config.remote.where,
    )
    poller.start()
    try:
        curses.wrapper(screen.run)
    except KeyboardInterrupt:
        pass
    except curses.error:
        # A terminal that was closed cannot be restored.
        if sys.stdout.isatty():
            raise
    return 0


def _refuse_terminal(error: Exception) -> int:
    sys.stderr.write(f"trioserve: no live screen here: {error}; try --once\n")
    return 2
