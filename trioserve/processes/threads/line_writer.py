"""A thread that adds lines to a file, so that a slow or full disk delays nobody."""

from __future__ import annotations

from collections import deque
import logging
import os
import threading
import time
from typing import Final

logger = logging.getLogger(__name__)

# Lines that wait for the disk. At 500 bytes a line, that is a second of 8,000 requests a
# second, or minutes of a usual load.
MAX_WAITING_BYTES: Final = 2**22

# The least time between two log lines, so that a full disk does not fill the log.
_SILENT_SECONDS: Final = 60.0

# Only programs of this group read the files.
_MODE: Final = 0o640


class LineWriter:
    """Lines on their way to a file.

    A line is dropped and counted if too many lines wait, or if it cannot be written.

    Args:
      path: lines are added to this file; "-" stands for standard output.

    Raises:
      OSError: the file cannot be opened.

    Attributes:
      num_dropped: lines that were dropped so far.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = _open(path)
        self._lines: deque[bytes] = deque()
        # Bytes that wait or are being written.
        self._num_bytes = 0
        self._changed = threading.Condition()
        self._opens_again = False
        self._is_closed = False
        # The file ends with a part of a line.
        self._is_torn = False
        self.num_dropped = 0
        # Those that the log has reported, and when it did.
        self._num_told = 0
        self._told_at = -_SILENT_SECONDS
        # The interpreter does not wait for a daemon, which may wait for a disk.
        self._thread = threading.Thread(
            target=self._run, name=f"trioserve writes {path}", daemon=True
        )

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Add a line, which ends with a line feed; never waits."""
        with self._changed:
            if self._is_closed or self._num_bytes + len(line) > MAX_WAITING_BYTES:
                self.num_dropped += 1
                return
            self._lines.append(line)
            self._num_bytes += len(line)
            self._changed.notify()

    def reopen(self) -> None:
        """Open the path again, because another program has moved the file away."""
        with self._changed:
            self._opens_again = True
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """Wait until all lines are written, but not for longer than `seconds`."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while self._wait():
            self._reopen_if_told()
            self._write_waiting()
        os.close(self._file)

    def _wait(self) -> bool:
        """Wait for work; returns whether there is any."""
        with self._changed:
            while not (self._lines or self._opens_again or self._is_closed):
                self._changed.wait()
            return bool(self._lines) or not self._is_closed

    def _reopen_if_told(self) -> None:
        with self._changed:
            is_told, self._opens_again = self._opens_again, False
        if not is_told:
            return
        try:
            opened = _open(self._path)
        except OSError as error:
            logger.error("%s stays as it is: %s", self._path, error.strerror)
            return
        os.close(self._file)
        self._file, self._is_torn = opened, False

    def _write_waiting(self) -> None:
        with self._changed:
            lines, self._lines = self._lines, deque()
        data = b"".join(lines)
        num_written, reason = self._write(data)
        with self._changed:
            self._num_bytes -= len(data)
            self.num_dropped += data.count(b"\n", num_written)
        self._report(reason)

    def _write(self, data: bytes) -> tuple[int, str]:
        """Write bytes; returns how many, and the reason if they are not all."""
        rest, reason = memoryview(data), "it is too slow"
        try:
            if self._is_torn:
                os.write(self._file, b"\n")
                self._is_torn = False
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            reason = error.strerror or str(error)
        num_written = len(data) - len(rest)
        if num_written:
            self._is_torn = data[num_written - 1 : num_written] != b"\n"
        return num_written, reason

    def _report(self, reason: str) -> None:
        """Log the lines that were dropped, if that is long ago."""
        now = time.monotonic()
        if self.num_dropped == self._num_told or now - self._told_at < _SILENT_SECONDS:
            return
        logger.warning(
            "%s: lines dropped: %d (%s)",
            self._path,
            self.num_dropped - self._num_told,
            reason,
        )
        self._num_told, self._told_at = self.num_dropped, now


def _open(path: str) -> int:
    if path == "-":
        return os.dup(1)
    # A pipe without a reader is an error; it would wait for one otherwise.
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, _MODE)
    os.set_blocking(file, True)
    return file
