"""Events and comments of one connection never overtake or interrupt each other."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from trioserve.http.answer import EventConnection


class SlowAnswer:
    """An answer whose client takes each part when it is told to."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._takes = trio.Semaphore(0)
        self._is_busy = False

    async def send_part(self, data: bytes) -> None:
        assert not self._is_busy, "a socket has one writer"
        self._is_busy = True
        await self._takes.acquire()
        self._is_busy = False
        self.parts.append(data)

    def take(self) -> None:
        self._takes.release()


async def test_events_wait_behind_a_comment(nursery: trio.Nursery) -> None:
    answer: Any = SlowAnswer()
    connection = EventConnection(answer, b": hm\n\n")
    assert connection.is_waiting
    nursery.start_soon(connection.send_comment)
    await wait_all_tasks_blocked()
    nursery.start_soon(connection.send, b"data: 1\n\n")
    await wait_all_tasks_blocked()
    assert not connection.is_waiting
    for _ in range(2):
        answer.take()
        await wait_all_tasks_blocked()
    assert answer.parts == [b": hm\n\n", b"data: 1\n\n"]
    assert connection.is_waiting
    assert connection.num_parts == 1


async def test_the_end_of_a_stream_waits_for_a_comment(nursery: trio.Nursery) -> None:
    answer: Any = SlowAnswer()
    connection = EventConnection(answer, b": hm\n\n")
    await connection.wait_comment()
    nursery.start_soon(connection.send_comment)
    await wait_all_tasks_blocked()
    has_ended = trio.Event()

    async def end() -> None:
        await connection.wait_comment()
        has_ended.set()

    nursery.start_soon(end)
    await wait_all_tasks_blocked()
    assert not has_ended.is_set()
    answer.take()
    await has_ended.wait()
