"""One model in this process, stepped in one device thread."""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Generic, TypeVar

import outcome
import trio

PlanT = TypeVar("PlanT")
ResultT = TypeVar("ResultT")


class LocalExecutor(Generic[PlanT, ResultT]):
    """Calls `step` in a thread, one plan at a time, in the order of submission.

    Args:
      step: blocking; usually ModelRunner.step. The event loop never touches a tensor.
    """

    depth = 1

    def __init__(self, step: Callable[[PlanT], ResultT]) -> None:
        self._step = step
        self._device = trio.CapacityLimiter(1)
        # Unbounded in type, bounded by the loop, which keeps `depth` steps in flight.
        self._send, self._receive = trio.open_memory_channel[
            _LocalHandle[PlanT, ResultT]
        ](math.inf)

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        async for handle in self._receive:
            # Not abandoned on cancel: the device would go on writing into blocks
            # that somebody frees.
            handle.set(
                await trio.to_thread.run_sync(
                    outcome.capture, self._step, handle.plan, limiter=self._device
                )
            )

    def submit(self, plan: PlanT) -> _LocalHandle[PlanT, ResultT]:
        handle = _LocalHandle[PlanT, ResultT](plan)
        self._send.send_nowait(handle)
        return handle


class _LocalHandle(Generic[PlanT, ResultT]):
    def __init__(self, plan: PlanT) -> None:
        self.plan = plan
        self._outcome: outcome.Outcome[ResultT] | None = None
        self._is_set = trio.Event()

    def set(self, result: outcome.Outcome[ResultT]) -> None:
        self._outcome = result
        self._is_set.set()

    async def wait(self) -> ResultT:
        await self._is_set.wait()
        assert self._outcome is not None, "the event follows the outcome"
        return self._outcome.unwrap()
