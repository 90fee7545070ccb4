"""The keyboard between two prompts: keys are not shown, and wait for the next one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import sys
import termios

_INPUT, _LOCAL = 0, 3


@contextmanager
def keep_quiet() -> Iterator[None]:
    """Hide typed keys in the block; Ctrl-C and Ctrl-Z still send their signals.

    A prompt inside the block has modes of its own, and returns to these.
    """
    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):
        # The terminal was closed.
        yield
        return
    quiet = [*before]
    # Keys stay as they were pressed: the prompt tells Enter from Ctrl-J. And Ctrl-S does
    # not stop the output, for which the whole program would wait.
    quiet[_INPUT] &= ~(termios.ICRNL | termios.IXON)
    quiet[_LOCAL] &= ~(termios.ECHO | termios.ICANON)
    # Ctrl-C leaves earlier keys.
    quiet[_LOCAL] |= termios.NOFLSH
    _set(descriptor, quiet)
    try:
        yield
    finally:
        _set(descriptor, before)


def _set(descriptor: int, attributes: list[object]) -> None:
    try:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)  # type: ignore[arg-type]
    except termios.error:
        pass
