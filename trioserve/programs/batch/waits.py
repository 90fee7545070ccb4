"""The requests that wait to be sent again, for the progress line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
import math
from typing import Final

import trio

from ...errors import make_line

# A longer reason would leave no room for the bar.
_LONGEST_REASON: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Wait:
    """One request.

    Args:
      until: on trio's clock.
      reason: HTTP 429, for example.
    """

    until: float
    reason: str


class Waits:
    """All requests that wait now."""

    def __init__(self) -> None:
        self._waits: set[_Wait] = set()

    @contextmanager
    def count(self, seconds: float, reason: str) -> Iterator[None]:
        """Count a request, which waits in the block.

        Args:
          reason: may quote a server.
        """
        wait = _Wait(until=trio.current_time() + seconds, reason=reason)
        self._waits.add(wait)
        try:
            yield
        finally:
            self._waits.remove(wait)

    def describe(self) -> str:
        """Say how long the next of them waits, and why; "" if none does."""
        if not self._waits:
            return ""
        first = min(self._waits, key=lambda wait: wait.until)
        seconds = max(1, math.ceil(first.until - trio.current_time()))
        reason = make_line(first.reason)
        if len(reason) > _LONGEST_REASON:
            reason = f"{reason[: _LONGEST_REASON - 3]}..."
        number = len(self._waits)
        who = "a request waits" if number == 1 else f"{number} wait, the next for"
        return f"{who} {seconds} s: {reason}"
