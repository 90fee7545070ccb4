"""The connection to a client that reads events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from .answer import Answer
from .scope import ScopedRequest
from .streams.keepalive import COMMENT


@asynccontextmanager
async def open_events(
    request: ScopedRequest, comment: bytes = COMMENT
) -> AsyncIterator[EventConnection]:
    """Send events to the client of a request in the block, and comments in between."""
    connection = EventConnection(request.answer, comment)
    with request.keepalive.hold(connection):
        yield connection
    # The rest of the answer goes another way.
    await connection.wait_comment()


class EventConnection:
    """Sends events, and comments while there are none.

    Args:
      comment: is ignored by the client.

    Attributes:
      num_parts: the parts of the stream that were sent.
    """

    def __init__(self, answer: Answer, comment: bytes) -> None:
        self.num_parts = 0
        self._answer = answer
        self._comment = comment
        self._num_sending = 0
        # Set when the comment has been sent that is being sent; None without one.
        self._comment_sent: trio.Event | None = None

    @property
    def is_waiting(self) -> bool:
        """True if there is no event to send."""
        return self._num_sending == 0

    async def send(self, events: bytes) -> None:
        """Send events; behind a comment that the client takes slowly."""
        self.num_parts += 1
        self._num_sending += 1
        try:
            await self.wait_comment()
            await self._answer.send_part(events)
        finally:
            self._num_sending -= 1

    async def wait_comment(self) -> None:
        """Wait until the client has taken the comment that is being sent, if there is one."""
        if self._comment_sent is not None:
            await self._comment_sent.wait()

    async def send_comment(self) -> None:
        self._comment_sent = sent = trio.Event()
        try:
            await self._answer.send_part(self._comment)
        finally:
            self._comment_sent = None
            sent.set()
