"""Closes a connection that has no request for too long."""

from __future__ import annotations

import math

from hypercorn.typing import Event
import trio


class IdleWatch:
    """Waits until a connection has been idle for too long.

    When the server is stopping, every idle connection has been so for too long. hypercorn
    starts a task for each idle time instead, and cancels it at the next request.

    Args:
      seconds: the time that a connection may be idle.
      stopping: set when the server is stopping.
    """

    def __init__(self, seconds: float, stopping: Event) -> None:
        self._seconds = seconds
        self._stopping = stopping
        self._deadline = math.inf
        self._sleep = trio.CancelScope()

    def mark(self, *, is_idle: bool) -> None:
        """Note whether the connection has a request from now on."""
        self._deadline = math.inf
        if is_idle:
            seconds = 0.0 if self._stopping.is_set() else self._seconds
            self._deadline = trio.current_time() + seconds
        self._sleep.deadline = self._deadline

    async def wait_due(self) -> None:
        """Wait until the connection shall be closed."""
        # A request may come after the sleep has ended, and before this task runs.
        while trio.current_time() < self._deadline:
            with trio.CancelScope(deadline=self._deadline) as self._sleep:
                await self._sleep_until_stopping()

    async def _sleep_until_stopping(self) -> None:
        if self._stopping.is_set():
            await trio.sleep_forever()
        await self._stopping.wait()
        if self._deadline < math.inf:
            self.mark(is_idle=True)
