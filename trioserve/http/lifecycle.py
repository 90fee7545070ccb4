"""Serving, draining, over: what a server does between SIGTERM and its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
import logging

import trio

from ..errors import ShuttingDown
from .progress import PHASES, Phase, Progress

logger = logging.getLogger(__name__)


class Lifecycle:
    """Counts requests and knows whether more may come.

        serving    requests are answered
        draining   those that run go on; new ones, those whose body is not complete, and
                   /health are answered 503, so that a load balancer looks elsewhere

    Args:
      drain_timeout: seconds that running requests have once draining begins.
    """

    def __init__(self, *, drain_timeout: float) -> None:
        self._drain_timeout = drain_timeout
        self._draining = trio.Event()
        self._active: set[Progress] = set()
        self._idle = trio.Event()
        # Blocks that end when draining begins.
        self._until_drain: set[trio.CancelScope] = set()

    @property
    def is_draining(self) -> bool:
        return self._draining.is_set()

    @property
    def num_active(self) -> int:
        return len(self._active)

    def begin_drain(self) -> None:
        if not self.is_draining:
            logger.info(
                "draining (open requests: %d); another signal ends them at once",
                self.num_active,
            )
            self._draining.set()
            for scope in self._until_drain:
                scope.cancel()

    def check_open(self) -> None:
        """Raise ShuttingDown if no request may begin any more."""
        if self.is_draining:
            raise ShuttingDown()

    @contextmanager
    def until_drain(self) -> Iterator[None]:
        """Cancel the block when draining begins, or at once if it has begun.

        Raises:
          ShuttingDown: the block was cancelled.
        """
        with trio.CancelScope() as scope:
            self._until_drain.add(scope)
            try:
                self.check_open()
                yield
            finally:
                self._until_drain.remove(scope)
        if scope.cancelled_caught:
            raise ShuttingDown()

    @contextmanager
    def hold(self, progress: Progress) -> Iterator[None]:
        """Count a request as running inside the block."""
        self._active.add(progress)
        try:
            yield
        finally:
            self._active.remove(progress)
            if not self._active:
                self._idle.set()

    async def wait_drained(self) -> bool:
        """Wait for begin_drain and then for the last request.

        Returns whether all ended in time; returns at once after the drain's deadline.
        """
        await self._draining.wait()
        with trio.move_on_after(self._drain_timeout):
            await self._wait_idle()
        if self._active:
            logger.warning("the drain is over; it ends %s", self._describe_active())
        return not self._active

    def count_phases(self) -> Counter[Phase]:
        """Return how many requests are in each phase."""
        return Counter(progress.phase for progress in self._active)

    def _describe_active(self) -> str:
        counts = self.count_phases()
        told = [f"{counts[phase]} in {phase}" for phase in PHASES if counts[phase]]
        return f"requests: {', '.join(told)}"

    async def _wait_idle(self) -> None:
        while self._active:
            self._idle = trio.Event()
            await self._idle.wait()
