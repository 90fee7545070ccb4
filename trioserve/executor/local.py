"""The executor of a model in this process, which runs its steps in threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from operator import methodcaller
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import outcome
import trio

from ..types.output import StepResult
from ..types.plan import StepPlan
from .protocol import Handle

PlanT = TypeVar("PlanT")
ResultT = TypeVar("ResultT")

# A step in progress, with the output of the stage before; None ends the thread.
_Item = tuple[Handle[Any], outcome.Outcome[Any]] | None


class LocalExecutor(Generic[PlanT, ResultT]):
    """Runs steps in threads, in the order of submission.

    Each stage has one thread for all steps; trio's own threads would change from step
    to step. GNU OpenMP keeps a team of threads for every thread that ever called it. If
    all teams together have more threads than there are cores, waiting threads do not
    spin but sleep at once: 12 tokens of a small encoder then take 9 ms instead of 5.5.

    Args:
      stages: blocking functions. The first takes the plan, each other takes the output of
        the one before, and the last returns the result. A CPU needs one stage. A GPU
        works by itself and needs two: one thread launches the next step while the other
        waits for this one. The event loop never touches a tensor.
      depth: largest number of steps in flight.
    """

    def __init__(self, *stages: Callable[[Any], Any], depth: int = 1) -> None:
        self.depth = depth
        self._stages = stages
        # The queues have no limit of their own: the loop keeps at most `depth` steps in
        # flight.
        self._queues: list[SimpleQueue[_Item]] = [SimpleQueue() for _ in stages]
        # Set in the loop, read in the threads.
        self._is_over = False

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        # A cancellation must not abandon the threads: the device would go on writing to
        # memory that is freed. So the cancellation reaches this task alone.
        limiter = trio.CapacityLimiter(len(self._stages))
        async with trio.open_nursery() as nursery:
            for work in self._list_work(trio.lowlevel.current_trio_token()):
                nursery.start_soon(_run_in_thread, work, limiter)
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._is_over = True
                self._queues[0].put(None)

    def submit(self, plan: PlanT, notify: Callable[[], None]) -> Handle[ResultT]:
        handle = Handle[ResultT](notify)
        self._queues[0].put((handle, outcome.Value(plan)))
        return handle

    def _list_work(self, token: trio.lowlevel.TrioToken) -> list[Callable[[], None]]:
        """Return the function that each stage's thread runs."""

        def tell(item: _Item) -> None:
            if item is not None:
                handle, result = item
                token.run_sync_soon(handle.set, result)

        hand_on = [after.put for _, after in pairwise(self._queues)] + [tell]
        return [
            partial(self._work, stage, queue, put)
            for stage, queue, put in zip(self._stages, self._queues, hand_on)
        ]

    def _work(
        self,
        stage: Callable[[Any], Any],
        queue: SimpleQueue[_Item],
        put: Callable[[_Item], None],
    ) -> None:
        while (item := queue.get()) is not None and not self._is_over:
            handle, given = item
            # A failure passes through the other stages unchanged, in order of steps.
            if isinstance(given, outcome.Value):
                given = outcome.capture(stage, given.value)
            put((handle, given))
        put(None)


class _Launched(Protocol):
    def finish(self) -> StepResult: ...


class _Runner(Protocol):
    def step(self, plan: StepPlan) -> StepResult: ...

    def launch(self, plan: StepPlan) -> _Launched: ...


def make_local_executor(
    runner: _Runner, device_type: str, *, depth: int
) -> LocalExecutor[StepPlan, StepResult]:
    """Make an executor with as many threads as a device of this type needs.

    Args:
      runner: a model.ModelRunner.
      device_type: torch's.
    """
    if device_type == "cpu" or depth == 1:
        return LocalExecutor(runner.step, depth=depth)
    # The thread that launches the next step must not wait for this one.
    return LocalExecutor(runner.launch, methodcaller("finish"), depth=depth)


async def _run_in_thread(
    work: Callable[[], None], limiter: trio.CapacityLimiter
) -> None:
    await trio.to_thread.run_sync(work, limiter=limiter)
