"""The loop that steps a device.

    schedule --> plan --> executor --> result --> update --> outputs --> deliver

All of it runs in one trio thread, so nothing here needs a lock; only the step itself is
in the device's thread.

As many steps are in flight as the executor is deep. With one the device waits while the
next is planned; with two the next lies ready when a step is done, planned with tokens that
nobody knows yet (scheduler/generation/sequence.py). What a step gave is handed to its readers once
the next step has been submitted, for the device may be waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import trio

from ..executor import Executor, StepHandle

PlanT = TypeVar("PlanT")
ResultT = TypeVar("ResultT")
OutputsT = TypeVar("OutputsT")
TakenT = TypeVar("TakenT", contravariant=True)
GivenT = TypeVar("GivenT", covariant=True)


class Planner(Protocol[PlanT, TakenT, GivenT]):
    """Who knows what is to be done: a scheduler."""

    def schedule(self) -> PlanT | None:
        """Return the next plan, or None where there is nothing to do now."""

    def update(self, plan: PlanT, result: TakenT, seconds: float) -> GivenT:
        """Take in a plan's result; called in the order of the plans.

        Args:
          seconds: how long the device was busy with the plan.
        """


class StepLoop(Generic[PlanT, ResultT, OutputsT]):
    """Steps as long as there is work.

    Args:
      planner: plans steps and takes in their results.
      deliver: hands to their readers what `planner.update` returned.
      on_submitted: is called with each plan once the device has it.
    """

    def __init__(
        self,
        executor: Executor[PlanT, ResultT],
        planner: Planner[PlanT, ResultT, OutputsT],
        deliver: Callable[[OutputsT], None],
        on_submitted: Callable[[PlanT], None] = lambda plan: None,
    ) -> None:
        self._executor = executor
        self._planner = planner
        self._deliver = deliver
        self._on_submitted = on_submitted
        self._work = trio.Event()
        # Since when the oldest step in flight has been the device's; None where it idles.
        self._step_began: float | None = None

    @property
    def step_age_seconds(self) -> float:
        """How long the device has been at its step; 0 where it has none."""
        if self._step_began is None:
            return 0.0
        return trio.current_time() - self._step_began

    def wake(self) -> None:
        """Tell that there may be something to do, or that a step is done."""
        self._work.set()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Step until cancelled; raises what a step raises."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._executor.run)
            task_status.started()
            await self._step_forever()

    async def _step_forever(self) -> None:
        depth = self._executor.depth
        in_flight: deque[tuple[PlanT, StepHandle[ResultT]]] = deque()
        while True:
            if in_flight and in_flight[0][1].is_done:
                plan, handle = in_flight.popleft()
                # The device begins a step when the one before it is done. If that was
                # done before the step was submitted, it begins with the submission.
                seconds = self.step_age_seconds
                self._step_began = trio.current_time() if in_flight else None
                outputs = self._planner.update(plan, handle.take(), seconds)
                self._fill(in_flight, depth)
                self._deliver(outputs)
                # However fast the device is, others have their turn.
                await trio.lowlevel.checkpoint()
                continue
            # What has just come is planned at once if the device would wait otherwise. To
            # plan the step after that already would keep out who comes a moment later,
            # and prompts that come one by one would take a step more.
            self._fill(in_flight, max(1, depth - 1))
            await self._work.wait()
            self._work = trio.Event()

    def _fill(
        self, in_flight: deque[tuple[PlanT, StepHandle[ResultT]]], depth: int
    ) -> None:
        while len(in_flight) < depth:
            plan = self._planner.schedule()
            if plan is None:
                return
            if not in_flight:
                self._step_began = trio.current_time()
            in_flight.append((plan, self._executor.submit(plan, self.wake)))
            self._on_submitted(plan)
