"""The states of a server between its start and its end: serving, draining."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
import logging

import trio

from ...errors import ShuttingDown
from ..record.progress import PHASES, HasPhase, Phase

logger = logging.getLogger(__name__)


class Lifecycle:
    """Counts running requests and says whether new ones may begin.

        serving    Requests are answered.
        draining   Running requests continue. New requests, requests whose body is not
                   complete, and /health get 503, so that load balancers choose another
                   server.

    Args:
      drain_timeout: seconds that running requests may take after draining has begun.
    """

    def __init__(self, *, drain_timeout: float) -> None:
        self._drain_timeout = drain_timeout
        self._draining = trio.Event()
        # In the order in which they began.
        self._active: dict[HasPhase, None] = {}
        # Set when the last active request ends; a new one when the next request begins.
        self._idle = trio.Event()
        # The blocks that end when draining begins.
        self._until_drain: set[trio.CancelScope] = set()

    @property
    def is_draining(self) -> bool:
        return self._draining.is_set()

    @property
    def num_active(self) -> int:
        return len(self._active)

    @property
    def active(self) -> Iterable[HasPhase]:
        """The running requests, the oldest first."""
        return self._active

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
        if self._draining.is_set():
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
    def hold(self, request: HasPhase) -> Iterator[None]:
        """Count a request as running inside the block."""
        if not self._active:
            self._idle = trio.Event()
        self._active[request] = None
        try:
            yield
        finally:
            del self._active[request]
            if not self._active:
                self._idle.set()

    async def wait_drained(self) -> bool:
        """Wait for begin_drain, and then for the last request or the drain's deadline.

        Returns:
          whether all requests ended before the deadline.
        """
        await self._draining.wait()
        with trio.move_on_after(self._drain_timeout):
            await self._wait_idle()
        if self._active:
            logger.warning(
                "the drain has reached its deadline and ends %s",
                self._describe_active(),
            )
        return not self._active

    def count_phases(self) -> Counter[Phase]:
        """Return the number of requests in each phase."""
        return Counter(each.phase for each in self._active)

    def _describe_active(self) -> str:
        counts = self.count_phases()
        parts = [f"{counts[phase]} in {phase}" for phase in PHASES if counts[phase]]
        return f"requests: {', '.join(parts)}"

    async def _wait_idle(self) -> None:
        while self._active:
            await self._idle.wait()
