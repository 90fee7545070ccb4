"""A server in virtual time: everything is real but its sockets, its threads and its device.

    async with open_simulated_server(model) as server:
        stream = server.connect()
        await stream.send_all(b"GET /health HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")

Run it by order.run_virtually.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
import itertools
import math
from pathlib import Path
import random
from typing import Any

from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGISendCallable,
    ConnectionState,
    Scope,
)
from tokenizers import Tokenizer
import trio

from ...config import HttpConfig, MediaConfig, RenderConfig
from ...engine import LocalCore, TokenEngine
from ...frontend import TextEngine
from ...http import ServerState, create_http_app, guard_connections, make_config
from ...http.connection.server import GuardedServer, make_context
from ...http.metrics import collect_families
from ...render import RendererWorkers, TextParts, load_text_parts, make_renderer
from ...scheduler import Scheduler
from ...types.logits import LogitsProcessor
from ...types.model_info import ModelInfo
from ...types.plan import StepPlan
from ..fake_device import FakeExecutor, make_info
from .device import TellingDevice, Texts
from .lifespan import open_lifespan
from .sockets import make_socket_pair
from .threads import VirtualThreads

# Gauges of caches, which outlive the requests that filled them.
_CACHES = {"trioserve_prefix_cache_blocks"}


class SimulatedModel:
    """The parts of a server that many runs share.

    Args:
      folder: has a tokenizer with a chat template; see tiny_tokenizer.

    Attributes:
      tokenizer, parts: of the folder.
      texts: the texts that the device writes.
    """

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.texts = Texts(self.tokenizer)
        self.parts: TextParts = load_text_parts(
            folder,
            RenderConfig(),
            media=MediaConfig(),
            takes_images=False,
            chat_template=None,
        )


@dataclass(frozen=True, kw_only=True)
class SimulatedLimits:
    """The sizes of a server, small enough that histories reach them.

    Args:
      render_seconds: see VirtualThreads.
      fail_at_steps: the step that fails on the first device, and on those after it.
      restarts: a failed engine starts again, as with an engine process.
      faults: see TellingDevice.
      seconds_of: the time of a step.
    """

    http: HttpConfig = HttpConfig()
    render: RenderConfig = RenderConfig()
    max_model_len: int = 128
    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    max_num_waiting: int = 1000
    depth: int = 2
    render_seconds: float = 0.01
    fail_at_steps: tuple[int, ...] = ()
    restarts: bool = False
    faults: Mapping[int, int] = field(default_factory=dict)
    seconds_of: Callable[[StepPlan], float] = lambda plan: 0.01


class SimulatedServer:
    """A running server.

    Args:
      seed: decides how long calls of the renderer take.

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
    ) -> None:
        self._model = model
        self._limits = limits
        self._threads = VirtualThreads(
            random.Random(f"threads {seed}"), limits.render_seconds
        )
        self._failures = iter(limits.fail_at_steps)
        self._addresses = itertools.count(1)
        self._config = make_config(bind=[])
        self._context = make_context()
        self._nursery: trio.Nursery | None = None
        info = replace(
            make_info(
                limits.max_model_len, vocab_size=model.tokenizer.get_vocab_size()
            ),
            logits_processors=tuple(each.name for each in processors),
        )
        self._ended = trio.Event()
        self.has_failed = False
        self.engine = self._make_engine(info)
        self.state = ServerState(config=limits.http)
        renderer = make_renderer(
            model.parts,
            limits.render,
            info=info,
            workers=RendererWorkers(
                limits.render.renderer_num_workers, self._threads.run_sync
            ),
        )
        self.state.engine = TextEngine(self.engine, renderer, processors)
        self._app = create_http_app(self.state)

    @property
    def has_ended(self) -> bool:
        """Whether nobody listens any more."""
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

    def _make_engine(self, info: ModelInfo) -> TokenEngine:
        limits = self._limits

        async def reopen() -> LocalCore:
            await trio.sleep(1.0)
            return self._make_core(info)

        return TokenEngine(
            self._make_core(info),
            info=info,
            max_num_sequences=limits.max_num_seqs + limits.max_num_waiting,
            max_num_running=limits.max_num_seqs,
            scheduling_policy="priority",
            reopen=reopen if limits.restarts else None,
        )

    def _make_core(self, info: ModelInfo) -> LocalCore:
        limits = self._limits
        device = TellingDevice(
            self._model.texts, block_size=limits.block_size, faults=limits.faults
        )
        scheduler = Scheduler(
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            max_step_seconds=math.inf,
        )
        executor = FakeExecutor(
            device.step,
            seconds_of=limits.seconds_of,
            depth=limits.depth,
            fail_at_step=next(self._failures, None),
        )
        return LocalCore(scheduler, executor, info=info)


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
) -> AsyncIterator[SimulatedServer]:
    """Serve until the block is left; then drain."""
    server = SimulatedServer(model, limits, processors, seed)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        server.state.lifecycle.begin_drain()
