"""Results are sent to the host in buffers that are used again when nobody needs them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from trioserve.model.device.host_buffers import HostBuffers
from trioserve.model.sampling.host_copy import HostCopier, copy_to_host


class Event:
    """Comes after a copy, which is made when somebody waits for it."""

    def __init__(self, source: Tensor, target: Tensor) -> None:
        self.source, self.target = source, target
        self.is_done = False
        self.num_waits = 0

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self.num_waits += 1
        if not self.is_done:
            self.target.copy_(self.source)
            self.is_done = True


class Device:
    """Stands in for a GPU that copies late."""

    def __init__(self) -> None:
        self.pinned: list[Tensor] = []
        self.events: list[Event] = []

    def pin(self, num_bytes: int) -> Tensor:
        self.pinned.append(torch.full((num_bytes,), 7, dtype=torch.uint8))
        return self.pinned[-1]

    def copy(self, source: Tensor, target: Tensor) -> Event:
        self.events.append(Event(source, target))
        return self.events[-1]

    def copy_in_turn(self, source: Tensor, target: Tensor) -> Event:
        # Nothing later happens before it.
        return self.copy(source.clone(), target)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).view(2, 3),
        torch.tensor([1.5, -0.25]),
        torch.tensor([True, False, True]),
        torch.empty((0, 4)),
    ],
)
def test_a_copy_is_waited_for_when_it_is_read_and_once(
    no_sync: Any, tensor: Tensor
) -> None:
    device = Device()
    with no_sync():
        copy = HostCopier(device).copy(tensor)
    (event,) = device.events
    assert event.num_waits == 0
    for _ in range(2):
        assert torch.equal(copy.read(), tensor) and copy.read().dtype == tensor.dtype
    assert event.num_waits == 1


def test_a_buffer_is_used_again_when_it_is_read() -> None:
    device = Device()
    copier = HostCopier(device)
    first, second = (copier.copy(torch.tensor([each])) for each in (1, 2))
    assert len(device.pinned) == 2
    read = first.read()
    third = copier.copy(torch.tensor([3]))
    assert len(device.pinned) == 2
    assert third.read().tolist() == [3]
    # The bytes that were read before have left the buffer.
    assert read.tolist() == [1] and first.read().tolist() == [1]
    assert second.read().tolist() == [2]


def test_a_buffer_that_nobody_reads_is_not_used_again() -> None:
    device = Device()
    copier = HostCopier(device)
    for each in range(3):
        copier.copy(torch.tensor([each]))
    assert len(device.pinned) == 3


def test_a_buffer_waits_for_its_event_and_the_oldest_comes_first() -> None:
    made: list[Tensor] = []

    def allocate(num_bytes: int) -> Tensor:
        made.append(torch.empty(num_bytes, dtype=torch.uint8))
        return made[-1]

    buffers = HostBuffers(allocate)
    taken = [buffers.take(100) for _ in range(2)]
    assert len(taken[0]) == len(taken[1]) >= 100
    events = [Event(each, each) for each in taken]
    for buffer, event in zip(taken, events):
        buffers.give_back(buffer, event)
    buffers.take(100)
    assert len(made) == 3
    events[0].is_done = True
    assert buffers.take(100) is taken[0]
    buffers.take(100)
    assert len(made) == 4
    events[1].is_done = True
    large = buffers.take(10**6)
    assert len(large) >= 10**6 and large is not taken[1]
    assert buffers.take(100) is taken[1]


def test_a_tensor_on_the_host_is_not_copied() -> None:
    tensor = torch.arange(3)
    assert copy_to_host(tensor).read() is tensor


def test_a_copy_in_turn_has_the_numbers_that_later_steps_overwrite() -> None:
    tensor = torch.arange(3)
    copies = [
        HostCopier(Device()).copy(tensor, in_turn=True),
        copy_to_host(tensor, in_turn=True),
    ]
    tensor.zero_()
    assert [copy.read().tolist() for copy in copies] == [[0, 1, 2]] * 2
