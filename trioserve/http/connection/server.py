"""The socket of one connection: its reads, its writes and its end."""

from __future__ import annotations

from contextlib import suppress
import logging
import math
import os
import select
import socket
import sys
from typing import Any, ClassVar

import h2.exceptions
import h11
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
import trio

from ...errors import DescriptorsFull
from ..bodies.memory import name_peer
from .beginnings import wait_turn
from .descriptors import Connections
from .exchange import (
    WAIT_SECONDS,
    IdleWatch,
    ReadPace,
    find_lost_at,
    mark_lost,
    refuse_unread,
)
from .http1 import GuardedH11
from .http2 import GuardedH2

logger = logging.getLogger(__name__)


# The size of the first read, as in hypercorn, and of the parts of a long write: each part
# has one write timeout.
CHUNK_SIZE = 2**16


# Uploads are read in larger pieces, because each read releases the GIL. If the renderer's
# threads are busy, the event loop gets it back half a millisecond later.
MAX_RECEIVE_SIZE = 2**18


# The time for which the rest of an upload is read and dropped after the last answer. A
# close with unread bytes sends a reset, which may overtake that answer.
LINGER_SECONDS = 2.0


# The same for a connection that is refused. The request is on its way already.
REFUSAL_LINGER_SECONDS = 0.5


# The reader takes bytes that wait within this time, whatever its pace.
READ_SECONDS = 2 * WAIT_SECONDS


# A peer that leaves or violates the protocol. This is not a defect of the server.
_PEER_ERRORS = (
    OSError,
    h11.ProtocolError,
    h2.exceptions.H2Error,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
)


def make_context() -> WorkerContext:
    """Make the object shared by connections that hypercorn does not accept."""
    return WorkerContext(None)


class GuardedServer(TCPServer):
    """One connection, where everything ends in time."""

    write_timeout_seconds: ClassVar[float] = 30.0
    connections: ClassVar[Connections] = Connections()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections = self.connections
        self._is_plain = isinstance(self.stream, trio.SocketStream)
        transport = self.stream if self._is_plain else self.stream.transport_stream
        self._socket: trio.socket.SocketType = transport.socket
        self._reader: trio.lowlevel.Task | None = None
        self._reading = trio.CancelScope()
        self._has_ended = False
        self._receive_size = CHUNK_SIZE
        # Bytes were read, and the protocol has not taken them yet.
        self._holds_bytes = False
        # TLS may have to wait, whatever the socket takes.
        self.is_free = self._is_plain
        # What `write_soon` could not write at once.
        self._unwritten = b""
        self._pace = ReadPace()
        self._address = _name_address(self._socket)
        self._idle = IdleWatch(self.config.keep_alive_timeout, self.context.terminated)

    async def run(self) -> None:
        """Serve one connection, and keep its errors from other connections.

        Cancelled, KeyboardInterrupt and SystemExit pass, in any exception group.
        """
        self._reader = trio.lowlevel.current_task()
        if not self._connections.admit(self, self._address):
            await self._refuse()
            return
        try:
            _detect_dead_peers(self._socket, self.write_timeout_seconds)
            await super().run()
        except* _PEER_ERRORS as errors:
            logger.debug("a peer left or violated the protocol", exc_info=errors)
        except* Exception as errors:
            logger.error("a connection failed and was closed", exc_info=errors)
        finally:
            self._close_socket()
            # It refers to this object. The last request would stay in memory until the
            # garbage collector looks at old objects.
            vars(self).pop("protocol", None)

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self.write(event.data)
        elif isinstance(event, Closed):
            await self._end()
        elif isinstance(event, Updated):
            if event.idle:
                self._connections.mark_idle(self)
            else:
                self._connections.mark_busy(self)
            self._idle.mark(is_idle=event.idle)
            if event.idle and self._has_pipelined:
                self._reading.cancel()

    async def _refuse(self) -> None:
        """Close a new connection; an unencrypted one gets the reason."""
        try:
            if self._is_plain:
                await self._send_refusal()
        finally:
            self._close_socket()

    async def _send_refusal(self) -> None:
        with suppress(OSError):
            self.write_now(refuse_unread(DescriptorsFull()))
        # A close before the request has come would send a reset, which may overtake the
        # answer.
        with self._connections.lingering() as may_linger:
            if may_linger:
                await self._drop_request()

    async def _drop_request(self) -> None:
        """Read the peer's bytes for a moment, until it has read its answer."""
        with (
            trio.move_on_after(REFUSAL_LINGER_SECONDS),
            suppress(trio.BrokenResourceError, trio.ClosedResourceError),
        ):
            await self.stream.send_eof()
            while await self._receive():
                pass

    async def write(self, data: bytes) -> None:
        """Write `data`, or close the connection if it cannot be written in time."""
        # The reader may close the stream while this waits.
        stream = self._stream
        self._pace.count_written(len(data))
        try:
            num_sent = self._write_nowait(data) if self.is_free else 0
            if num_sent < len(data) or self._unwritten:
                rest = memoryview(data)[num_sent:]
                await self._write_queued(rest, find_lost_at(stream))
        except (
            OSError,
            trio.BrokenResourceError,
            trio.ClosedResourceError,
            trio.TooSlowError,
        ):
            mark_lost(stream)
            self.drop()

    def write_soon(self, data: bytes) -> None:
        """Write `data` in any task, while `is_free`; see Writer."""
        self._pace.count_written(len(data))
        try:
            num_sent = self._write_nowait(data)
        except OSError:
            mark_lost(self._stream)
            self.drop()
            return
        if num_sent < len(data):
            self._unwritten, self.is_free = data[num_sent:], False
            self._task_group.spawn(self.write, b"")

    def _write_nowait(self, data: bytes) -> int:
        """Write as much as the kernel takes at once; returns the number of bytes.

        The chunk of a token nearly always fits. Then it costs one system call instead of a
        lock, a scope and two checkpoints: 20 us instead of 40 us.
        """
        try:
            return self.write_now(data)
        except BlockingIOError:
            return 0

    def write_now(self, data: bytes) -> int:
        """Write to the socket, which is not blocking; returns the number of bytes."""
        return os.write(self._socket.fileno(), data)

    @property
    def _stream(self) -> HTTPStream | WSStream | None:
        """The request that is being answered, in HTTP/1."""
        protocol = self.protocol.protocol
        return protocol.stream if isinstance(protocol, GuardedH11) else None

    async def _write_queued(self, data: memoryview, lost_at: float) -> None:
        # A request that is cancelled in the middle of a write would leave half of it on
        # the wire. The reader belongs to no request: if it is cancelled, the whole
        # connection is.
        is_request = trio.lowlevel.current_task() is not self._reader
        self.is_free = False
        with trio.CancelScope(shield=is_request):
            async with self.send_lock:
                unwritten, self._unwritten = self._unwritten, b""
                for part in (unwritten, data):
                    for start in range(0, len(part), CHUNK_SIZE):
                        timeout_at = trio.current_time() + self.write_timeout_seconds
                        with trio.fail_at(min(timeout_at, lost_at)):
                            await self.stream.send_all(part[start : start + CHUNK_SIZE])
        # Not after an error, because the connection is closed then.
        self.is_free = self._is_plain and not self.send_lock.locked()

    async def _read_data(self) -> None:
        """Pass the peer's bytes to the protocol until one of them ends."""
        try:
            while await self._read_once():
                pass
            await self.protocol.handle(Closed())
            # Otherwise that task would live as long as the connection may be idle.
            await self.idle_task.stop()
            protocol = self.protocol.protocol
            if isinstance(protocol, GuardedH11 | GuardedH2) and protocol.has_unread:
                with trio.move_on_after(LINGER_SECONDS):
                    while await self._receive():
                        pass
        finally:
            # Writes are shielded from the cancellation of their request, and so from the
            # cancellation of the connection, too. A closed socket ends them.
            self._close_socket()

    async def _read_once(self) -> bool:
        """Handle the next bytes; returns whether more may come."""
        data = None
        protocol = self.protocol.protocol
        with trio.CancelScope() as self._reading:
            if isinstance(protocol, GuardedH11) and protocol.is_far_ahead:
                await trio.sleep_forever()
            data = await self._receive()
        self._holds_bytes = bool(data)
        if data and isinstance(protocol, GuardedH11) and protocol.stream is None:
            await wait_turn(data)
        if self._has_ended:
            return False
        if data is not None:
            await self.protocol.handle(RawData(data))
            self._holds_bytes = False
        elif isinstance(protocol, GuardedH11):
            await protocol.resume()
        return data != b"" and not self._has_ended

    async def _receive(self) -> bytes:
        if self._is_plain:
            # TLS gives one record at a time, and honest peers send small records. Those that
            # have come already must not wait.
            await self._pace.wait()
        try:
            data = bytes(await self.stream.receive_some(self._receive_size))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""
        self._pace.count_read(len(data))
        # After a full read, more bytes are probably waiting.
        is_full = len(data) == self._receive_size
        self._receive_size = (
            min(2 * self._receive_size, MAX_RECEIVE_SIZE) if is_full else CHUNK_SIZE
        )
        return data

    @property
    def _has_pipelined(self) -> bool:
        """True if the next request was read while this one was being answered."""
        protocol = self.protocol.protocol
        return isinstance(protocol, GuardedH11) and protocol.has_pipelined

    async def _idle_timeout(self) -> None:
        """Close the connection when it is idle for too long.

        This runs as long as the connection. hypercorn runs it for each idle time, and
        cancels it at the next request.
        """
        self._idle.mark(is_idle=True)
        await self._idle.wait_due()
        while self._holds_bytes or _has_bytes(self.descriptor):
            # The peer's next request has come, and a close would reset it. It may wait for its
            # turn to begin.
            await trio.sleep(READ_SECONDS)
            await self._idle.wait_due()
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()

    async def _end(self) -> None:
        """Send the end of the stream; the reader closes the socket."""
        self._has_ended = True
        # A connection that only waits for its end may be closed for a new one.
        self._connections.mark_idle(self)
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
            self.drop()
        self._reading.cancel()

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    def drop(self) -> None:
        """Close at once; the reader cancels the requests."""
        self._has_ended = True
        self._close_socket()
        self._reading.cancel()

    def _close_socket(self) -> None:
        self._socket.close()
        self._connections.remove(self)


def _name_address(sock: trio.socket.SocketType) -> str:
    """Return the address of a peer; empty for Unix sockets, which have none."""
    if sock.family == socket.AF_UNIX:
        return ""
    try:
        return name_peer(sock.getpeername()[:2])
    except OSError:
        # It has left already.
        return ""


def _has_bytes(descriptor: int) -> bool:
    """Return whether a socket has bytes to read; one that is closed has none."""
    poll = select.poll()
    if descriptor >= 0:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _detect_dead_peers(sock: trio.socket.SocketType, seconds: float) -> None:
    """Have the kernel end connections whose peer is gone or never reads.

    The write timeout notices a peer that stalls while there is more to write. These
    options notice a peer that is gone while the engine is still computing, or that does
    not take the bytes in the kernel's buffers.

    Args:
      seconds: the time after which a peer is gone that acknowledges nothing.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux" and sock.family != socket.AF_UNIX:
        milliseconds = min(math.ceil(1000 * seconds), _MAX_MILLISECONDS)
        options = {socket.TCP_USER_TIMEOUT: milliseconds, **_TCP_OPTIONS}
        for option, value in options.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


if sys.platform == "linux":
    # Of options of sockets.
    _MAX_MILLISECONDS = 2**31 - 1

    # In seconds. A peer that sends nothing is asked whether it is there; TCP_USER_TIMEOUT
    # says how long it may take to answer.
    _TCP_OPTIONS = {
        socket.TCP_KEEPIDLE: 30,
        socket.TCP_KEEPINTVL: 10,
    }
