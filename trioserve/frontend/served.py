"""The base of both front ends: an engine, and the renderer that feeds it.

Both estimate the tokens of a text before it is rendered, and refuse requests that would be late.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import Any, Generic, Self, TypeVar

import trio

from ..engine.backlog import Forecast
from ..engine.engine import Engine
from ..errors import DeadlineExceeded, DeadlineUnreachable, RendererStuck
from ..render import BaseRenderer
from ..types.admission import round_retry
from ..types.model_info import ModelInfo
from ..types.sleep import SleepLevel

# The time that others add is multiplied by this. It is uncertain, and a crowded server takes
# requests until the forecast of the next one reaches its limit: half of them would be late.
# In a simulated overload, with five times as many requests as could be answered, 0.5 to 1.1
# times as many were answered in time as without overload if forecasts were taken as they are,
# 0.8 to 1.9 times with 1.25, and 1.03 times or more with 1.5.
_SAFETY = 1.5

# The weight of a text halves after 34 others.
_KEPT = 0.98

EngineT = TypeVar("EngineT", bound=Engine[Any, Any, Any])
RendererT = TypeVar("RendererT", bound=BaseRenderer)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """The time that a stream may take, in seconds of trio.current_time().

    Args:
      ends_at: when its open sequences end, with the finish reason "deadline".
      starts_by: when the stream fails if the device has not begun with it.
      max_queue_seconds: the field by which the client chose starts_by.
      end_param: the field or the option by which ends_at was chosen.
      refuses_late: refuse a request at once if its limits cannot be met.
    """

    ends_at: float = math.inf
    starts_by: float = math.inf
    max_queue_seconds: float = math.inf
    end_param: str = "timeout"
    refuses_late: bool = False

    @property
    def needs_forecast(self) -> bool:
        """True if a request may be refused because of its limits."""
        return self.refuses_late and min(self.ends_at, self.starts_by) < math.inf

    def check(self, forecast: Forecast) -> None:
        """Refuse a request that other requests would make late.

        A request that would be late on an idle device, too, is refused only if it would not
        even have its first token: its client wants as much as there is time for.

        Raises:
          DeadlineUnreachable
        """
        now = trio.current_time()
        left = self.ends_at - now
        if forecast.alone > left:
            needed = forecast.first + (_SAFETY - 1) * forecast.queue
        else:
            added = max(0.0, forecast.total - forecast.alone)
            needed = forecast.alone + _SAFETY * added
        _check(self.end_param, needed, left)
        queued = _SAFETY * forecast.queue
        _check("max_queue_seconds", queued, self.starts_by - now)

    def refuse_queue(self) -> DeadlineExceeded:
        """Return the error of a stream that has waited in the queue for too long."""
        return DeadlineExceeded(
            seconds=self.max_queue_seconds, phase="queue", param="max_queue_seconds"
        )


def _check(param: str, needed: float, left: float) -> None:
    # If no time is left at all, the deadline itself answers.
    if needed > left > 0:
        raise DeadlineUnreachable(
            param,
            needed_seconds=needed,
            left_seconds=left,
            retry_after_seconds=round_retry(needed - left),
        )


class TextRatio:
    """Learns how many tokens a character makes, with the tokens of templates."""

    def __init__(self) -> None:
        self._num_characters = 0.0
        self._num_tokens = 0.0

    def learn(self, num_characters: int, num_tokens: int) -> None:
        """Take in a text, or all texts of a request."""
        self._num_characters = _KEPT * self._num_characters + num_characters
        self._num_tokens = _KEPT * self._num_tokens + num_tokens

    def estimate(self, num_characters: int) -> int:
        """Return the tokens that a text will have, about; 0 before the first text."""
        if not self._num_characters:
            return 0
        return round(num_characters * self._num_tokens / self._num_characters)


@dataclass(slots=True)
class _LateCount:
    """A count that the views of one model share."""

    num_refused: int = 0


class ServedModel(Generic[EngineT, RendererT]):
    """A model that takes requests: TextEngine or PoolingEngine.

    Args:
      engine: runs.
      renderer: is loaded.

    Attributes:
      info: the facts about the model.
      parent: the name of the model, if this is the view of an adapter; else None.
    """

    def __init__(self, engine: EngineT, renderer: RendererT) -> None:
        self.engine = engine
        self.info: ModelInfo = engine.info
        self.renderer = renderer
        self.parent: str | None = None
        self._ratio = TextRatio()
        self._late = _LateCount()

    @property
    def num_refused_late(self) -> int:
        """Requests that were refused with DeadlineUnreachable."""
        return self._late.num_refused

    @property
    def is_alive(self) -> bool:
        """True if the engine takes requests now."""
        return self.engine.is_alive

    def find(self, name: str) -> Self | None:
        """Return the engine of a name that clients may use; None if there is none."""
        return self if self.info.has_name(name) else None

    def list_names(self) -> tuple[str, ...]:
        """Return the names that clients are told."""
        return self.info.names

    def check_alive(self) -> None:
        """Raise the reason why the engine takes no requests now; see Engine."""
        self.engine.check_alive()

    @property
    def is_asleep(self) -> bool:
        """True if the engine has given memory back; the next request may wake it."""
        return self.engine.sleep_state.is_sleeping

    async def sleep(self, level: SleepLevel = 2, *, ends_requests: bool = True) -> None:
        """Give memory back, and refuse requests until `wake`; returns when that is done.

        Args:
          level: 1 gives back the KV cache, 2 the weights, too.
          ends_requests: end the open requests with EngineAsleep; else they go on, and the
            engine sleeps when the last one has ended.

        Raises:
          InvalidParameter, NotSupported: the engine does not have the level.
          EngineDied, EngineRestarting, ShuttingDown: no engine runs.
        """
        await self.engine.sleep(level, ends_requests=ends_requests)

    async def wake(self) -> None:
        """Take all memory again; returns when the model can run.

        Raises:
          EngineAsleep: it cannot wake, such as for a lack of memory. It stays asleep.
          EngineDied, EngineRestarting, ShuttingDown: no engine runs.
        """
        await self.engine.wake()

    def check_ready(self) -> None:
        """Raise the reason why a request of one short text would be refused now.

        Raises:
          RendererStuck: too many templates do not end.
          QueueFull, RendererFull: too many requests wait.
          EngineDied, EngineRestarting, EngineAsleep, ShuttingDown: no engine runs.
        """
        if self.renderer.is_stuck:
            raise RendererStuck()
        self.engine.check_room(1)
        self.renderer.room.check_room(1)

    def _check_time(self, limits: StreamLimits, forecast: Forecast | None) -> None:
        """Refuse a request that other requests would make late.

        Raises:
          DeadlineUnreachable
        """
        if forecast is None:
            return
        try:
            limits.check(forecast)
        except DeadlineUnreachable:
            self._late.num_refused += 1
            raise

    def stalled_seconds(self) -> float:
        """Return the seconds since the running step began; 0 if none runs."""
        return self.engine.stalled_seconds()

    def close_requests(self, error: Exception) -> None:
        """Raise `error` in every open request, and in every attempt to open one."""
        self.engine.close_requests(error)
