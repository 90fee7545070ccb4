"""Pinned memory for the results of steps, used again and again.

To pin memory, CUDA may wait for all work of the device. So results do not pin memory of their
own: they share a few buffers. A buffer is used again when the device has written the copy before,
which its event tells.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from threading import Lock
from typing import Protocol

from torch import Tensor

# The tokens of 2048 rows. Nearly all results fit, so the first steps pin all there will be.
_LEAST_BYTES = 2**14


class CopyEvent(Protocol):
    """A place in the work of a device, as torch.cuda.Event."""

    def query(self) -> bool:
        """Return whether the device has done all work before it."""

    def synchronize(self) -> None:
        """Wait until the device has done it."""


class HostBuffers:
    """Buffers of powers of two; any thread may take them and give them back.

    Args:
      allocate: makes a buffer of so many bytes, (num_bytes,) uint8.
    """

    def __init__(self, allocate: Callable[[int], Tensor]) -> None:
        self._allocate = allocate
        # By size, the oldest first; with the event of the last copy to each.
        self._free: defaultdict[int, deque[tuple[Tensor, CopyEvent]]]
        self._free = defaultdict(deque)
        self._lock = Lock()

    def take(self, num_bytes: int) -> Tensor:
        """Return a buffer of at least so many bytes that nothing reads or writes."""
        size = max(_LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
        with self._lock:
            free = self._free[size]
            # Copies are written in their order: if the oldest is not, none is.
            if free and free[0][1].query():
                return free.popleft()[0]
        return self._allocate(size)

    def give_back(self, buffer: Tensor, event: CopyEvent) -> None:
        """Take a buffer back that nobody reads any more.

        Args:
          event: comes after the copy to it, which the device may still write.
        """
        with self._lock:
            self._free[len(buffer)].append((buffer, event))
