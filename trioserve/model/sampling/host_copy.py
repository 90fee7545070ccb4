"""Tensors on their way from the device to the host.

    work of the device   | step 1 ........ | step 2 ........ |
    copies               |                 | tokens of step 1
    host                 | gives step 2    |    | reads them

A GPU and the host work at the same time. If the host reads a number too early, it has to
wait. So the results of a step are sent at once and read later. Copies have a stream of their
own, so that the next step does not wait for them. The few bytes that a captured step leaves
at a fixed place have none: to copy them there first would take the device as long, and the
host longer.
"""

from __future__ import annotations

import functools
from threading import Lock
from typing import Protocol

import torch
from torch import Tensor

from ..device.host_buffers import CopyEvent, HostBuffers


class HostCopy(Protocol):
    """A copy of a tensor that will be on the host when it is read."""

    def read(self) -> Tensor:
        """Wait for the copy and return it; any number of threads may do so."""


def copy_to_host(tensor: Tensor, *, in_turn: bool = False) -> HostCopy:
    """Send a tensor to the host without waiting.

    Args:
      tensor: must not be changed until the copy is read. On the host it is not copied.
      in_turn: later steps overwrite the tensor, and wait until it is copied.
    """
    copier = _find_copier(tensor.device)
    if copier is None:
        return _OnHost(tensor.clone() if in_turn else tensor)
    return copier.copy(tensor, in_turn=in_turn)


class _OnHost:
    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def read(self) -> Tensor:
        return self._tensor


class CopyDevice(Protocol):
    """A device that copies while it computes."""

    def pin(self, num_bytes: int) -> Tensor:
        """Return memory of the host to which it can write, (num_bytes,) uint8."""

    def copy(self, source: Tensor, target: Tensor) -> CopyEvent:
        """Copy after all work that the device has been given so far.

        The device keeps the memory of the source until then. Returns an event behind the
        copy.
        """

    def copy_in_turn(self, source: Tensor, target: Tensor) -> CopyEvent:
        """Copy after that work, and before all that it is given later; returns the event."""


class HostCopier:
    """Sends tensors of one device."""

    def __init__(self, device: CopyDevice) -> None:
        self._device = device
        self._buffers = HostBuffers(device.pin)

    def copy(self, tensor: Tensor, *, in_turn: bool = False) -> HostCopy:
        """See copy_to_host."""
        buffer = self._buffers.take(tensor.nbytes)
        target = buffer[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        copy = self._device.copy_in_turn if in_turn else self._device.copy
        return _Pending(self._buffers, buffer, target, copy(tensor, target))


class _Pending:
    """A copy in a buffer.

    One that nobody reads drops its buffer. torch does not give that memory to anybody before
    the device has written it.
    """

    def __init__(
        self, buffers: HostBuffers, buffer: Tensor, target: Tensor, event: CopyEvent
    ) -> None:
        self._buffers = buffers
        self._buffer = buffer
        self._copied = target
        self._event = event
        self._is_read = False
        self._lock = Lock()

    def read(self) -> Tensor:
        # Two threads may read: none may give the buffer back while the other copies it.
        with self._lock:
            if not self._is_read:
                self._event.synchronize()
                self._copied = self._copied.clone()
                self._is_read = True
                self._buffers.give_back(self._buffer, self._event)
            return self._copied


class _CudaCopies:
    """A GPU, with a stream for copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def pin(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, source: Tensor, target: Tensor) -> CopyEvent:
        # The stream of the tensor's device; the thread's own device may differ.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            # torch would otherwise give the memory of the source to the next step.
            source.record_stream(self._stream)
            event = torch.cuda.Event()
            event.record(self._stream)
        return event

    def copy_in_turn(self, source: Tensor, target: Tensor) -> CopyEvent:
        target.copy_(source, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event


@functools.cache
def _find_copier(device: torch.device) -> HostCopier | None:
    return HostCopier(_CudaCopies(device)) if device.type == "cuda" else None
