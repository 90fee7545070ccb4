"""Uploads that are stalled, slow, too long, or of the wrong type."""

from __future__ import annotations

from collections.abc import Iterable
import json
import math

import httpx2 as httpx
import pytest
from raw_http import ask, connect, read_until
import trio

from trioserve.config import HttpConfig
from trioserve.http.bodies.memory import HeapTrimmer, MemoryBudget
from trioserve.http.bodies.upload import ChunkedBody
from trioserve.http.state import ServerState
from trioserve.server.app import create_http_app
from trioserve.testing.server import FakeServer

PATH = "/v1/completions"
BODY = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
PART = b" " * 65_536
HEAD = (
    b"POST %s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n" % PATH.encode()
)

# Of the head of an answer.
END = b"\r\n\r\n"

NUM_STALLED = 18
STALLED = b" " * 120_000


pytestmark = pytest.mark.server(
    http=HttpConfig(max_body_size="1MiB", max_bodies_memory="2MiB")
)


def write_upload(length: int, sent: bytes, *fields: bytes) -> bytes:
    """Begin a request whose body is `length` bytes long."""
    head = HEAD + b"".join(field + b"\r\n" for field in fields)
    return head + b"Content-Length: %d\r\n\r\n%b" % (length, sent)


class Bystander(trio.abc.Instrument):
    """A client with a stream, which other clients' uploads may delay.

    Attributes:
      longest_gap: turns of the event loop without a token.
    """

    def __init__(self) -> None:
        self.longest_gap = 0.0
        # Counted from the first token on.
        self._gap = -math.inf

    def before_io_wait(self, timeout: float) -> None:
        self._gap += 1
        self.longest_gap = max(self.longest_gap, self._gap)

    async def stream(self, server: FakeServer) -> None:
        """Read one answer after another until cancelled."""
        body = {"prompt": "a", "max_tokens": 100, "stream": True}
        trio.lowlevel.add_instrument(self)
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
            while True:
                async with client.stream("POST", PATH, json=body) as stream:
                    async for _ in stream.aiter_lines():
                        self._gap = 0


async def test_small_requests_are_answered_beside_stalled_uploads(
    server: FakeServer,
) -> None:
    refused: list[bytes] = []
    bystander = Bystander()

    async def stall() -> None:
        async with await connect(server.port) as client:
            await client.send_all(write_upload(1_000_000, STALLED))
            refused.append(await read_until(client, END))

    async with (
        httpx.AsyncClient(base_url=server.url, timeout=20) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(bystander.stream, server)
        for _ in range(NUM_STALLED):
            nursery.start_soon(stall)
        bodies = server.state.bodies
        while bodies.num_bytes < (NUM_STALLED - len(refused)) * len(STALLED):
            await trio.sleep(0.001)
        assert refused and all(b"HTTP/1.1 503" in answer for answer in refused)
        assert all(b"connection: close" in answer.lower() for answer in refused)
        for _ in range(10):
            answer = await client.post(PATH, json=json.loads(BODY))
            assert answer.status_code == 200, answer.text
        assert 0 < bystander.longest_gap < 100
        metrics = (await client.get("/metrics")).text
        assert f"trioserve_http_bodies_refused_total {len(refused)}.0" in metrics
        nursery.cancel_scope.cancel()


# Seconds after the head of the request, and the bytes that the client then sends.
Script = Iterable[tuple[float, bytes]]

# There is no engine, so a body that was read to its end gets this status.
IS_READ = 503

UPLOADS: dict[str, tuple[Script, float, int]] = {
    "nothing": ([], 10, 408),
    "a byte each nine seconds": ([(9.0 * i, b" ") for i in range(1, 99)], 10, 408),
    "an eighth of a part a second": (
        [(float(i), PART[: 65_536 // 8]) for i in range(1, 99)] + [(99.0, b"")],
        99,
        IS_READ,
    ),
    "a part each nine seconds": (
        [(9.0 * i, PART) for i in range(1, 99)] + [(9.0 * 99, BODY), (9.0 * 99, b"")],
        891,
        IS_READ,
    ),
    "a part each eleven seconds": ([(11.0 * i, PART) for i in range(99)], 10, 408),
    "much, and then nothing": ([(5.0, PART * 500)], 15, 408),
    "much, and then a drip": (
        [(0.0, PART * 500), *((9.0 * i, b" ") for i in range(1, 99))],
        10,
        408,
    ),
    "a small body at the last moment": ([(9.9, BODY), (9.9, b"")], 9.9, IS_READ),
}


@pytest.mark.parametrize("name", UPLOADS)
async def test_an_upload_has_ten_seconds_for_each_part(
    name: str, autojump_clock: trio.testing.MockClock
) -> None:
    script, seconds, status = UPLOADS[name]
    state = ServerState(config=HttpConfig())
    began = trio.current_time()
    answer = await play(state, script)
    assert answer["status"] == status
    assert trio.current_time() - began == pytest.approx(seconds)
    assert state.bodies.num_bytes == 0


async def play(state: ServerState, script: Script) -> dict[str, object]:
    """Upload over ASGI, an empty part last; return the start of the answer."""
    messages_in, messages = trio.open_memory_channel[dict[str, object]](math.inf)
    answers: list[dict[str, object]] = []

    async def upload() -> None:
        began = trio.current_time()
        for seconds, part in script:
            await trio.sleep_until(began + seconds)
            message = {"type": "http.request", "body": part, "more_body": bool(part)}
            messages_in.send_nowait(message)

    async def send(message: dict[str, object]) -> None:
        answers.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "headers": [(b"host", b"h"), (b"content-type", b"application/json")],
        "client": ("192.0.2.1", 1),
    }
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upload)
        await create_http_app(state)(scope, messages.receive, send)
        nursery.cancel_scope.cancel()
    return answers[0]


@pytest.mark.server(http=HttpConfig(body_timeout=0.05))
async def test_a_slow_upload_gets_the_reason_and_is_closed(server: FakeServer) -> None:
    answer = await ask(server.port, write_upload(1000, b"{"))
    assert server.state.bodies.num_bytes == 0
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"connection: close\r\n" in answer.lower()
    assert b"must arrive within 0.05 seconds" in answer


@pytest.mark.parametrize("expectation", [b"", b"Expect: 100-continue"])
async def test_too_long_a_body_is_refused_at_once_and_closed(
    server: FakeServer, expectation: bytes
) -> None:
    fields = [expectation] if expectation else []
    answer = await ask(server.port, write_upload(10**9, b"", *fields))
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"1048576 bytes" in answer
    assert b"connection: close\r\n" in answer.lower()


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ((b"Content-Type: application/json", b"Content-Type: text/plain"), b"415"),
        ((PATH.encode(), b"/nothing"), b"404"),
        ((b"POST", b"GET"), b"405"),
    ],
)
async def test_the_body_of_a_request_that_is_refused_by_its_head_is_not_invited(
    server: FakeServer, wrong: tuple[bytes, bytes], status: bytes
) -> None:
    packet = write_upload(9, b"", b"Expect: 100-continue")
    answer = await ask(server.port, packet.replace(*wrong))
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close\r\n" in answer.lower()


async def test_a_body_that_is_wanted_is_invited(server: FakeServer) -> None:
    async with await connect(server.port) as client:
        for _ in range(2):
            packet = write_upload(len(BODY), b"", b"Expect: 100-continue")
            await client.send_all(packet)
            assert (await read_until(client, END)).startswith(b"HTTP/1.1 100")
            await client.send_all(BODY)
            answer = await read_until(client, END)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"connection: close" not in answer.lower()


async def test_a_compressed_body_is_refused_by_the_headers_name(
    client: httpx.AsyncClient,
) -> None:
    headers = {"content-type": "application/json"}
    for coding, status in [("gzip", 415), ("br", 415), ("Identity", 200)]:
        headers["content-encoding"] = coding
        answer = await client.post(PATH, content=BODY, headers=headers)
        assert answer.status_code == status
        is_refused = status == 415
        assert (answer.headers.get("accept-encoding") == "identity") == is_refused
        assert ("Content-Encoding must be identity" in answer.text) == is_refused


def make_body() -> ChunkedBody:
    body = ChunkedBody(None, None)
    body.budget, body.heap = MemoryBudget(10**7), HeapTrimmer(None)
    body.peer = ""
    body.part_seconds, body.wait = 10, trio.CancelScope()
    return body


async def test_what_comes_after_the_answer_is_not_held() -> None:
    body = make_body()
    body.append(PART)
    body.release()
    body.append(PART)
    assert body.budget.num_bytes == 0


async def test_an_unread_body_in_pieces_leaves_no_memory_behind(
    server: FakeServer,
) -> None:
    chunk = b"a;%b\r\n0123456789\r\n" % (b"x" * 20)
    fields = b"Host: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
    packet = b"POST /nowhere HTTP/1.1\r\n%b\r\n%b0\r\n\r\n" % (fields, 6 * chunk)
    for _ in range(50):
        assert b"404" in await ask(server.port, packet)
    assert server.state.bodies.num_bytes == 0


async def test_single_bytes_take_hardly_more_memory_than_is_counted() -> None:
    body = make_body()
    for _ in range(50_000):
        body.append(b"a")
    for _ in range(10):
        body.append(PART)
        body.append(b"b")
    body.set_complete()
    chunks = await body.take_chunks()
    assert b"".join(chunks) == b"a" * 50_000 + (PART + b"b") * 10
    assert len(chunks) == 21
