"""The protocol between the engine loop and the executor of its steps, and its handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import outcome
import trio

from ..types.adapter import AdapterFacts, AdapterSource

PlanT = TypeVar("PlanT", contravariant=True)
ResultT = TypeVar("ResultT", covariant=True)
StoredT = TypeVar("StoredT")


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

    @property
    def max_depth(self) -> int:
        """The same while steps are quick and like each other; see engine/loop.py."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled; started before anything is submitted."""

    def submit(self, plan: PlanT, notify: Callable[[], None]) -> StepHandle[ResultT]:
        """Accept a plan; never blocks.

        Args:
          notify: called in the event loop when the step is done.
        """

    async def load_adapter(self, source: AdapterSource) -> AdapterFacts:
        """Read an adapter beside the running steps; later plans may name its number.

        A cancelled call leaves nothing loaded.

        Raises:
          InvalidAdapter: its files are wrong, or the model cannot run it.
        """

    def drop_adapter(self, number: int) -> None:
        """Forget an adapter behind the submitted steps; no later plan may name it."""


class Handle(Generic[StoredT]):
    """The StepHandle of executors in this process.

    Args:
      notify: called when the step is done.

    Attributes:
      is_done: the step has ended.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._outcome: outcome.Outcome[StoredT] | None = None
        self.is_done = False

    def set(self, result: outcome.Outcome[StoredT]) -> None:
        """Store the result of the step; called once, in the event loop."""
        self._outcome = result
        self.is_done = True
        self._notify()

    def take(self) -> StoredT:
        assert self._outcome is not None, "the step is done"
        return self._outcome.unwrap()
