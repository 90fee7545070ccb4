"""The objects that all handlers of one server share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
import sys

import trio

from ..config import HttpConfig, parse_bytes
from ..errors import (
    EngineAsleep,
    EngineRestarting,
    ModelLoading,
    ModelNotFound,
    RendererStuck,
    ShuttingDown,
    TaskNotServed,
    TrioserveError,
)
from ..frontend import PoolingEngine, TextEngine
from ..frontend.models.router import ModelRouter
from ..observe import LoopStall
from ..render import RendererWorkers
from .audit import LeakAudit
from .bodies.memory import HeapTrimmer, MemoryBudget, find_trim
from .keys.key_use import KeyUses
from .keys.keys import KeyRing
from .keys.siblings import Siblings
from .live.lifecycle import Lifecycle
from .live.live_requests import LiveRequests, UnreadLimit
from .live.model_hold import ModelHold
from .record.progress import EndedRequest, RequestSink
from .record.request_counts import RequestCounts
from .record.request_log import RequestLog
from .record.traces import Traces
from .streams.background import BackgroundTasks
from .streams.keepalive import KeepAlive
from .streams.response_store import ResponseStore
from .streams.resumable import ResumableStreams
from .wire.origins import AllowedHosts, Cors

# So responses stay in memory for a tenth longer than they are served.
_DROPS_PER_AGE = 10


@dataclass(kw_only=True)
class ServerState:
    """The server's parts.

    Raises:
      InvalidConfig: the file with keys cannot be read, a log cannot be written, or what
        traces need is not installed.

    Attributes:
      request_log: None if requests are not logged.
      traces: None if there are no traces.
      sinks: take each request that has ended, but no probes.
      keys: that clients must show.
      cors: None if no page of another origin may use the API.
      engine: the engine of the only model; None until it is loaded.
      models: the models, if the server has several; None before, and if it has one.
      has_loaded: set by callers that set the engine after the app was started.
      siblings: the other HTTP processes; None if this process is the only one.
      loop_stall: an instrument. The owner of the event loop adds it to the loop.
    """

    config: HttpConfig
    engine: TextEngine | PoolingEngine | None = None
    models: ModelRouter | None = None
    siblings: Siblings | None = None
    has_loaded: trio.Event = field(init=False, default_factory=trio.Event)
    keys: KeyRing = field(init=False)
    bodies: MemoryBudget = field(init=False)
    heap: HeapTrimmer = field(init=False)
    lifecycle: Lifecycle = field(init=False)
    responses: ResponseStore = field(init=False)
    background: BackgroundTasks = field(init=False)
    cors: Cors | None = field(init=False, default=None)
    hosts: AllowedHosts = field(init=False)
    keepalive: KeepAlive = field(init=False)
    unread: UnreadLimit = field(init=False)
    resumable: ResumableStreams = field(init=False)
    loop_stall: LoopStall = field(init=False, default_factory=LoopStall)
    live: LiveRequests = field(init=False)
    key_uses: KeyUses = field(init=False, default_factory=KeyUses)
    counts: RequestCounts = field(init=False, default_factory=RequestCounts)
    request_log: RequestLog | None = field(init=False, default=None)
    traces: Traces | None = field(init=False, default=None)
    sinks: tuple[RequestSink, ...] = field(init=False, default=())
    audit: LeakAudit = field(init=False)

    def __post_init__(self) -> None:
        self.keys = KeyRing(self.config)
        self.bodies = MemoryBudget(
            parse_bytes("max_bodies_memory", self.config.max_bodies_memory)
        )
        self.heap = HeapTrimmer(find_trim())
        self.lifecycle = Lifecycle(drain_timeout=self.config.drain_timeout)
        self.live = LiveRequests(self.lifecycle)
        self.responses = ResponseStore(
            max_bytes=parse_bytes(
                "max_responses_memory", self.config.max_responses_memory
            ),
            max_age=self.config.response_max_age,
        )
        self.background = BackgroundTasks(self.config.max_background_responses)
        if self.config.allowed_origins:
            self.cors = Cors(self.config.allowed_origins)
        self.hosts = AllowedHosts(self.config)
        self.unread = UnreadLimit(
            parse_bytes("max_unread_memory", self.config.max_unread_memory), self.live
        )
        self.keepalive = KeepAlive(self.config.sse_keepalive)
        self.resumable = ResumableStreams(self.config, self.live)
        self.audit = LeakAudit(self)
        if self.config.request_log is not None:
            self.request_log = RequestLog(self.config.request_log)
            self.sinks += (self.request_log,)
        if self.config.otlp_traces_endpoint is not None:
            self.traces = Traces(self.config.otlp_traces_endpoint)
            self.sinks += (self.traces,)

    def serve(self, served: TextEngine | PoolingEngine | ModelRouter) -> None:
        """Take requests for a model, or for several."""
        if isinstance(served, ModelRouter):
            self.models = served
        else:
            self.engine = served
        self.has_loaded.set()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Let logs and traces be written; all requests end before the block does."""
        for sink in self.sinks:
            sink.start()
        try:
            yield
        finally:
            for sink in self.sinks:
                sink.close()

    def record(self, ended: EndedRequest) -> None:
        """Give a request that has ended to logs and traces."""
        for sink in self.sinks:
            sink.take(ended)

    @property
    def is_idle(self) -> bool:
        """True if no request is answered, here or in the background."""
        return not (
            self.lifecycle.num_active
            or self.background.num_running
            or self.resumable.tasks.num_running
        )

    def take_ended_ids(self) -> tuple[str, ...]:
        """Return the ids of the last requests that ended since the last call."""
        return self.live.take_ended_ids()

    @property
    def engines(self) -> list[TextEngine | PoolingEngine]:
        """The engines that run now."""
        if self.models is not None:
            return self.models.engines
        return [] if self.engine is None else [self.engine]

    @property
    def is_healthy(self) -> bool:
        if self.models is not None:
            # A model that fails is not the whole server.
            return not self.lifecycle.is_draining
        return (
            self.engine is not None
            and self.engine.is_alive
            and not self.engine.renderer.is_stuck
            and not self.lifecycle.is_draining
        )

    def check_ready(self) -> None:
        """Raise the reason why a short request would be refused now."""
        self.lifecycle.check_open()
        if self.models is None:
            self._find_engine(None).check_ready()

    def find_illness(self) -> TrioserveError:
        """Return the reason why the server takes no requests."""
        try:
            self.lifecycle.check_open()
            self._find_engine(None).check_alive()
        except TrioserveError as error:
            return error
        return RendererStuck()

    @property
    def stalled_seconds(self) -> float:
        """Seconds since the last sign of progress of the running step."""
        return max((each.stalled_seconds() for each in self.engines), default=0.0)

    @property
    def makes_progress(self) -> bool:
        if self.engine is None:
            # A restart would only begin the load again. Of several models, each engine
            # that fails is replaced.
            return self.stalled_seconds < self.config.progress_timeout
        try:
            self.engine.check_alive()
        except EngineRestarting:
            # A restart of the server would only begin the engine's restart again.
            return True
        except EngineAsleep:
            # A restart would wake it, against the order.
            return True
        except TrioserveError:
            return False
        return self.stalled_seconds < self.config.progress_timeout

    def after_aborts(self, hold: ModelHold, call: Callable[[], None]) -> None:
        """Make a call when the engine of a request holds nothing of it any more."""
        if hold.engine is None:
            call()
        else:
            hold.engine.engine.after_aborts(call)

    async def drop_old_responses(self) -> None:
        """Free the memory of stored responses when their time is over, until cancelled.

        No client gets an old response; this is for servers that nobody asks.
        """
        if self.responses.keeps_responses:
            while True:
                await trio.sleep(self.config.response_max_age / _DROPS_PER_AGE)
                self.responses.drop_old(trio.current_time())

    async def finish_drain(self) -> None:
        """Wait until draining has begun, and then until it has ended.

        Streams that still run at the drain's deadline end with an error that the client
        can read. A cancellation would only cut them.
        """
        if not await self.lifecycle.wait_drained():
            for engine in self.engines:
                engine.close_requests(ShuttingDown())

    def find_workers(self) -> RendererWorkers:
        """Return the workers that decode the bodies of requests.

        Raises:
          ShuttingDown, ModelLoading
        """
        self.lifecycle.check_open()
        if self.models is None and self.engine is None:
            raise ModelLoading()
        return self.workers

    @property
    def workers(self) -> RendererWorkers:
        """The workers for things that belong to no model."""
        if self.models is not None:
            return self.models.workers
        assert self.engine is not None, "the server has loaded a model"
        return self.engine.renderer.workers

    @property
    def longest_prompt(self) -> int:
        """The most tokens of a prompt, as far as that is known before a model is chosen."""
        return sys.maxsize if self.engine is None else self.engine.info.max_model_len

    async def require_engine(
        self, hold: ModelHold, model: str | None = None
    ) -> TextEngine | PoolingEngine:
        """Return the engine of a model, or of the first one if none is named.

        Of several models, it is loaded first if it has to be.

        The engine of an adapter is a view; see TextEngine.find.

        Args:
          hold: the request's; it keeps the model until the request has ended.

        Raises:
          ShuttingDown, ModelLoading, ModelNotFound, ModelFailed
        """
        if self.models is None:
            hold.engine = self._find_engine(model)
        else:
            # A drain ends this wait: the load would take longer than most drains.
            with self.lifecycle.until_drain():
                await hold.visit(self.models, self.models.find(model))
            assert hold.engine is not None, "the request has a model now"
            hold.engine = self.models.choose(hold.engine, model)
        return hold.engine

    def _find_engine(self, model: str | None) -> TextEngine | PoolingEngine:
        self.lifecycle.check_open()
        if self.engine is None:
            raise ModelLoading()
        engine = self.engine.find(model) if model else self.engine
        if engine is None:
            raise ModelNotFound(model or "", served=self.engine.list_names())
        return engine

    async def require_text(
        self, hold: ModelHold, model: str | None = None
    ) -> TextEngine:
        """Return the engine if its model generates text.

        Raises:
          TaskNotServed
          Also raises the errors of require_engine.
        """
        engine = await self.require_engine(hold, model)
        if isinstance(engine, PoolingEngine):
            raise TaskNotServed(
                engine.info.name, wanted="generate", served=engine.pooling.task
            )
        return engine

    async def require_pooling(
        self, hold: ModelHold, model: str | None = None
    ) -> PoolingEngine:
        """Return the engine if its model pools.

        Raises:
          TaskNotServed
          Also raises the errors of require_engine.
        """
        engine = await self.require_engine(hold, model)
        if isinstance(engine, TextEngine):
            raise TaskNotServed(
                engine.info.name, wanted="pool texts", served="generate"
            )
        return engine
