"""The time that one request may take, from the arrival of its head to its last byte."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import math
import re
from typing import Final

import trio

from ..config import HttpConfig
from ..errors import (
    DeadlineExceeded,
    InvalidParameter,
    ModelLoading,
    RequestCancelled,
)
from ..frontend import StreamLimits
from .connection.exchange import Peer
from .record.progress import RequestProgress

HEADER: Final = "X-Request-Timeout"

_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")

# After the deadline, the last events or an error are still written. A client that takes
# longer is cut off. A second has no source.
LAST_WORDS_SECONDS: Final = 1.0


class TimeLimit:
    """The time limit of one request, which may become shorter.

    Args:
      config: the server's own limits.
      arrived_at: trio.current_time() when the head of the request had come.
      peer: its writes end with the whole request.

    Attributes:
      whole: the scope of the whole request, a little longer than its limit.
    """

    def __init__(self, config: HttpConfig, arrived_at: float, peer: Peer) -> None:
        self.whole = trio.CancelScope()
        self._work = trio.CancelScope()
        self._arrived_at = arrived_at
        self._peer = peer
        # No limit is 0.
        self._longest = config.max_request_timeout or math.inf
        self._seconds = math.inf
        self._is_cancelled = False
        self._is_working = False
        self._param = "request_timeout"
        self._refuses_late = config.refuse_late
        self._set(min(config.request_timeout or math.inf, self._longest))
        self._is_named = False

    @property
    def seconds(self) -> float | None:
        """The time that the request may take; None if it may take any."""
        return None if self._seconds == math.inf else self._seconds

    def take_header(self, text: str) -> None:
        """Read the header of the request.

        Raises:
          InvalidParameter
        """
        self.shorten(HEADER, float(text) if _NUMBER.fullmatch(text) else math.nan)

    def shorten(self, param: str, seconds: float) -> None:
        """Take a limit that the client has named; the shortest one counts.

        Raises:
          InvalidParameter: it is not a time, or longer than the server allows.
        """
        if not 0 < seconds < math.inf:
            raise InvalidParameter(param, "must be a positive number of seconds")
        if seconds > self._longest:
            raise InvalidParameter(
                param, f"must be at most {self._longest:g} seconds here"
            )
        # The server's default is for requests that name no limit.
        if not self._is_named or seconds < self._seconds:
            self._set(seconds)
            self._param = param
        self._is_named = True

    @contextmanager
    def until_answer(
        self, progress: RequestProgress, *, grace_seconds: float = 0.0
    ) -> Iterator[None]:
        """Cancel the block at the deadline.

        Args:
          grace_seconds: time behind the deadline for what ends by itself.

        Raises:
          DeadlineExceeded, RequestCancelled: the block was cancelled.
          ModelLoading: it was cancelled while it waited for its model.
        """
        self._work = trio.CancelScope(deadline=self._deadline + grace_seconds)
        if self._is_cancelled:
            self._work.cancel()
        # A process that was stopped for longer than the last words find both times over at
        # once. If both scopes were cancelled then, the client would not learn why.
        self._is_working = True
        self._end_at(math.inf)
        try:
            with self._work:
                yield
        finally:
            self._is_working = False
            self._end_at(max(self._deadline, trio.current_time()) + LAST_WORDS_SECONDS)
        # The block may have gone from its last checkpoint to its end in the meantime. Work
        # that it has begun would not end before its connection is cut.
        if self._is_cancelled and self._work.cancel_called:
            raise RequestCancelled()
        if self._work.cancelled_caught:
            if progress.phase == "load":
                # The client may come again; meanwhile the load goes on.
                raise ModelLoading()
            raise DeadlineExceeded(seconds=self._seconds, phase=progress.phase)

    def cancel(self, *, is_streaming: bool) -> None:
        """End the request now, but for the last events or an error.

        Args:
          is_streaming: its stream ends by itself.
        """
        self._is_cancelled = True
        self._end_at(trio.current_time() + LAST_WORDS_SECONDS)
        if not is_streaming:
            self._work.cancel()

    def limit_stream(self, max_queue_seconds: float | None) -> StreamLimits:
        """Return the limits of the request's stream."""
        queue = max_queue_seconds or math.inf
        return StreamLimits(
            ends_at=self._deadline,
            starts_by=self._arrived_at + queue,
            max_queue_seconds=queue,
            end_param=self._param,
            refuses_late=self._refuses_late,
        )

    def _set(self, seconds: float) -> None:
        self._seconds = seconds
        self._work.deadline = self._deadline = self._arrived_at + seconds
        if not self._is_working:
            self._end_at(self._deadline + LAST_WORDS_SECONDS)

    def _end_at(self, time: float) -> None:
        if self._is_cancelled:
            # A cancellation has set a time, which becomes no later.
            time = min(time, self.whole.deadline)
        # Writes are shielded from the cancellation of their request.
        self.whole.deadline = self._peer.lost_at = time
