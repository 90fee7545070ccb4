"""The request log: a line of JSON for each request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from ...errors import InvalidConfig, escape_json
from ...processes.threads.line_writer import LineWriter
from ...types.output import FinishReason
from .progress import EndedRequest, Ending, Phase, TokenCounts

# The time for the last lines when the server ends. A disk that hangs must not delay that.
_CLOSE_SECONDS: Final = 2.0


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line; docs/watch.rst explains its fields."""

    time: datetime
    id: str
    key: str | None
    method: str
    path: str
    status: int | None
    ending: Ending
    phase: Phase | None
    error: str | None
    finish_reasons: dict[FinishReason, int]
    tokens: TokenCounts | None
    seconds: float
    phases: dict[Phase, float]


class RequestLog:
    """Writes ended requests to a file, in a thread of its own.

    Args:
      path: see LineWriter.

    Raises:
      InvalidConfig: the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        try:
            self._writer = LineWriter(path)
        except OSError as error:
            raise InvalidConfig(
                "request_log", f"cannot write {path}: {error.strerror}"
            ) from None

    @property
    def num_dropped(self) -> int:
        """Lines that were not written, because the disk is slow or full."""
        return self._writer.num_dropped

    def start(self) -> None:
        self._writer.start()

    def take(self, ended: EndedRequest) -> None:
        # Viewers break lines at some characters, and terminals obey others.
        line = escape_json(msgspec.json.encode(_to_line(ended)))
        self._writer.write(line + b"\n")

    def reopen(self) -> None:
        """Open the file again; it may have been moved away."""
        self._writer.reopen()

    def close(self) -> None:
        self._writer.close(_CLOSE_SECONDS)


def _to_line(ended: EndedRequest) -> RequestLine:
    phases: dict[Phase, float] = {}
    for span in ended.spans:
        seconds = span.ends_at - span.begins_at
        phases[span.phase] = round(phases.get(span.phase, 0.0) + seconds, 6)
    return RequestLine(
        time=datetime.now(UTC) - timedelta(seconds=ended.seconds),
        id=ended.id,
        key=ended.key,
        method=ended.method,
        path=ended.path,
        status=ended.status,
        ending=ended.ending,
        phase=ended.phase,
        error=ended.error,
        finish_reasons=dict(ended.finish_reasons),
        tokens=ended.tokens,
        seconds=round(ended.seconds, 6),
        phases=phases,
    )
