"""What the rooms above see of an engine, wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from ...scheduler import SchedulerCounters
from ...types.model_info import ModelInfo
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams
from .token_stream import TokenStream

if TYPE_CHECKING:
    from .engine import EngineStatistics


class EngineClient(Protocol):
    """Opens streams of tokens."""

    @property
    def info(self) -> ModelInfo:
        """The model that is served."""

    @property
    def is_alive(self) -> bool:
        """Whether requests can be opened now."""

    def check_alive(self) -> None:
        """Raise why no request can be opened now, if none can."""

    def check_room(self, num_sequences: int) -> None:
        """Refuse a request that has no room now; see Engine."""

    def open_stream(
        self, prompts: Sequence[Prompt], sampling: SamplingParams, *, priority: int = 0
    ) -> AbstractAsyncContextManager[TokenStream]:
        """Generate from each prompt until the block is left; see Engine."""

    def close_requests(self, error: Exception) -> None:
        """Raise `error` in every open stream and in whoever would open one."""

    def statistics(self) -> EngineStatistics:
        """Return what is held at this moment."""

    def counters(self) -> SchedulerCounters:
        """Return what has happened since the start."""

    def stalled_seconds(self) -> float:
        """Return for how long the running step has given nothing; 0 where none runs."""
