"""The log on stderr, whose reader cannot hold the process up.

A program that has our stderr in a pipe may stop reading it. A write to a full pipe waits,
and so would the event loop, for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
import logging
import os
import select
import socket
import stat
import sys
import time
from typing import Final, TextIO

# Lines that wait for their reader: minutes of a usual log.
MAX_WAITING_BYTES: Final = 2**20

# The time for which the end of a process waits for the reader of its last lines.
_LAST_SECONDS: Final = 1.0


class PatientHandler(logging.Handler):
    """Writes lines at once if the reader has room for them, and otherwise later.

    Lines that find no room wait for the next record, or for the end of the process. If too
    many wait, further ones are dropped, and their number is told.

    Args:
      file: a descriptor for the reader of the lines; the handler closes it.
      write: writes to it as much as the kernel takes at once, or raises BlockingIOError.
    """

    def __init__(self, file: int, write: Callable[[int, bytes], int]) -> None:
        super().__init__()
        self._file = file
        self._write = write
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0
        self._num_dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        self._write_waiting()
        if self._num_dropped and not self._waiting:
            self._add(f"{self._num_dropped} lines of the log were dropped")
            self._num_dropped = 0
        self._add(line)
        self._write_waiting()

    def flush(self) -> None:
        """Wait for the reader, but not for long. The end of the process calls this."""
        until = time.monotonic() + _LAST_SECONDS
        self._write_waiting()
        while self._waiting and (seconds := until - time.monotonic()) > 0:
            select.select([], [self._file], [], seconds)
            self._write_waiting()

    def close(self) -> None:
        with self.lock or nullcontext():
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
        super().close()

    def _add(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        if self._num_bytes + len(data) > MAX_WAITING_BYTES:
            self._num_dropped += 1
            return
        self._waiting.append(data)
        self._num_bytes += len(data)

    def _write_waiting(self) -> None:
        try:
            while self._waiting:
                num_sent = self._write(self._file, self._waiting[0])
                self._num_bytes -= num_sent
                if num_sent == len(self._waiting[0]):
                    self._waiting.popleft()
                else:
                    self._waiting[0] = self._waiting[0][num_sent:]
        except BlockingIOError:
            pass
        except OSError:
            # Nobody will ever read them.
            self._waiting.clear()
            self._num_bytes = 0


def open_handler(stream: TextIO) -> logging.Handler:
    """Return a handler for a stream; it never waits for the reader of a pipe."""
    try:
        file = stream.fileno()
        mode = os.fstat(file).st_mode
    except (OSError, ValueError):
        # A program has replaced the stream by an object of its own.
        return logging.StreamHandler(stream)
    if stat.S_ISSOCK(mode):
        return PatientHandler(os.dup(file), _send)
    if sys.platform == "linux" and (stat.S_ISFIFO(mode) or os.isatty(file)):
        # Other programs share the open file, and do not expect that it never waits. So it
        # is opened once more.
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with suppress(OSError):
            return PatientHandler(os.open(f"/proc/self/fd/{file}", flags), os.write)
    # A write to a file ends by itself.
    return logging.StreamHandler(stream)


def _send(file: int, data: bytes) -> int:
    peer = socket.socket(fileno=file)
    try:
        return peer.send(data, socket.MSG_DONTWAIT)
    finally:
        peer.detach()
