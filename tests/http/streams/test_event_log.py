"""Events that several clients follow, each at its own pace."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from trioserve.http.streams.event_log import EventLog


async def test_each_reader_gets_all_events_from_its_number_on() -> None:
    log = EventLog()
    seen: dict[int, list[bytes]] = {0: [], 2: [], 5: []}

    async def read(number: int) -> None:
        place = number
        while events := await log.read(place):
            place += len(events)
            seen[number] += events

    async with trio.open_nursery() as nursery:
        log.append([b"0", b"1"])
        for number in seen:
            nursery.start_soon(read, number)
        await wait_all_tasks_blocked()
        assert seen == {0: [b"0", b"1"], 2: [], 5: []}
        log.append([b"2"])
        await wait_all_tasks_blocked()
        assert seen == {0: [b"0", b"1", b"2"], 2: [b"2"], 5: []}
        log.append([b"3"])
        log.end()
    assert seen == {0: [b"0", b"1", b"2", b"3"], 2: [b"2", b"3"], 5: []}
    assert log.num_bytes == 4
    await log.wait_ended()
    assert await log.read(3) == [b"3"]
