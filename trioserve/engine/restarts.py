"""Restarts of an engine after a failure of its core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

# At most this many restarts within this many seconds. A model takes about as long to load
# as an operator takes to look at the log, so more restarts would only hide the failure.
_MAX_RESTARTS = 3
_RESTART_SECONDS = 600.0


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
