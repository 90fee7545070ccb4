"""A server with several HTTP processes: this process starts all others, and serves nothing.

    this process        signals, the engine process, the HTTP processes, their hub
      engine process    one engine for all
      HTTP processes   HTTP and renderers, each with a socket and a connection to the engine

Each HTTP process has a socket of its own with the same address (SO_REUSEPORT). The system
spreads connections over all that listen, evenly and not by their load. One socket for all
would lose no connection that waits while its process dies, but processes that wake first would
take most: of 128 connections, 4 processes took 3 to 56. This process keeps no copy, so no
connection comes to the socket of a process that has died.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
import logging
import socket
from typing import ClassVar, Final, NoReturn

import trio

from ..config import ServeConfig
from ..engine.process.messages import AddClient, EngineLoaded
from ..engine.requests import Restarts
from ..errors import EngineProcessDied
from ..processes import Alive, Child, Descriptor, PeerGone, open_child
from ..processes.http_link import HttpProcessDied, Hub
from ..processes.http_link.messages import (
    ConnectEngine,
    Drained,
    EngineLost,
    FromHttp,
    HttpReady,
    Order,
    OrderKind,
    StartHttp,
)
from ..processes.silence import SilenceWatch
from ..types.not_loaded import NotLoaded
from .address import open_copy, share_address
from .engine_process import ENGINE_PROCESS, list_arguments
from .open import load_engine

logger = logging.getLogger(__name__)

# The time for HTTP processes to end: their requests get an error, and logs their last lines.
# An engine that has failed gives requests a second (engine/requests.py).
_END_SECONDS: Final = 3.0

# The time behind the deadline of a drain in which streams end, and hypercorn.
_AFTER_DRAIN_SECONDS: Final = 5.0


class Supervisor:
    """Starts the processes of a server, and replaces HTTP processes that die.

    Args:
      sock: bound, not listening.

    Attributes:
      engine_module: the module of the engine process.
      max_silent_seconds: an HTTP process that sends nothing for so long is ended. Many times
        the longest stall of an event loop on a machine with too much work.
    """

    max_silent_seconds: ClassVar[int] = 10
    engine_module: ClassVar[str] = ENGINE_PROCESS

    def __init__(self, config: ServeConfig, sock: socket.socket) -> None:
        self._config = config
        self._sock = sock
        self._hub = Hub()
        # Those that run, by number.
        self._members: dict[int, Child] = {}
        self._ready: set[int] = set()
        self._drained: set[int] = set()
        self._num_started = 0
        self._num_slots = config.bind.api_processes
        self._all_slots_ended = trio.Event()
        self._has_drain_begun = trio.Event()
        # HTTP processes that have to be ready before the server is.
        self._num_missing = config.bind.api_processes
        self._restarts = Restarts()
        self._loaded: EngineLoaded | None = None
        self._has_loaded = trio.Event()
        self._engine_end: str | None = None
        self._engine_has_ended = trio.Event()

    @property
    def is_draining(self) -> bool:
        return self._has_drain_begun.is_set()

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        """Start all processes, and end with them.

        Raises:
          StartupError: the model cannot be served.
          EngineProcessDied, HttpProcessDied
        """
        share_address(self._sock)
        async with open_child(
            self.engine_module,
            *list_arguments(self._config.engine),
            receives=EngineLoaded | NotLoaded,
            name="the engine process",
        ) as engine:
            await self._run(engine, on_ready)
        if self._engine_end is not None:
            raise EngineProcessDied(self._engine_end)

    def begin_drain(self) -> None:
        self._has_drain_begun.set()
        self._order("drain")

    async def reload(self) -> None:
        self._order("reload")
        await trio.lowlevel.checkpoint()

    def log_stalls(self) -> None:
        self._order("log_stalls")

    async def _run(self, engine: Child, on_ready: Callable[[str], None]) -> None:
        async with trio.open_nursery() as nursery:
            for slot in range(self._num_slots):
                start = partial(self._run_member, slot, engine, on_ready)
                nursery.start_soon(self._hold_slot, slot, start)
            self._loaded = await load_engine(
                engine, self._config.engine, "all", is_shared=True
            )
            nursery.start_soon(engine.stream.run)
            nursery.start_soon(self._watch_engine, engine)
            nursery.start_soon(self._limit_drain)
            self._has_loaded.set()
            await self._all_slots_ended.wait()
            nursery.cancel_scope.cancel()

    async def _watch_engine(self, engine: Child) -> None:
        """Wait for the end of the engine process, and give HTTP processes time to end.

        Raises:
          EngineProcessDied: they have not ended in time.
        """
        with suppress(PeerGone):
            await engine.stream.receive()
        self._engine_end = await engine.describe_end()
        self._engine_has_ended.set()
        logger.error("the engine failed: %s", self._engine_end)
        await trio.sleep(_END_SECONDS)
        raise EngineProcessDied(self._engine_end)

    async def _limit_drain(self) -> None:
        """End HTTP processes that do not end by themselves after a drain."""
        await self._has_drain_begun.wait()
        if not self._num_missing:
            # A successor that is not ready has no requests, so nobody waits for it.
            for number in self._members.keys() - self._ready:
                await self._members[number].kill()
        await trio.sleep(self._config.http.drain_timeout + _AFTER_DRAIN_SECONDS)
        num_left = len(self._members.keys() - self._drained)
        logger.error("%d HTTP processes have not drained, and are ended", num_left)
        self._all_slots_ended.set()

    async def _hold_slot(self, slot: int, start: Callable[[], Awaitable[str]]) -> None:
        """Run an HTTP process, and then its successors.

        Raises:
          StartupError: the first one cannot start.
          HttpProcessDied
        """
        while True:
            text = await start()
            if self.is_draining or self._engine_has_ended.is_set():
                break
            if self._num_missing or not self._restarts.take():
                raise HttpProcessDied(text)
            logger.error("%s; its requests are lost, and another one begins", text)
        self._close_drained()
        self._num_slots -= 1
        if not self._num_slots:
            self._all_slots_ended.set()

    async def _run_member(
        self, slot: int, engine: Child, on_ready: Callable[[str], None]
    ) -> str:
        """Run an HTTP process until it ends; returns a description of its end."""
        number = self._num_started
        self._num_started += 1
        async with (
            open_child(
                "trioserve.startup.http_process",
                receives=FromHttp,
                name=f"HTTP process {slot}",
            ) as child,
            _ending(child),
        ):
            self._members[number] = child
            self._send_start(number, slot)
            self._hub.join(number, child.stream)
            watch = SilenceWatch(child.kill, limit=self.max_silent_seconds)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(child.stream.run)
                    nursery.start_soon(self._connect, number, engine)
                    nursery.start_soon(watch.run)
                    text = await self._receive(number, slot, watch, on_ready)
                    nursery.cancel_scope.cancel()
            finally:
                del self._members[number]
                self._ready.discard(number)
                self._drained.discard(number)
                self._hub.leave(number)
        return text

    def _send_start(self, number: int, slot: int) -> None:
        stream = self._members[number].stream
        with open_copy(self._sock) as sock:
            stream.send_nowait(
                StartHttp(
                    config=self._config,
                    number=number,
                    slot=slot,
                    is_successor=not self._num_missing,
                    log_level=logging.getLogger("trioserve").getEffectiveLevel(),
                    sock=Descriptor(sock.fileno()),
                )
            )
        if self.is_draining:
            stream.send_nowait(Order("drain"))

    async def _connect(self, number: int, engine: Child) -> None:
        """Connect an HTTP process and the engine, when its model is loaded."""
        await self._has_loaded.wait()
        assert self._loaded is not None, "the engine has answered"
        ours, theirs = socket.socketpair()
        with ours, theirs:
            engine.stream.send_nowait(
                AddClient(number=number, connection=Descriptor(ours.fileno()))
            )
            self._members[number].stream.send_nowait(
                ConnectEngine(
                    info=self._loaded.info,
                    pooling=self._loaded.pooling,
                    connection=Descriptor(theirs.fileno()),
                )
            )

    async def _receive(
        self,
        number: int,
        slot: int,
        watch: SilenceWatch,
        on_ready: Callable[[str], None],
    ) -> str:
        """Carry out the messages of an HTTP process; returns how it ended."""
        child = self._members[number]
        while True:
            try:
                message = await child.stream.receive()
            except PeerGone:
                if watch.has_ended:
                    seconds = self.max_silent_seconds
                    return f"HTTP process {slot} said nothing for {seconds} s"
                return await child.describe_end()
            watch.note_message()
            match message:
                case Alive():
                    pass
                case NotLoaded():
                    self._refuse(slot, message)
                case HttpReady(address=address):
                    self._hub.take(number, message)
                    watch.begin()
                    self._ready.add(number)
                    self._note_ready(address, on_ready)
                case Drained():
                    self._drained.add(number)
                    self._close_drained()
                case EngineLost():
                    # The process of the engine says why.
                    with trio.move_on_after(_END_SECONDS):
                        await self._engine_has_ended.wait()
                    return f"HTTP process {slot} has lost the engine"
                case _:
                    self._hub.take(number, message)

    def _refuse(self, slot: int, message: NotLoaded) -> NoReturn:
        if self._num_missing:
            raise message.restore()
        raise HttpProcessDied(
            f"HTTP process {slot} cannot start again: {message.reason}"
        )

    def _note_ready(self, address: str, on_ready: Callable[[str], None]) -> None:
        if self._num_missing:
            self._num_missing -= 1
            if not self._num_missing:
                on_ready(address)

    def _close_drained(self) -> None:
        """End the HTTP processes if no request is left in any of them.

        Until then all of them answer, so that clients learn that the server drains.
        """
        if self.is_draining and self._drained >= self._members.keys():
            self._order("close")

    def _order(self, kind: OrderKind) -> None:
        for child in self._members.values():
            child.stream.send_nowait(Order(kind))


@asynccontextmanager
async def _ending(child: Child) -> AsyncIterator[None]:
    """Let an HTTP process end its requests and write its logs behind the block."""
    try:
        yield
    finally:
        with trio.move_on_after(_END_SECONDS, shield=True):
            with suppress(PeerGone):
                await child.stream.send(Order("cancel"))
            await child.wait()
