"""A server in virtual time: everything is real but its sockets, its threads and its device.

    async with open_simulated_server(model) as server:
        stream = server.connect()
        await stream.send_all(b"GET /health HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")

Run it by order.run_virtually.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
import itertools
import random
from typing import Any

from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGISendCallable,
    ConnectionState,
    Scope,
)
import trio

from trioserve.http.connection import guard_connections, make_config
from trioserve.http.connection.server import GuardedServer, make_context
from trioserve.http.state import ServerState
from trioserve.render import RendererWorkers
from trioserve.server.app import create_http_app
from trioserve.server.in_memory import open_lifespan
from trioserve.server.metrics import collect_families
from trioserve.types.logits import LogitsProcessor

from .engines import make_generation, make_pooling
from .model import SimulatedLimits, SimulatedModel
from .sockets import make_socket_pair
from .threads import VirtualThreads

# Gauges of caches, which outlive the requests that filled them.
_CACHES = {"trioserve_prefix_cache_blocks"}


class SimulatedServer:
    """A running server.

    Args:
      seed: decides how long calls of the renderer take.
      pools: serve embeddings instead of texts.

    Attributes:
      state: the server's state, as its handlers see it.
      engine: the engine.
      has_failed: the engine has failed, and the server ends.
    """

    def __init__(
        self,
        model: SimulatedModel,
        limits: SimulatedLimits,
        processors: tuple[type[LogitsProcessor], ...],
        seed: int,
        pools: bool,
    ) -> None:
        self._limits = limits
        self._threads = VirtualThreads(
            random.Random(f"threads {seed}"), limits.render_seconds
        )
        self._addresses = itertools.count(1)
        self._config = make_config(bind=[])
        self._context = make_context()
        self._nursery: trio.Nursery | None = None
        self._ended = trio.Event()
        self.has_failed = False
        workers = RendererWorkers(
            limits.render.renderer_num_workers, self._threads.run_sync
        )
        served = (
            make_pooling(model, limits, workers)
            if pools
            else make_generation(model, limits, workers, processors, seed)
        )
        self.engine = served.engine
        self.state = ServerState(config=limits.http)
        self.state.engine = served
        self._app = create_http_app(self.state)

    @property
    def has_ended(self) -> bool:
        """True if nobody listens any more."""
        return self.has_failed or self._context.terminated.is_set()

    def list_held(self) -> dict[str, object]:
        """Return all that the server holds for its requests; the same as a fresh server."""
        held: dict[str, object] = {
            f"{sample.name}{sample.labels or ''}": sample.value
            for family in collect_families(self.state)
            if family.type == "gauge" and family.name not in _CACHES
            for sample in family.samples
        }
        held["engine"] = self.engine.statistics()
        held["live requests"] = len(self.state.live)
        held["threads"] = self._threads.num_running
        held["connections"] = (
            0 if self._nursery is None else len(self._nursery.child_tasks)
        )
        return held

    def connect(
        self, *, capacity: int = 65_536, address: str | None = None
    ) -> trio.SocketStream:
        """Return the client's end of a new connection.

        Args:
          capacity: bytes that each direction takes before the other end reads them.
          address: the client's; by default each connection has one of its own.
        """
        assert self._nursery is not None, "the server runs"
        number = next(self._addresses)
        host = address or f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        client, ours = make_socket_pair((host, 40_000), capacity=capacity)
        if self.has_ended:
            client.reset()
        else:
            connection = _Connection(
                self._call_app,
                self._config,
                self._context,
                ConnectionState({}),
                trio.SocketStream(ours),
            )
            self._nursery.start_soon(connection.run)
        return trio.SocketStream(client)

    async def wait_ended(self) -> None:
        """Wait until nothing of the server runs any more."""
        await self._ended.wait()

    async def run(  # noqa: ASYNC128 (_serve calls started)
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until draining has ended, or the engine has failed."""
        guard_connections(self._limits.http)
        async with trio.open_nursery() as nursery:
            await nursery.start(self._threads.run)
            await nursery.start(self._run_engine, nursery.cancel_scope)
            async with open_lifespan(self._app):
                await self._serve(task_status)
            nursery.cancel_scope.cancel()
        self._ended.set()

    async def _call_app(
        self,
        scope: Scope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        *hooks: object,
    ) -> None:
        # hypercorn passes functions for apps that are not async.
        await self._app(scope, receive, send)

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        """Hold the connections, and end as hypercorn.trio.serve does."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await self.state.finish_drain()
            await self._context.terminated.set()
            self._nursery.cancel_scope.deadline = (
                trio.current_time() + self._config.graceful_timeout
            )

    async def _run_engine(  # noqa: ASYNC128 (the engine calls started)
        self,
        server_scope: trio.CancelScope,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        try:
            await self.engine.run(task_status=task_status)
        except* RuntimeError:
            # The server ends with its engine.
            self.has_failed = True
        if self.has_failed:
            server_scope.cancel()


class _Connection(GuardedServer):
    """A connection whose socket is in memory."""

    _socket: Any

    def write_now(self, data: bytes) -> int:
        num_sent: int = self._socket.write_now(data)
        return num_sent


@asynccontextmanager
async def open_simulated_server(
    model: SimulatedModel,
    limits: SimulatedLimits = SimulatedLimits(),
    *,
    processors: tuple[type[LogitsProcessor], ...] = (),
    seed: int = 0,
    pools: bool = False,
) -> AsyncIterator[SimulatedServer]:
    """Serve until the block is left; then drain.

    Args:
      pools: serve embeddings instead of texts.
    """
    server = SimulatedServer(model, limits, processors, seed, pools)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        server.state.lifecycle.begin_drain()
