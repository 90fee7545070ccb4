"""The loop that steps a device.

    schedule --> plan --> executor --> result --> update --> outputs --> deliver

All of it runs in one trio thread, so nothing here needs a lock; only the step itself is
in the device's thread.

The depth of the executor is the number of steps in flight. With depth 1 the device waits
while the next step is planned. With depth 2 the next step lies ready when a step is done; it
is planned with tokens that are not known yet (scheduler/generation/sequence.py). The outputs
of a step are delivered after the next step has been submitted, because the device may be
waiting for it.

    device   | step 1 | step 2 | step 3 | step 4 |
    host              | result of 1 .. launch of 4 |

From the result of a step to the launch of the next one takes the host as long as a GPU needs
for a step of a small model, or longer: results go through three threads and the plan of the
next step, and Python runs one thread at a time. While steps are quick and steady, the
executor may therefore have max_depth steps in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

import trio

from ..executor import Executor, StepHandle

PlanT = TypeVar("PlanT")
ResultT = TypeVar("ResultT")
OutputsT = TypeVar("OutputsT")
TakenT = TypeVar("TakenT", contravariant=True)
GivenT = TypeVar("GivenT", covariant=True)

# Work that comes waits for one more step while there are more in flight than the depth, so
# these steps are short. The host takes 1 ms for a stream and 3 ms for 128, on the cores that
# machines with GPUs have.
_QUICK_SECONDS: Final = 0.005


class Planner(Protocol[PlanT, TakenT, GivenT]):
    """The methods of a scheduler that the loop uses."""

    def schedule(self) -> PlanT | None:
        """Return the next plan, or None if there is nothing to do now."""

    def update(self, plan: PlanT, result: TakenT, seconds: float) -> GivenT:
        """Take in the result of a plan and return its outputs.

        Results come in the order of their plans.

        Args:
          seconds: how long the device was busy with the plan.
        """

    def list_started(self, plan: PlanT) -> GivenT:
        """Return the outputs that report the work that starts with a plan."""

    @property
    def is_steady(self) -> bool:
        """True if the next plan will be like the last one, whatever the results before it."""


class StepLoop(Generic[PlanT, ResultT, OutputsT]):
    """Runs steps while there is work.

    Args:
      planner: plans steps and takes in their results.

    Attributes:
      is_idle: no step is in flight.
      on_idle: is called when the last step in flight has ended.
    """

    def __init__(
        self,
        executor: Executor[PlanT, ResultT],
        planner: Planner[PlanT, ResultT, OutputsT],
    ) -> None:
        self._executor = executor
        self._planner = planner
        self._work = trio.Event()
        # When the device began the oldest step in flight; None while it idles.
        self._step_began: float | None = None
        self._is_held = False
        self.on_idle: Callable[[], None] = lambda: None

    @property
    def step_age_seconds(self) -> float:
        """Seconds since the device began its step; 0 if it has none."""
        if self._step_began is None:
            return 0.0
        return trio.current_time() - self._step_began

    @property
    def is_idle(self) -> bool:
        return self._step_began is None

    def hold(self) -> None:
        """Make no further plans until `resume`."""
        self._is_held = True

    def resume(self) -> None:
        """Make plans again."""
        self._is_held = False
        self.wake()

    def wake(self) -> None:
        """Wake the loop: there may be work, or a step is done."""
        self._work.set()

    async def run(
        self,
        deliver: Callable[[OutputsT], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run steps until cancelled; raises the error of a failed step.

        Args:
          deliver: hands the outputs of a step to their readers.
        """
        self._deliver = deliver
        async with trio.open_nursery() as nursery:
            await nursery.start(self._executor.run)
            task_status.started()
            # A task of its own, so that no step wakes the whole chain of calls above.
            nursery.start_soon(self._step_forever)

    async def _step_forever(self) -> None:
        depth, max_depth = self._executor.depth, self._executor.max_depth
        in_flight: deque[tuple[PlanT, StepHandle[ResultT]]] = deque()
        while True:
            if in_flight and in_flight[0][1].is_done:
                plan, handle = in_flight.popleft()
                # The device begins a step when the one before it is done. If that was
                # done before the step was submitted, it begins with the submission.
                now = trio.current_time()
                assert self._step_began is not None, "a step was in flight"
                seconds = now - self._step_began
                self._step_began = now if in_flight else None
                outputs = self._planner.update(plan, handle.take(), seconds)
                is_ahead = seconds <= _QUICK_SECONDS and self._planner.is_steady
                self._fill(in_flight, max_depth if is_ahead else depth)
                self._deliver(outputs)
                if not in_flight:
                    self.on_idle()
                elif in_flight[0][1].is_done:
                    # Other tasks have their turn, however fast the device is.
                    await trio.lowlevel.checkpoint()
                    continue
            # New work is planned at once only if the device would wait otherwise. The
            # last step of the depth is planned later, so that requests of the next
            # moment can join it: prompts that come one by one need one step less.
            self._fill(in_flight, max(1, depth - 1))
            await self._work.wait()
            self._work = trio.Event()

    def _fill(
        self, in_flight: deque[tuple[PlanT, StepHandle[ResultT]]], depth: int
    ) -> None:
        while len(in_flight) < depth and not self._is_held:
            plan = self._planner.schedule()
            if plan is None:
                return
            if not in_flight:
                self._step_began = trio.current_time()
            in_flight.append((plan, self._executor.submit(plan, self.wake)))
            if started := self._planner.list_started(plan):
                self._deliver(started)
