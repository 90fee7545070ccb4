"""How the engine meets stages that torchrun has started, on whichever machine.

    engine                             stage
    listens, and writes down where -->  reads it in torchrun's store
                                   <--  connects, and says hello

and then they speak as with a child process (messages.py).

Whoever says hello knows the secret that is written down with the address: a stray
connection, or a stage of another run, is hung up on. It keeps no enemy out, because the
store tells it to everybody.
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

from ..errors import StagesNotMet
from ..threads.fresh_thread import run_in_fresh_thread
from .torchrun import Torchrun

logger = logging.getLogger(__name__)

# How long all of them may take to come once the engine is there. torchrun has started
# them at the same time, and they import torch: seconds, from a slow disk many.
_COME_SECONDS = 300.0

# For the few bytes that come first.
_HELLO_SECONDS = 5.0

# To connect; and so long a machine may answer nothing until its connection is lost.
_SILENCE_SECONDS = 20

_KEY = "engine"

_SECRET_BYTES = 32

# | secret | stage | local_stage | num_local_stages |
_HELLO = struct.Struct(f"!{_SECRET_BYTES}sIII")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where the engine waits for stages, and what they have to know."""

    host: str
    port: int
    secret: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a stage says first. Its size is fixed, and nothing else is read before it.

    Args:
      stage: from 1, because the engine starts the first one itself.
      local_stage, num_local_stages: as in executor.messages.Begin.
    """

    stage: int
    local_stage: int
    num_local_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConnection:
    """A stage that has said hello."""

    hello: Hello
    sock: trio.socket.SocketType


class Rendezvous:
    """Lets stages in.

    Args:
      listener: where they come to.
      num_stages: all of them; the first one does not come.
      come_seconds: for all of them to come.
      hello_seconds: for each to say hello, when it has connected.
    """

    def __init__(
        self,
        listener: trio.SocketListener,
        num_stages: int,
        *,
        come_seconds: float = _COME_SECONDS,
        hello_seconds: float = _HELLO_SECONDS,
    ) -> None:
        self.secret = secrets.token_bytes(_SECRET_BYTES)
        self._listener = listener
        self._num_stages = num_stages
        self._come_seconds = come_seconds
        self._hello_seconds = hello_seconds
        self._guests: dict[int, StageConnection] = {}
        self._waiting = trio.CancelScope()

    async def gather(self) -> tuple[StageConnection, ...]:
        """Wait for all, who come in any order; returns them in theirs.

        Raises:
          StagesNotMet: one of them does not come.
        """
        with trio.move_on_after(self._come_seconds) as self._waiting:
            async with trio.open_nursery() as nursery:
                while True:
                    stream = await self._listener.accept()
                    nursery.start_soon(self._greet, stream.socket)
        missing = sorted({*range(1, self._num_stages)} - {*self._guests})
        if missing:
            stages = ", ".join(f"stage {stage}" for stage in missing)
            raise StagesNotMet(f"{stages} did not come within {self._come_seconds:g} s")
        return tuple(self._guests[stage] for stage in sorted(self._guests))

    def close(self) -> None:
        """Hang up on all."""
        for connection in self._guests.values():
            connection.sock.close()

    async def _greet(self, sock: trio.socket.SocketType) -> None:
        with ExitStack() as hanging_up:
            hanging_up.callback(sock.close)
            hello = None
            with trio.move_on_after(self._hello_seconds):
                hello = await _receive_hello(sock, self.secret)
            if hello is None or not self._is_expected(hello):
                logger.warning("hung up on somebody who is not a stage that is awaited")
                return
            hanging_up.pop_all()
        logger.info("stage %s has come", hello.stage)
        _notice_loss(sock)
        self._guests[hello.stage] = StageConnection(hello=hello, sock=sock)
        if len(self._guests) == self._num_stages - 1:
            self._waiting.cancel()

    def _is_expected(self, hello: Hello) -> bool:
        is_one = 1 <= hello.stage < self._num_stages
        return is_one and hello.stage not in self._guests


@asynccontextmanager
async def open_stage_connections(
    torchrun: Torchrun,
) -> AsyncIterator[tuple[StageConnection, ...]]:
    """Let all other ranks know where we are, and wait for them.

    They are hung up on when the block is left.

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
    """Wait for the engine, connect to it and say hello.

    Raises:
      StagesNotMet
    """
    logger.info("waiting for the engine")
    text = await run_in_fresh_thread(partial(torchrun.read, _KEY))
    hello = Hello(
        stage=torchrun.rank,
        local_stage=torchrun.local_rank,
        num_local_stages=torchrun.local_world_size,
    )
    return await connect_stage(msgspec.json.decode(text, type=Address), hello)


async def connect_stage(address: Address, hello: Hello) -> trio.socket.SocketType:
    """Connect to an engine as one of its stages.

    Raises:
      StagesNotMet: there is none.
    """
    stage = hello.stage, hello.local_stage, hello.num_local_stages
    try:
        with trio.fail_after(_SILENCE_SECONDS):
            stream = await trio.open_tcp_stream(address.host, address.port)
            await stream.send_all(_HELLO.pack(address.secret, *stage))
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
            f"cannot listen at {host}, torchrun's --master-addr, which has to be an "
            f"address of the machine with node rank 0: {error}"
        ) from error
    # Where a name has several addresses, each would have a port of its own.
    for other in others:
        await other.aclose()
    return listener


async def _receive_hello(sock: trio.socket.SocketType, secret: bytes) -> Hello | None:
    """Read what somebody says first; None if it is no hello that knows the secret."""
    data = b""
    while len(data) < _HELLO.size:
        try:
            part = await sock.recv(_HELLO.size - len(data))
        except OSError:
            return None
        if not part:
            return None
        data += part
    given, stage, local_stage, num_local_stages = _HELLO.unpack(data)
    if not compare_digest(given, secret):
        return None
    return Hello(
        stage=stage, local_stage=local_stage, num_local_stages=num_local_stages
    )


def _notice_loss(sock: trio.socket.SocketType) -> None:
    """Have the system notice that the other machine is gone, who then says nothing."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    # In place of a number of probes, and for what was sent and is not acknowledged.
    milliseconds = 1000 * _SILENCE_SECONDS
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
