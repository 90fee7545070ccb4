"""Freed memory, and its way back to the system."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
import ctypes
from functools import partial
from typing import Final

import trio

# Less is not worth a thread.
WORTH_BYTES: Final = 2**26

# Where requests go on to free memory, others take it again, and each page that was given
# back costs a fault: 0.6 s for 1 GiB on a virtual machine. So the heap is trimmed when
# little was freed for a second, and after ten seconds of anything.
QUIET_SECONDS: Final = 1.0
_QUIET_BYTES: Final = 2**24
_MAX_WAITS: Final = 10


Trim = Callable[[], Awaitable[object]]


def find_malloc_trim() -> Trim | None:
    """Find glibc's call that trims the heap; other libraries have none."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    limiter = trio.CapacityLimiter(1)
    # ctypes lets other threads have the GIL during the call.
    return partial(
        trio.to_thread.run_sync, malloc_trim, ctypes.c_size_t(0), limiter=limiter
    )


class HeapTrimmer:
    """Gives freed memory back to the system once requests have freed much of it.

    glibc keeps what was freed below anything that still lives: after three rounds of 1
    GiB of bodies a process that had 0.27 GB kept 0.36 to 1.0. With a lower threshold for
    mmap it would keep nothing, but each GiB of uploads would then take 3.3 s of processor
    time, and not 1.3.

    A trim keeps other threads from the heap: for 4 ms after 64 MiB of bodies, and for 36
    ms after 1 GiB.

    Args:
      trim: None where there is no such call.
    """

    def __init__(self, trim: Trim | None) -> None:
        self._trim = trim
        self._num_freed = 0
        self._is_waiting = False

    def note_freed(self, num_bytes: int) -> None:
        """Count bytes that are free now, or within a second."""
        self._num_freed += num_bytes
        if self._trim and self._num_freed >= WORTH_BYTES and not self._is_waiting:
            self._is_waiting = True
            # It belongs to no request, and ends with the loop.
            trio.lowlevel.spawn_system_task(self._run, self._trim)

    async def _run(self, trim: Trim) -> None:
        while self._num_freed >= WORTH_BYTES:
            await self._wait_quiet()
            self._num_freed = 0
            # Where no thread can be started, the memory stays for another time.
            with suppress(RuntimeError):
                await trim()
        self._is_waiting = False

    async def _wait_quiet(self) -> None:
        for _ in range(_MAX_WAITS):
            num_before = self._num_freed
            await trio.sleep(QUIET_SECONDS)
            if self._num_freed - num_before < _QUIET_BYTES:
                break
