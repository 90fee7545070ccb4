"""A drain waits for running answers. It refuses uploads that are not complete."""

from __future__ import annotations

import h2.events
from http2_client import Http2Client
import httpx2 as httpx
import pytest
from raw_http import connect, read_all, send, write_post
import trio
import trio.testing

from trioserve.config import HttpConfig
from trioserve.http.live.lifecycle import Lifecycle
from trioserve.http.record.progress import RequestProgress
from trioserve.testing.server import FakeServer

PATH = "/v1/completions"
BEGIN = b'{"prompt": "'

# A drain that waits for more than the engine's steps lasts for ever.
pytestmark = pytest.mark.server(http=HttpConfig(drain_timeout=1e9, enable_h2c=True))


async def wait_active(server: FakeServer, num_requests: int) -> None:
    while server.state.lifecycle.num_active != num_requests:
        await trio.lowlevel.checkpoint()


async def test_a_drain_refuses_uploads_and_newcomers_and_lets_a_stream_end(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    body = {"prompt": "a", "max_tokens": 100, "stream": True}
    texts: list[str] = []

    async def read() -> None:
        texts.append((await client.post(PATH, json=body)).text)

    half = write_post(PATH, BEGIN, missing=90)
    async with send(server.port, half) as uploader:
        await wait_active(server, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            while server.engine.statistics().num_streams == 0:
                await trio.lowlevel.checkpoint()
            server.state.lifecycle.begin_drain()
            answer = (await read_all(uploader)).lower()
            assert answer.startswith(b"http/1.1 503")
            assert b"\r\nretry-after: 10\r\n" in answer
            assert b"\r\nconnection: close\r\n" in answer
            refused = await client.post(PATH, json=body)
            health = await client.get("/health")
            assert refused.status_code == health.status_code == 503
            assert refused.headers["retry-after"] == health.headers["retry-after"]
            assert not texts, "the stream still runs"
        await server.state.finish_drain()
    [text] = texts
    assert text.endswith("data: [DONE]\n\n")


async def test_a_drain_refuses_an_upload_over_http2(server: FakeServer) -> None:
    async with await connect(server.port) as stream:
        client = Http2Client(stream)
        await client.request(1, PATH, "POST", content_type="application/json")
        client.connection.send_data(1, BEGIN)
        await client.flush()
        await wait_active(server, 1)
        server.state.lifecycle.begin_drain()
        answer = await client.wait_for(h2.events.ResponseReceived)
        await server.state.finish_drain()
    assert dict(answer.headers)[b":status"] == b"503"


async def test_a_drain_wakes_all_that_wait_for_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lifecycle = Lifecycle(drain_timeout=100.0)
    results: list[tuple[bool, float]] = []

    async def wait() -> None:
        results.append((await lifecycle.wait_drained(), trio.current_time()))

    async with trio.open_nursery() as nursery:
        with lifecycle.hold(RequestProgress()):
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            lifecycle.begin_drain()
            await trio.sleep(5.0)
    assert results == [(True, 5.0), (True, 5.0)]
