"""Serving, draining, over: what a server does between SIGTERM and its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import logging

import trio

from ..errors import ShuttingDown

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
        self._num_active = 0
        self._idle = trio.Event()
        # Blocks that end when draining begins.
        self._until_drain: set[trio.CancelScope] = set()

    @property
    def is_draining(self) -> bool:
        return self._draining.is_set()

    @property
    def num_active(self) -> int:
        return self._num_active

    def begin_drain(self) -> None:
        if not self.is_draining:
            logger.info("draining %d requests", self._num_active)
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
    def hold(self) -> Iterator[None]:
        """Count a request as running inside the block."""
        self._num_active += 1
        try:
            yield
        finally:
            self._num_active -= 1
            if self._num_active == 0:
                self._idle.set()

    async def wait_drained(self) -> bool:
        """Wait for begin_drain and then for the last request.

        Returns whether all ended in time; returns at once after the drain's deadline.
        """
        await self._draining.wait()
        with trio.move_on_after(self._drain_timeout):
            await self._wait_idle()
        return self._num_active == 0

    async def _wait_idle(self) -> None:
        while self._num_active:
            self._idle = trio.Event()
            await self._idle.wait()
