"""The time from the cancellation of a request until nothing of it is left."""

from __future__ import annotations

from collections.abc import Callable
import logging

import trio

from .progress import Phase
from .request_counts import RequestCounts

logger = logging.getLogger(__name__)


class Cancellation:
    """The cancellation of one request, if there is one.

    Its client left, it was cancelled by DELETE, or its deadline passed.

    Args:
      request_id: as str() gives it.
      after_aborts: makes a call when the engine holds nothing of ended requests.
    """

    def __init__(
        self,
        request_id: object,
        counts: RequestCounts,
        after_aborts: Callable[[Callable[[], None]], None],
    ) -> None:
        self._request_id = request_id
        self._counts = counts
        self._after_aborts = after_aborts
        self._began: tuple[float, Phase] | None = None
        self._has_ended = False

    def begin(self, phase: Phase) -> None:
        """Note that the request is cancelled now, in a phase; only the first call counts."""
        if self._began is None:
            self._began = trio.current_time(), phase

    def note_end(self, phase: Phase) -> None:
        """Note that the request has ended before its time."""
        self.begin(phase)
        self.end()

    def end(self) -> None:
        """Note that the server is done with the request; only the first call counts.

        The time ends when the engine has let go of it, too.
        """
        if self._began is not None and not self._has_ended:
            self._has_ended = True
            self._after_aborts(self._observe)

    def _observe(self) -> None:
        assert self._began is not None, "what has ended has begun"
        began_at, phase = self._began
        seconds = trio.current_time() - began_at
        self._counts.cancel_to_free[phase].observe(seconds)
        logger.debug(
            "request %s: free %.3f ms after it was cancelled in %s",
            *(self._request_id, 1000 * seconds, phase),
        )
