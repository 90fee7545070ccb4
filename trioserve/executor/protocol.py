"""What the engine loop expects of whatever runs its steps."""

from __future__ import annotations

from typing import Protocol

import trio

from ..steps import StepPlan, StepResult


class StepHandle(Protocol):
    """A submitted step."""

    async def wait(self) -> StepResult:
        """Wait for the result; raises whatever the step raised."""


class Executor(Protocol):
    """Runs steps one after the other, in the order in which they were submitted."""

    @property
    def depth(self) -> int:
        """Steps that may be in flight at once, the running one included."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled; started before anything is submitted."""

    def submit(self, plan: StepPlan) -> StepHandle:
        """Hand a plan over; never blocks."""
