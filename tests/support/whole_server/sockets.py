"""Connected pairs of sockets in memory, with bounded buffers, ends and resets.

trio.SocketStream takes them like real ones. trio.testing's memory streams have no buffer
that is full after some bytes, and no reset.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import trio

# No process has a descriptor with this number.
_NO_DESCRIPTOR = 2**30


class _Pipe:
    """The bytes on their way from one socket to the other.

    Attributes:
      has_ended: no more bytes will come.
      is_broken: the reader is gone, so no more bytes may be sent.
      is_reset: the unread bytes are lost.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.data = bytearray()
        self.has_ended = False
        self.is_broken = False
        self.is_reset = False
        self.changed = trio.lowlevel.ParkingLot()

    def put(self, data: bytes | bytearray | memoryview) -> int:
        if self.is_broken:
            raise _make_error(errno.EPIPE)
        num_free = self.capacity - len(self.data)
        if num_free <= 0:
            raise BlockingIOError(errno.EAGAIN, "the buffer is full")
        part = data[:num_free]
        self.data += part
        self.changed.unpark_all()
        return len(part)

    def take(self, max_bytes: int) -> bytes:
        if self.is_reset:
            raise _make_error(errno.ECONNRESET)
        if not self.data and not self.has_ended:
            raise BlockingIOError(errno.EAGAIN, "the buffer is empty")
        taken = bytes(self.data[:max_bytes])
        del self.data[:max_bytes]
        self.changed.unpark_all()
        return taken

    def end(self) -> None:
        self.has_ended = True
        self.changed.unpark_all()

    def reset(self) -> None:
        self.is_reset = self.is_broken = self.has_ended = True
        self.data.clear()
        self.changed.unpark_all()


class MemorySocket(trio.socket.SocketType):
    """One of two connected sockets; make_socket_pair makes them."""

    def __init__(
        self, incoming: _Pipe, outgoing: _Pipe, address: tuple[str, int]
    ) -> None:
        super().__init__()
        self._incoming = incoming
        self._outgoing = outgoing
        self._address = address
        self._is_closed = False
        self._has_shut = False

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET

    @property
    def type(self) -> socket.SocketKind:
        return socket.SOCK_STREAM

    @property
    def did_shutdown_SHUT_WR(self) -> bool:
        return self._has_shut

    def fileno(self) -> int:
        return -1 if self._is_closed else _NO_DESCRIPTOR

    def getpeername(self) -> Any:
        return self._address

    def getsockname(self) -> Any:
        return ("10.0.0.0", 8000)

    def setsockopt(self, *args: object) -> None:
        """Accept the options of the kernel, which have no meaning in memory."""

    def read_now(self, max_bytes: int) -> bytes:
        """Read without waiting.

        Raises:
          BlockingIOError: nothing has come.
          OSError: as a socket.
        """
        self._check_open()
        return self._incoming.take(max_bytes)

    def write_now(self, data: bytes | bytearray | memoryview) -> int:
        """Write without waiting; returns the number of bytes that the buffer took."""
        self._check_open()
        if self._has_shut:
            raise _make_error(errno.EPIPE)
        return self._outgoing.put(data)

    async def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self.read_now(bufsize)
            except BlockingIOError:
                await self._incoming.changed.park()
                self._check_not_closed_meanwhile()

    async def send(self, data: Any, flags: int = 0, /) -> int:
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self.write_now(data)
            except BlockingIOError:
                await self._outgoing.changed.park()
                self._check_not_closed_meanwhile()

    def shutdown(self, flag: int) -> None:
        self._check_open()
        self._has_shut = True
        self._outgoing.end()

    def close(self) -> None:
        """Close; a peer whose bytes were not read gets a reset, as on Linux."""
        if self._is_closed:
            return
        if self._incoming.data:
            self.reset()
            return
        self._is_closed = True
        self._incoming.is_broken = True
        self._incoming.changed.unpark_all()
        self._outgoing.end()

    def reset(self) -> None:
        """Close, and drop all bytes on their way."""
        self._is_closed = True
        self._incoming.reset()
        self._outgoing.reset()

    def _check_open(self) -> None:
        if self._is_closed:
            raise _make_error(errno.EBADF)

    def _check_not_closed_meanwhile(self) -> None:
        # As trio's own sockets.
        if self._is_closed:
            raise trio.ClosedResourceError("another task closed this socket")


def make_socket_pair(
    client_address: tuple[str, int], *, capacity: int = 65_536
) -> tuple[MemorySocket, MemorySocket]:
    """Return the client's and the server's end of a connection.

    Args:
      capacity: bytes that each direction takes before the other end reads them.
    """
    requests, answers = _Pipe(capacity), _Pipe(capacity)
    client = MemorySocket(answers, requests, client_address)
    return client, MemorySocket(requests, answers, client_address)


def _make_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
