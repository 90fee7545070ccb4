"""A connection goes to a checked address and to no other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
import socket

import httpcore2
import pytest
import trio

from trioserve.render.images.address import IPAddress, is_public
from trioserve.render.images.connect import CheckedBackend


class Names(trio.abc.HostnameResolver):
    """A fake DNS that gives a name's answers in turn, and repeats the last one."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self._answers = answers
        self.num_questions = 0

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        self.num_questions += 1
        name = host.decode() if isinstance(host, bytes) else str(host)
        answers = self._answers.get(name.partition(".")[0])
        if answers is None:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        kind = socket.SOCK_STREAM
        assert isinstance(port, int)
        return [(socket.AF_INET, kind, 6, "", (text, port)) for text in answer]

    async def getnameinfo(
        self, sockaddr: tuple[str, int] | tuple[str, int, int, int], flags: int
    ) -> tuple[str, str]:
        raise NotImplementedError


def is_loopback(address: IPAddress) -> bool:
    return address.is_loopback


@dataclass(kw_only=True)
class Server:
    """Listens on 127.0.0.1, and lists the peers that connect."""

    port: int
    peers: list[str]


@pytest.fixture
async def server(nursery: trio.Nursery) -> AsyncIterator[Server]:
    peers: list[str] = []

    async def handle(stream: trio.SocketStream) -> None:
        peers.append(stream.socket.getpeername()[0])

    (listener,) = await nursery.start(
        partial(trio.serve_tcp, handle, 0, host="127.0.0.1")
    )
    with trio.fail_after(60):
        yield Server(port=listener.socket.getsockname()[1], peers=peers)
    nursery.cancel_scope.cancel()


async def connect(
    host: str, port: int, is_allowed: Callable[[IPAddress], bool] = is_loopback
) -> None:
    stream = await CheckedBackend(is_allowed).connect_tcp(host, port, timeout=5)
    # The stream ends after the server has noted its peer.
    assert await stream.read(1) == b""
    await stream.aclose()


async def test_a_name_is_resolved_once_and_its_checked_address_is_used(
    server: Server,
) -> None:
    """DNS rebinding fails: a second answer, with another host, is never requested."""
    names = Names(pictures=[["127.0.0.1"], ["127.0.0.9"]])
    trio.socket.set_custom_hostname_resolver(names)
    await connect("pictures.test", server.port)
    assert names.num_questions == 1
    assert server.peers == ["127.0.0.1"]


@pytest.mark.parametrize(
    "answer", [["10.0.0.1"], ["127.0.0.1", "10.0.0.1"], ["10.0.0.1", "127.0.0.1"], []]
)
async def test_no_connection_to_a_name_with_an_address_that_is_not_allowed(
    answer: list[str], server: Server
) -> None:
    trio.socket.set_custom_hostname_resolver(Names(mixed=[answer]))
    with pytest.raises(httpcore2.ConnectError):
        await connect("mixed.test", server.port)
    assert server.peers == []


async def test_the_next_address_is_tried_if_one_does_not_answer(server: Server) -> None:
    names = Names(twins=[["127.0.0.2", "127.0.0.1"]])
    trio.socket.set_custom_hostname_resolver(names)
    await connect("twins.test", server.port)
    assert server.peers == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["unknown.test", "127.0.0.2"])
async def test_a_host_that_does_not_answer_is_a_connect_error(
    host: str, server: Server
) -> None:
    trio.socket.set_custom_hostname_resolver(Names())
    with pytest.raises(httpcore2.ConnectError):
        await connect(host, server.port)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0x7f.1", "2130706433", "0"])
async def test_no_spelling_of_this_machine_is_public(host: str, server: Server) -> None:
    with pytest.raises(httpcore2.ConnectError):
        await connect(host, server.port, is_public)
    assert server.peers == []
