"""Bytes that come one by one are gathered, and no other client waits for its reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
import raw_http
import trio
from trio.testing import MockClock

from trioserve.http.connection.exchange import (
    BYTES_PER_READ,
    FREE_READS,
    WAIT_SECONDS,
    ReadPace,
)

HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
GET = b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n"

PACKET_SECONDS = 0.0005


class App:
    """Answers with as many bytes as the path says.

    Attributes:
      num_messages: of bodies; a read makes one.
      left_at: the time when it learned that a client had left.
    """

    num_messages = 0
    left_at: float | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http", "no lifespan"
        while (message := await receive()).get("more_body"):
            self.num_messages += 1
        if message["type"] == "http.disconnect":
            self.left_at = trio.current_time()
            return
        size = int(scope["path"].removeprefix("/") or 2)
        length = (b"content-length", b"%d" % size)
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": b"x" * size})


Connect = Callable[[], Awaitable[trio.SocketStream]]


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
async def connect(app: App, nursery: trio.Nursery, tmp_path: Path) -> Connect:
    """Connect to the app; a Unix socket passes bytes at once, also in virtual time."""
    path = tmp_path / "socket"
    await raw_http.serve_app(nursery, app, bind=f"unix:{path}", enable_h2c=True)
    return partial(trio.open_unix_socket, path)


async def send_slowly(client: trio.SocketStream, data: bytes) -> None:
    for place in range(len(data)):
        await client.send_all(data[place : place + 1])
        await trio.sleep(PACKET_SECONDS)


async def ask(client: trio.SocketStream, packet: bytes, end: bytes = b"xx") -> None:
    await client.send_all(packet)
    await raw_http.read_until(client, end)


async def test_single_bytes_are_gathered_and_a_bystander_is_answered(
    app: App, connect: Connect, autojump_clock: MockClock
) -> None:
    num_bytes = 2_000
    async with await connect() as stranger, trio.open_nursery() as nursery:
        await stranger.send_all(HEAD % num_bytes)
        nursery.start_soon(send_slowly, stranger, b" " * num_bytes)
        async with await connect() as bystander:
            for _ in range(10):
                await trio.sleep(num_bytes * PACKET_SECONDS / 11)
                asked_at = trio.current_time()
                await ask(bystander, GET % 2)
                assert trio.current_time() == asked_at
        await ask(stranger, b"")
    num_waits = num_bytes * PACKET_SECONDS / WAIT_SECONDS
    assert app.num_messages <= FREE_READS + num_waits + 2


async def test_a_stranger_who_leaves_is_noticed_after_two_waits(
    app: App, connect: Connect, autojump_clock: MockClock
) -> None:
    async with await connect() as stranger:
        await stranger.send_all(HEAD % 1_000)
        await send_slowly(stranger, b" " * 500)
        left_at = trio.current_time()
    await trio.sleep(1)
    assert app.left_at is not None
    # One for the last bytes, and one for the end behind them.
    assert app.left_at <= left_at + 2 * WAIT_SECONDS


async def test_a_client_of_small_requests_never_waits(
    connect: Connect, autojump_clock: MockClock
) -> None:
    async with await connect() as client:
        for _ in range(3 * FREE_READS):
            await ask(client, GET % 2)
    assert trio.current_time() == 0.0


async def test_a_client_that_opens_its_windows_again_and_again_never_waits(
    connect: Connect, autojump_clock: MockClock
) -> None:
    size = 2**23
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    fields = {":method": "GET", ":scheme": "http", ":authority": "h"}
    client.send_headers(1, [*fields.items(), (":path", f"/{size}")], end_stream=True)
    num_bytes = num_updates = 0
    async with await connect() as stream:
        await stream.send_all(client.data_to_send())
        while num_bytes < size:
            for event in client.receive_data(await stream.receive_some()):
                if isinstance(event, h2.events.DataReceived):
                    num_bytes += len(event.data)
                    client.acknowledge_received_data(event.flow_controlled_length, 1)
            # Each frame is a packet of its own.
            updates = client.data_to_send()
            for place in range(0, len(updates), 13):
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(updates[place : place + 13])
                num_updates += 1
    assert num_updates > 3 * FREE_READS
    assert trio.current_time() == 0.0


async def test_health_checks_over_http2_pay_for_their_reads(
    autojump_clock: MockClock,
) -> None:
    pace = ReadPace()
    for _ in range(1_000):
        # The request has 19 bytes if all its fields are in the table.
        pace.count_read(19)
        pace.count_written(57)
        await pace.wait()
    assert trio.current_time() == 0.0


async def test_one_read_that_brings_enough_ends_the_waits(
    autojump_clock: MockClock,
) -> None:
    pace = ReadPace()
    for _ in range(10 * FREE_READS):
        pace.count_read(1)
    pace.count_read(BYTES_PER_READ)
    await pace.wait()
    assert trio.current_time() == 0.0
    pace.count_read(1)
    await pace.wait()
    assert trio.current_time() == WAIT_SECONDS
