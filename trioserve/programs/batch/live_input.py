"""An input that somebody may still be writing: standard input, or a named pipe.

A buffered file of Python holds a lock while a thread reads it, and whoever closes the file
waits for that lock; a user who interrupts a batch would wait for the next line. This file has
no lock. It is opened by the first read, because a named pipe waits for its writer then.
"""

from __future__ import annotations

from collections.abc import Callable
import io
from typing import Final

# One read; a pipe holds no more.
_READ_BYTES: Final = 2**16


class LiveInput:
    """Reads lines without a lock, for one thread.

    Args:
      open_file: opens it unbuffered.
    """

    def __init__(self, open_file: Callable[[], io.RawIOBase]) -> None:
        self._open_file = open_file
        self._file: io.RawIOBase | None = None
        self._unread = bytearray()

    def readline(self, limit: int) -> bytes:
        """Return the next line with its end, or its next `limit` bytes; none at the end.

        Raises:
          OSError
        """
        if self._file is None:
            self._file = self._open_file()
        searched = 0
        while True:
            end = self._unread.find(b"\n", searched, limit) + 1
            if end or len(self._unread) >= limit:
                return self._take(end or limit)
            searched = len(self._unread)
            data = self._file.read(_READ_BYTES)
            if not data:
                return self._take(limit)
            self._unread += data

    def close(self) -> None:
        """Close the file; a thread that still waits for a line goes on waiting."""
        if self._file is not None:
            self._file.close()

    def _take(self, num_bytes: int) -> bytes:
        taken = bytes(self._unread[:num_bytes])
        del self._unread[:num_bytes]
        return taken
