"""The output file: locked, mended after an interruption, and written line by line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import fcntl
import os
from pathlib import Path
import stat
from typing import BinaryIO, Final

from ...errors import InvalidConfig
from .record import Done

_FIELD: Final = "output_file"

# The beginning of each line.
_START: Final = b'{"id":"batch_req_'


class WriteFailed(Exception):
    """Raised when answers cannot be written, such as on a full disk."""


class Output:
    """A file, a pipe or a device, at whose end whole lines are written.

    Args:
      descriptor: open for writing.
      name: for errors.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._name = name
        # Only a file has lines that can be taken back.
        self._is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)

    def write(self, data: bytes) -> None:
        """Write whole lines. If that fails, no part of them stays in a file.

        Raises:
          WriteFailed
        """
        try:
            start = os.fstat(self._descriptor).st_size
            left = memoryview(data)
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            if self._is_file:
                # If this fails, too, the next run cuts the torn line off.
                with suppress(OSError):
                    os.ftruncate(self._descriptor, start)
            raise self._explain(error) from None

    def close(self) -> None:
        """Wait until the disk has all lines.

        Raises:
          WriteFailed
        """
        try:
            if self._is_file:
                os.fsync(self._descriptor)
        except OSError as error:
            raise self._explain(error) from None

    def _explain(self, error: OSError) -> WriteFailed:
        return WriteFailed(f"cannot write {self._name}: {error.strerror}")


@contextmanager
def open_output(path: str) -> Iterator[tuple[Output, Done]]:
    """Open the output, and read the lines of earlier runs.

    A torn last line, which a killed run leaves, is cut off.

    Raises:
      InvalidConfig: the file cannot be used, another run is writing it, or it is not output
        of this command.
    """
    if path == "-":
        yield Output(1, "standard output"), Done()
        return
    try:
        # Unbuffered: written lines have left the process, which may be killed.
        file = open(path, "a+b", buffering=0)
    except OSError as error:
        raise InvalidConfig.of_file(_FIELD, "write", path, error) from error
    with file:
        _lock(file.fileno(), path)
        # A device such as /dev/null has no lines of earlier runs.
        done = _mend(path, file.fileno()) if Path(path).is_file() else Done()
        yield Output(file.fileno(), path), done


def _lock(descriptor: int, path: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidConfig(
            _FIELD, f"{path} is being written by another run; wait for its end"
        ) from None
    except OSError:
        # Some file systems know no locks.
        pass


def _mend(path: str, descriptor: int) -> Done:
    """Read the lines that are done, and cut off the text behind them."""
    try:
        with open(path, "rb") as file:
            done, end = _read(path, file)
            is_torn = file.seek(0, os.SEEK_END) > end
        if is_torn:
            os.ftruncate(descriptor, end)
    except OSError as error:
        raise InvalidConfig.of_file(_FIELD, "read", path, error) from error
    return done


def _read(path: str, file: BinaryIO) -> tuple[Done, int]:
    """Return the lines that are done, and the end of the last one."""
    done, end = Done(), 0
    for number, text in enumerate(file, start=1):
        if _is_torn(text):
            break
        if not done.add(text):
            reason = f"line {number} of {path} was not written by run-batch"
            raise InvalidConfig(_FIELD, f"{reason}; name another file")
        end += len(text)
    return done, end


def _is_torn(text: bytes) -> bool:
    """Return whether a line is the beginning of one that a run was about to write.

    Nobody else's text may be cut off, so the beginning must be ours.
    """
    if text.endswith(b"\n"):
        return False
    # Zeros are left by a machine that lost its power.
    is_ours = text.startswith(_START) or _START.startswith(text)
    return is_ours or not text.strip(b"\0")
