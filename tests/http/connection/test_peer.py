"""An app can know whether its answer was written or its peer has left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest
import raw_http
import trio
from trio.testing import wait_all_tasks_blocked

from trioserve.http.connection import PEER, Peer

# More than a kernel buffers for a peer that does not read.
LARGE = bytes(2**24)

Ask = Callable[[bytes], AbstractAsyncContextManager[trio.SocketStream]]


class Server:
    """Answers each request with as many bytes as its path says.

    Attributes:
      peers: the peer of each request.
      ends: set as each of them ends.
    """

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.ends: list[trio.Event] = []

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http", "no lifespan"
        self.peers.append(Peer())
        self.ends.append(trio.Event())
        scope["extensions"][PEER] = self.peers[-1]
        size = int(scope["path"].removeprefix("/"))
        length = (b"content-length", b"%d" % size)
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": LARGE[:size]})
        self.ends[-1].set()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def ask(server: Server, nursery: trio.Nursery) -> Ask:
    port = await raw_http.serve_app(nursery, server.answer)
    return partial(raw_http.send, port)


@pytest.mark.parametrize(
    ("version", "size"), [(b"1.0", 5), (b"1.1", 0), (b"1.1", 2**24)]
)
async def test_one_that_reads_is_answered(
    server: Server, ask: Ask, version: bytes, size: int
) -> None:
    head = b"GET /%d HTTP/%b\r\nHost: h\r\nConnection: close\r\n\r\n" % (size, version)
    with trio.fail_after(60):
        async with ask(head) as client:
            num_bytes = sum([len(data) async for data in client])
        assert num_bytes >= size
        await server.ends[0].wait()
    assert (server.peers[0].is_answered, server.peers[0].is_lost) == (True, False)


async def test_each_request_of_a_connection_is_answered(
    server: Server, ask: Ask
) -> None:
    with trio.fail_after(60):
        packet = b"GET /5 HTTP/1.1\r\nHost: h\r\n\r\n" * 3
        async with ask(packet):
            while len(server.ends) < 3:
                await trio.lowlevel.checkpoint()
            await server.ends[2].wait()
    assert [peer.is_answered for peer in server.peers] == [True] * 3


async def test_one_that_leaves_amid_its_answer_is_lost(
    server: Server, ask: Ask
) -> None:
    with trio.fail_after(60):
        async with ask(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % len(LARGE)):
            await wait_all_tasks_blocked(cushion=0.01)
        await server.ends[0].wait()
    assert (server.peers[0].is_answered, server.peers[0].is_lost) == (False, True)
