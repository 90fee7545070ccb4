"""The memory of a device, as CUDA and torch count it."""

from __future__ import annotations

from dataclasses import dataclass
import gc
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """Bytes at one moment.

    Args:
      free: that nobody has.
      reserved: that torch has, used or not. Graphs keep theirs as long as they exist.
      peak: the most that torch has had since the memory was cleared.
    """

    free: int
    reserved: int
    peak: int

    def count_since(self, before: MemoryReading, kept: int) -> int:
        """Return the bytes that work in between has needed at its peak.

        Args:
          before: the reading before the work.
          kept: bytes that the work allocated and that do not count.
        """
        by_torch = self.peak - before.reserved - kept
        # Compiled kernels, graphs themselves, the workspaces of libraries. If something else
        # has given memory back meanwhile, the gain is not ours.
        taken = before.free - self.free
        by_others = taken - (self.reserved - before.reserved)
        return max(0, by_torch) + max(0, by_others)


class DeviceMemory(Protocol):
    """Reads the memory of a device."""

    def clear(self) -> None:
        """Give back what nothing uses, and forget the peak."""

    def read(self) -> MemoryReading:
        """Wait for the device, and read."""


class CudaMemory:
    """The DeviceMemory of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def clear(self) -> None:
        # Graphs are parts of cycles.
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def read(self) -> MemoryReading:
        torch.cuda.synchronize(self._device)
        free, _ = torch.cuda.mem_get_info(self._device)
        return MemoryReading(
            free=free,
            reserved=torch.cuda.memory_reserved(self._device),
            peak=torch.cuda.max_memory_reserved(self._device),
        )
