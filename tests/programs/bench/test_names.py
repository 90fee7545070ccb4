"""Servers are reached by names that are not ASCII."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
import socket
from typing import Any

import pytest
import trio

from trioserve.config.remote import find_base_path, find_netloc
from trioserve.programs.bench.generation.load import Load
from trioserve.programs.bench.generation.measure import measure
from trioserve.programs.bench.measuring.measured_servers import read_servers
from trioserve.programs.http.client import Connection
from trioserve.testing.server import open_fake_server


class Resolver(trio.abc.HostnameResolver):
    """A DNS with one name."""

    async def getaddrinfo(  # type: ignore[override]
        self, host: bytes | None, port: Any, *args: Any, **options: Any
    ) -> Sequence[Any]:
        assert host == b"xn--bcher-kva.example"
        address = ("127.0.0.1", int(port))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address)]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


async def test_a_server_with_an_umlaut_is_measured(tokenizer_folder: Path) -> None:
    async with open_fake_server(tokenizer_folder) as server:
        trio.socket.set_custom_hostname_resolver(Resolver())
        load = Load(concurrency=(1,), requests=2, input_words=2, output_tokens=3)
        servers = read_servers([f"http://bücher.example:{server.port}"])
        with trio.fail_after(60):
            report = await measure(load, servers)
    assert report.servers[0].levels[0].clients.num_requests == 2
    assert report.servers[0].label == f"bücher.example:{server.port}"


async def test_the_host_field_is_ascii() -> None:
    heads: list[bytes] = []

    async def answer(stream: trio.SocketStream) -> None:
        heads.append(bytes(await stream.receive_some()))
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            serve = partial(trio.serve_tcp, answer, 0, host="127.0.0.1")
            [listener] = await nursery.start(serve)
            trio.socket.set_custom_hostname_resolver(Resolver())
            port = listener.socket.getsockname()[1]
            async with Connection(f"http://Bücher.example:{port}/v1") as connection:
                await connection.fetch("GET", "/v1/models")
            nursery.cancel_scope.cancel()
    assert f"Host: xn--bcher-kva.example:{port}\r\n".encode() in heads[0]


@pytest.mark.parametrize(
    ("url", "netloc"),
    [
        ("http://[::1]:8000/v1", "[::1]:8000"),
        ("https://例え.jp", "xn--r8jz45g.jp"),
        ("http://LOCALHOST:80", "localhost:80"),
    ],
)
def test_the_host_and_port_of_an_address(url: str, netloc: str) -> None:
    assert find_netloc(url) == netloc


@pytest.mark.parametrize(
    "path", ["", "/", "/v1", "/v1/", "/v1/chat/completions", "/v1/completions"]
)
def test_people_write_more_or_less_of_the_path(path: str) -> None:
    assert find_base_path(f"http://127.0.0.1:8000/proxy{path}") == "/proxy"
