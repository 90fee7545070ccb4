"""A thread for one piece of work that takes seconds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
import threading
from typing import Generic, TypeVar

import outcome
import trio

from .stopping import stopped_by

T = TypeVar("T")

# The time for unfinished work to end when the block is left. Work that loads a model
# checks at each call of torch: on a CPU, a model of 135M parameters took 0.2 s at most
# between two checks. An import cannot be stopped and may take several seconds. To wait
# for it would make a cancellation slow, and would free no memory.
_STOP_SECONDS = 1.0


class FreshThread(Generic[T]):
    """Work in a thread of its own; see open_fresh_thread.

    trio uses its threads again. A thread that has loaded a model would keep its OpenMP
    team, which slows down the device's thread (executor/local.py).
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._token = trio.lowlevel.current_trio_token()
        self._is_unwanted = threading.Event()
        self._is_over = trio.Event()
        self._outcome: outcome.Outcome[T]
        # Not a daemon, so the interpreter waits for the thread before it ends. CPython
        # before 3.14 ends a daemon by unwinding its stack when it takes the GIL. In
        # torch's C++ and tokenizers' Rust that ends the process: "terminate called
        # without an active exception", exit code 134.
        threading.Thread(target=self._run, name="trioserve loads a model").start()

    async def wait(self) -> T:
        """Return the result of the work, or raise its error."""
        await self._is_over.wait()
        return self._outcome.unwrap()

    async def stop(self) -> None:
        """Tell the work to end, and wait for its end."""
        self._is_unwanted.set()
        await self._is_over.wait()

    def _run(self) -> None:
        with stopped_by(self._is_unwanted):
            result = outcome.capture(self._work)
        # The result of unwanted work may be half a model.
        if not self._is_unwanted.is_set():
            self._outcome = result
        # The event loop may have ended before the work.
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._is_over.set)


@asynccontextmanager
async def open_fresh_thread(
    work: Callable[[], T], *, stop_seconds: float = _STOP_SECONDS
) -> AsyncIterator[FreshThread[T]]:
    """Do work in a new thread, which ends with the work.

    If the block is left before the work is done, as on a cancellation, the next check of
    the work raises stopping.Stopped.

    Args:
      stop_seconds: the longest time to wait for that. Later the work goes on until its
        next check, and the interpreter does not end before it.
    """
    thread = FreshThread(work)
    try:
        yield thread
    finally:
        with trio.move_on_after(stop_seconds, shield=True):
            await thread.stop()


async def run_in_fresh_thread(work: Callable[[], T]) -> T:
    """Do work in a new thread and return its result."""
    async with open_fresh_thread(work) as thread:
        return await thread.wait()
