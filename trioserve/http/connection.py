"""hypercorn's sockets, mended: one peer can end one connection and no more.

The only module that knows hypercorn's private names, and so hypercorn is pinned to
0.18.*. The door:

    install_guard  replaces hypercorn's connection classes, for this process. Call it
                   before a server starts: when `trioserve.asgi` is imported (the plain
                   `hypercorn -k trio` command imports the app first) and before
                   `hypercorn.trio.serve` when hypercorn is embedded.
    make_config    a hypercorn Config whose values suit token streams.

What is mended, and where:

    GuardedServer   an error of one connection ended the process
                    no keep-alive timeout, no `Connection: close` and no end of an
                    HTTP/1.0 stream after a response of quart-trio
                    a peer that never reads held the exit up for ever
                    each write cost a lock, a cancel scope and two checkpoints
                    a refusal sent before the upload was read could get lost in a reset
    GuardedH11      a client that left was not noticed after one byte too many
    StrictConnection
                    both Transfer-Encoding and Content-Length were accepted
                    a target without a path ended in a 500
                    any stranger could switch a plain port to HTTP/2 or to a websocket
    GuardedH2       one malformed request, or body bytes that came after the answer,
                    ended every other stream of the connection
                    1,000 PRIORITY frames ended the connection

Plain HTTP/2 (h2c) is refused unless enabled: a client that begins with its preface,
by prior knowledge, is answered 505 and closed. Upgrades, to h2c (which RFC 9113 3.1
gave up) or to websockets, are always ignored, as RFC 9110 7.8 allows: the request is
served as the HTTP/1.1 request that it also is. HTTP/2 over TLS is not concerned.

hypercorn's read_timeout, which would cut every stream whose client has nothing more
to say, has no effect. A client that shuts its sending side down counts as gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
import inspect
import logging
import os
import pkgutil
import re
import socket
import sys
from typing import Any, ClassVar, TypeGuard

import h2.errors
import h2.events
import h2.exceptions
import h11
import hypercorn.config
from hypercorn.events import Closed, Event, RawData, Updated
import hypercorn.protocol
from hypercorn.protocol.events import Event as StreamEvent, StreamClosed
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol
import hypercorn.trio.run
from hypercorn.trio.tcp_server import TCPServer
import trio

from ..errors import StartupError

logger = logging.getLogger(__name__)

# The part of a long write for which a peer has one write timeout, and the first read;
# hypercorn reads as much.
CHUNK_SIZE = 2**16

# Uploads are read in larger pieces: a read lets the renderer's threads have the GIL, and
# gets it back only when one of them is forced to give it up, half a millisecond later.
MAX_RECEIVE_SIZE = 2**18

# A peer that pipelines may be so far ahead before it is read no further.
MAX_PIPELINED_BYTES = 2**16

# For how long what is left of an upload is read and dropped after the last answer. A
# close with bytes unread sends a reset, which may overtake that answer.
LINGER_SECONDS = 2.0

# The end of a request must not be cancelled with it, and must not last either.
CLOSE_SECONDS = 5.0


class GuardedServer(TCPServer):
    """One connection: hypercorn's, with an end to everything."""

    write_timeout_seconds: ClassVar[float] = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_plain = isinstance(self.stream, trio.SocketStream)
        transport = self.stream if self._is_plain else self.stream.transport_stream
        self._socket: trio.socket.SocketType = transport.socket
        self._reader: trio.lowlevel.Task | None = None
        self._reading = trio.CancelScope()
        self._has_ended = False
        self._receive_size = CHUNK_SIZE

    async def run(self) -> None:
        """Serve one connection; no error of it reaches its neighbours.

        Cancelled, KeyboardInterrupt and SystemExit pass, whatever group they are in.
        """
        self._reader = trio.lowlevel.current_task()
        try:
            _detect_dead_peers(self._socket)
            await super().run()
        except* (OSError, h11.ProtocolError, h2.exceptions.H2Error) as errors:
            logger.debug("a peer broke its connection", exc_info=errors)
        except* Exception as errors:
            logger.error("a connection failed and was closed", exc_info=errors)

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Closed):
            await self._end()
        else:
            await super().protocol_send(event)
            if self._has_pipelined(event):
                self._reading.cancel()

    async def _write(self, data: bytes) -> None:
        """Write `data`, or close the connection if it cannot be written in time."""
        try:
            num_sent = self._write_nowait(data)
            if num_sent < len(data):
                await self._write_queued(memoryview(data)[num_sent:])
        except (
            OSError,
            trio.BrokenResourceError,
            trio.ClosedResourceError,
            trio.TooSlowError,
        ):
            self._drop()

    def _write_nowait(self, data: bytes) -> int:
        """Write what the kernel takes at once, unless others wait to write.

        A token's chunk nearly always fits, and then costs one system call instead of
        a lock, a scope and two checkpoints: 40 us become 20 us.
        """
        if not self._is_plain or self.send_lock.locked():
            return 0
        try:
            return os.write(self._socket.fileno(), data)
        except BlockingIOError:
            return 0

    async def _write_queued(self, data: memoryview) -> None:
        # A request that is cancelled in the middle of a write would leave half of it
        # on the wire. The reader is no part of any request, and where it is cancelled
        # the whole connection is.
        is_request = trio.lowlevel.current_task() is not self._reader
        with trio.CancelScope(shield=is_request):
            async with self.send_lock:
                for start in range(0, len(data), CHUNK_SIZE):
                    with trio.fail_after(self.write_timeout_seconds):
                        await self.stream.send_all(data[start : start + CHUNK_SIZE])

    async def _read_data(self) -> None:
        """Hand over what the peer sends until it, or the protocol, is done."""
        try:
            while await self._read_once():
                pass
            await self.protocol.handle(Closed())
            protocol = self.protocol.protocol
            if isinstance(protocol, GuardedH11) and protocol.has_unread:
                with trio.move_on_after(LINGER_SECONDS):
                    while await self._receive():
                        pass
        finally:
            # Writes are shielded from their request's cancel, and so from the
            # connection's as well: a closed socket ends them.
            self._socket.close()

    async def _read_once(self) -> bool:
        """Handle what comes next; False when nothing more will."""
        data = None
        protocol = self.protocol.protocol
        with trio.CancelScope() as self._reading:
            if isinstance(protocol, GuardedH11) and protocol.is_far_ahead:
                await trio.sleep_forever()
            data = await self._receive()
        if self._has_ended:
            return False
        if data is not None:
            await self.protocol.handle(RawData(data))
        elif isinstance(protocol, GuardedH11):
            await protocol.resume()
        return data != b"" and not self._has_ended

    async def _receive(self) -> bytes:
        try:
            data = bytes(await self.stream.receive_some(self._receive_size))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""
        # A read that was filled has more behind it.
        is_full = len(data) == self._receive_size
        self._receive_size = (
            min(2 * self._receive_size, MAX_RECEIVE_SIZE) if is_full else CHUNK_SIZE
        )
        return data

    def _has_pipelined(self, event: Event) -> bool:
        """Whether the next request was read while this one was being answered."""
        protocol = self.protocol.protocol
        is_idle = isinstance(event, Updated) and event.idle
        return is_idle and isinstance(protocol, GuardedH11) and protocol.has_pipelined

    async def _end(self) -> None:
        """Send the end of the stream; the reader closes the rest."""
        self._has_ended = True
        try:
            if self._is_plain:
                await self.stream.send_eof()
            else:
                await self.stream.aclose()
        except (
            trio.BrokenResourceError,
            trio.ClosedResourceError,
            trio.BusyResourceError,
        ):
            self._drop()
        self._reading.cancel()

    def _drop(self) -> None:
        """Close at once; the reader tells the requests."""
        self._has_ended = True
        self._socket.close()
        self._reading.cancel()


class StrictConnection(h11.Connection):
    """h11 that refuses what is read in two ways, and goes on reading when it waits."""

    def __init__(self, *, enable_h2c: bool, max_incomplete_event_size: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size)
        self._enable_h2c = enable_h2c
        self.is_paused = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        # h11 calls bytes after a last request an error, and hypercorn would answer 400
        # in place of that request's answer. Nobody needs to read them.
        is_over = self.their_state is h11.MUST_CLOSE and bool(self.trailing_data[0])
        event = h11.PAUSED if is_over else super().next_event()
        if isinstance(event, h11.Request):
            return _check_request(event, enable_h2c=self._enable_h2c)
        # hypercorn stops reading at PAUSED, and would not hear the peer leave.
        self.is_paused = event is h11.PAUSED
        return h11.NEED_DATA if self.is_paused else event


class GuardedH11(H11Protocol):
    """HTTP/1.1 that hears its peer leave whatever the peer sent before."""

    enable_h2c: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection: StrictConnection = StrictConnection(
            enable_h2c=self.enable_h2c and not self.ssl,
            max_incomplete_event_size=self.config.h11_max_incomplete_size,
        )

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, StreamClosed):
            await _finish(super().stream_send, event)
        else:
            await super().stream_send(event)

    @property
    def has_pipelined(self) -> bool:
        return bool(self.connection.trailing_data[0])

    @property
    def is_far_ahead(self) -> bool:
        """Whether the peer has sent more requests than are worth reading yet."""
        num_bytes = len(self.connection.trailing_data[0])
        return self.connection.is_paused and num_bytes > MAX_PIPELINED_BYTES

    @property
    def has_unread(self) -> bool:
        """Whether there may be bytes on the wire that a close would leave unread."""
        is_amid = self.connection.their_state in (h11.SEND_BODY, h11.ERROR)
        return is_amid or self.connection.is_paused

    async def resume(self) -> None:
        """Go on with what came before the last answer was complete."""
        await self._handle_events()


class GuardedH2(H2Protocol):
    """HTTP/2 in which a stream's error is that stream's."""

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, StreamClosed):
            await _finish(super().stream_send, event)
        else:
            await super().stream_send(event)

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.PriorityUpdated):
                # RFC 9113, 5.3.2 deprecates the tree, and hypercorn's overflows.
                continue
            if isinstance(event, h2.events.RequestReceived) and not _is_servable(event):
                self.connection.reset_stream(
                    event.stream_id, h2.errors.ErrorCodes.PROTOCOL_ERROR
                )
            elif self._is_late(event):
                self.connection.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )
            else:
                await super()._handle_events([event])
        await self._flush()

    def _is_late(self, event: h2.events.Event) -> TypeGuard[h2.events.DataReceived]:
        """Whether these are bytes of a body that nobody reads any more."""
        return (
            isinstance(event, h2.events.DataReceived)
            and event.stream_id not in self.streams
        )


async def _finish(
    send: Callable[[StreamEvent], Awaitable[None]], event: StreamClosed
) -> None:
    """Let a request's cancel not reach what its connection does once it is over.

    quart-trio cancels a request as soon as it hears http.disconnect. It hears that
    within its own last send, before hypercorn has armed the keep-alive timeout,
    turned to the next request, or closed.
    """
    with trio.move_on_after(CLOSE_SECONDS, shield=True):
        await send(event)


def _check_request(request: h11.Request, *, enable_h2c: bool) -> h11.Request:
    """Refuse a request that a proxy may have read differently; ignore upgrades.

    Raises:
      h11.RemoteProtocolError: hypercorn answers with its hint and closes.
    """
    names = {name for name, _ in request.headers}
    if request.http_version not in (b"1.0", b"1.1"):
        # h11 reads the preface of HTTP/2 as a request of version 2.0.
        if enable_h2c and (request.method, request.target) == (b"PRI", b"*"):
            return request
        raise h11.RemoteProtocolError("unknown version", error_status_hint=505)
    # RFC 9112, 6.1: either is a request smuggled past a proxy.
    if b"transfer-encoding" in names and (
        b"content-length" in names or request.http_version == b"1.0"
    ):
        raise h11.RemoteProtocolError("two lengths of one body", error_status_hint=400)
    if not request.target.startswith(b"/") or b"upgrade" in names:
        return _plain_request(request)
    return request


def _plain_request(request: h11.Request) -> h11.Request:
    """Write a request's target as a path, and drop the upgrade it asks for."""
    # RFC 9112, 3.2: an absolute form must be understood; the authority form belongs
    # to CONNECT, which is not for an origin server.
    target = _AUTHORITY.sub(b"", request.target, count=1)
    if target != request.target and not target.startswith(b"/"):
        target = b"/" + target
    if not _is_path(target):
        raise h11.RemoteProtocolError("no path", error_status_hint=400)
    return h11.Request(
        method=request.method,
        headers=[field for field in request.headers if field[0] != b"upgrade"],
        target=target,
        http_version=request.http_version,
    )


_AUTHORITY = re.compile(rb"\Ahttps?://[^/?]*", re.IGNORECASE)


def _is_path(target: bytes) -> bool:
    return target == b"*" or target.startswith(b"/")


def _is_servable(event: h2.events.RequestReceived) -> bool:
    """Whether hypercorn can make a request of an HTTP/2 header block.

    CONNECT, with or without a websocket in it, has no place here; h2 itself checks
    the other methods' pseudo-headers, but not which bytes they are of.
    """
    fields = dict(event.headers)
    method, path = fields.get(b":method", b""), fields.get(b":path", b"")
    is_ascii = method.isascii() and path.isascii()
    return is_ascii and method != b"CONNECT" and _is_path(path)


def _detect_dead_peers(sock: trio.socket.SocketType) -> None:
    """Have the kernel end connections whose peer is gone or never reads.

    The write timeout sees a peer that stalls while there is more to write; these see
    one that is gone while the engine is still computing, or that leaves what the
    kernel holds already.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux" and sock.family != socket.AF_UNIX:
        for option, value in _TCP_OPTIONS.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


if sys.platform == "linux":
    # Milliseconds in the first, else seconds: half a minute without an answer is a
    # peer that is gone, as with the write timeout.
    _TCP_OPTIONS = {
        socket.TCP_USER_TIMEOUT: 30_000,
        socket.TCP_KEEPIDLE: 30,
        socket.TCP_KEEPINTVL: 10,
    }


def install_guard(
    *, enable_h2c: bool = False, write_timeout_seconds: float = 30.0
) -> None:
    """Have every connection that hypercorn accepts from now on guarded.

    Calling it again only replaces the two values, which are the process's.

    Args:
      enable_h2c: speak HTTP/2 without TLS to clients that begin with its preface.
      write_timeout_seconds: a peer that does not take 64 KiB in this time is dropped.

    Raises:
      StartupError: hypercorn is not the release whose private names are used here.
    """
    _check_hypercorn()
    GuardedServer.write_timeout_seconds = write_timeout_seconds
    GuardedH11.enable_h2c = enable_h2c
    for place, guarded in _PATCHES.items():
        module, _, name = place.partition(":")
        setattr(pkgutil.resolve_name(module), name, guarded)


# Where hypercorn looks its connection classes up, and what it shall find there.
_PATCHES: dict[str, type] = {
    "hypercorn.trio.run:TCPServer": GuardedServer,
    "hypercorn.protocol:H11Protocol": GuardedH11,
    "hypercorn.protocol:H2Protocol": GuardedH2,
}

# Every private function that is overridden or called here, with its parameters.
_CONNECTION = (
    "self app config context task_group connection_state ssl client server send"
)
_PRIVATE = {
    "hypercorn.trio.tcp_server:TCPServer.__init__": "self app config context state stream",
    "hypercorn.trio.tcp_server:TCPServer.run": "self",
    "hypercorn.trio.tcp_server:TCPServer.protocol_send": "self event",
    "hypercorn.trio.tcp_server:TCPServer._read_data": "self",
    "hypercorn.protocol.h11:H11Protocol.__init__": _CONNECTION,
    "hypercorn.protocol.h11:H11Protocol.stream_send": "self event",
    "hypercorn.protocol.h11:H11Protocol._handle_events": "self",
    "hypercorn.protocol.h2:H2Protocol.__init__": _CONNECTION,
    "hypercorn.protocol.h2:H2Protocol.stream_send": "self event",
    "hypercorn.protocol.h2:H2Protocol._handle_events": "self events",
    "hypercorn.protocol.h2:H2Protocol._flush": "self",
}


def _check_hypercorn() -> None:
    installed = version("hypercorn")
    if not installed.startswith("0.18."):
        raise StartupError(f"hypercorn 0.18 is needed, but {installed} is installed")
    for place, guarded in _PATCHES.items():
        original = _find(place)
        if not (isinstance(original, type) and issubclass(guarded, original)):
            raise StartupError(f"hypercorn {installed} has another {place}")
    for place, parameters in _PRIVATE.items():
        if list(inspect.signature(_find(place)).parameters) != parameters.split():
            raise StartupError(f"hypercorn {installed} has another {place}")


def _find(place: str) -> Any:
    try:
        return pkgutil.resolve_name(place)
    except (ImportError, AttributeError) as error:
        raise StartupError(f"this hypercorn has no {place}") from error


def make_config(
    *,
    bind: list[str],
    keep_alive_timeout_seconds: float = 5.0,
    graceful_timeout_seconds: float = 2.0,
) -> hypercorn.config.Config:
    """Make a hypercorn Config that suits token streams.

    Args:
      bind: "HOST:PORT", "unix:PATH" or "fd://N" each.
      keep_alive_timeout_seconds: for so long a connection may be idle, or take to send
        a request's headers.
      graceful_timeout_seconds: once the shutdown trigger has fired, requests may go on
        for so long before they are cancelled.
    """
    config = hypercorn.config.Config()
    config.bind = bind
    # hypercorn's 100 makes a burst of clients wait for a second's retransmission.
    config.backlog = 2048
    config.include_server_header = False
    # Loading a model takes longer than hypercorn's minute.
    config.startup_timeout = 1800.0
    config.keep_alive_timeout = keep_alive_timeout_seconds
    config.graceful_timeout = graceful_timeout_seconds
    # Signed URLs, cookies and traces are long; it is still nothing to keep.
    config.h11_max_incomplete_size = 64 * 1024
    # A logger of hypercorn's own making writes to stderr whatever the host program's
    # logging says.
    config.errorlog = logging.getLogger("hypercorn.error")
    return config
