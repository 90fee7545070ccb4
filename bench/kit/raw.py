"""HTTP with one request a connection, written by hand.

A load generator shares the machine with the server that it measures. Parsing an answer
would cost as much as the server spends on writing it, so this client reads only the
status. trioserve/programs/http/client.py has a connection that stays open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import trio

from trioserve.programs.http.client import RequestRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that is encoded before the measurement."""

    path: str
    body: bytes

    @property
    def head(self) -> bytes:
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\n"
            f"Content-Length: {len(self.body)}\r\n\r\n"
        ).encode()


def write_request(path: str, **fields: object) -> Request:
    """Encode a request whose body has these fields."""
    return Request(path=path, body=msgspec.json.encode(fields))


@asynccontextmanager
async def open_request(port: int, request: Request) -> AsyncIterator[trio.SocketStream]:
    """Send a request on a connection of its own; the block reads the answer."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        # Two calls, because joining the two would copy a large body.
        await stream.send_all(request.head)
        await stream.send_all(request.body)
        yield stream


async def ask(port: int, request: Request) -> bytes:
    """Send a request and return the body of its answer, chunk sizes included.

    Raises:
      RequestRefused: the status is not 200.
      OSError, trio.BrokenResourceError: the connection was closed.
    """
    async with open_request(port, request) as stream:
        answer = b"".join([bytes(data) async for data in stream])
    head, _, body = answer.partition(b"\r\n\r\n")
    check_status(head, body)
    return body


def check_status(head: bytes, body: bytes = b"") -> None:
    """Refuse an answer whose status is not 200.

    Raises:
      RequestRefused: the status is another one.
    """
    if not head.startswith(b"HTTP/1.1 200"):
        status = head[9:12]
        raise RequestRefused(int(status) if status.isdigit() else 0, body or head)
