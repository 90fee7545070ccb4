"""Bounds the requests, and their text, that are rendered or wait for it.

A request enters after its body is decoded, and leaves when it is rendered. So a request
is refused here or not at all. The work inside (turns.py) is bounded by the admitted
requests. This includes the writing of their answers, which does not enter again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from ...config import RenderConfig, parse_bytes
from ...errors import RendererFull
from ...types.admission import ClientHoldings, Pace

# The cost of a request without text, in characters: half a millisecond.
_REQUEST_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRoomStatistics:
    """The requests in the room.

    Args:
      num_requests: requests that are rendered or wait for it.
      num_characters: the length of their text.
    """

    num_requests: int
    num_characters: int


class WaitingRoom:
    """Admits requests until there are too many of them, or too much text.

    Args:
      max_requests, max_characters: limits of all requests inside, which clients share as
        ClientHoldings says. The only request of a client may have more text, because it
        would never enter otherwise.

    Attributes:
      num_refused: requests that were refused with a time to retry.
    """

    def __init__(self, max_requests: int, max_characters: int) -> None:
        self._max_requests = max_requests
        self._max_characters = max_characters
        self._requests = ClientHoldings()
        self._characters = ClientHoldings()
        # Of the requests inside, in characters.
        self._work = 0
        self.num_refused = 0
        self._pace = Pace()

    @contextmanager
    def enter(self, num_characters: int, client: str = "") -> Iterator[None]:
        """Enter, and stay in the room while the block runs.

        Args:
          num_characters: the approximate length of the request's text.
          client: the name of the one that it belongs to.

        Raises:
          RendererFull: the room is full.
        """
        try:
            self.check_room(num_characters, client)
        except RendererFull:
            self.num_refused += 1
            raise
        self._count(1, num_characters, client)
        try:
            yield
        finally:
            self._count(-1, -num_characters, client)

    def statistics(self) -> WaitingRoomStatistics:
        return WaitingRoomStatistics(
            num_requests=self._requests.total, num_characters=self._characters.total
        )

    def check_room(self, num_characters: int, client: str | None = None) -> None:
        """Raise RendererFull if the room is full for so much text.

        Args:
          client: the name of the one that it belongs to; None stands for any.
        """
        has_place = self._requests.count_free(self._max_requests, client) > 0
        num_free = self._characters.count_free(self._max_characters, client)
        is_alone = not self._requests.count(client)
        if has_place and (is_alone or num_characters <= num_free):
            return
        raise RendererFull(
            num_requests=self._requests.total,
            retry_after_seconds=self._pace.estimate_seconds(
                trio.current_time(), self._work
            ),
        )

    def _count(self, num_requests: int, num_characters: int, client: str) -> None:
        self._requests.change(client, num_requests)
        self._characters.change(client, num_characters)
        self._work += num_characters + _REQUEST_CHARACTERS * num_requests
        self._pace.observe(trio.current_time(), self._work)


def open_waiting_room(config: RenderConfig) -> WaitingRoom:
    """Make a room with the limits of a configuration."""
    return WaitingRoom(
        config.renderer_max_requests,
        parse_bytes("renderer_max_text", config.renderer_max_text),
    )
