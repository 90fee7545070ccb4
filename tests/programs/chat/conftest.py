"""A server that answers with bytes which a test chooses, and conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from trioserve.programs.chat.config import SamplingConfig
from trioserve.programs.chat.conversation import Conversation
from trioserve.programs.chat.slash import SlashCommands

MODELS = {"object": "list", "data": [{"id": "first"}, {"id": "second"}]}


def make_answer(body: bytes, *, status: int = 200, length: int | None = None) -> bytes:
    """Return a whole answer.

    Args:
      length: as the head says; by default it is right.
    """
    head = (
        f"HTTP/1.1 {status} X\r\nContent-Length: {len(body) if length is None else length}"
        "\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def make_events(*events: Any) -> bytes:
    """Return events; a text is a piece of the answer, and a dictionary a whole chunk."""
    chunks = [
        {"choices": [{"delta": {"content": each}}]} if isinstance(each, str) else each
        for each in events
    ]
    return b"".join(b"data: %b\r\n\r\n" % json.dumps(each).encode() for each in chunks)


END: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


class CannedServer:
    """Answers each request by its path; "/v1" is left out.

    Attributes:
      answers: path -> bytes.
      requests: the heads, and the decoded bodies.
    """

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {
            "/models": make_answer(json.dumps(MODELS).encode())
        }
        self.requests: list[tuple[str, Any]] = []
        self.url = ""

    async def handle(self, stream: trio.SocketStream) -> None:
        async with stream:
            content = b""
            while b"\r\n\r\n" not in content:
                if not (part := await stream.receive_some()):
                    return
                content += part
                if content.startswith(b"\x16\x03"):
                    # Servers without TLS answer its first message like this.
                    await stream.send_all(make_answer(b"", status=400))
                    return
            head, _, body = content.partition(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            while len(body) < length:
                body += await stream.receive_some()
            path = head.split()[1].decode().partition("/v1")[2]
            self.requests.append((head.decode(), json.loads(body) if body else None))
            await stream.send_all(self.answers[path])


@asynccontextmanager
async def open_canned_server(uds: Path | None = None) -> AsyncIterator[CannedServer]:
    """Serve on a free port, or on a Unix socket, until the block is left."""
    server = CannedServer()
    async with trio.open_nursery() as nursery:
        if uds is None:
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            server.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        else:
            sock = trio.socket.socket(trio.socket.AF_UNIX)
            await sock.bind(str(uds))
            sock.listen()
            listener = trio.SocketListener(sock)
        await nursery.start(partial(trio.serve_listeners, server.handle, [listener]))
        nursery.cancel_scope.deadline = trio.current_time() + 60
        yield server
        assert not nursery.cancel_scope.cancel_called, "the test takes too long"
        nursery.cancel_scope.cancel()


@pytest.fixture
async def canned() -> Any:
    async with open_canned_server() as server:
        yield server


PNG = b"\x89PNG\r\n\x1a\n..."


def open_commands(
    conversation: Conversation, takes_images: bool | None = None
) -> SlashCommands:
    return SlashCommands(
        conversation, SamplingConfig(), model="tiny", takes_images=takes_images
    )


def talk(conversation: Conversation, question: str, answer: str) -> None:
    conversation.ask(question)
    conversation.answer(answer)


@pytest.fixture
def conversation() -> Conversation:
    return Conversation()


@pytest.fixture
def commands(conversation: Conversation) -> SlashCommands:
    return open_commands(conversation)
