"""Reads the input as a stream of lines, so that a file of any size takes little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
import gzip
import hashlib
import io
import os
from pathlib import Path
from typing import Final, Protocol

from ...errors import InvalidConfig

# The longest body that a server takes by default (--max-body-size), and its surroundings.
MAX_LINE_BYTES: Final = 2**26 + 2**16

# One call in a thread reads so much. The lines wait in memory.
_CALL_BYTES: Final = 2**18

# One read of a pipe, which holds no more.
_READ_BYTES: Final = 2**16

_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLine:
    """A line that is not empty.

    Attributes:
      number: of the line in the file; the first is 1.
      text: the line without the space around it; cut if it is too long.
      digest: of the whole line. It tells whether an earlier run has seen the same line.
    """

    number: int
    text: bytes
    digest: int
    is_too_long: bool = False


class LiveInput:
    """Reads lines that somebody may still be writing, to standard input or a named pipe.

    It has no lock, and is for one thread. A buffered file of Python holds a lock while a thread
    reads it, and whoever closes the file waits for that lock; a user who interrupts a batch
    would wait for the next line. It is opened by the first read, because a named pipe waits
    for its writer then.

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


class Lines(Protocol):
    """A file of which lines are read."""

    def readline(self, limit: int, /) -> bytes: ...


@dataclass(slots=True)
class LineReader:
    """Cuts a file into lines.

    Args:
      file: open for reading.
      is_live: somebody may still be writing it, so lines are handed on one by one.
      max_bytes: the longest line that is kept in memory.
    """

    file: Lines
    is_live: bool = False
    max_bytes: int = MAX_LINE_BYTES
    _number: int = field(default=0, init=False)

    def read(self) -> list[InputLine]:
        """Return the next lines; none at the end.

        Raises:
          InvalidConfig: the file cannot be read.
        """
        lines: list[InputLine] = []
        num_bytes = 0
        while num_bytes < _CALL_BYTES:
            line = self._read_line()
            if line is None:
                break
            if line.text:
                lines.append(line)
                num_bytes += len(line.text)
                if self.is_live:
                    break
        return lines

    def _read_line(self) -> InputLine | None:
        try:
            data = self.file.readline(self.max_bytes + 1)
            if not data:
                return None
            self._number += 1
            if self._number == 1:
                data = data.removeprefix(_BOM)
            is_too_long = len(data) > self.max_bytes
            text = data.strip()
            digest = hashlib.blake2b(text, digest_size=8)
            while len(data) > self.max_bytes and not data.endswith(b"\n"):
                data = self.file.readline(self.max_bytes + 1)
                digest.update(data)
        # gzip raises EOFError, and zlib.error, which is not an OSError.
        except Exception as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidConfig("input_file", f"cannot be read: {reason}") from error
        return InputLine(
            number=self._number,
            text=text,
            # 0 stands for a line that has no answer; see record.Done.
            digest=int.from_bytes(digest.digest()) or 1,
            is_too_long=is_too_long,
        )


def is_rereadable(path: str) -> bool:
    """Return whether the file can be read twice: it is a plain one, and no pipe."""
    return path != "-" and Path(path).is_file()


@contextmanager
def open_lines(path: str) -> Iterator[LineReader]:
    """Open the input.

    Raises:
      InvalidConfig: the file cannot be opened. A pipe is opened by the first read.
    """
    if _is_live(path):
        with closing(LiveInput(partial(_open_live, path))) as live:
            yield LineReader(live, is_live=True)
        return
    try:
        raw = open(path, "rb")
    except OSError as error:
        raise InvalidConfig.of_file("input_file", "read", path, error) from error
    with raw:
        if path.endswith(".gz"):
            with gzip.open(raw, "rb") as plain:
                yield LineReader(plain)
        else:
            yield LineReader(raw)


def _is_live(path: str) -> bool:
    file = Path(path)
    return path == "-" or (
        (file.is_fifo() or file.is_char_device()) and not path.endswith(".gz")
    )


def _open_live(path: str) -> io.FileIO:
    if path == "-":
        return open(0, "rb", buffering=0, closefd=False)
    return open(path, "rb", buffering=0)


def is_same_file(one: str, other: str) -> bool:
    """Return whether two paths name one file."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
