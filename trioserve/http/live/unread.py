"""Bounds the memory of tokens that clients have not taken yet.

A slow client takes 64 KiB now and then, which is enough to stay connected. Meanwhile the device
generates on, and an answer of many sequences with log probabilities may be gigabytes.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from ...errors import ReaderTooSlow
from .live_requests import LiveRequest, LiveRequests

logger = logging.getLogger(__name__)

# The memory may exceed its limit by the tokens of this time.
_LOOK_SECONDS: Final = 1.0


class UnreadLimit:
    """Ends the streams that hold the most unread tokens, if all together hold too much.

    Args:
      limit: bytes.

    Attributes:
      num_ended: streams that were ended.
    """

    def __init__(self, limit: int, live: LiveRequests) -> None:
        self._limit = limit
        self._live = live
        self.num_ended = 0

    @property
    def num_bytes(self) -> int:
        """The approximate memory of all unread tokens."""
        return sum(num_bytes for _, num_bytes in self._weigh())

    async def run(self) -> None:
        """Look after the streams until cancelled."""
        while True:
            await trio.sleep(_LOOK_SECONDS)
            self._enforce()

    def _enforce(self) -> None:
        heaviest_last = sorted(self._weigh(), key=lambda weighed: weighed[1])
        total = sum(num_bytes for _, num_bytes in heaviest_last)
        while total > self._limit:
            request, num_bytes = heaviest_last.pop()
            logger.info("request %s: its client takes too little", request.id)
            request.fail(ReaderTooSlow())
            self.num_ended += 1
            total -= num_bytes

    def _weigh(self) -> list[tuple[LiveRequest, int]]:
        return [
            (each, each.stream.num_unread_bytes)
            for each in self._live
            if each.stream is not None
        ]
