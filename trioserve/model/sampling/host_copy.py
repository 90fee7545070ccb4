"""Tensors on their way from the device to the host.

A GPU and the host work at the same time. If the host reads a number too early, it has
to wait. So the results of a step are sent at once and read later.
"""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """A copy of a tensor that will be on the host when it is read.

    Args:
      tensor: on any device. A tensor on the host is not copied and must not be changed.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._copy = tensor
        if tensor.device.type == "cuda":
            # The device copies by itself only if the memory is pinned.
            self._copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._copy.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            # The stream of the tensor's device; the thread's own device may differ.
            self._event.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> Tensor:
        """Wait for the copy and return it; any number of threads may do so."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy
