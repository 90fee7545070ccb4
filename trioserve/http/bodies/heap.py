"""Gives freed memory back to the operating system."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from ...processes.threads.heap import find_malloc_trim

# Less memory is not worth a thread.
WORTH_BYTES: Final = 2**26

# While requests free memory, other requests allocate it again, and each page that was given
# back costs a page fault: 0.6 s for 1 GiB on a virtual machine. So the heap is trimmed when
# little was freed for a second, or after ten seconds.
QUIET_SECONDS: Final = 1.0
_QUIET_BYTES: Final = 2**24
_MAX_WAITS: Final = 10


Trim = Callable[[], Awaitable[object]]


def find_trim() -> Trim | None:
    """Return a function that trims the heap in a thread; None with other libraries."""
    malloc_trim = find_malloc_trim()
    if malloc_trim is None:
        return None
    limiter = trio.CapacityLimiter(1)
    return partial(trio.to_thread.run_sync, malloc_trim, limiter=limiter)


class HeapTrimmer:
    """Trims the heap after requests have freed much memory.

    glibc keeps freed memory that lies below a live object. A process of 0.27 GB had 0.36 to
    1.0 GB after three rounds of 1 GiB of bodies. A lower threshold for mmap would avoid
    that, but then each GiB of uploads would take 3.3 s of CPU time instead of 1.3 s.

    A trim blocks the heap for other threads: 4 ms after 64 MiB of bodies, and 36 ms after
    1 GiB, more if the system gives its thread no core meanwhile. glibc has no smaller step.
    A body of millions of small objects would make it far longer; such bodies are refused
    before they are decoded.

    Args:
      trim: None if the platform has no such call.
    """

    def __init__(self, trim: Trim | None) -> None:
        self._trim = trim
        self._num_freed = 0
        self._is_waiting = False

    def note_freed(self, num_bytes: int) -> None:
        """Count bytes that are free now, or will be within a second."""
        self._num_freed += num_bytes
        if self._trim and self._num_freed >= WORTH_BYTES and not self._is_waiting:
            self._is_waiting = True
            # The task belongs to no request, and ends with the event loop.
            trio.lowlevel.spawn_system_task(self._run, self._trim)

    async def _run(self, trim: Trim) -> None:
        while self._num_freed >= WORTH_BYTES:
            await self._wait_quiet()
            self._num_freed = 0
            # If no thread can be started, a later trim will free the memory.
            with suppress(RuntimeError):
                await trim()
        self._is_waiting = False

    async def _wait_quiet(self) -> None:
        for _ in range(_MAX_WAITS):
            num_before = self._num_freed
            await trio.sleep(QUIET_SECONDS)
            if self._num_freed - num_before < _QUIET_BYTES:
                break
