"""Requests that violate HTTP/1.1 get an error in the shape of all errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
import json
import re

import pytest
import raw_http
import trio
from trio.testing import wait_all_tasks_blocked

POST = b"POST / HTTP/1.1\r\nHost: h\r\n"
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"

Reply = tuple[int, dict[bytes, bytes], bytes]


@pytest.fixture
async def client(nursery: trio.Nursery) -> AsyncIterator[trio.SocketStream]:
    port = await raw_http.serve_app(nursery, raw_http.answer_well)
    async with await raw_http.connect(port) as stream:
        with trio.fail_after(20):
            yield stream
    nursery.cancel_scope.cancel()


async def ask(client: trio.SocketStream, packet: bytes) -> Reply:
    """Send `packet` and read all that comes until the server closes."""
    await client.send_all(packet)
    data = await raw_http.read_all(client)
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    return int(status.split()[1]), dict(line.split(b": ", 1) for line in lines), body


@pytest.mark.parametrize(
    ("packet", "status", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400, "Missing mandatory Host: header."),
        (b"GET\x00\r\n\r\n", 400, "illegal request line."),
        (b"GET / HTTP/1.1\r\nHost h\r\n\r\n", 400, "illegal header line."),
        (
            POST + b"Transfer-Encoding: chunked\r\n\r\nx\r\n",
            400,
            "illegal chunk header.",
        ),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 200_000, 431, "65536 bytes"),
        (
            POST + b"Transfer-Encoding: gzip\r\n\r\n",
            501,
            "Only Transfer-Encoding: chunked is supported.",
        ),
        (
            b"GET / HTTP/1.1\r\nHost: h\r\n" + b"a:\r\n" * 200,
            431,
            "more than 128 fields",
        ),
        (
            b"GET / HTTP/1.1\r\nHost: h\r\na: b\r\n" + b" c\r\n" * 200 + b"\r\n",
            431,
            "more than 128 fields",
        ),
        (
            b"GET /?" + b"a&" * 5000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
            414,
            "its target is longer than 8192 bytes",
        ),
        (
            POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 2000,
            400,
            "its chunks are too small",
        ),
        (b"GET / HTTP/9.9\r\nHost: h\r\n\r\n", 505, "only HTTP/1.0 and"),
    ],
)
async def test_an_error_of_the_protocol_has_a_body(
    client: trio.SocketStream, packet: bytes, status: int, reason: str
) -> None:
    answered, headers, body = await ask(client, packet)
    error = json.loads(body)["error"]
    assert answered == error["code"] == status
    assert reason in error["message"]
    assert "bytearray" not in error["message"], "quotes the packet"
    assert error["type"] == "BadRequestError"
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"connection"] == b"close"
    assert re.fullmatch(rb"[0-9a-f]{32}", headers[b"x-request-id"])
    assert int(headers[b"content-length"]) == len(body)


async def test_an_error_after_head_has_no_body(client: trio.SocketStream) -> None:
    fields = b"Host: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, headers, body = await ask(client, b"HEAD / HTTP/1.1\r\n" + fields)
    assert (status, body) == (400, b"")
    assert headers[b"connection"] == b"close"


@pytest.mark.parametrize("lines", [[b"\r\n"], [b"\r", b"\n"], [b"\r\n\r\n"], [b"\n"]])
async def test_empty_lines_before_a_request_are_ignored(
    client: trio.SocketStream, lines: list[bytes]
) -> None:
    for _ in range(2):
        for part in [*lines, GET]:
            await client.send_all(part)
            await wait_all_tasks_blocked()
        answer = await client.receive_some()
        assert answer.startswith(b"HTTP/1.1 200")


async def test_an_empty_line_after_a_body_breaks_nothing(
    client: trio.SocketStream,
) -> None:
    request = POST + b"Content-Length: 1\r\n\r\nx\r\n"
    for _ in range(2):
        await client.send_all(request)
        answer = await client.receive_some()
        assert answer.startswith(b"HTTP/1.1 200")
