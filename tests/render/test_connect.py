"""A connection goes to a checked address and to no other."""

from __future__ import annotations

from collections.abc import Callable
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


async def serve(nursery: trio.Nursery) -> tuple[int, list[str]]:
    """Listen on 127.0.0.1; return the port, and a list of the peers that connect."""
    peers: list[str] = []

    async def handle(stream: trio.SocketStream) -> None:
        peers.append(stream.socket.getpeername()[0])

    (listener,) = await nursery.start(
        partial(trio.serve_tcp, handle, 0, host="127.0.0.1")
    )
    return listener.socket.getsockname()[1], peers


async def connect(
    host: str, port: int, is_allowed: Callable[[IPAddress], bool] = is_loopback
) -> None:
    stream = await CheckedBackend(is_allowed).connect_tcp(host, port, timeout=5)
    # The stream ends after the server has noted its peer.
    assert await stream.read(1) == b""
    await stream.aclose()


async def test_a_name_is_resolved_once_and_its_checked_address_is_used(
    nursery: trio.Nursery,
) -> None:
    """DNS rebinding fails: a second answer, with another host, is never requested."""
    names = Names(pictures=[["127.0.0.1"], ["127.0.0.9"]])
    trio.socket.set_custom_hostname_resolver(names)
    port, peers = await serve(nursery)
    with trio.fail_after(60):
        await connect("pictures.test", port)
    assert names.num_questions == 1
    assert peers == ["127.0.0.1"]
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "answer",
    [["10.0.0.1"], ["127.0.0.1", "10.0.0.1"], ["10.0.0.1", "127.0.0.1"], []],
)
async def test_no_connection_to_a_name_with_an_address_that_is_not_allowed(
    answer: list[str], nursery: trio.Nursery
) -> None:
    trio.socket.set_custom_hostname_resolver(Names(mixed=[answer]))
    port, peers = await serve(nursery)
    with trio.fail_after(60), pytest.raises(httpcore2.ConnectError):
        await connect("mixed.test", port)
    assert peers == []
    nursery.cancel_scope.cancel()


async def test_the_next_address_is_tried_if_one_does_not_answer(
    nursery: trio.Nursery,
) -> None:
    names = Names(twins=[["127.0.0.2", "127.0.0.1"]])
    trio.socket.set_custom_hostname_resolver(names)
    port, peers = await serve(nursery)
    with trio.fail_after(60):
        await connect("twins.test", port)
    assert peers == ["127.0.0.1"]
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("host", ["unknown.test", "127.0.0.2"])
async def test_a_host_that_does_not_answer_is_a_connect_error(
    host: str, nursery: trio.Nursery
) -> None:
    trio.socket.set_custom_hostname_resolver(Names())
    port, _ = await serve(nursery)
    with trio.fail_after(60), pytest.raises(httpcore2.ConnectError):
        await connect(host, port)
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0x7f.1", "2130706433", "0"])
async def test_no_spelling_of_this_machine_is_public(
    host: str, nursery: trio.Nursery
) -> None:
    port, peers = await serve(nursery)
    with trio.fail_after(60), pytest.raises(httpcore2.ConnectError):
        await connect(host, port, is_public)
    assert peers == []
    nursery.cancel_scope.cancel()
