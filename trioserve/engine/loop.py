"""The loop that steps a device, and what becomes of open requests when it ends.

    schedule --> plan --> executor --> result --> update --> outputs --> deliver

All of it runs in one trio thread, so nothing here needs a lock; only the step itself is
in the device's thread.

As many steps are in flight as the executor is deep. With one the device waits while the
next is planned; with two the next lies ready when a step is done, planned with tokens that
nobody knows yet (scheduler/sequence.py). What a step gave is handed to its readers once
the next step has been submitted, for the device may be waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
import logging
from typing import Generic, Protocol, TypeVar

import trio

from ..errors import EngineDied, ShuttingDown
from ..executor import Executor, StepHandle

logger = logging.getLogger(__name__)

# How long a dead engine waits for open requests to tell their clients so.
FAREWELL_SECONDS = 1.0

PlanT = TypeVar("PlanT")
ResultT = TypeVar("ResultT")
OutputsT = TypeVar("OutputsT")
TakenT = TypeVar("TakenT", contravariant=True)
GivenT = TypeVar("GivenT", covariant=True)


class Planner(Protocol[PlanT, TakenT, GivenT]):
    """Who knows what is to be done: a scheduler."""

    def schedule(self) -> PlanT | None:
        """Return the next plan, or None where there is nothing to do now."""

    def update(self, plan: PlanT, result: TakenT) -> GivenT:
        """Take in a plan's result; called in the order of the plans."""


class OpenRequest(Protocol):
    """Somebody who waits for what steps give."""

    def fail(self, error: Exception) -> None:
        """Raise `error` where results are waited for."""


class StepLoop(Generic[PlanT, ResultT, OutputsT]):
    """Steps as long as there is work.

    Args:
      planner: plans steps and takes in their results.
      deliver: hands to their readers what `planner.update` returned.
    """

    def __init__(
        self,
        executor: Executor[PlanT, ResultT],
        planner: Planner[PlanT, ResultT, OutputsT],
        deliver: Callable[[OutputsT], None],
    ) -> None:
        self._executor = executor
        self._planner = planner
        self._deliver = deliver
        self._work = trio.Event()
        self._requests: set[OpenRequest] = set()
        self._all_closed = trio.Event()
        self._end: Exception | None = None

    @property
    def is_alive(self) -> bool:
        return self._end is None

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def check_alive(self) -> None:
        """Raise what ended the loop, if it has ended."""
        if self._end is not None:
            raise self._end

    def wake(self) -> None:
        """Tell that there may be something to do, or that a step is done."""
        self._work.set()

    @contextmanager
    def hold(self, request: OpenRequest) -> Iterator[None]:
        """Count a request as open in the block; it hears of the loop's end."""
        self._requests.add(request)
        try:
            yield
        finally:
            self._requests.remove(request)
            if not self._requests:
                self._all_closed.set()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Step until cancelled.

        If a step fails, every open request raises EngineDied, their owners have
        FAREWELL_SECONDS to say so to their clients, and the failure is raised here.
        """
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._executor.run)
                task_status.started()
                await self._step_forever()
        except Exception:
            logger.error("the engine failed", exc_info=True)
            self.close(EngineDied())
            # Shielded, or a cancellation meanwhile would hide the failure.
            with trio.move_on_after(FAREWELL_SECONDS, shield=True):
                await self._wait_no_requests()
            raise
        finally:
            self.close(ShuttingDown())

    def close(self, error: Exception) -> None:
        """Raise `error` in every open request and in whoever would open one.

        Only the first call counts.
        """
        if self._end is not None:
            return
        self._end = error
        for request in self._requests:
            request.fail(error)

    async def _step_forever(self) -> None:
        depth = self._executor.depth
        in_flight: deque[tuple[PlanT, StepHandle[ResultT]]] = deque()
        while True:
            if in_flight and in_flight[0][1].is_done:
                plan, handle = in_flight.popleft()
                outputs = self._planner.update(plan, handle.take())
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
            in_flight.append((plan, self._executor.submit(plan, self.wake)))

    async def _wait_no_requests(self) -> None:
        while self._requests:
            self._all_closed = trio.Event()
            await self._all_closed.wait()
