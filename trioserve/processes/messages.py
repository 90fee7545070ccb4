"""Messages between two processes: msgspec structs over a socket.

    | length, 4 bytes | descriptors, 1 byte | MessagePack |
                        0, or 1: memory with the message's tensors comes along, or a Descriptor

Large tensors go through anonymous shared memory (memfd_create), and its descriptor is
sent with the message. The memory has no name, so no process has to remove it. The
system frees it when both processes have closed it or were killed, even if the
descriptor was never received.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
import errno
import mmap
import os
import socket
import struct
from typing import Any, Generic, TypeVar

import msgspec
import trio

from ..observe import name_owner
from ..observe.process_holdings import name_memory
from ..types.tensors import TensorBytes

MessageT = TypeVar("MessageT")

_HEADER = struct.Struct("<IB")

# Shorter tensors are sent in the message: mapping memory costs as much as copying this.
_SHARED_BYTES = 64 * 1024

# The widest vectors that processors load.
_ALIGNMENT = 64

# Bytes of one read: many times the outputs of a step.
_READ_BYTES = 256 * 1024

# Errors of a socket whose other end has gone, or whose other machine does not answer.
_LOST = frozenset(
    {
        *(errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED),
        *(errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN),
    }
)

# Room for the descriptors of all messages that one read may bring.
_MAX_DESCRIPTORS = 64


class Message(msgspec.Struct, frozen=True, tag=True):
    """A message from one process to another."""


class Alive(Message, frozen=True):
    """The process lives, and its event loop runs; see `beat`."""


class PeerGone(Exception):
    """Raised when the other process has closed its end, or has died."""

    def __init__(self) -> None:
        super().__init__("the other process has ended")


class Descriptor:
    """An open file or socket that a message takes to another process of this machine.

    The sender keeps its own. The receiver has another number for it, and closes it. A message
    has one at most, and no tensors beside it.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def take_socket(self) -> trio.socket.SocketType:
        """Return the connected socket that it is; the caller closes it."""
        sock = socket.socket(fileno=self.number)
        sock.setblocking(False)
        return trio.socket.from_stdlib_socket(sock)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMessage:
    """A message, encoded.

    Args:
      data: the bytes, with the header.
      memory: descriptor of the shared memory, or a copy of the message's; None if there
        is none.
    """

    data: bytes
    memory: int | None = None

    def copy(self) -> PackedMessage:
        """Return the same message for another receiver; each copy is closed by itself."""
        memory = None if self.memory is None else os.dup(self.memory)
        return PackedMessage(data=self.data, memory=memory)

    def close(self) -> None:
        if self.memory is not None:
            os.close(self.memory)


def pack(message: object, *, shares_memory: bool = True) -> PackedMessage:
    """Encode a message. If its tensors are large, call this in another thread.

    Args:
      shares_memory: the receiver is on this machine.
    """
    # Each tensor with its place in the memory.
    shared: list[tuple[int, memoryview]] = []
    size = 0
    sent: list[int] = []

    def encode(value: object) -> object:
        nonlocal size
        if isinstance(value, array):
            return value.tobytes()
        if isinstance(value, Descriptor):
            sent.append(value.number)
            return 0
        assert isinstance(value, TensorBytes), f"{type(value)} is not sent"
        data = memoryview(value.data).cast("B")
        if not shares_memory or len(data) < _SHARED_BYTES:
            return value.dtype, value.shape, data
        begin = -(-size // _ALIGNMENT) * _ALIGNMENT
        shared.append((begin, data))
        size = begin + len(data)
        return value.dtype, value.shape, (begin, size)

    body = msgspec.msgpack.encode(message, enc_hook=encode)
    assert len(sent) + bool(shared) <= 1, "a message takes one descriptor"
    header = _HEADER.pack(len(body), bool(shared or sent))
    memory = os.dup(sent[0]) if sent else _share(shared) if shared else None
    return PackedMessage(data=header + body, memory=memory)


def _share(tensors: Iterable[tuple[int, memoryview]]) -> int:
    memory = os.memfd_create(name_memory(name_owner()), os.MFD_CLOEXEC)
    try:
        for place, data in tensors:
            # The system takes two gigabytes at a time, at most.
            while data:
                written = os.pwrite(memory, data, place)
                data = data[written:]
                place += written
    except BaseException:
        os.close(memory)
        raise
    return memory


@contextmanager
def _telling_loss() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _LOST:
            raise
        raise PeerGone() from None


class MessageStream(Generic[MessageT]):
    """One end of a connection.

    `run` sends queued messages in their order. The queue has no limit of its own: the
    number of requests is limited, and so are their outputs.

    Args:
      sock: connected. Over a local socket large tensors go through shared memory, over
        TCP they go in the messages.
      receives: the type of the incoming messages, a union of tagged structs.
    """

    def __init__(self, sock: trio.socket.SocketType, receives: Any) -> None:
        self.shares_memory = sock.family == socket.AF_UNIX
        self._sock = sock
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(
            receives, dec_hook=self._decode
        )
        self._outgoing: deque[PackedMessage] = deque()
        self._has_mail = trio.Event()
        self._is_closed = False
        self._incoming = bytearray()
        self._descriptors: deque[int] = deque()
        # The descriptor that came with the message that is being decoded, and its memory.
        self._descriptor: int | None = None
        self._memory: memoryview | None = None

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Send queued messages until cancelled.

        If the other process has gone, the rest is dropped: `receive` raises PeerGone.
        """
        task_status.started()
        try:
            while True:
                while self._outgoing:
                    packed = self._take_mail()
                    try:
                        await self._send(packed)
                    finally:
                        packed.close()
                self._has_mail = trio.Event()
                await self._has_mail.wait()
        except PeerGone:
            self._drop()
            await trio.sleep_forever()
        finally:
            self._drop()

    async def send(self, message: object) -> None:
        """Send a message now, before `run` has begun.

        Raises:
          PeerGone
        """
        packed = pack(message, shares_memory=self.shares_memory)
        try:
            await self._send(packed)
        finally:
            packed.close()

    def send_nowait(self, message: object) -> None:
        """Queue a message."""
        self.post_nowait(pack(message, shares_memory=self.shares_memory))

    def post_nowait(self, packed: PackedMessage) -> None:
        """Queue an encoded message; its memory is closed when it has been sent."""
        if self._is_closed:
            packed.close()
            return
        self._outgoing.append(packed)
        self._has_mail.set()

    async def receive(self) -> MessageT:
        """Wait for the next message.

        Raises:
          PeerGone
        """
        await self._fill(_HEADER.size)
        length, has_memory = _HEADER.unpack_from(self._incoming)
        end = _HEADER.size + length
        await self._fill(end)
        with memoryview(self._incoming) as view:
            message = self._open(view[_HEADER.size : end], has_memory)
        del self._incoming[:end]
        return message

    async def listen(self) -> None:
        """Wait until there is something to receive, without taking it.

        Raises:
          PeerGone
        """
        await self._fill(len(self._incoming) + 1)

    def close(self) -> None:
        self._sock.close()
        self._drop()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _take_mail(self) -> PackedMessage:
        """Join queued messages, so that they are sent and arrive together."""
        first = self._outgoing.popleft()
        parts = [first.data]
        size = len(first.data)
        while self._outgoing and size < _READ_BYTES:
            # A descriptor goes with the first byte of its message.
            if self._outgoing[0].memory is not None:
                break
            parts.append(self._outgoing.popleft().data)
            size += len(parts[-1])
        return PackedMessage(data=b"".join(parts), memory=first.memory)

    def _drop(self) -> None:
        self._is_closed = True
        while self._outgoing:
            self._outgoing.popleft().close()

    def _open(self, body: memoryview, has_memory: bool) -> MessageT:
        if not has_memory:
            with body:
                return self._decoder.decode(body)
        self._descriptor = self._descriptors.popleft()
        try:
            with body:
                return self._decoder.decode(body)
        finally:
            self._memory = None
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _decode(self, type_: Any, value: Any) -> object:
        # Arguments of a plug-in may be any JSON.
        if type_ is object:
            return value
        if type_ is Descriptor:
            assert self._descriptor is not None, "it came with the message"
            descriptor = Descriptor(self._descriptor)
            self._descriptor = None
            return descriptor
        if type_ is not TensorBytes:
            numbers: array[int] = array("i")
            numbers.frombytes(value)
            return numbers
        dtype, shape, data = value
        if isinstance(data, list):
            data = self._map_memory()[data[0] : data[1]]
        return TensorBytes(data=data, dtype=dtype, shape=tuple(shape))

    def _map_memory(self) -> memoryview:
        if self._memory is None:
            assert (
                self._descriptor is not None
            ), "the message came with its shared memory"
            # Private, because the receiver may change its message.
            self._memory = memoryview(
                mmap.mmap(self._descriptor, 0, flags=mmap.MAP_PRIVATE)
            )
        return self._memory

    async def _send(self, packed: PackedMessage) -> None:
        data = memoryview(packed.data)
        with _telling_loss():
            if packed.memory is not None:
                rights = array("i", [packed.memory]).tobytes()
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                data = data[await self._sock.sendmsg([data], ancillary) :]
            while data:
                data = data[await self._sock.send(data) :]

    async def _fill(self, num_bytes: int) -> None:
        while len(self._incoming) < num_bytes:
            with _telling_loss():
                data = await self._receive()
            if not data:
                raise PeerGone()
            self._incoming += data

    async def _receive(self) -> bytes:
        if not self.shares_memory:
            return await self._sock.recv(_READ_BYTES)
        size = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array("i").itemsize)
        data, ancillary, _, _ = await self._sock.recvmsg(_READ_BYTES, size)
        for _, _, rights in ancillary:
            self._descriptors.extend(array("i", rights))
        return data
