"""An HTTP process: `python -m trioserve.startup.http_process DESCRIPTOR PARENT`.

supervisor.py starts it. It serves one socket, over an engine in another process.
processes/http_link/messages.py has its messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
import socket
from typing import Any

import msgspec
import trio

from ..engine.peer_work import PeerWork
from ..engine.process.messages import FromEngine, find_first_id
from ..engine.process.remote import RemoteCore, RemotePoolingCore
from ..errors import EngineDied, StartupError, find_first
from ..frontend import PoolingEngine, TextEngine
from ..http.keys.key_use import KeyTokens
from ..processes import Alive, MessageStream, beat, run_as_child
from ..processes.http_link import ParentLink
from ..processes.http_link.messages import (
    Drained,
    EngineLost,
    HttpReady,
    Order,
    OrderKind,
    StartHttp,
    ToHttp,
)
from ..types.not_loaded import NotLoaded
from .http_server import HttpServer
from .loaded import LoadedCore
from .log_lines import set_up_logging
from .open import open_connected_engine


async def main(stream: MessageStream[Any]) -> None:
    """Serve the socket of the first message."""
    begin = await stream.receive()
    assert isinstance(begin, StartHttp), "StartHttp comes first"
    set_up_logging(begin.log_level, origin=f"http {begin.slot}")
    last: object = None
    try:
        await _HttpProcess(begin, stream).run()
    except* StartupError as errors:
        error = find_first(errors)
        assert isinstance(error, StartupError), "the clause takes no other"
        last = NotLoaded.of(error)
    except* EngineDied:
        # The engine has logged the cause.
        last = EngineLost()
    if last is not None:
        stream.send_nowait(last)
        # The parent sends it when it has read the last message. Others may be on their way.
        while await stream.receive() != Order("cancel"):
            pass


class _State(msgspec.Struct, frozen=True):
    """The work of an HTTP process, for its siblings."""

    work: PeerWork
    tokens: tuple[KeyTokens, ...]


_DECODER = msgspec.msgpack.Decoder(_State)


class _HttpProcess:
    """The server of this process, and its link to the others.

    Raises:
      StartupError: a key or a certificate cannot be used.
    """

    def __init__(self, begin: StartHttp, stream: MessageStream[Any]) -> None:
        self._config = begin.config
        self._is_successor = begin.is_successor
        self._first_id = find_first_id(begin.number)
        self._link = ParentLink(begin.slot, stream)
        self._server = HttpServer(begin.config, socket.socket(fileno=begin.sock.number))
        self._state = self._server.state
        self._state.siblings = self._link
        self._state.key_uses.on_charge = self._link.note_change
        # The work of siblings, until there is an engine that counts it.
        self._early: dict[int, PeerWork] = {}
        self._everything = trio.CancelScope()
        self._is_ready = trio.Event()
        self._may_close = trio.Event()

    async def run(self) -> None:
        """Serve until the parent lets this process end.

        Raises:
          StartupError, EngineDied, in groups.
        """
        with self._everything:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._link.run, self)
                nursery.start_soon(self._publish)
                nursery.start_soon(beat, lambda: self._link.send_nowait(Alive()))
                await self._server.serve(
                    self._open_engine,
                    self._note_ready,
                    self._wait_end,
                    waits_for_engine=self._is_successor,
                )
                nursery.cancel_scope.cancel()
        if self._is_ready.is_set():
            self._server.log_stalls()

    @asynccontextmanager
    async def _open_engine(self) -> AsyncIterator[TextEngine | PoolingEngine]:
        async with open_connected_engine(
            self._config.engine, self._connect, first_id=self._first_id
        ) as served:
            for member, work in self._early.items():
                served.engine.set_peer(member, work)
            self._early.clear()
            served.engine.on_work = self._link.note_change
            yield served

    async def _connect(self) -> LoadedCore:
        message = await self._link.wait_engine()
        sock = message.connection.take_socket()
        stream = MessageStream[Any](sock, receives=FromEngine)
        remote: Any = RemoteCore if message.pooling is None else RemotePoolingCore
        return LoadedCore(
            core=remote(stream, _describe_end),
            info=message.info,
            pooling=message.pooling,
        )

    def _note_ready(self, address: str) -> None:
        self._link.send_nowait(HttpReady(address=address))
        self._is_ready.set()

    async def _publish(self) -> None:
        await self._is_ready.wait()
        await self._link.publish(self)

    async def _wait_end(self) -> None:
        await self._state.finish_drain()
        self._link.send_nowait(Drained())
        await self._may_close.wait()

    # The door of ParentLink.

    def describe_state(self) -> bytes:
        assert self._state.engine is not None, "it is there before the server is ready"
        state = _State(
            work=self._state.engine.engine.describe_work(),
            tokens=self._state.key_uses.list_tokens(),
        )
        return msgspec.msgpack.encode(state)

    def take_state(self, member: int, state: bytes) -> None:
        seen = _DECODER.decode(state)
        self._state.key_uses.take_tokens(member, seen.tokens)
        if self._state.engine is None:
            self._early[member] = seen.work
        else:
            self._state.engine.engine.set_peer(member, seen.work)

    def forget(self, member: int) -> None:
        self._state.key_uses.forget(member)
        self._early.pop(member, None)
        if self._state.engine is not None:
            self._state.engine.engine.set_peer(member, None)

    async def answer(self, question: bytes) -> bytes:
        from ..server.admin.live_requests import answer_sibling

        return await answer_sibling(self._state, question)

    async def obey(self, order: OrderKind) -> None:
        match order:
            case "drain":
                self._state.lifecycle.begin_drain()
            case "close":
                self._may_close.set()
            case "cancel":
                self._everything.cancel()
            case "reload":
                await self._server.reload()
            case "log_stalls":
                self._server.log_stalls()


async def _describe_end() -> str:
    await trio.lowlevel.checkpoint()
    return "the engine process has ended"


if __name__ == "__main__":
    run_as_child(main, receives=ToHttp)
