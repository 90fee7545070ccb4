"""Requests whose client leaves are counted, by their phase."""

from __future__ import annotations

from collections.abc import Callable
import logging
from pathlib import Path
import threading
from typing import Any

from http2_client import Http2Client
import httpx2 as httpx
from prometheus_client.parser import text_string_to_metric_families
import pytest
from raw_http import ask, connect, send, write_post
import trio
from trio.testing import wait_all_tasks_blocked

from trioserve.config import HttpConfig
from trioserve.http.record.progress import PHASES
from trioserve.server.metrics import render_metrics
from trioserve.testing.server import FakeServer, open_fake_pooling_server

CHAT_PATH = "/v1/chat/completions"
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 200}
# A step that lasts longer than any test, in seconds.
NEVER = 3600.0


def count(server: Any) -> dict[str, float]:
    """Return the counter's values except zeros."""
    families = text_string_to_metric_families(render_metrics(server.state).decode())
    values = {
        sample.labels["phase"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "trioserve_requests_cancelled_total"
    }
    assert set(values) == set(PHASES)
    return {phase: value for phase, value in values.items() if value}


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.001)


def write_chat(**fields: object) -> bytes:
    return write_post(CHAT_PATH, CHAT | fields)


async def test_one_that_leaves_in_its_body(server: FakeServer) -> None:
    async with send(server.port, write_post(CHAT_PATH, b"{" * 100, missing=100)):
        await wait_until(lambda: server.state.bodies.num_bytes > 0)
    await wait_until(lambda: server.state.lifecycle.num_active == 0)
    assert count(server) == {"body": 1}


async def test_one_that_leaves_while_it_is_rendered(server: FakeServer) -> None:
    workers = server.state.engine.renderer.workers  # type: ignore[union-attr]
    workers.resize(1)
    gate = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workers.run, gate.wait)
        await wait_until(lambda: workers.statistics().busy == 1)
        async with send(server.port, write_chat()):
            await wait_until(lambda: workers.statistics().waiting == 1)
        await wait_until(lambda: server.state.lifecycle.num_active == 0)
        gate.set()
    assert count(server) == {"render": 1}


@pytest.mark.server(step_seconds=NEVER)
async def test_those_that_leave_before_their_first_token(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "trioserve.http.answer")
    fresh = server.engine.statistics()

    def sequences() -> tuple[int, int]:
        seen = server.engine.statistics().scheduler
        return seen.num_running, seen.num_waiting

    async with send(server.port, write_chat(stream=True, request_id="one")):
        await wait_until(lambda: sequences() == (1, 0))
        # Request two waits: the next step is planned after this one has ended.
        async with send(server.port, write_chat(request_id="two")):
            await wait_until(lambda: sequences() == (1, 1))
        await wait_until(lambda: sequences() == (1, 0))
        assert count(server) == {"queue": 1}
    await wait_until(lambda: server.engine.statistics().num_streams == 0)
    assert count(server) == {"queue": 1, "prefill": 1}
    assert server.engine.statistics().num_streams == fresh.num_streams
    messages = [each.getMessage() for each in caplog.records]
    assert [each for each in messages if "left" in each] == [
        "request two: its client left in queue",
        "request one: its client left in prefill",
    ]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.server(step_seconds=0.05)
async def test_one_that_leaves_among_its_tokens(
    server: FakeServer, streams: bool
) -> None:
    fresh = server.engine.statistics()
    async with send(server.port, write_chat(stream=streams)) as client:
        await wait_until(lambda: server.engine.counters().num_sampled_tokens > 0)
        if streams:
            await client.receive_some()
    await wait_until(lambda: server.engine.statistics() == fresh)
    assert count(server) == {"decode": 1}


@pytest.mark.parametrize("path", ["/version", "/openapi.json"])
@pytest.mark.server(http=HttpConfig(enable_h2c=True))
async def test_one_that_leaves_while_it_is_written_to(
    server: FakeServer, path: str
) -> None:
    async with await connect(server.port) as stream:
        # It accepts only the head of an answer.
        client = Http2Client(stream, window=0)
        await client.request(1, path)
        phases = server.state.lifecycle.count_phases
        await wait_until(lambda: phases()["write"] == 1)
        await wait_all_tasks_blocked(cushion=0.01)
    await wait_until(lambda: server.state.lifecycle.num_active == 0)
    assert count(server) == {"write": 1}


async def test_clients_that_stay_are_not_counted(server: FakeServer) -> None:
    async with httpx.AsyncClient(base_url=server.url) as client:
        for body in (CHAT, CHAT | {"stream": True}, CHAT | {"n": 0}):
            fields = body | {"max_tokens": 3}
            await client.post(CHAT_PATH, json=fields)
            await client.post(CHAT_PATH, json=fields, headers={"connection": "close"})
        await client.get("/nowhere")
    await ask(server.port, b"GET /health HTTP/1.0\r\n\r\n")
    await wait_until(lambda: server.state.lifecycle.num_active == 0)
    assert count(server) == {}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/embeddings", {"input": ["a"] * 300}),
        ("/rerank", {"query": "a", "documents": ["b"] * 300}),
        ("/v2/embed", {"texts": ["a"] * 300}),
    ],
)
async def test_one_that_leaves_while_its_texts_are_pooled(
    tokenizer_folder: Path, path: str, fields: dict[str, object]
) -> None:
    packet = write_post(path, fields)
    async with open_fake_pooling_server(tokenizer_folder, step_seconds=0.2) as server:
        fresh = server.engine.statistics()
        with trio.fail_after(60):
            async with send(server.port, packet):
                await wait_until(lambda: server.engine.statistics().num_requests == 1)
                await wait_until(
                    lambda: server.engine.statistics().scheduler.num_running > 0
                )
            await wait_until(lambda: server.state.lifecycle.num_active == 0)
            assert count(server) == {"prefill": 1}
            await wait_until(lambda: server.engine.statistics() == fresh)
            await wait_until(lambda: not server.device.kept)
            assert server.state.bodies.num_bytes == 0


@pytest.mark.server(http=HttpConfig(drain_timeout=0.01), step_seconds=NEVER)
async def test_a_drain_logs_the_phases_of_the_requests_that_it_ends(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with send(server.port, write_chat()):
        # Otherwise the second request would be in the same step.
        await wait_until(lambda: server.engine.statistics().scheduler.num_running == 1)
        async with send(server.port, write_chat()) as client:
            await wait_until(lambda: server.engine.statistics().num_streams == 2)
            server.state.lifecycle.begin_drain()
            assert b" 503 " in await client.receive_some()
    assert "and ends requests: 1 in queue, 1 in prefill" in caplog.text
