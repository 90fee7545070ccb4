"""Numbers of a step go to the device in one copy, from memory that is used again in time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trioserve.model.device.numbers import Packing, PinnedSender, StepNumbers

ARRAYS = (
    np.array([1, 2, 3], dtype=np.int32),
    np.empty(0, dtype=np.int64),
    np.array([[2**40, -1]]),
    np.array([0.5, -1.25, 3.0], dtype=np.float32),
    np.empty((0, 4), dtype=np.int32),
    np.array([1e300]),
)


class Event:
    """Comes behind a copy that the device makes when it gets to it."""

    def __init__(self, source: Tensor, target: Tensor) -> None:
        self.source, self.target = source, target
        self.is_done = False

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        raise AssertionError("nobody waits for it")


class LateDevice:
    """Stands in for a GPU that copies late."""

    def __init__(self) -> None:
        self.num_pinned = 0
        self.events: list[Event] = []

    def pin(self, num_bytes: int) -> Tensor:
        self.num_pinned += 1
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def send(self, source: Tensor, target: Tensor) -> Event:
        self.events.append(Event(source, target))
        return self.events[-1]

    def copy(self) -> None:
        for event in self.events:
            if not event.is_done:
                event.target.copy_(event.source)
                event.is_done = True


def test_memory_is_used_again_when_its_copy_is_made() -> None:
    device = LateDevice()
    sender = PinnedSender(device)
    targets = torch.zeros((6, 100), dtype=torch.uint8)
    for step, target in enumerate(targets):
        memory = sender.take(100)
        memory.bytes[:] = step
        sender.send(memory, target)
        # Two steps are in flight.
        if step % 2:
            device.copy()
    assert targets[:, [0, 99]].tolist() == [[step, step] for step in range(6)]
    assert device.num_pinned == 2


def test_numbers_that_are_added_before_one_is_needed_go_together() -> None:
    numbers = StepNumbers(torch.device("meta"))
    sent = [numbers.add(array) for array in ARRAYS]
    sent[3].get()
    storages = set()
    for each, array in zip(sent, ARRAYS):
        tensor = each.get()
        assert tensor.shape == array.shape and tensor.itemsize == array.itemsize
        if array.size:
            storages.add(tensor.untyped_storage()._cdata)
            # Kernels are compiled for such places.
            assert tensor.storage_offset() * tensor.itemsize % 16 == 0
    assert len(storages) == 1
    assert numbers.add(ARRAYS[0]).get().untyped_storage()._cdata not in storages


def test_the_numbers_of_a_cpu_stay_where_they_are() -> None:
    numbers = StepNumbers(torch.device("cpu"))
    for array in ARRAYS:
        assert torch.equal(numbers.add(array).get(), torch.from_numpy(array))


def test_a_packing_has_the_same_places_on_the_host_and_on_the_device() -> None:
    packing = Packing(ARRAYS)
    memory = np.zeros(packing.num_bytes, dtype=np.uint8)
    for place, array in zip(packing.list_arrays(memory), ARRAYS):
        place[...] = array
    for tensor, array in zip(packing.list_tensors(torch.from_numpy(memory)), ARRAYS):
        assert torch.equal(tensor, torch.from_numpy(array))
