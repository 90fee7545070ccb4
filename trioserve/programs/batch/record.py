"""The lines of the output, in OpenAI's format, and the lines of an earlier run.

The id of an output line has the number and the digest of the input line that it answers.
So the output alone tells which lines are done, and whether they belong to this input.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
import re
from typing import Final

import msgspec

from ..http.reasons import read_reason
from .lines import InputLine

_ID: Final = re.compile(r"batch_req_(\d{1,10})_([0-9a-f]{16})")

# More than any file has. Done would take memory for all lines before it.
_MAX_NUMBER: Final = 2**31


class ResponsePart(msgspec.Struct):
    """An answer of the server."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class ErrorPart(msgspec.Struct):
    """The reason why there is no answer."""

    code: str
    message: str


class OutputLine(msgspec.Struct):
    """One line of the output."""

    id: str
    custom_id: str | None
    response: ResponsePart | None
    error: ErrorPart | None

    @property
    def has_failed(self) -> bool:
        return self.response is None or self.response.status_code != 200

    def encode(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"

    def describe_failure(self) -> str:
        """Return a few words about a line that has failed."""
        if self.error is not None:
            return self.error.message
        assert self.response is not None, "a line has a response or an error"
        return describe_status(self.response.status_code, bytes(self.response.body))


def describe_status(status: int, body: bytes) -> str:
    """Return a few words about an answer that is an error."""
    reason = read_reason(body)
    return f"HTTP {status}{': ' if reason else ''}{reason}"


def name_line(line: InputLine) -> str:
    """Return the id of the output line that answers a line."""
    return f"batch_req_{line.number}_{line.digest:016x}"


@dataclass(slots=True)
class Done:
    """The input lines that have an answer.

    Attributes:
      num_lines: their number.
      num_failed: the lines among them that have failed.
    """

    num_lines: int = 0
    num_failed: int = 0
    # By the number of the line; 0 for one that has no answer. 8 bytes for each line.
    _digests: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, text: bytes) -> bool:
        """Take a line of the output; returns False if no run of this command wrote it."""
        try:
            line = msgspec.json.decode(text, type=OutputLine)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        match = _ID.fullmatch(line.id)
        if match is None or not 0 < int(match[1]) < _MAX_NUMBER:
            return False
        number = int(match[1])
        if number >= len(self._digests):
            self._digests.extend([0] * (number + 1 - len(self._digests)))
        if not self._digests[number]:
            self.num_lines += 1
            self.num_failed += line.has_failed
        self._digests[number] = int(match[2], 16)
        return True

    @property
    def last_number(self) -> int:
        """The number of the last input line that has an answer; 0 if none has."""
        return max(0, len(self._digests) - 1)

    def has(self, line: InputLine) -> bool:
        """Return whether a line has an answer."""
        return line.number < len(self._digests) and self._digests[line.number] != 0

    def differs(self, line: InputLine) -> bool:
        """Return whether the answer of this line belongs to another line."""
        return self.has(line) and self._digests[line.number] != line.digest
