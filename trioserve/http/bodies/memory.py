"""The memory of request bodies: its bound, and its way back to the system."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

import trio

from ...processes.threads.heap import find_malloc_trim

# Bodies up to this size are small: texts and chats, but not images and tensors.
SMALL_BYTES: Final = 65_536

# The part that is reserved for the first SMALL_BYTES of each body: 2,048 bodies with the
# default of 1 GiB. Most systems give a process fewer descriptors: 1,024.
_RESERVED_FRACTION: Final = 1 / 8

# The part of the remaining memory that one sender may hold. This is the dynamic threshold
# of switches with shared memory (Choudhury and Hahne 1998): a sender may hold three times
# as much as it leaves free. All senders behind a proxy count as one, so one sender must
# be able to get most of the memory. Some is still left for the next sender.
_SHARE: Final = 3 / 4


class MemoryBudget:
    """Counts the bytes that each peer holds, and refuses more than its share.

    The shares keep all bodies below the limit. Only the event loop's thread may use this.

    Args:
      limit: bytes of all bodies together.

    Attributes:
      num_bytes: bytes that were taken and not given back.
      num_refused: calls of `take` that were refused.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[str] = Counter()
        self.num_bytes = 0
        self.num_refused = 0

    def take(self, num_bytes: int, *, peer: str, is_large: bool) -> bool:
        """Count bytes as held, unless they are too many; returns whether they are held.

        Args:
          peer: the name of the sender, from name_peer.
          is_large: with these bytes, the body is longer than SMALL_BYTES.
        """
        room = self._limit * (1 - _RESERVED_FRACTION) if is_large else self._limit
        held = self._held[peer]
        if held + num_bytes > _SHARE * (room - (self.num_bytes - held)):
            self.num_refused += 1
            return False
        self._held[peer] += num_bytes
        self.num_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int, *, peer: str) -> None:
        assert (
            0 <= num_bytes <= self._held[peer]
        ), "only bytes that were taken can be given back"
        self.num_bytes -= num_bytes
        self._held[peer] -= num_bytes
        if not self._held[peer]:
            del self._held[peer]


def name_peer(client: tuple[str, int] | None) -> str:
    """Return the name of the sender that a share belongs to.

    Args:
      client: the address in the ASGI scope. Unix sockets have none, so all their peers
        count as one sender.
    """
    host = "" if client is None else client[0]
    try:
        address = ip_address(host)
    except ValueError:
        # hypercorn's ProxyFixMiddleware copies the address from a header.
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    # RFC 6177: a site gets a /64 or more, so one sender may use all addresses in it.
    return str(ip_network((int(address), 64), strict=False))


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
