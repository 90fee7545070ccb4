"""The protocol between the engine loop and the executor of its steps."""

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
        """Return the result of a step that is done, or raise the error of the step."""


class Executor(Protocol[PlanT, ResultT]):
    """Runs steps one after the other, in the order in which they were submitted.

    An executor does not look into plans and results. They are StepPlan and StepResult
    for generation, PoolingPlan and PoolingResult for pooling.
    """

    @property
    def depth(self) -> int:
        """Largest number of steps in flight, including the running one."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled; started before anything is submitted."""

    def submit(self, plan: PlanT, notify: Callable[[], None]) -> StepHandle[ResultT]:
        """Accept a plan; never blocks.

        Args:
          notify: called in the event loop when the step is done.
        """
