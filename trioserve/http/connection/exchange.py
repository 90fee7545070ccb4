"""The parts of a connection that are the same for HTTP/1 and HTTP/2."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
import math
from typing import Final, Protocol, cast

import h11
from hypercorn.protocol.events import Event as StreamEvent, StreamClosed
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.typing import ASGIReceiveEvent, Event
import trio

from ...errors import TrioserveError, Unavailable
from ..wire.error_body import HEADER_BYTES, ErrorBody, encode, make_request_id

# The key of an ASGI extension. The app puts a Peer there, and the connection fills it.
PEER = "trioserve.peer"

# The key of another one: a ChunkSender. It is there once the head of a chunked answer was sent.
CHUNKS = "trioserve.chunks"


@dataclass(slots=True, eq=False)
class Peer:
    """The peer of one request.

    Attributes:
      is_answered: the whole answer was sent to it.
      is_lost: a write to it failed, or took too long.
      lost_at: when a write that is not complete counts as failed, in seconds of
        trio.current_time(). Set by the app; HTTP/1 obeys it.
    """

    is_answered: bool = False
    is_lost: bool = False
    lost_at: float = math.inf


class Writer(Protocol):
    """The writing half of a connection."""

    # False while bytes wait to be written; otherwise `write_soon` may be called.
    is_free: bool

    async def write(self, data: bytes) -> None:
        """Write `data` behind all that waits, or close the connection if that takes too long."""

    def write_soon(self, data: bytes) -> None:
        """Write `data`; a task of the connection writes what the kernel does not take at once."""


class ChunkSender:
    """Sends the parts of a chunked answer of HTTP/1.

    hypercorn and h11 would write the same bytes. Their layers take as long as the system call
    that writes a token's event.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @property
    def is_free(self) -> bool:
        """True if no bytes wait to be written, so that `send_now` may be called."""
        return self._writer.is_free

    async def send(self, data: bytes) -> None:
        """Send a part, which is not empty, and wait until the client has taken it."""
        await self._writer.write(_frame(data))

    def send_now(self, data: bytes) -> None:
        """Send a part, which is not empty."""
        self._writer.write_soon(_frame(data))


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def mark_answered(stream: HTTPStream | WSStream | None) -> None:
    """Note that the answer of a request is complete, unless its peer is lost."""
    if peer := _find_peer(stream):
        peer.is_answered = not peer.is_lost


def mark_lost(stream: HTTPStream | WSStream | None) -> None:
    """Note that the rest of the answer cannot reach the peer."""
    if peer := _find_peer(stream):
        peer.is_lost = True


def find_lost_at(stream: HTTPStream | WSStream | None) -> float:
    """Return the time when the peer of a request counts as lost."""
    peer = _find_peer(stream)
    return math.inf if peer is None else peer.lost_at


def _find_peer(stream: HTTPStream | WSStream | None) -> Peer | None:
    # A stream whose request was refused has no scope.
    scope = getattr(stream, "scope", None)
    peer: Peer | None = scope and scope["extensions"].get(PEER)
    return peer


# The end of a request must not be cancelled with the request, and must not take long.
CLOSE_SECONDS = 5.0


async def finish(
    send: Callable[[StreamEvent], Awaitable[None]], event: StreamClosed
) -> None:
    """Send the last event of a request, shielded from the request's cancellation.

    quart-trio cancels a request as soon as it receives http.disconnect. It receives that
    within its own last send: before hypercorn has set the keep-alive timeout, begun the
    next request, or closed the connection.
    """
    with trio.move_on_after(CLOSE_SECONDS, shield=True):
        await send(event)


Put = Callable[[ASGIReceiveEvent], Awaitable[None]]


def put_at_once(put: Put) -> Put:
    """Return a `put` that yields to other tasks for parts of a body alone.

    hypercorn's also yields at the end of the body and at the end of the request. That is
    two turns of the event loop more for each request.

    Args:
      put: the `send` of a memory channel, from spawn_app.
    """
    channel = cast(trio.MemorySendChannel[ASGIReceiveEvent], put.__self__)  # type: ignore

    async def put_message(message: ASGIReceiveEvent) -> None:
        if message["type"] == "http.request" and message["more_body"]:
            await put(message)
            return
        try:
            channel.send_nowait(message)
        except trio.WouldBlock:
            await put(message)

    return put_message


# The most time for the head of a connection's first request, in seconds. Strangers who send
# none wait for no longer.
FIRST_HEAD_SECONDS: Final = 5.0


class IdleWatch:
    """Waits until a connection has been idle for too long.

    When the server is stopping, every idle connection has been so for too long. hypercorn
    starts a task for each idle time instead, and cancels it at the next request.

    Args:
      seconds: the time that a connection may be idle after an answer.
      stopping: set when the server is stopping.
    """

    def __init__(self, seconds: float, stopping: Event) -> None:
        self._seconds = min(seconds, FIRST_HEAD_SECONDS)
        self._seconds_after_answer = seconds
        self._stopping = stopping
        self._deadline = math.inf
        self._sleep = trio.CancelScope()

    def mark(self, *, is_idle: bool) -> None:
        """Note whether the connection has a request from now on."""
        if is_idle:
            seconds = 0.0 if self._stopping.is_set() else self._seconds
            self._deadline = trio.current_time() + seconds
        else:
            self._deadline = math.inf
            self._seconds = self._seconds_after_answer
        self._sleep.deadline = self._deadline

    async def wait_due(self) -> None:
        """Wait until the connection shall be closed."""
        # A request may come after the sleep has ended, and before this task runs.
        while trio.current_time() < self._deadline:
            with trio.CancelScope(deadline=self._deadline) as self._sleep:
                if self._stopping.is_set():
                    await trio.sleep_forever()
                await self._stopping.wait()
                if self._deadline < math.inf:
                    self.mark(is_idle=True)


# A read takes 0.1 to 0.3 ms of the event loop, however little it brings. So many bytes that
# pass, in either direction, pay for one. The least that HTTP needs for a request and its
# answer is a little more: a health check over HTTP/2, whose fields are all in the table. A
# WINDOW_UPDATE has 13 bytes, but comes after the 32 KiB that its peer has read.
BYTES_PER_READ: Final = 64

# Reads that nothing pays for. A client that opens a connection has a few of them, whatever its
# protocol. A stranger who connects again has as many each time; together they take about as
# long as two small requests.
FREE_READS: Final = 64

# Then at most 50 reads a second, about one percent of the event loop. No client notices.
WAIT_SECONDS: Final = 0.02


_MOST_OWED: Final = FREE_READS * BYTES_PER_READ


class ReadPace:
    """Delays the reads of one connection while they bring too little."""

    _num_owed = 0

    def count_read(self, num_bytes: int) -> None:
        owed = min(self._num_owed + BYTES_PER_READ, _MOST_OWED)
        self._num_owed = max(0, owed - num_bytes)

    def count_written(self, num_bytes: int) -> None:
        if self._num_owed:
            self._num_owed = max(0, self._num_owed - num_bytes)

    async def wait(self) -> None:
        """Wait before the next read if it is not free."""
        if self._num_owed > _MOST_OWED - BYTES_PER_READ:
            await trio.sleep(WAIT_SECONDS)


def refuse(
    error: TrioserveError, headers: list[tuple[bytes, bytes]]
) -> tuple[h11.Response, h11.Data, h11.EndOfMessage]:
    """Make the answer to an error, after which the connection closes.

    Args:
      headers: added to the headers of the body.
    """
    body = encode(ErrorBody.of(error))
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (HEADER_BYTES, make_request_id().encode()),
    ]
    if isinstance(error, Unavailable):
        fields.append((b"retry-after", b"%d" % error.retry_after_seconds))
    head = h11.Response(status_code=error.status, headers=fields + headers)
    return head, h11.Data(data=body), h11.EndOfMessage()


def refuse_unread(error: TrioserveError) -> bytes:
    """Return the bytes of the answer to a request that was not read."""
    connection = h11.Connection(h11.SERVER)
    return b"".join(connection.send(event) or b"" for event in refuse(error, []))
