"""What all handlers of one server share."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..config import HttpConfig, parse_bytes
from ..errors import (
    EngineRestarting,
    ModelNotFound,
    RendererStuck,
    ShuttingDown,
    TaskNotServed,
    TrioserveError,
)
from ..frontend import PoolingEngine
from ..frontend.text import TextEngine
from ..observe import LoopStall
from .bodies.heap import HeapTrimmer, find_malloc_trim
from .bodies.memory_budget import MemoryBudget
from .lifecycle import Lifecycle
from .request_counts import RequestCounts


@dataclass(kw_only=True)
class ServerState:
    """The server's parts.

    Attributes:
      engine: None until the model is loaded, where the server starts first.
      loop_stall: to be added to the event loop by whoever owns it.
    """

    config: HttpConfig
    engine: TextEngine | PoolingEngine | None = None
    bodies: MemoryBudget = field(init=False)
    heap: HeapTrimmer = field(init=False)
    lifecycle: Lifecycle = field(init=False)
    loop_stall: LoopStall = field(init=False, default_factory=LoopStall)
    counts: RequestCounts = field(init=False, default_factory=RequestCounts)

    def __post_init__(self) -> None:
        self.bodies = MemoryBudget(
            parse_bytes("max_bodies_memory", self.config.max_bodies_memory)
        )
        self.heap = HeapTrimmer(find_malloc_trim())
        self.lifecycle = Lifecycle(drain_timeout=self.config.drain_timeout)

    @property
    def is_healthy(self) -> bool:
        return (
            self.engine is not None
            and self.engine.is_alive
            and not self.engine.renderer.is_stuck
            and not self.lifecycle.is_draining
        )

    def find_illness(self) -> TrioserveError:
        """Return why no request is taken."""
        try:
            self.require_engine().check_alive()
        except TrioserveError as error:
            return error
        return RendererStuck()

    @property
    def stalled_seconds(self) -> float:
        """For how long nothing has been heard of a step that runs."""
        return 0.0 if self.engine is None else self.engine.stalled_seconds()

    @property
    def makes_progress(self) -> bool:
        if self.engine is None:
            return False
        try:
            self.engine.check_alive()
        except EngineRestarting:
            # Who restarts the server now, would begin it anew.
            return True
        except TrioserveError:
            return False
        return self.stalled_seconds < self.config.progress_timeout

    async def finish_drain(self) -> None:
        """Wait until draining has begun and is over, one way or the other.

        What still runs at the drain's deadline is told so: its stream ends with an
        error that its client can read, where a cancellation would only cut it.
        """
        if not await self.lifecycle.wait_drained() and self.engine is not None:
            self.engine.close_requests(ShuttingDown())

    def require_engine(self, model: str | None = None) -> TextEngine | PoolingEngine:
        """Return the engine if it takes requests, for this model where one is named.

        Raises:
          ShuttingDown, ModelNotFound
        """
        self.lifecycle.check_open()
        if self.engine is None:
            raise ShuttingDown()
        if model and model != self.engine.info.name:
            raise ModelNotFound(model)
        return self.engine

    def require_text(self, model: str | None = None) -> TextEngine:
        """Return the engine if it writes.

        Raises:
          ShuttingDown, ModelNotFound, TaskNotServed
        """
        engine = self.require_engine(model)
        if isinstance(engine, PoolingEngine):
            raise TaskNotServed(
                engine.info.name, wanted="generate", served=engine.pooling.task
            )
        return engine

    def require_pooling(self, model: str | None = None) -> PoolingEngine:
        """Return the engine if it pools.

        Raises:
          ShuttingDown, ModelNotFound, TaskNotServed
        """
        engine = self.require_engine(model)
        if isinstance(engine, TextEngine):
            raise TaskNotServed(
                engine.info.name, wanted="pool texts", served="generate"
            )
        return engine
