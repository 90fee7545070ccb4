"""A scheduler and the loop that asks it, as an engine sees them.

    Engine        requests and streams, in the process of its user
      Core        sequences, plans and steps, in the same process or in another one

An Engine checks each request, so a core refuses nothing: all that crosses between the two
are values without an answer, and an abort is one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import trio

OutputsT = TypeVar("OutputsT", covariant=True)
StatisticsT = TypeVar("StatisticsT", covariant=True)
CountersT = TypeVar("CountersT", covariant=True)


class Core(Protocol, Generic[OutputsT, StatisticsT, CountersT]):
    """The core of an engine."""

    async def run(
        self,
        deliver: Callable[[OutputsT], None],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Step until cancelled; `deliver` gets what each step gave.

        Raises: what a step raises, or EngineProcessDied.
        """

    def statistics(self) -> StatisticsT:
        """Return what is held at this moment."""

    def counters(self) -> CountersT:
        """Return what has happened since the start."""

    def stalled_seconds(self) -> float:
        """Return for how long nothing has been heard of a step that runs."""
