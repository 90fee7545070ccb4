"""The open requests of an engine, the errors that end them, and its restarts."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
import logging
from typing import Protocol

import trio

from ..errors import EngineDied, EngineProcessDied, ShuttingDown, find_first

logger = logging.getLogger(__name__)

# How long a failed engine waits for its open requests to send the error to their clients.
FAREWELL_SECONDS = 1.0

# At most this many restarts within this many seconds. A model takes about as long to load
# as an operator takes to look at the log, so more restarts would only hide the failure.
_MAX_RESTARTS = 3
_RESTART_SECONDS = 600.0


def log_failure(message: str, error: Exception) -> None:
    """Log a failure of the engine; the end of its process needs no traceback."""
    died, others = ExceptionGroup("", [error]).split(EngineProcessDied)
    if died is not None and others is None:
        logger.error("%s: %s", message, find_first(died))
    else:
        logger.error(message, exc_info=error)


class OpenRequest(Protocol):
    """A request that waits for outputs of steps."""

    def fail(self, error: Exception) -> None:
        """Raise `error` in the task that waits for the outputs."""


class OpenRequests:
    """The open requests of an engine."""

    def __init__(self) -> None:
        self._requests: set[OpenRequest] = set()
        self._all_closed = trio.Event()
        # Reasons why no request can be opened: for ever, and for now.
        self._end: Exception | None = None
        self._pause: Exception | None = None
        self._has_stopped = trio.Event()

    @property
    def is_alive(self) -> bool:
        return self._end is None and self._pause is None

    def __len__(self) -> int:
        return len(self._requests)

    def check_alive(self) -> None:
        """Raise the reason why no request can be opened now, if there is one."""
        if error := self._end or self._pause:
            raise error

    @asynccontextmanager
    async def tell_end(self) -> AsyncIterator[None]:
        """Raise in the block what requests get, if the engine process ends meanwhile."""
        with suppress(EngineProcessDied):
            yield
            return
        # Then the engine knows whether it starts again.
        with trio.move_on_after(FAREWELL_SECONDS):
            await self._has_stopped.wait()
        self.check_alive()
        raise EngineDied()

    @contextmanager
    def hold(self, request: OpenRequest) -> Iterator[None]:
        """Count a request as open in the block; the end of the engine fails it."""
        self._requests.add(request)
        try:
            yield
        finally:
            self._requests.remove(request)
            if not self._requests:
                self._all_closed.set()

    def close(self, error: Exception) -> None:
        """Raise `error` in every open request, and in every attempt to open one.

        Only the first call counts.
        """
        if self._end is not None:
            return
        self._end = error
        self._has_stopped.set()
        self.fail_all(error)

    def pause(self, error: Exception) -> None:
        """Raise `error` like `close`, until `resume`."""
        self._pause = error
        self._has_stopped.set()
        self.fail_all(error)

    def fail_all(self, error: Exception) -> None:
        """Raise `error` in every open request."""
        for request in self._requests:
            request.fail(error)

    def resume(self) -> None:
        self._pause = None
        if self._end is None:
            self._has_stopped = trio.Event()

    async def serve(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run an engine, and fail the open requests when it ends.

        If the engine fails, every open request raises EngineDied. Its owner has
        FAREWELL_SECONDS to send that to its client; then the failure is raised here.
        """
        try:
            await run()
        except Exception as error:
            log_failure("the engine failed", error)
            self.close(EngineDied())
            # Shielded, because a cancellation during this time would hide the failure.
            with trio.move_on_after(FAREWELL_SECONDS, shield=True):
                await self._wait_all_closed()
            raise
        finally:
            self.close(ShuttingDown())

    async def _wait_all_closed(self) -> None:
        while self._requests:
            self._all_closed = trio.Event()
            await self._all_closed.wait()


class Restarts:
    """A limit on how often an engine starts again."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_MAX_RESTARTS)

    def take(self) -> bool:
        """Count a restart and return True, or return False at the limit."""
        now = trio.current_time()
        is_full = len(self._times) == _MAX_RESTARTS
        if is_full and now - self._times[0] < _RESTART_SECONDS:
            return False
        self._times.append(now)
        return True


class StartedCall(trio.TaskStatus[None]):
    """A task status that calls a function; after a restart no nursery waits for it."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def started(self, value: None = None) -> None:
        self._call()
