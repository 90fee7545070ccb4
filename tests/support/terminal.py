"""A program in a terminal: its keys, and its screen.

A pseudo terminal runs the program, and pyte draws what it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
import fcntl
import io
import os
import select
import signal
import struct
import subprocess
import termios
import time

import pyte
from warm_start import FORK

# The machine may be five times slower than usual, and busy.
_SECONDS = 60.0


class Terminal:
    """A terminal with a running program.

    Attributes:
      raw: all that the program has written.
      process: the program.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], master: io.FileIO, size: tuple[int, int]
    ):
        self.process = process
        self.raw = b""
        self._master = master
        self._screen = pyte.HistoryScreen(*size, history=5000)
        # Programs ask for the position of the cursor.
        self._screen.write_process_input = self.type
        self._stream = pyte.ByteStream(self._screen)

    @property
    def lines(self) -> list[str]:
        """The lines of the screen, also the lines that have scrolled away."""
        gone = [
            "".join(row[column].data for column in range(self._screen.columns))
            for row in self._screen.history.top
        ]
        return [line.rstrip() for line in [*gone, *self._screen.display]]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip()

    @property
    def modes(self) -> list[object]:
        """The modes of the terminal."""
        return termios.tcgetattr(self._master)

    def type(self, keys: str) -> None:
        self._master.write(keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        _set_size(self._master, (columns, lines))
        self._screen.resize(lines, columns)
        self.process.send_signal(signal.SIGWINCH)

    def close(self) -> None:
        """Close the terminal, as its window does."""
        self._master.close()

    def wait(self, condition: Callable[[Terminal], object]) -> None:
        """Read until something is true."""
        deadline = time.monotonic() + _SECONDS
        while not condition(self):
            is_over = self.process.poll() is not None
            self.read()
            late = is_over or time.monotonic() > deadline
            assert not late or condition(self), f"the screen is:\n{self.text}"

    def wait_text(self, *texts: str) -> None:
        self.wait(lambda terminal: all(text in terminal.text for text in texts))

    def wait_prompt(self) -> None:
        """Wait until the program asks for a text."""
        self.wait(lambda terminal: terminal.text.split("\n")[-1] == ">")

    def wait_end(self) -> int:
        """Wait for the end of the program; returns its exit code."""
        self.wait(lambda terminal: terminal.process.poll() is not None)
        self.read()
        return self.process.wait()

    def read(self) -> None:
        """Show the program's output, if there is any."""
        readable, _, _ = select.select([self._master], [], [], 0.05)
        if readable:
            try:
                part = self._master.read(2**16) or b""
            except OSError:
                # Nobody holds the other end any more.
                time.sleep(0.01)
                return
            self.raw += part
            self._stream.feed(part)


@contextmanager
def open_terminal(
    arguments: Sequence[str],
    *,
    size: tuple[int, int] = (80, 24),
    stderr: int | None = None,
    environment: Mapping[str, str] = {},
) -> Iterator[Terminal]:
    """Run trioserve in a terminal; end it with the block.

    Args:
      size: columns and lines.
    """
    master, slave = os.openpty()
    _set_size(slave, size)
    # With these, curses would not ask the terminal for its size.
    inherited = {k: v for k, v in os.environ.items() if k not in ("LINES", "COLUMNS")}
    process = subprocess.Popen(
        [*FORK, "-m", "trioserve", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave if stderr is None else stderr,
        env={**inherited, "TERM": "xterm-256color", **environment},
        start_new_session=True,
    )
    os.close(slave)
    with io.FileIO(master, "r+") as ours:
        try:
            yield Terminal(process, ours, size)
        finally:
            process.kill()
            process.wait()


def _set_size(terminal: int | io.FileIO, size: tuple[int, int]) -> None:
    columns, lines = size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
