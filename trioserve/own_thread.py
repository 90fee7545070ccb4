"""A thread for one piece of work that takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
import threading
from typing import Generic, TypeVar

import outcome
import trio

T = TypeVar("T")


class OwnThread(Generic[T]):
    """Runs in a thread that ends with the work, and that a cancellation abandons.

    trio's threads are used again, and OpenMP's team of the one that loaded a model would
    stay, which slows down the device's thread (executor/local.py). Abandoned: nobody
    shares what it loads, and stopping must not wait.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._token = trio.lowlevel.current_trio_token()
        self._is_done = trio.Event()
        self._outcome: outcome.Outcome[T]
        threading.Thread(
            target=self._run, name="trioserve loads a model", daemon=True
        ).start()

    async def wait(self) -> T:
        """Return what the work returns, or raise what it raises."""
        await self._is_done.wait()
        return self._outcome.unwrap()

    def _run(self) -> None:
        self._outcome = outcome.capture(self._work)
        # The host may have left meanwhile.
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._is_done.set)
