"""The protocol of a core: a scheduler and the loop that runs its plans.

    Engine      requests and streams, in the process of its user
      Core      sequences, plans and steps, in the same process or in another one

An engine checks each request, so a core refuses nothing: its calls return nothing, not
even an abort, and can be sent to another process as messages. Only `inspect` has an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import trio

from ..observe.process_holdings import ProcessHoldings
from ..scheduler.step_cost import StepRates
from .sleep.view import SleepView

OutputsT = TypeVar("OutputsT", covariant=True)
StatisticsT = TypeVar("StatisticsT", covariant=True)
CountersT = TypeVar("CountersT", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldWork:
    """A sequence, or the texts of a request that pools, in a core.

    Args:
      id: as the engine numbers them.
      num_blocks: blocks of the KV cache in its table.
    """

    id: int
    request_id: str
    num_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreHoldings:
    """The things that a core holds for requests.

    Args:
      num_lost_blocks, num_lost_slots, num_lost_results: those that are taken, though no
        request has them; 0 unless there is a defect.
      process: of the core's own process; None if it was not asked for, or if the core has
        none.
    """

    work: tuple[HeldWork, ...]
    num_lost_blocks: int = 0
    num_lost_slots: int = 0
    num_lost_results: int = 0
    process: ProcessHoldings | None = None


class Core(Protocol, Generic[OutputsT, StatisticsT, CountersT]):
    """The core of an engine.

    Attributes:
      sleep: gives memory back while nobody needs the model.
    """

    @property
    def sleep(self) -> SleepView: ...

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

    async def inspect(
        self, *, lost: bool = False, process: bool = False
    ) -> CoreHoldings:
        """Return the things that the core holds.

        Args:
          lost: also count the things that nobody holds, which takes a microsecond for each
            ten blocks.
          process: also look at the process of the core, if it has its own, which takes
            milliseconds.

        Raises:
          EngineProcessDied
        """

    def rates(self) -> StepRates:
        """Return the measured speed of steps."""

    def stalled_seconds(self) -> float:
        """Return the seconds since the running step began; 0 if none runs."""
