"""Requests that come at once begin in turns of the event loop.

The clock stands still, because a busy machine may take the processor away within a turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
import os
from typing import Any

import pytest
import raw_http
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trioserve.http.connection import server
from trioserve.http.connection.beginnings import PER_TURN, Beginnings
from trioserve.http.connection.exchange import FIRST_HEAD_SECONDS

POST = b"POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
GET = b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n"

# No multiple of PER_TURN, so the last turn is not full.
NUM_CLIENTS = 5 * PER_TURN + 1


class Turns(trio.abc.Instrument):
    """Counts the turns of the event loop."""

    num_turns = 0

    def after_io_wait(self, timeout: float) -> None:
        self.num_turns += 1


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    turns = Turns()
    trio.lowlevel.add_instrument(turns)
    yield turns
    trio.lowlevel.remove_instrument(turns)


class App:
    """Notes the turn in which each request reaches it, by the number in its path."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.begun: dict[int, int] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http", "no lifespan"
        self.begun[int(scope["path"][1:])] = self._turns.num_turns
        length = (b"content-length", b"0")
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": b""})


async def test_requests_on_open_connections_begin_in_turns(
    nursery: trio.Nursery, turns: Turns, mock_clock: MockClock
) -> None:
    """One that asks for the server's health does not wait for those before it."""
    app = App(turns)
    port = await raw_http.serve_app(nursery, app)
    clients = [
        await trio.open_tcp_stream("127.0.0.1", port) for _ in range(NUM_CLIENTS)
    ]
    await wait_all_tasks_blocked(0.01)
    # No turn of the event loop lies between these writes.
    for number, client in enumerate(clients):
        is_last = number == NUM_CLIENTS - 1
        os.write(client.socket.fileno(), (GET if is_last else POST) % number)
    for client in clients:
        assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
        await client.aclose()
    probed_at = app.begun.pop(NUM_CLIENTS - 1)
    in_turn = Counter(app.begun.values())
    assert max(in_turn.values()) <= PER_TURN
    assert probed_at <= min(in_turn)
    nursery.cancel_scope.cancel()


async def test_a_request_that_waits_for_its_turn_keeps_its_connection(
    nursery: trio.Nursery,
    turns: Turns,
    mock_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand before it may take longer than a connection may be idle."""
    turn = trio.Event()

    async def wait_turn(head: bytes) -> None:
        await turn.wait()

    monkeypatch.setattr(server, "wait_turn", wait_turn)
    port = await raw_http.serve_app(nursery, App(turns))
    async with raw_http.send(port, POST % 0) as client:
        await wait_all_tasks_blocked(0.01)
        mock_clock.jump(2 * FIRST_HEAD_SECONDS)
        await wait_all_tasks_blocked(0.01)
        turn.set()
        assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
    nursery.cancel_scope.cancel()


async def begin_together(beginnings: Beginnings, turns: Turns) -> list[int]:
    """Begin NUM_CLIENTS requests in one turn; returns the turn of each."""
    begun: list[int] = []

    async def begin() -> None:
        await beginnings.wait()
        begun.append(turns.num_turns)

    async with trio.open_nursery() as nursery:
        for _ in range(NUM_CLIENTS):
            nursery.start_soon(begin)
    return begun


async def test_each_turn_begins_as_many_as_it_may(
    turns: Turns, mock_clock: MockClock
) -> None:
    in_turn = Counter(await begin_together(Beginnings(), turns))
    assert sorted(in_turn.values()) == [1, *[PER_TURN] * 5]
    # The first ones begin at once, and the second ones a turn after they are woken.
    assert max(in_turn) - min(in_turn) <= 6


async def test_requests_that_come_alone_begin_at_once(
    autojump_clock: MockClock, turns: Turns
) -> None:
    beginnings = Beginnings()
    for _ in range(3 * PER_TURN):
        before = turns.num_turns
        await beginnings.wait()
        assert turns.num_turns == before
        await trio.sleep(0.01)


async def test_one_that_leaves_takes_no_turn(
    nursery: trio.Nursery, turns: Turns, mock_clock: MockClock
) -> None:
    beginnings = Beginnings()
    for _ in range(PER_TURN):
        await beginnings.wait()
    with trio.move_on_after(0) as scope:
        await beginnings.wait()
    assert scope.cancelled_caught
    # Nobody is left in it, so that a turn later all of its places are free.
    await wait_all_tasks_blocked()
    before = turns.num_turns
    for _ in range(PER_TURN):
        await beginnings.wait()
    assert turns.num_turns == before
