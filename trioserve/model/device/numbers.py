"""The numbers of a step on their way to the device, all in one copy.

    host     | slots | positions | tiles ... |   pinned memory, used again
                       one copy
    device   | slots | positions | tiles ... |   views of the same memory

A copy of few bytes takes the host as long as one of many, so numbers are packed. Memory of the
host that is not pinned would be copied twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
import functools
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor

from .host_buffers import CopyEvent, HostBuffers

# Triton compiles a kernel again for a tensor that begins at another place.
_ALIGNMENT = 16

_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}

# Of one of these types.
Numbers = NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of an array in a buffer, in bytes."""

    begin: int
    end: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Packing:
    """The places of arrays in a buffer.

    Args:
      arrays: only their types and shapes matter.

    Attributes:
      num_bytes: of the buffer.
    """

    def __init__(self, arrays: Iterable[Numbers]) -> None:
        self._places: list[_Place] = []
        end = 0
        for each in arrays:
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = begin + each.nbytes
            self._places.append(_Place(begin, end, each.dtype, each.shape))
        self.num_bytes = end

    def list_arrays(self, memory: Numbers) -> list[Numbers]:
        """Return the arrays in memory of the host, (num_bytes,) uint8."""
        return [
            memory[each.begin : each.end].view(each.dtype).reshape(each.shape)
            for each in self._places
        ]

    def list_tensors(self, buffer: Tensor) -> list[Tensor]:
        """Return the tensors in a buffer of the device, (num_bytes,) uint8."""
        return [_view(buffer, each) for each in self._places]


def _view(buffer: Tensor, place: _Place) -> Tensor:
    dtype = _DTYPES[place.dtype]
    if place.begin == place.end:
        # No other type can view no bytes.
        return buffer.new_empty(place.shape, dtype=dtype)
    return buffer[place.begin : place.end].view(dtype).view(place.shape)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of the host that `send` takes.

    Args:
      buffer: (num_bytes or more,) uint8
      bytes: the first num_bytes of it, as numpy sees them
    """

    buffer: Tensor
    bytes: Numbers


class Sender(Protocol):
    """Sends numbers to one device."""

    def take(self, num_bytes: int) -> HostMemory:
        """Return memory that nothing reads or writes."""

    def send(self, memory: HostMemory, target: Tensor) -> None:
        """Copy memory to the device, behind the work that it has got, without waiting.

        Args:
          memory: from `take`; it is used again when it has been copied.
          target: (num_bytes,) uint8
        """


class SendingDevice(Protocol):
    """A device that copies while the host goes on."""

    def pin(self, num_bytes: int) -> Tensor:
        """Return memory of the host that it can read, (num_bytes,) uint8."""

    def send(self, source: Tensor, target: Tensor) -> CopyEvent:
        """Copy behind all work that the device has been given; returns an event behind it."""


class PinnedSender:
    """The Sender of a device that reads pinned memory late."""

    def __init__(self, device: SendingDevice) -> None:
        self._device = device
        self._buffers = HostBuffers(device.pin)

    def take(self, num_bytes: int) -> HostMemory:
        buffer = self._buffers.take(num_bytes)
        return HostMemory(buffer, buffer.numpy()[:num_bytes])

    def send(self, memory: HostMemory, target: Tensor) -> None:
        source = memory.buffer[: len(target)]
        event = self._device.send(source, target)
        self._buffers.give_back(memory.buffer, event)


class _PlainSender:
    """The Sender of any other device."""

    def take(self, num_bytes: int) -> HostMemory:
        memory = np.empty(num_bytes, dtype=np.uint8)
        return HostMemory(torch.from_numpy(memory), memory)

    def send(self, memory: HostMemory, target: Tensor) -> None:
        target.copy_(memory.buffer, non_blocking=True)


class _CudaDevice:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def pin(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def send(self, source: Tensor, target: Tensor) -> CopyEvent:
        target.copy_(source, non_blocking=True)
        event = torch.cuda.Event()
        # The stream of the tensor's device; the thread's own device may differ.
        event.record(torch.cuda.current_stream(self._device))
        return event


@functools.cache
def find_sender(device: torch.device) -> Sender:
    """Return the one Sender of a device."""
    if device.type == "cuda":
        return PinnedSender(_CudaDevice(device))
    return _PlainSender()


class StepNumbers:
    """Numbers of one step, which go together when the first of them is needed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waiting: list[Sent] = []

    def add(self, values: Numbers) -> Sent:
        """Add numbers; what is added behind a `get` goes in the next copy.

        Args:
          values: contiguous; a CPU shares their memory.
        """
        sent = Sent(self, values)
        self._waiting.append(sent)
        return sent

    def send(self) -> None:
        """Send the numbers that wait."""
        waiting, self._waiting = self._waiting, []
        if self._device.type == "cpu":
            for each in waiting:
                each.tensor = torch.from_numpy(each.values)
            return
        packing = Packing(each.values for each in waiting)
        shape = (packing.num_bytes,)
        target = torch.empty(shape, dtype=torch.uint8, device=self._device)
        if packing.num_bytes:
            sender = find_sender(self._device)
            memory = sender.take(packing.num_bytes)
            for each, place in zip(waiting, packing.list_arrays(memory.bytes)):
                place[...] = each.values
            sender.send(memory, target)
        for each, tensor in zip(waiting, packing.list_tensors(target)):
            each.tensor = tensor


class Sent:
    """Numbers that are on the device when somebody needs them.

    Attributes:
      values: on the host.
      tensor: on the device; None before they are sent
    """

    def __init__(self, numbers: StepNumbers, values: Numbers) -> None:
        self.values = values
        self.tensor: Tensor | None = None
        self._numbers = numbers

    def get(self) -> Tensor:
        """Return them on the device; operators of its stream may use them at once."""
        if self.tensor is None:
            self._numbers.send()
        assert self.tensor is not None, "send sends all that wait"
        return self.tensor
