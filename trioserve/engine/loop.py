"""The loop that steps a device, and what becomes of open requests when it ends.

    schedule --> plan --> executor --> result --> deliver

All of it runs in one trio thread, so nothing here needs a lock; only the step itself is
in the device's thread.
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


class OpenRequest(Protocol):
    """Somebody who waits for what steps give."""

    def fail(self, error: Exception) -> None:
        """Raise `error` where results are waited for."""


class StepLoop(Generic[PlanT, ResultT]):
    """Steps as long as there is work.

    Args:
      schedule: gives the next plan, or None where there is nothing to do.
      deliver: takes a plan's result.
    """

    def __init__(
        self,
        executor: Executor[PlanT, ResultT],
        schedule: Callable[[], PlanT | None],
        deliver: Callable[[PlanT, ResultT], None],
    ) -> None:
        self._executor = executor
        self._schedule = schedule
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
        """Tell that there may be something to do."""
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
        in_flight: deque[tuple[PlanT, StepHandle[ResultT]]] = deque()
        while True:
            self._fill(in_flight)
            if in_flight:
                plan, handle = in_flight.popleft()
                self._deliver(plan, await handle.wait())
            else:
                await self._work.wait()
                self._work = trio.Event()

    def _fill(self, in_flight: deque[tuple[PlanT, StepHandle[ResultT]]]) -> None:
        while len(in_flight) < self._executor.depth:
            plan = self._schedule()
            if plan is None:
                return
            in_flight.append((plan, self._executor.submit(plan)))

    async def _wait_no_requests(self) -> None:
        while self._requests:
            self._all_closed = trio.Event()
            await self._all_closed.wait()
