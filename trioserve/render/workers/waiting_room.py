"""How many requests, and how much text of them, may wait to be rendered.

A request enters when its body was decoded and leaves when it is rendered. So it is refused
at the door or not at all: what it asks of the workers inside (turns.py) is bounded by who
was let in, as is what is written of answers, which does not enter again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from ...config import RenderConfig, parse_bytes
from ...errors import RendererFull
from ...observe import Pace

# What a request without any text takes, as characters: half a millisecond.
_REQUEST_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRoomStatistics:
    """Who is in the room.

    Args:
      num_requests: those that are rendered or wait for it.
      num_characters: their text.
    """

    num_requests: int
    num_characters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRoomCounters:
    """What happened at the door.

    Args:
      refused: requests that were told to come again.
    """

    refused: int


class WaitingRoom:
    """Lets requests in until there are too many of them, or too much text.

    Args:
      max_requests, max_characters: of all who are inside. One request alone may have
        more text: else it would never be let in.
    """

    def __init__(self, max_requests: int, max_characters: int) -> None:
        self._max_requests = max_requests
        self._max_characters = max_characters
        self._num_requests = 0
        self._num_characters = 0
        self._num_refused = 0
        self._pace = Pace()

    @contextmanager
    def enter(self, num_characters: int) -> Iterator[None]:
        """Be in the room while the block runs.

        Args:
          num_characters: of the request's text, about.

        Raises:
          RendererFull: there is no room.
        """
        self._check_room(num_characters)
        self._count(1, num_characters)
        try:
            yield
        finally:
            self._count(-1, -num_characters)

    def statistics(self) -> WaitingRoomStatistics:
        return WaitingRoomStatistics(
            num_requests=self._num_requests, num_characters=self._num_characters
        )

    def counters(self) -> WaitingRoomCounters:
        return WaitingRoomCounters(refused=self._num_refused)

    @property
    def _work(self) -> int:
        return self._num_characters + _REQUEST_CHARACTERS * self._num_requests

    def _check_room(self, num_characters: int) -> None:
        is_too_much = self._num_characters + num_characters > self._max_characters
        if self._num_requests < self._max_requests and (
            not is_too_much or not self._num_requests
        ):
            return
        self._num_refused += 1
        raise RendererFull(
            num_requests=self._num_requests,
            retry_after_seconds=self._pace.estimate_seconds(
                trio.current_time(), self._work
            ),
        )

    def _count(self, num_requests: int, num_characters: int) -> None:
        self._num_requests += num_requests
        self._num_characters += num_characters
        self._pace.observe(trio.current_time(), self._work)


def open_waiting_room(config: RenderConfig) -> WaitingRoom:
    """Make the room that a renderer's configuration asks for."""
    return WaitingRoom(
        config.renderer_max_requests,
        parse_bytes("renderer_max_text", config.renderer_max_text),
    )
