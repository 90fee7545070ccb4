"""The base of both front ends: an engine, and the renderer that feeds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ..engine.engine import Engine
from ..engine.forecast import Forecast
from ..errors import DeadlineUnreachable, RendererStuck
from ..render import BaseRenderer
from ..types.model_info import ModelInfo
from .stream_limits import StreamLimits
from .text_ratio import TextRatio

EngineT = TypeVar("EngineT", bound=Engine[Any, Any, Any])
RendererT = TypeVar("RendererT", bound=BaseRenderer)


class ServedModel(Generic[EngineT, RendererT]):
    """A model that takes requests: TextEngine or PoolingEngine.

    Args:
      engine: runs.
      renderer: is loaded.

    Attributes:
      num_refused_late: requests that were refused with DeadlineUnreachable.
    """

    def __init__(self, engine: EngineT, renderer: RendererT) -> None:
        self.engine = engine
        self.renderer = renderer
        self.num_refused_late = 0
        self._ratio = TextRatio()

    @property
    def info(self) -> ModelInfo:
        """The facts about the model."""
        return self.engine.info

    @property
    def is_alive(self) -> bool:
        """True if the engine takes requests now."""
        return self.engine.is_alive

    def check_alive(self) -> None:
        """Raise the reason why the engine takes no requests now; see Engine."""
        self.engine.check_alive()

    def check_ready(self) -> None:
        """Raise the reason why a request of one short text would be refused now.

        Raises:
          RendererStuck: too many templates do not end.
          QueueFull, RendererFull: too many requests wait.
          EngineDied, EngineRestarting, ShuttingDown: no engine runs.
        """
        if self.renderer.is_stuck:
            raise RendererStuck()
        self.engine.check_room(1)
        self.renderer.room.check_room(1)

    def _check_time(
        self, limits: StreamLimits, predict: Callable[[], Forecast | None]
    ) -> None:
        """Refuse a request that other requests would make late.

        Raises:
          DeadlineUnreachable
        """
        if not limits.needs_forecast or (forecast := predict()) is None:
            return
        try:
            limits.check(forecast)
        except DeadlineUnreachable:
            self.num_refused_late += 1
            raise

    def stalled_seconds(self) -> float:
        """Return the seconds since the running step began; 0 if none runs."""
        return self.engine.stalled_seconds()

    def close_requests(self, error: Exception) -> None:
        """Raise `error` in every open request, and in every attempt to open one."""
        self.engine.close_requests(error)
