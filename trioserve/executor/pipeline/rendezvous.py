"""The rendezvous of the engine with the stages that torchrun has started on any machine.

    engine                                stage
    listens, and writes its address  -->  reads the address in torchrun's store
                                     <--  connects, and says hello

After that, both exchange the same messages as with a child process (messages.py).

torch's TCPStore, which torchrun runs, holds the address. It is not suited to messages:
it has only blocking reads of single values, and does not report that a process has
ended. So each stage needs its own connection; the rest of this module makes those.

A hello contains the secret that the store holds beside the address. So the engine can
close stray connections and stages of another run. The secret does not protect
from attackers, because everybody can read the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from hmac import compare_digest
import logging
import secrets
import socket
import struct

import msgspec
import trio

from ...errors import StagesNotMet
from ...processes.threads.fresh_thread import run_in_fresh_thread
from .torchrun import Torchrun

logger = logging.getLogger(__name__)

# The time for all stages to connect after the engine listens. torchrun starts all
# processes together, and they import torch: seconds, or much longer from a slow disk.
_COME_SECONDS = 300.0

# The time for the few bytes of a hello.
_HELLO_SECONDS = 5.0

# The time to connect; and the time after which a silent machine counts as lost.
_SILENCE_SECONDS = 20

_KEY = "engine"

_SECRET_BYTES = 32

# | secret | rank | local_rank | num_local_ranks |
_HELLO = struct.Struct(f"!{_SECRET_BYTES}sIII")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The address at which the engine waits for stages, and the secret of this run."""

    host: str
    port: int
    secret: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of a process that torchrun has started. Its size is fixed.

    Args:
      rank: from 1, because the engine starts the first process itself.
      local_rank, num_local_ranks: as in messages.Prepare.
    """

    rank: int
    local_rank: int
    num_local_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConnection:
    """The connection to a stage, after its hello."""

    hello: Hello
    sock: trio.socket.SocketType


class Rendezvous:
    """Accepts the connections of stages.

    Args:
      listener: where the stages connect.
      num_ranks: all stages; the first one is a child process and does not connect.
      come_seconds: time for all stages to connect.
      hello_seconds: time for each stage to send its hello after it has connected.
    """

    def __init__(
        self,
        listener: trio.SocketListener,
        num_ranks: int,
        *,
        come_seconds: float = _COME_SECONDS,
        hello_seconds: float = _HELLO_SECONDS,
    ) -> None:
        self.secret = secrets.token_bytes(_SECRET_BYTES)
        self._listener = listener
        self._num_ranks = num_ranks
        self._come_seconds = come_seconds
        self._hello_seconds = hello_seconds
        self._connections: dict[int, StageConnection] = {}
        self._waiting = trio.CancelScope()

    async def gather(self) -> tuple[StageConnection, ...]:
        """Wait for all stages, in any order; returns them in order of their numbers.

        Raises:
          StagesNotMet: a stage does not connect.
        """
        with trio.move_on_after(self._come_seconds) as self._waiting:
            async with trio.open_nursery() as nursery:
                while True:
                    stream = await self._listener.accept()
                    nursery.start_soon(self._greet, stream.socket)
        missing = sorted({*range(1, self._num_ranks)} - {*self._connections})
        if missing:
            ranks = ", ".join(f"rank {rank}" for rank in missing)
            raise StagesNotMet(
                f"{ranks} did not connect within {self._come_seconds:g} s"
            )
        return tuple(self._connections[rank] for rank in sorted(self._connections))

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.sock.close()

    async def _greet(self, sock: trio.socket.SocketType) -> None:
        with ExitStack() as hanging_up:
            hanging_up.callback(sock.close)
            hello = None
            with trio.move_on_after(self._hello_seconds):
                hello = await _receive_hello(sock, self.secret)
            if hello is None or not self._is_expected(hello):
                logger.warning(
                    "closed the connection of a peer that is not an awaited stage"
                )
                return
            hanging_up.pop_all()
        logger.info("rank %s has connected", hello.rank)
        _notice_loss(sock)
        self._connections[hello.rank] = StageConnection(hello=hello, sock=sock)
        if len(self._connections) == self._num_ranks - 1:
            self._waiting.cancel()

    def _is_expected(self, hello: Hello) -> bool:
        is_one = 1 <= hello.rank < self._num_ranks
        return is_one and hello.rank not in self._connections


@asynccontextmanager
async def open_stage_connections(
    torchrun: Torchrun,
) -> AsyncIterator[tuple[StageConnection, ...]]:
    """Publish the engine's address, and wait for all other ranks.

    The connections are closed when the block is left.

    Raises:
      StagesNotMet
    """
    with ExitStack() as stack:
        async with await _listen(torchrun.master_addr) as listener:
            rendezvous = Rendezvous(listener, torchrun.world_size)
            stack.callback(rendezvous.close)
            address = Address(
                host=torchrun.master_addr,
                port=listener.socket.getsockname()[1],
                secret=rendezvous.secret,
            )
            logger.info("waiting for stages at %s:%s", address.host, address.port)
            text = msgspec.json.encode(address).decode()
            await run_in_fresh_thread(partial(torchrun.write, _KEY, text))
            connections = await rendezvous.gather()
        yield connections


async def join_engine(torchrun: Torchrun) -> trio.socket.SocketType:
    """Wait for the engine, connect to it and send a hello.

    Raises:
      StagesNotMet
    """
    logger.info("waiting for the engine")
    text = await run_in_fresh_thread(partial(torchrun.read, _KEY))
    hello = Hello(
        rank=torchrun.rank,
        local_rank=torchrun.local_rank,
        num_local_ranks=torchrun.local_world_size,
    )
    return await connect_stage(msgspec.json.decode(text, type=Address), hello)


async def connect_stage(address: Address, hello: Hello) -> trio.socket.SocketType:
    """Connect to an engine as one of its stages.

    Raises:
      StagesNotMet: the engine cannot be reached.
    """
    numbers = hello.rank, hello.local_rank, hello.num_local_ranks
    try:
        with trio.fail_after(_SILENCE_SECONDS):
            stream = await trio.open_tcp_stream(address.host, address.port)
            await stream.send_all(_HELLO.pack(address.secret, *numbers))
    except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
        raise StagesNotMet(
            f"the engine cannot be reached at {address.host}:{address.port}: {error}"
        ) from error
    _notice_loss(stream.socket)
    return stream.socket


async def _listen(host: str) -> trio.SocketListener:
    try:
        listener, *others = await trio.open_tcp_listeners(0, host=host)
    except OSError as error:
        raise StagesNotMet(
            f"cannot listen at {host}: torchrun's --master-addr must be an address "
            f"of the machine with node rank 0: {error}"
        ) from error
    # A name may have several addresses; each of them would get its own port.
    for other in others:
        await other.aclose()
    return listener


async def _receive_hello(sock: trio.socket.SocketType, secret: bytes) -> Hello | None:
    """Read the first message of a peer; None if it is not a hello with the secret."""
    data = b""
    while len(data) < _HELLO.size:
        try:
            part = await sock.recv(_HELLO.size - len(data))
        except OSError:
            return None
        if not part:
            return None
        data += part
    given, rank, local_rank, num_local_ranks = _HELLO.unpack(data)
    if not compare_digest(given, secret):
        return None
    return Hello(rank=rank, local_rank=local_rank, num_local_ranks=num_local_ranks)


def _notice_loss(sock: trio.socket.SocketType) -> None:
    """Let the system detect a lost machine, which cannot close its connections."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    # It also ends a connection whose sent bytes are not acknowledged in time.
    milliseconds = 1000 * _SILENCE_SECONDS
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
