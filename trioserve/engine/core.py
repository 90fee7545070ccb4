"""The protocol of a core: a scheduler and the loop that runs its plans.

    Engine      requests and streams, in the process of its user
      Core      sequences, plans and steps, in the same process or in another one

An engine checks each request, so a core refuses nothing: its calls return nothing, not
even an abort, and can be sent to another process as messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import trio

OutputsT = TypeVar("OutputsT", covariant=True)
StatisticsT = TypeVar("StatisticsT", covariant=True)
CountersT = TypeVar("CountersT", covariant=True)


class EngineProcessDied(Exception):
    """Raised when the engine process has ended; the message says how."""


class Core(Protocol, Generic[OutputsT, StatisticsT, CountersT]):
    """The core of an engine."""

    async def run(
        self,
        deliver: Callable[[OutputsT], None],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Step until cancelled; `deliver` gets the outputs of each step.

        Raises:
          the error of a failed step, or EngineProcessDied.
        """

    def statistics(self) -> StatisticsT:
        """Return the present state."""

    def counters(self) -> CountersT:
        """Return the counts since the start."""

    def after_aborts(self, call: Callable[[], None]) -> None:
        """Make a call when the core has carried out all aborts so far, or has ended."""

    def stalled_seconds(self) -> float:
        """Return the seconds since the running step began; 0 if none runs."""
