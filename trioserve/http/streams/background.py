"""Tasks that go on when the request that began them has been answered."""

from __future__ import annotations

from collections.abc import Awaitable
import logging
from typing import Protocol

import trio

from ...errors import BackgroundFull, ShuttingDown
from ...observe import Owner, name_owner
from ...types.admission import ClientHoldings, Pace

logger = logging.getLogger(__name__)


class BackgroundWork(Protocol):
    """A task. It calls `task_status.started` when it can do its work.

    The caller of BackgroundTasks.start gets the errors before that. Nobody can handle those
    that come afterwards, so they are only logged.
    """

    def __call__(self, *, task_status: trio.TaskStatus[None]) -> Awaitable[None]: ...


class BackgroundTasks:
    """A bounded number of tasks in a nursery of the server, which ends them at its end.

    Args:
      limit: the most tasks at once; clients share it as ClientHoldings says.

    Attributes:
      num_refused: the tasks that were refused.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._nursery: trio.Nursery | None = None
        self._pace = Pace()
        self._held = ClientHoldings()
        self.num_refused = 0

    @property
    def num_running(self) -> int:
        """The tasks that have begun and not ended."""
        return self._held.total

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Hold the tasks until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def has_room(self, client: str) -> bool:
        """Return whether another task of a client may begin."""
        return self._held.count_free(self._limit, client) > 0

    async def start(self, work: BackgroundWork, client: str = "") -> None:
        """Begin a task of a client, and wait until it has started.

        Raises:
          BackgroundFull: too many tasks are running.
          ShuttingDown: the server has not begun, or has ended.
          Also raises the errors of the task before it has started.
        """
        if self._nursery is None:
            raise ShuttingDown()
        if not self.has_room(client):
            self.num_refused += 1
            seconds = self._pace.estimate_seconds(trio.current_time(), 1)
            raise BackgroundFull(
                num_running=self.num_running, retry_after_seconds=seconds
            )
        # Before the task runs, so that requests of one turn of the loop count each other.
        self._change(client, 1)
        await self._nursery.start(self._run, work, client)

    async def _run(  # noqa: ASYNC128 (the work calls started)
        self, work: BackgroundWork, client: str, *, task_status: trio.TaskStatus[None]
    ) -> None:
        # A task that was started runs up to its first checkpoint, even in a cancelled scope.
        start = _Start(task_status)
        try:
            # Its request ends before it, so it is a request of its own.
            with Owner(name_owner()).hold():
                await work(task_status=start)
        except Exception:
            if not start.is_over:
                raise
            # An error that left the nursery would end the server.
            logger.exception("a task in the background failed")
        finally:
            self._change(client, -1)

    def _change(self, client: str, number: int) -> None:
        self._held.change(client, number)
        self._pace.observe(trio.current_time(), self.num_running)


class _Start(trio.TaskStatus[None]):
    """Passes a start on.

    Attributes:
      is_over: the task has started.
    """

    def __init__(self, task_status: trio.TaskStatus[None]) -> None:
        self._task_status = task_status
        self.is_over = False

    def started(self, value: None = None) -> None:
        self._task_status.started(value)
        self.is_over = True
