"""What the engine loop expects of whatever runs its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

PlanT = TypeVar("PlanT", contravariant=True)
ResultT = TypeVar("ResultT", covariant=True)


class StepHandle(Protocol[ResultT]):
    """A submitted step."""

    @property
    def is_done(self) -> bool: ...

    def take(self) -> ResultT:
        """Return the result of a step that is done, or raise what the step raised."""


class Executor(Protocol[PlanT, ResultT]):
    """Runs steps one after the other, in the order in which they were submitted.

    What a plan and its result are is between those who make plans and the model:
    StepPlan and StepResult where text is generated, PoolingPlan and PoolingResult where
    it is pooled.
    """

    @property
    def depth(self) -> int:
        """Steps that may be in flight at once, the running one included."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled; started before anything is submitted."""

    def submit(self, plan: PlanT, notify: Callable[[], None]) -> StepHandle[ResultT]:
        """Hand a plan over; never blocks.

        Args:
          notify: called in the event loop when the step is done.
        """
