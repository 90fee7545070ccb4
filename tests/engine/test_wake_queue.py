"""Readers of one step wake in groups, so that no turn of the event loop has all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trioserve.engine.generation.token_stream import WakeQueue


@pytest.fixture
async def queue(nursery: trio.Nursery) -> AsyncIterator[WakeQueue]:
    queue = WakeQueue()
    nursery.start_soon(queue.run)
    await wait_all_tasks_blocked()
    yield queue
    nursery.cancel_scope.cancel()


def count_set(events: list[trio.Event]) -> int:
    num_set = sum(event.is_set() for event in events)
    assert all(
        event.is_set() for event in events[:num_set]
    ), "the first ones come first"
    return num_set


async def test_a_turn_sets_one_group(queue: WakeQueue) -> None:
    events = [trio.Event() for _ in range(40)]
    queue.begin()
    for event in events:
        queue.add(event)
    counts = [count_set(events)]
    while counts[-1] < len(events):
        await trio.lowlevel.checkpoint()
        counts.append(count_set(events))
    assert sorted(set(counts)) == [16, 32, 40]


async def test_the_next_step_waits_behind_the_one_before(queue: WakeQueue) -> None:
    first = [trio.Event() for _ in range(20)]
    second = [trio.Event() for _ in range(3)]
    for events in (first, second):
        queue.begin()
        for event in events:
            queue.add(event)
    assert count_set([*first, *second]) == 16
    await wait_all_tasks_blocked()
    assert count_set([*first, *second]) == 23


async def test_a_few_readers_wake_at_once_in_each_step(queue: WakeQueue) -> None:
    for _ in range(5):
        events = [trio.Event() for _ in range(16)]
        queue.begin()
        for event in events:
            queue.add(event)
        assert count_set(events) == 16


async def test_an_event_that_is_set_takes_no_place(queue: WakeQueue) -> None:
    is_set, waits = trio.Event(), [trio.Event() for _ in range(16)]
    is_set.set()
    queue.begin()
    for event in [is_set, is_set, *waits]:
        queue.add(event)
    assert count_set(waits) == 16
