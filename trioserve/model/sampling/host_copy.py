"""Tensors on their way from the device to the host.

A GPU works through what it was given while the host goes on. Whoever asks for a number
too early makes the host wait; so what a step gives is sent off at once and read later.
"""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """A copy of a tensor that will be on the host when it is read.

    Args:
      tensor: on any device; on the host it is taken as it is, and must not be changed.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._copy = tensor
        if tensor.device.type == "cuda":
            # Only into pinned memory does the device copy by itself.
            self._copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._copy.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            # Of the tensor's device: the thread's own may be another one.
            self._event.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> Tensor:
        """Wait until it is there; others may run meanwhile, and read it, too."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy
