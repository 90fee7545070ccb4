"""One model in this process, stepped in one device thread."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

import outcome
import trio

PlanT = TypeVar("PlanT")
ResultT = TypeVar("ResultT")


class LocalExecutor(Generic[PlanT, ResultT]):
    """Calls `step` in a thread, one plan at a time, in the order of submission.

    It is one thread for all steps. GNU OpenMP keeps a team of threads for every thread
    that ever called it, and where all teams together have more threads than there are
    cores, it puts them to sleep at once whenever they wait: 12 tokens of a small encoder
    then take 9 ms in place of 5.5. trio would lend a step now one thread, now another.

    Args:
      step: blocking; usually ModelRunner.step. The event loop never touches a tensor.
    """

    depth = 1

    def __init__(self, step: Callable[[PlanT], ResultT]) -> None:
        self._step = step
        self._device = trio.CapacityLimiter(1)
        # Unbounded in type, bounded by the loop, which keeps `depth` steps in flight.
        self._submitted: SimpleQueue[_LocalHandle[PlanT, ResultT] | None] = (
            SimpleQueue()
        )
        # Set in the loop, read in the thread.
        self._is_over = False

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        # The thread is not abandoned on cancel, or the device would go on writing into
        # blocks that somebody frees; so this task is what a cancellation reaches.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_thread)
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._is_over = True
                self._submitted.put(None)

    def submit(self, plan: PlanT) -> _LocalHandle[PlanT, ResultT]:
        handle = _LocalHandle[PlanT, ResultT](plan)
        self._submitted.put(handle)
        return handle

    async def _run_thread(self) -> None:
        await trio.to_thread.run_sync(
            self._step_forever,
            trio.lowlevel.current_trio_token(),
            limiter=self._device,
        )

    def _step_forever(self, token: trio.lowlevel.TrioToken) -> None:
        while (handle := self._submitted.get()) is not None and not self._is_over:
            result = outcome.capture(self._step, handle.plan)
            token.run_sync_soon(handle.set, result)


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
