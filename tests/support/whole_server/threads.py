"""Threads in virtual time."""

from __future__ import annotations

from collections.abc import Callable
import random
from typing import TypeVar

import outcome
import trio

T = TypeVar("T")


class VirtualThreads:
    """Runs calls as trio.to_thread.run_sync does, but in the event loop.

    A call ends after a random virtual time, and does its work then. An abandoned one goes
    on in `run`.

    Args:
      source: gives the random numbers.
      seconds: the longest time of usual calls; one in twenty takes twenty times as long.

    Attributes:
      num_running: calls that have not ended, including abandoned ones.
    """

    def __init__(self, source: random.Random, seconds: float = 0.01) -> None:
        self._source = source
        self._seconds = seconds
        self._nursery: trio.Nursery | None = None
        self.num_running = 0

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Hold the abandoned calls until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def run_sync(
        self,
        work: Callable[[], T],
        /,
        *,
        limiter: trio.CapacityLimiter,
        abandon_on_cancel: bool = False,
    ) -> T:
        """Run a call; the parameters mean what they mean for trio."""
        assert self._nursery is not None, "the threads run"
        await trio.lowlevel.checkpoint_if_cancelled()
        holder = object()
        await limiter.acquire_on_behalf_of(holder)
        results: list[outcome.Outcome[T]] = []
        ended = trio.Event()

        async def live() -> None:
            # A thread goes on when the server ends.
            with trio.CancelScope(shield=True):
                await trio.sleep(self._choose_seconds())
            limiter.release_on_behalf_of(holder)
            self.num_running -= 1
            results.append(outcome.capture(work))
            ended.set()

        self.num_running += 1
        self._nursery.start_soon(live)
        with trio.CancelScope(shield=not abandon_on_cancel):
            await ended.wait()
        return results[0].unwrap()

    def _choose_seconds(self) -> float:
        seconds = self._source.uniform(0.0, self._seconds)
        return 20 * seconds if self._source.random() < 0.05 else seconds
