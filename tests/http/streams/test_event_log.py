"""Logs of events: events that a client may still miss are there, in bounded memory."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trioserve.errors import StreamNotFound
from trioserve.http.streams.event_log import EventLog, StreamLog

ONE = b"data: 1\n\n"
# With `id: s-0`.
NUM_BYTES = len(ONE) + 8


async def test_each_event_has_an_id_and_keeps_its_lines() -> None:
    log = StreamLog("s", 1000)
    await log.write(b"event: a\ndata: 1\n\ndata: 2\n\n")
    await log.write(b"")
    log.end()
    assert b"".join(await log.read(0)) == (
        b"id: s-0\nevent: a\ndata: 1\n\nid: s-1\ndata: 2\n\n"
    )
    assert await log.read(1) == [b"id: s-1\ndata: 2\n\n"]
    assert await log.read(2) == []


async def test_a_reader_waits_for_the_next_event(nursery: trio.Nursery) -> None:
    log = StreamLog("s", 1000)
    read: list[list[bytes]] = []

    async def follow() -> None:
        while events := await log.read(len(read)):
            read.append(events)

    nursery.start_soon(follow)
    for number in range(3):
        await wait_all_tasks_blocked()
        assert len(read) == number
        await log.write(ONE)
    log.end()
    await wait_all_tasks_blocked()
    assert [events for events in read if len(events) != 1] == []


async def test_a_full_log_forgets_what_was_sent_and_waits_for_the_rest(
    nursery: trio.Nursery,
) -> None:
    log = StreamLog("s", 2 * NUM_BYTES)
    await log.write(ONE + ONE)
    log.note_sent(1)
    await log.write(ONE)
    with pytest.raises(StreamNotFound):
        log.check(0)
    log.check(1)
    nursery.start_soon(log.write, ONE)
    await wait_all_tasks_blocked()
    assert log.num_bytes == 2 * NUM_BYTES
    log.note_sent(3)
    await wait_all_tasks_blocked()
    assert await log.read(2) == [b"id: s-2\n" + ONE, b"id: s-3\n" + ONE]


async def test_what_a_new_connection_sends_again_is_not_forgotten(
    nursery: trio.Nursery,
) -> None:
    log = StreamLog("s", 2 * NUM_BYTES)
    await log.write(ONE + ONE)
    log.note_sent(2)
    log.rewind(0)
    nursery.start_soon(log.write, ONE)
    await wait_all_tasks_blocked()
    log.check(0)
    log.note_sent(1)
    await wait_all_tasks_blocked()
    assert len(await log.read(1)) == 2
    nursery.cancel_scope.cancel()


async def test_a_single_event_may_be_longer_than_the_log() -> None:
    log = StreamLog("s", 10)
    await log.write(ONE)
    log.note_sent(1)
    await log.write(ONE)
    assert log.num_bytes == NUM_BYTES


async def test_the_end_waits_for_the_connection_that_sends(
    nursery: trio.Nursery,
) -> None:
    log = StreamLog("s", 1000)
    log.rewind(0)
    await log.write(ONE)
    for end in (lambda: log.note_sent(1), log.note_lost):
        log.rewind(0)
        done = trio.Event()

        async def wait() -> None:
            await log.wait_sent()
            done.set()

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not done.is_set()
        end()
        await done.wait()


async def test_only_the_next_event_can_be_waited_for() -> None:
    log = StreamLog("s", 1000)
    await log.write(ONE)
    log.check(1)
    with pytest.raises(StreamNotFound):
        log.check(2)


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
