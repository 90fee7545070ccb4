"""One model in this process, stepped in one device thread."""

from __future__ import annotations

from collections.abc import Callable
import math

import outcome
import trio

from ..steps import StepPlan, StepResult


class LocalExecutor:
    """Calls `step` in a thread, one plan at a time, in the order of submission.

    Args:
      step: blocking; usually ModelRunner.step. The event loop never touches a tensor.
    """

    depth = 1

    def __init__(self, step: Callable[[StepPlan], StepResult]) -> None:
        self._step = step
        self._device = trio.CapacityLimiter(1)
        # Unbounded in type, bounded by the loop, which keeps `depth` steps in flight.
        self._send, self._receive = trio.open_memory_channel[_LocalHandle](math.inf)

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

    def submit(self, plan: StepPlan) -> _LocalHandle:
        handle = _LocalHandle(plan)
        self._send.send_nowait(handle)
        return handle


class _LocalHandle:
    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self._outcome: outcome.Outcome[StepResult] | None = None
        self._is_set = trio.Event()

    def set(self, result: outcome.Outcome[StepResult]) -> None:
        self._outcome = result
        self._is_set.set()

    async def wait(self) -> StepResult:
        await self._is_set.wait()
        assert self._outcome is not None, "the event follows the outcome"
        return self._outcome.unwrap()
