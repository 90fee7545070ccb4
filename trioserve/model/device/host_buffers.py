"""Pinned memory of the host, used again and again."""

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
    """Pinned memory for the numbers and the results of steps, used again and again.

    To pin memory, CUDA may wait for all work of the device. So steps share a few buffers, of
    powers of two bytes. A buffer is used again when the device has made the copy before,
    which its event tells. Any thread may take buffers and give them back.

    Args:
      allocate: makes a buffer of so many bytes, (num_bytes,) uint8.
    """

    def __init__(self, allocate: Callable[[int], Tensor]) -> None:
        self._allocate = allocate
        # By size, the oldest first; with the event of the last copy to or from each.
        self._free: defaultdict[int, deque[tuple[Tensor, CopyEvent]]]
        self._free = defaultdict(deque)
        self._lock = Lock()

    def take(self, num_bytes: int) -> Tensor:
        """Return a buffer of at least so many bytes that nothing reads or writes."""
        size = max(_LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
        with self._lock:
            free = self._free[size]
            # Copies are made in their order: if the oldest is not, none is.
            if free and free[0][1].query():
                return free.popleft()[0]
        return self._allocate(size)

    def give_back(self, buffer: Tensor, event: CopyEvent) -> None:
        """Take a buffer back that nobody on the host uses any more.

        Args:
          event: comes after the copy, which the device may still make.
        """
        with self._lock:
            self._free[len(buffer)].append((buffer, event))
