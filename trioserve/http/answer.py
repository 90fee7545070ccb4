"""Sends an answer to the client, in one piece or as events."""

from __future__ import annotations

from collections.abc import Mapping
import logging
from typing import cast

from hypercorn.typing import (
    ASGISendCallable,
    ASGISendEvent,
    HTTPScope,
)
import trio

from ..errors import escape
from .connection import CHUNKS, ChunkSender, Peer
from .record.progress import Ending, Phase, RequestProgress
from .record.request_counts import RequestCounts
from .wire.error_body import HEADER_BYTES, RequestId
from .wire.origins import Cors

logger = logging.getLogger(__name__)


class Answer:
    """Sends the answer of one request, with the id of the request in its head.

    All answers go through this class, also errors.

    Args:
      scope: it has extensions.
      cors: adds the headers for browsers; None for none.

    Attributes:
      status: of the head; None before it is sent.
      error: the type of the error with which the answer ends.
      chunks: sends parts of the body, if the head has been sent and the body is chunked.
    """

    def __init__(
        self,
        send: ASGISendCallable,
        scope: HTTPScope,
        *,
        request_id: RequestId,
        peer: Peer,
        progress: RequestProgress,
        cors: Cors | None,
    ) -> None:
        self._send = send
        self._scope = scope
        self._extensions = cast(Mapping[str, object], scope["extensions"])
        self._id = request_id
        self._peer = peer
        self._progress = progress
        self._cors = cors
        self.status: int | None = None
        self.error: str | None = None
        self.chunks: ChunkSender | None = None
        self._failed_in: Phase | None = None
        self._has_left = False

    @property
    def failed_in(self) -> Phase | None:
        """The phase in which the request has ended; None if it was answered."""
        if self.ending == "answered":
            return None
        return self._failed_in or self._progress.phase

    @property
    def ending(self) -> Ending:
        """The way in which the request has ended."""
        if self._peer.is_answered:
            return "answered" if self.error is None else "error"
        return "disconnected" if self._has_left else "cut"

    def note_error(self, kind: str) -> None:
        """Note that the answer, or the rest of a stream, is an error of a type."""
        self.error = kind
        self._failed_in = self._progress.phase

    async def send(self, event: ASGISendEvent) -> None:
        if event["type"] == "http.response.start":
            self._progress.enter("write")
            self.status = event["status"]
            fields = [*event["headers"], (HEADER_BYTES, str(self._id).encode())]
            if self._cors is not None:
                fields += self._cors.list_fields(self._scope["headers"])
            event["headers"] = fields
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug(
                    "request %s: %s %s is answered with %d",
                    self._id,
                    escape(self._scope["method"]),
                    escape(self._scope["path"]),
                    event["status"],
                )
        await self._send(event)
        if event["type"] == "http.response.start":
            self.chunks = cast("ChunkSender | None", self._extensions.get(CHUNKS))
        if self._peer.is_lost:
            # The request runs until it is cancelled, but its output is dropped.
            self._progress.stop("write")

    async def send_part(self, data: bytes) -> None:
        """Send a part of the body, with as few layers as the connection allows.

        The last part goes through `send`.
        """
        if self.chunks is None:
            await self._send(
                {"type": "http.response.body", "body": data, "more_body": True}
            )
        elif data:
            await self.chunks.send(data)
        if self._peer.is_lost:
            self._progress.stop("write")

    def send_part_now(self, data: bytes) -> None:
        """Send a part of the body, which is not empty, while `chunks.is_free`."""
        assert self.chunks is not None, "is_free is true"
        self.chunks.send_now(data)
        if self._peer.is_lost:
            self._progress.stop("write")

    def note_end(self, counts: RequestCounts | None) -> None:
        """Note the end of the connection, perhaps before the whole answer was sent.

        Args:
          counts: count the request as cancelled then; None for one that goes on.
        """
        if self._peer.is_answered:
            return
        self._has_left = True
        phase = self._progress.phase
        if counts is not None:
            counts.cancelled[phase,] += 1
        logger.debug("request %s: its client left in %s", self._id, phase)


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
        """Whether there is no event to send."""
        return self._num_sending == 0

    async def send(self, events: bytes) -> None:
        """Send events; behind a comment that the client takes slowly."""
        self.num_parts += 1
        self._num_sending += 1
        try:
            if self._comment_sent is not None:
                await self._comment_sent.wait()
            await self._answer.send_part(events)
        finally:
            self._num_sending -= 1

    @property
    def is_free(self) -> bool:
        """True if `send_now` may be called: the client has taken all that was sent."""
        # While a comment waits to be written, the connection is not free.
        chunks = self._answer.chunks
        return chunks is not None and chunks.is_free

    def send_now(self, events: bytes) -> None:
        """Send events, which are not empty, as a part of any task."""
        self.num_parts += 1
        self._answer.send_part_now(events)

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
