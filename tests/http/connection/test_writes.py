"""An answer takes few writes, and a chunk few layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2 as httpx
import pytest
import raw_http
import trio
import trio.testing

from trioserve.api.completions.events import CompletionChunks
from trioserve.http.answer import EventConnection
from trioserve.http.connection import CHUNKS
from trioserve.http.connection.server import GuardedServer

Send = Callable[[dict[str, Any]], Awaitable[None]]
Ask = Callable[[bytes], Awaitable[bytes]]

LENGTH_5 = (b"content-length", b"5")
LARGE = bytes(2**18)


class App:
    """Sends the events of one answer.

    Attributes:
      chunked: whether CHUNKS was there behind the head.
    """

    def __init__(self) -> None:
        self.chunked: list[bool] = []

    async def answer(self, scope: Any, receive: Any, send: Send) -> None:
        assert scope["type"] == "http", "no lifespan"
        path = scope["path"]
        headers = {
            "/short": [LENGTH_5],
            "/headless": [LENGTH_5],
            "/empty": [(b"content-length", b"0")],
            "/large": [(b"content-length", b"%d" % len(LARGE))],
        }.get(path, [])
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self.chunked.append(CHUNKS in scope["extensions"])
        if path == "/headless":
            return
        if path == "/stream":
            await trio.testing.wait_all_tasks_blocked()
            for text in (b"one", b"", b"three"):
                if chunks := scope["extensions"].get(CHUNKS):
                    if text:
                        await chunks.send(text)
                else:
                    await send(_make_body(text, more=True))
        elif path != "/empty":
            # As quart does it.
            await send(_make_body({"/large": LARGE}.get(path, b"short"), more=True))
        await send(_make_body(b"", more=False))


def _make_body(data: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The data of all writes of the server."""
    written: list[bytes] = []
    write, write_soon = GuardedServer.write, GuardedServer.write_soon

    async def record(self: GuardedServer, data: bytes) -> None:
        written.append(data)
        await write(self, data)

    def record_soon(self: GuardedServer, data: bytes) -> None:
        written.append(data)
        write_soon(self, data)

    monkeypatch.setattr(GuardedServer, "write", record)
    monkeypatch.setattr(GuardedServer, "write_soon", record_soon)
    return written


@pytest.fixture
async def ask(
    app: App, writes: list[bytes], nursery: trio.Nursery
) -> AsyncIterator[Ask]:
    port = await raw_http.serve_app(nursery, app.answer)

    async def ask(packet: bytes) -> bytes:
        end = b"Host: h\r\nConnection: close\r\n\r\n"
        return await raw_http.ask(port, packet + end)

    with trio.fail_after(60):
        yield ask


@pytest.mark.parametrize("path", [b"/short", b"/empty"])
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_short_answer_is_one_write(
    ask: Ask, writes: list[bytes], method: bytes, path: bytes, version: bytes
) -> None:
    answer = await ask(b"%b %b HTTP/%b\r\n" % (method, path, version))
    assert writes == [answer]
    has_body = (method, path) == (b"GET", b"/short")
    assert answer.endswith(b"\r\n\r\nshort" if has_body else b"\r\n\r\n")


async def test_a_long_answer_is_not_copied(ask: Ask, writes: list[bytes]) -> None:
    answer = await ask(b"GET /large HTTP/1.1\r\n")
    assert answer.endswith(LARGE) and len(writes) == 2
    assert writes[1] is LARGE


async def test_the_head_is_sent_if_the_app_ends_without_a_body(
    ask: Ask, writes: list[bytes]
) -> None:
    answer = await ask(b"GET /headless HTTP/1.1\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\n")


async def test_the_head_of_a_stream_waits_for_nothing_and_each_chunk_is_a_write(
    ask: Ask, app: App, writes: list[bytes]
) -> None:
    expected = [b"3\r\none\r\n", b"5\r\nthree\r\n", b"0\r\n\r\n"]
    await ask(b"GET /stream HTTP/1.1\r\n")
    assert app.chunked == [True]
    assert writes[0].endswith(b"\r\n\r\n") and writes[1:] == expected


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_a_stream_without_chunks_goes_through_h11(
    ask: Ask, app: App, method: bytes
) -> None:
    answer = await ask(method + b" /stream HTTP/1.0\r\n")
    assert app.chunked == [False]
    assert answer.endswith(b"\r\n\r\nonethree" if method == b"GET" else b"\r\n\r\n")


async def test_a_chunk_that_the_client_does_not_take_at_once_is_written_by_and_by(
    nursery: trio.Nursery,
) -> None:
    """Its sender does not wait, and what it sends next comes behind it."""
    free: list[bool] = []
    # More than the kernel keeps for both ends.
    flood = bytes(range(256)) * 2**16

    async def answer(scope: Any, receive: Any, send: Send) -> None:
        assert scope["type"] == "http", "no lifespan"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        chunks = scope["extensions"][CHUNKS]
        free.append(chunks.is_free)
        chunks.send_now(b"first")
        free.append(chunks.is_free)
        chunks.send_now(flood)
        free.append(chunks.is_free)
        await chunks.send(b"last")
        await trio.testing.wait_all_tasks_blocked()
        free.append(chunks.is_free)
        await send(_make_body(b"", more=False))

    port = await raw_http.serve_app(nursery, answer)
    request = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    async with raw_http.send(port, request) as client:
        await trio.testing.wait_all_tasks_blocked()
        assert free == [True, True, False]
        data = await raw_http.read_all(client)
    _, _, body = data.partition(b"\r\n\r\n")
    size = b"%x\r\n" % len(flood)
    rest = b"\r\n4\r\nlast\r\n0\r\n\r\n"
    assert body == b"5\r\nfirst\r\n" + size + flood + rest
    assert free == [True, True, False, True]
    nursery.cancel_scope.cancel()


async def test_events_are_written_in_the_engine_s_turn(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To wake the task of a request for each of them would take as long again."""
    counts: Counter[str] = Counter()
    for name in ("send", "send_now"):
        monkeypatch.setattr(EventConnection, name, count_calls(counts, name))
    await stream_choices(client, num_choices=1, num_tokens=20)
    assert counts["send_now"] > counts["send"]


def count_calls(counts: Counter[str], name: str) -> Callable[..., Any]:
    original = getattr(EventConnection, name)

    def call(*args: Any) -> Any:
        counts[name] += 1
        return original(*args)

    return call


async def test_the_events_of_a_step_are_one_write(
    client: httpx.AsyncClient, writes: list[bytes]
) -> None:
    events = await stream_choices(client, num_choices=8, num_tokens=20)
    chunks = [data for data in writes if b"data: " in data]
    assert len(events) >= 4 * len(chunks)
    # One for each step, and one for the end.
    assert len(chunks) <= 21


async def test_events_in_front_of_a_failure_are_sent(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = CompletionChunks.text

    def fail(chunks: CompletionChunks, *args: Any, **options: Any) -> bytes:
        if chunks._index == 2:
            raise ValueError("a defect")
        return write(chunks, *args, **options)

    monkeypatch.setattr(CompletionChunks, "text", fail)
    *events, failure, done = await stream_choices(client, num_choices=4, num_tokens=20)
    assert [event["choices"][0]["index"] for event in events] == [0, 1]
    assert failure["error"]["code"] == 500


async def stream_choices(
    client: httpx.AsyncClient, *, num_choices: int, num_tokens: int
) -> list[Any]:
    """Stream several choices of a prompt; returns the data of all events."""
    body = {
        "prompt": "a",
        "n": num_choices,
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    answer = await client.post("/v1/completions", json=body)
    return raw_http.read_events(answer.text)
