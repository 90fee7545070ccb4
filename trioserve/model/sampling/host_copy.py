"""Tensors on their way from the device to the host.

    work of the device   | step 1 ........ | step 2 ........ |
    copies               |                 | tokens of step 1
    host                 | gives step 2    |    | reads them

A GPU and the host work at the same time. If the host reads a number too early, it has to
wait. So the results of a step are sent at once and read later. Copies have a stream of their
own, so that the next step does not wait for them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
import functools
from threading import Lock
from typing import Protocol

import torch
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
    """Pinned memory for the results of steps, used again and again.

    To pin memory, CUDA may wait for all work of the device. So results share a few buffers, of
    powers of two bytes. A buffer is used again when the device has written the copy before,
    which its event tells. Any thread may take buffers and give them back.

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


class HostCopy(Protocol):
    """A copy of a tensor that will be on the host when it is read."""

    def read(self) -> Tensor:
        """Wait for the copy and return it; any number of threads may do so."""


def copy_to_host(tensor: Tensor) -> HostCopy:
    """Send a tensor to the host without waiting.

    Args:
      tensor: must not be changed until the copy is read. On the host it is not copied.
    """
    copier = _find_copier(tensor.device)
    return _OnHost(tensor) if copier is None else copier.copy(tensor)


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


class HostCopier:
    """Sends tensors of one device."""

    def __init__(self, device: CopyDevice) -> None:
        self._device = device
        self._buffers = HostBuffers(device.pin)

    def copy(self, tensor: Tensor) -> HostCopy:
        buffer = self._buffers.take(tensor.nbytes)
        target = buffer[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        return _Pending(
            self._buffers, buffer, target, self._device.copy(tensor, target)
        )


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


@functools.cache
def _find_copier(device: torch.device) -> HostCopier | None:
    return HostCopier(_CudaCopies(device)) if device.type == "cuda" else None
