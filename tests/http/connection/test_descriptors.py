"""Connections take descriptors, but leave enough of them free."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
import errno
from functools import partial
import json
import logging
import os
from pathlib import Path
import resource
from typing import Any

from hpack import Encoder
from hyperframe.frame import HeadersFrame, RstStreamFrame, SettingsFrame
import pytest
import raw_http
from raw_http import read_all, read_until
import trio
from trio.testing import wait_all_tasks_blocked

from trioserve.config import HttpConfig
from trioserve.http.connection import install_guard, raise_descriptor_limit
from trioserve.http.connection.descriptors import RESERVED, Connections, count_room
from trioserve.http.state import ServerState
from trioserve.server.app import create_http_app

GET = b"GET /%s HTTP/1.1\r\nHost: h\r\n\r\n"
CLOSE = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"

# A frame of HTTP/2.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize()
FIELDS = {":method": "GET", ":path": "/wait", ":scheme": "http", ":authority": "h"}
REQUEST = HeadersFrame(
    1, Encoder().encode(FIELDS.items()), flags=["END_HEADERS"]
).serialize()
RESET = RstStreamFrame(1).serialize()


class Connection:
    """Remembers whether it was closed."""

    is_open = True

    def drop(self) -> None:
        self.is_open = False


def fill(connections: Connections, number: int) -> list[Connection]:
    made = [Connection() for _ in range(number)]
    assert all(connections.admit(connection) for connection in made)
    return made


def read_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


async def test_a_newcomer_takes_the_place_of_the_longest_idle() -> None:
    connections = Connections(limit=3)
    first, second, third = fill(connections, 3)
    connections.mark_busy(first)
    connections.mark_busy(second)
    connections.mark_idle(second)
    fill(connections, 1)
    assert (first.is_open, second.is_open, third.is_open) == (True, True, False)
    fill(connections, 1)
    assert (first.is_open, second.is_open) == (True, False)


async def test_a_newcomer_is_refused_where_all_are_busy() -> None:
    connections = Connections(limit=2)
    busy = fill(connections, 2)
    for connection in busy:
        connections.mark_busy(connection)
    assert not connections.admit(Connection())
    connections.remove(busy[0])
    assert connections.admit(Connection())


async def test_a_closed_connection_does_not_become_idle() -> None:
    connections = Connections(limit=1)
    [closed] = fill(connections, 1)
    connections.remove(closed)
    connections.mark_idle(closed)
    assert not connections.free_descriptor()


async def test_an_address_takes_its_own_places_alone() -> None:
    connections = Connections(limit=100, per_address=2)
    first, second, third, other = (Connection() for _ in range(4))
    assert connections.admit(other, "b")
    assert connections.admit(first, "a") and connections.admit(second, "a")
    connections.mark_busy(first)
    assert connections.admit(third, "a")
    assert [c.is_open for c in (first, second, third, other)] == [1, 0, 1, 1]
    connections.mark_busy(third)
    assert not connections.admit(Connection(), "a")
    connections.mark_idle(first)
    connections.remove(first)
    assert connections.admit(Connection(), "a")
    # Peers of Unix sockets have no address.
    assert all(connections.admit(Connection()) for _ in range(50))
    assert other.is_open


async def test_all_that_leave_are_forgotten() -> None:
    connections = Connections(limit=10, per_address=3)
    made = [Connection() for _ in range(9)]
    for number, connection in enumerate(made):
        assert connections.admit(connection, f"{number % 3}")
        if number % 2:
            connections.mark_busy(connection)
    for connection in made:
        connections.remove(connection)
        connections.remove(connection)
    assert vars(connections) | {"_limit": 0} == vars(Connections(10, 3)) | {"_limit": 0}


async def test_a_flood_is_one_log_line_a_minute(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    connections = Connections(limit=2)
    fill(connections, 500)
    assert len(read_warnings(caplog)) == 1
    await trio.sleep(61)
    fill(connections, 1)
    lines = read_warnings(caplog)
    assert len(lines) == 2
    # 499 were closed; the first line reported the first of them.
    assert "498 idle connections were closed and 0 new ones were refused" in lines[1]


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield soft, hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("free", "room"), [(20, 10), (10 * RESERVED, 9 * RESERVED)])
def test_a_part_of_the_descriptors_is_reserved(
    limits: tuple[int, int], free: int, room: int
) -> None:
    num_open = len(os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + free, limits[1]))
    assert count_room() == room


def test_a_server_raises_its_own_limit(limits: tuple[int, int]) -> None:
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 65_536), hard)


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once, except /wait, which never gets an answer."""
    if scope.get("path") == "/wait":
        await trio.sleep_forever()
    await raw_http.answer_well(scope, receive, send)


Connect = Callable[..., Awaitable[trio.SocketStream]]


@pytest.fixture
async def clients() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as clients:
        with trio.fail_after(60):
            yield clients


@pytest.fixture
async def connect(nursery: trio.Nursery, clients: AsyncExitStack) -> Connect:
    """Serve three connections at most; return a function that connects a client."""
    port = await raw_http.serve_app(nursery, answer, max_connections=3)
    return partial(connect_to, clients, port)


async def connect_to(
    clients: AsyncExitStack, port: int, packet: bytes = b""
) -> trio.SocketStream:
    client = await raw_http.connect(port)
    clients.push_async_callback(client.aclose)
    # The server may have refused the connection already.
    with suppress(trio.BrokenResourceError):
        await client.send_all(packet)
    return client


async def test_idle_peers_do_not_keep_others_waiting(connect: Connect) -> None:
    kept = await connect(GET % b"")
    await read_until(kept, b"well")
    strangers = [await connect((GET % b"")[:9]) for _ in range(20)]
    await read_until(await connect(CLOSE), b"well")
    for closed in [kept, *strangers[:-3]]:
        assert await read_all(closed) == b""


@pytest.mark.parametrize(
    "packet", [PREFACE, PREFACE + REQUEST + RESET], ids=["preface", "reset"]
)
async def test_idle_http2_peers_do_not_keep_others_waiting(
    connect: Connect, packet: bytes
) -> None:
    install_guard(enable_h2c=True, max_connections=3)
    for _ in range(3):
        stranger = await connect(packet)
        # The server has read the packet.
        assert await stranger.receive_some()
    await wait_all_tasks_blocked()
    await read_until(await connect(CLOSE), b"well")


async def test_a_new_connection_is_refused_if_all_are_busy(
    connect: Connect,
) -> None:
    busy = []
    for _ in range(3):
        busy.append(await connect(GET % b"wait"))
        await wait_all_tasks_blocked()
    head, _, body = (await read_all(await connect(CLOSE))).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1" in head.split(b"\r\n")
    assert json.loads(body)["error"]["code"] == 503
    await busy[0].aclose()
    await wait_all_tasks_blocked()
    await read_until(await connect(CLOSE), b"well")


async def test_a_request_without_a_free_descriptor_gets_retry_after() -> None:
    app = create_http_app(ServerState(config=HttpConfig()))

    async def fail() -> str:
        await trio.lowlevel.checkpoint()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    app.view_functions["answer_models"] = fail
    response = await app.test_client().get("/v1/models")
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "1"


GREEDY_MODULE = """
import resource
from quart_trio import QuartTrio
from trioserve.http.connection import install_guard

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
install_guard()
app = QuartTrio("test")
taken = []


@app.get("/")
async def health():
    return "well"


@app.get("/take")
async def take():
    try:
        while True:
            taken.append(open("/dev/null"))
    except OSError:
        return "well"
"""


@pytest.mark.slow
async def test_a_server_without_descriptors_answers_and_does_not_fill_its_log(
    clients: AsyncExitStack, tmp_path: Path
) -> None:
    async with raw_http.open_hypercorn(tmp_path, GREEDY_MODULE) as (greedy, port, log):
        connect = partial(connect_to, clients, port)
        for _ in range(100):
            await connect()
        await read_until(await connect(CLOSE), b"well")
        # Now accept() itself fails.
        await read_until(await connect(GET % b"take"), b"well")
        await read_until(await connect(CLOSE), b"well")
        greedy.kill()
        assert greedy.stderr is not None
        log += await read_all(greedy.stderr)
    assert log.count(b"too many connections") == 1
    assert b"Traceback" not in log
