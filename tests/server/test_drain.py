"""A drain waits for running answers. It refuses uploads that are not complete."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import h2.connection
import h2.events
import httpx2 as httpx
import pytest
import trio
import trio.testing

from trioserve.config import HttpConfig
from trioserve.http.live.lifecycle import Lifecycle
from trioserve.http.record.progress import Progress
from trioserve.testing.server import FakeServer, open_fake_server

PATH = "/v1/completions"
HALF_A_REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    b'Content-Length: 100\r\n\r\n{"prompt": "'
)


@pytest.fixture
async def server(tokenizer_folder: Path) -> AsyncIterator[FakeServer]:
    # A drain that waits for more than the engine's steps lasts for ever.
    config = HttpConfig(drain_timeout=1e9, enable_h2c=True)
    async with open_fake_server(tokenizer_folder, http=config) as server:
        with trio.fail_after(60):
            yield server


async def wait_active(server: FakeServer, num_requests: int) -> None:
    while server.state.lifecycle.num_active != num_requests:
        await trio.lowlevel.checkpoint()


async def test_a_drain_refuses_an_upload_and_lets_a_stream_end(
    server: FakeServer,
) -> None:
    body = {"prompt": "a", "max_tokens": 100, "stream": True}
    texts: list[str] = []

    async def read() -> None:
        async with httpx.AsyncClient(base_url=server.url) as client:
            texts.append((await client.post(PATH, json=body)).text)

    async with await trio.open_tcp_stream("127.0.0.1", server.port) as uploader:
        await uploader.send_all(HALF_A_REQUEST)
        await wait_active(server, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            while server.engine.statistics().num_streams == 0:
                await trio.lowlevel.checkpoint()
            server.state.lifecycle.begin_drain()
            answer = b"".join([data async for data in uploader]).lower()
            assert answer.startswith(b"http/1.1 503")
            assert b"\r\nretry-after: 10\r\n" in answer
            assert b"\r\nconnection: close\r\n" in answer
            assert not texts, "the stream still runs"
        await server.state.finish_drain()
    [text] = texts
    assert text.endswith("data: [DONE]\n\n")


async def test_a_drain_refuses_an_upload_over_http2(server: FakeServer) -> None:
    client = h2.connection.H2Connection()
    client.initiate_connection()
    fields = {":method": "POST", ":path": PATH, ":scheme": "http", ":authority": "h"}
    client.send_headers(
        1, list(fields.items()) + [("content-type", "application/json")]
    )
    client.send_data(1, b'{"prompt": "')
    answers: list[h2.events.ResponseReceived] = []
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        await stream.send_all(client.data_to_send())
        await wait_active(server, 1)
        server.state.lifecycle.begin_drain()
        while not answers:
            events = client.receive_data(await stream.receive_some())
            answers = [e for e in events if isinstance(e, h2.events.ResponseReceived)]
        await server.state.finish_drain()
    assert dict(answers[0].headers)[b":status"] == b"503"


async def test_a_drain_wakes_all_that_wait_for_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lifecycle = Lifecycle(drain_timeout=100.0)
    results: list[tuple[bool, float]] = []

    async def wait() -> None:
        results.append((await lifecycle.wait_drained(), trio.current_time()))

    async with trio.open_nursery() as nursery:
        with lifecycle.hold(Progress()):
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            lifecycle.begin_drain()
            await trio.sleep(5.0)
    assert results == [(True, 5.0), (True, 5.0)]
