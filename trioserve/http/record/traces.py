"""Sends OpenTelemetry traces by OTLP over HTTP.

The event loop only puts ended requests into a queue. A thread makes their spans and sends them.
The SDK's BatchSpanProcessor would make the spans on the event loop, and log a line for each one
that it drops.
"""

from __future__ import annotations

from collections import deque
import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from ...errors import needing_extra
from .progress import EndedRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from .trace_spans import SpanMaker

logger = logging.getLogger(__name__)

# The time for which requests are collected, in seconds. It has no source.
_COLLECT_SECONDS: Final = 1.0

# The most requests in a batch. The SDK sends 512 spans at once, and a request has seven.
_BATCH_SIZE: Final = 128

# Requests that wait while the collector does not answer; about 3 MB.
_MAX_WAITING: Final = 2048

# The times for the last batch when the server ends, and for its sender to give up then.
_CLOSE_SECONDS: Final = 1.5
_GIVE_UP_SECONDS: Final = 0.5

# The least time between two log lines of the exporter.
_SILENT_SECONDS: Final = 60.0


class Traces:
    """Sends the spans of ended requests to a collector.

    A request is dropped and counted if too many wait, or if its spans cannot be sent.

    Args:
      endpoint: the whole address, such as http://localhost:4318/v1/traces.

    Raises:
      MissingExtra: OpenTelemetry is not installed.

    Attributes:
      num_dropped: requests without a trace so far.
    """

    def __init__(self, endpoint: str) -> None:
        self._maker, self._exporter, self._errors = _import_parts(endpoint)
        self._rare = _RareLines()
        # Requests, and the end of each in nanoseconds since 1970.
        self._waiting: deque[tuple[EndedRequest, int]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._run, name="trioserve sends traces", daemon=True
        )
        self.num_dropped = 0

    def start(self) -> None:
        self._errors.addFilter(self._rare)
        self._thread.start()

    def take(self, ended: EndedRequest) -> None:
        with self._changed:
            if self._is_closed or len(self._waiting) >= _MAX_WAITING:
                self.num_dropped += 1
                return
            self._waiting.append((ended, time.time_ns()))
            if len(self._waiting) in (1, _BATCH_SIZE):
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_SECONDS)
        # Ends the waits of a sender that tries again and again.
        self._exporter.shutdown()
        self._thread.join(_GIVE_UP_SECONDS)
        # A sender that has not given up still has something to say.
        if not self._thread.is_alive():
            self._errors.removeFilter(self._rare)

    def _run(self) -> None:
        while batch := self._wait():
            try:
                self._send(batch)
            except Exception:
                # The next batch may be better.
                self._count_dropped(batch)
                self._errors.exception("traces could not be sent")

    def _wait(self) -> list[tuple[EndedRequest, int]]:
        """Wait for requests; returns nothing when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            self._changed.wait_for(
                lambda: len(self._waiting) >= _BATCH_SIZE or self._is_closed,
                _COLLECT_SECONDS,
            )
            size = min(_BATCH_SIZE, len(self._waiting))
            return [self._waiting.popleft() for _ in range(size)]

    def _send(self, batch: list[tuple[EndedRequest, int]]) -> None:
        spans = [span for each in batch for span in self._maker.make(*each)]
        # A batch of traces that are not sampled is empty.
        if spans and self._exporter.export(spans).name != "SUCCESS":
            self._count_dropped(batch)

    def _count_dropped(self, batch: list[tuple[EndedRequest, int]]) -> None:
        with self._changed:
            self.num_dropped += len(batch)


class _RareLines(logging.Filter):
    """Lets a line pass once in a while, so that a dead collector does not fill the log."""

    def __init__(self) -> None:
        super().__init__()
        self._passed_at = -_SILENT_SECONDS

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self._passed_at < _SILENT_SECONDS:
            return False
        self._passed_at = now
        return True


def _import_parts(endpoint: str) -> tuple[SpanMaker, SpanExporter, logging.Logger]:
    """Make the parts that need OpenTelemetry, and find the exporter's log.

    Raises:
      MissingExtra: it is not installed.
    """
    with needing_extra("otel", "--otlp-traces-endpoint"):
        from opentelemetry.exporter.otlp.proto.http import trace_exporter

        from .trace_spans import SpanMaker
    exporter = trace_exporter.OTLPSpanExporter(endpoint)
    return SpanMaker(), exporter, logging.getLogger(trace_exporter.__name__)
