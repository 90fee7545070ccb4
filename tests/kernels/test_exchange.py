"""Processes exchange numbers over memory that they share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import mmap
from typing import Any

import pytest
import torch

from trioserve.kernels.exchange import (
    ExchangeLate,
    SharedExchange,
    count_exchange_bytes,
)
from trioserve.kernels.library import NoKernels, open_library

# A part of the exchange's memory holds so many numbers.
PART = 64 * 1024


def open_exchanges(count: int, timeout_seconds: float = 60.0) -> list[SharedExchange]:
    try:
        library = open_library()
    except NoKernels as error:
        pytest.skip(str(error))
    memory = mmap.mmap(-1, count_exchange_bytes(count))
    return [
        SharedExchange(
            library, memory, index=i, count=count, timeout_seconds=timeout_seconds
        )
        for i in range(count)
    ]


def run_all(exchanges: list[SharedExchange], work: Any) -> list[Any]:
    with ThreadPoolExecutor(len(exchanges)) as threads:
        calls = [threads.submit(work, i, each) for i, each in enumerate(exchanges)]
        return [call.result() for call in calls]


@pytest.mark.parametrize("count", [2, 3])
def test_all_get_the_same_sums_and_every_part_of_them(count: int) -> None:
    sizes = [1, 7, 576, PART, PART + 1, 3 * PART - 5, 0, 2]

    def work(index: int, exchange: SharedExchange) -> list[torch.Tensor]:
        chance = torch.Generator().manual_seed(index)
        sums = []
        for size in sizes:
            numbers = torch.randn(size, generator=chance)
            exchange.sum(numbers.data_ptr(), size)
            sums.append(numbers)
        return sums

    first, *others = run_all(open_exchanges(count), work)
    chances = [torch.Generator().manual_seed(i) for i in range(count)]
    for number, size in enumerate(sizes):
        expected = sum(torch.randn(size, generator=chance) for chance in chances)
        assert torch.allclose(first[number], torch.as_tensor(expected), atol=1e-6)
        # To the bit: each process chooses the next steps by its own sums.
        assert all(torch.equal(first[number], other[number]) for other in others)


def test_bytes_of_all_are_gathered_in_order() -> None:
    def work(index: int, exchange: SharedExchange) -> torch.Tensor:
        own = torch.full((5 * PART,), index, dtype=torch.uint8)
        parts = torch.empty((3, len(own)), dtype=torch.uint8)
        exchange.gather(own.data_ptr(), len(own), parts.data_ptr())
        return parts

    for parts in run_all(open_exchanges(3), work):
        assert all(set(parts[i].tolist()) == {i} for i in range(3))


def test_an_exchange_without_the_others_ends() -> None:
    first, _ = open_exchanges(2, timeout_seconds=0.05)
    numbers = torch.ones(3)
    with pytest.raises(ExchangeLate):
        first.sum(numbers.data_ptr(), 3)


def test_after_a_failure_numbers_that_come_late_are_not_taken_for_others() -> None:
    first, late = open_exchanges(2, timeout_seconds=0.05)
    numbers = torch.ones(PART + 1)
    with pytest.raises(ExchangeLate):
        first.sum(numbers.data_ptr(), len(numbers))
    with pytest.raises(ExchangeLate):
        # Its first part is summed, and the other process does not send the second one.
        late.sum(numbers.data_ptr(), len(numbers))
    with pytest.raises(ExchangeLate):
        first.sum(numbers.data_ptr(), 1)
