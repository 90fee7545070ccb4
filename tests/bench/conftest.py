"""An HTTP server for tests of benches; each test writes its answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest
import trio

# Takes "GET /path" and the body, and returns all bytes of the answer.
Answer = Callable[[str, bytes], Awaitable[bytes]]


def write_answer(status: str, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class HttpFake:
    """Serves keep-alive connections; an answer may close its connection."""

    answer: Answer
    url: str = ""
    num_connections: int = 0

    async def handle(self, stream: trio.SocketStream) -> None:
        self.num_connections += 1
        # A client may leave early, with a reset.
        with suppress(trio.BrokenResourceError):
            async with stream:
                await self._converse(stream)

    async def _converse(self, stream: trio.SocketStream) -> None:
        rest = b""
        while (request := await read_request(stream, rest)) is not None:
            line, body, rest = request
            answer = await self.answer(line, body)
            await stream.send_all(answer)
            if b"Connection: close" in answer:
                return


async def read_request(
    stream: trio.SocketStream, rest: bytes
) -> tuple[str, bytes, bytes] | None:
    while b"\r\n\r\n" not in rest:
        if not (data := await stream.receive_some()):
            return None
        rest += data
    head, _, rest = rest.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(rest) < length:
        rest += await stream.receive_some()
    line = " ".join(head.decode().split()[:2])
    return line, rest[:length], rest[length:]


async def listen(nursery: trio.Nursery, answer: Answer) -> HttpFake:
    fake = HttpFake(answer)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, fake.handle, listeners)
    fake.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    return fake


@pytest.fixture(name="listen")
def give_listen() -> Callable[[trio.Nursery, Answer], Awaitable[HttpFake]]:
    """Serve a test's answers on a free port until the nursery ends."""
    return listen


@pytest.fixture(name="write_answer")
def give_write_answer() -> Callable[..., bytes]:
    """Write a whole answer with a body."""
    return write_answer
