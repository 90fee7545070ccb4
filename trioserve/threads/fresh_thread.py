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

# How long leaving the block waits for work that is no longer wanted. Work that loads a
# model checks at every call of torch's: on a CPU, a model of 135M parameters took 0.2 s
# at most between two checks. An import cannot be stopped and may take several seconds. To
# wait for it would make a cancellation slow, and no memory would be given back.
_STOP_SECONDS = 1.0


class FreshThread(Generic[T]):
    """Work in a thread of its own; see open_fresh_thread.

    trio's threads are used again, and OpenMP's team of the one that loaded a model would
    stay, which slows down the device's thread (executor/local.py).
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._token = trio.lowlevel.current_trio_token()
        self._is_unwanted = threading.Event()
        self._is_over = trio.Event()
        self._outcome: outcome.Outcome[T]
        # Not a daemon: the interpreter waits for it before it ends. CPython before 3.14
        # ends daemons by unwinding their stacks when they ask for the GIL, which torch's
        # C++ and tokenizers' Rust answer by ending the process: "terminate called
        # without an active exception", exit code 134.
        threading.Thread(target=self._run, name="trioserve loads a model").start()

    async def wait(self) -> T:
        """Return what the work returns, or raise what it raises."""
        await self._is_over.wait()
        return self._outcome.unwrap()

    async def stop(self) -> None:
        """Tell the work that it is not wanted, and wait for its end."""
        self._is_unwanted.set()
        await self._is_over.wait()

    def _run(self) -> None:
        with stopped_by(self._is_unwanted):
            result = outcome.capture(self._work)
        # What is not wanted may be half a model.
        if not self._is_unwanted.is_set():
            self._outcome = result
        # The host may have left meanwhile.
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._is_over.set)


@asynccontextmanager
async def open_fresh_thread(
    work: Callable[[], T], *, stop_seconds: float = _STOP_SECONDS
) -> AsyncIterator[FreshThread[T]]:
    """Do work in a thread that ends with it.

    Work that is not done when the block is left, as on a cancellation, is told so and
    raises stopping.Stopped where it checks.

    Args:
      stop_seconds: how long leaving the block then waits, at most. What goes on after
        that ends at its next check, and the interpreter does not end before it.
    """
    thread = FreshThread(work)
    try:
        yield thread
    finally:
        with trio.move_on_after(stop_seconds, shield=True):
            await thread.stop()


async def run_in_fresh_thread(work: Callable[[], T]) -> T:
    """Do work in such a thread and return what it returns."""
    async with open_fresh_thread(work) as thread:
        return await thread.wait()
