"""A request ends at its deadline, in whichever phase it is, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import nullcontext
import json
import re
from typing import Any

import h2.events
from http2_client import Http2Client
import httpx2 as httpx
import pytest
import raw_http
from raw_http import ask, connect, write_post
import trio

from trioserve.config import HttpConfig
from trioserve.errors import RequestCancelled
from trioserve.http.connection.exchange import Peer
from trioserve.http.record.progress import RequestProgress
from trioserve.http.time_limit import TimeLimit
from trioserve.testing.server import (
    FakeServer,
    open_fake_pooling_server,
)

PATH = "/v1/completions"
PROMPT = {"prompt": "a", "max_tokens": 200}
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 200}

# Otherwise some of these requests would not even begin.
pytestmark = pytest.mark.server(http=HttpConfig(refuse_late=False))


@pytest.fixture
async def server(server: FakeServer) -> AsyncIterator[FakeServer]:
    """The server, which holds nothing behind a test."""
    fresh = server.engine.statistics()
    yield server
    while server.state.lifecycle.num_active:
        await trio.sleep(0.01)
    while server.engine.statistics() != fresh:
        await trio.sleep(0.01)


async def post(
    server: FakeServer, body: object, path: str = PATH, **headers: str
) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        return await client.post(path, json=body, headers=headers)


def read_events(answer: httpx.Response) -> list[Any]:
    """Return the data of all events of a stream that ended as it should."""
    *events, done = raw_http.read_events(answer.text)
    assert done == "[DONE]"
    return events


@pytest.mark.server(step_seconds=0.05)
@pytest.mark.parametrize(
    ("path", "as_header"),
    [(PATH, True), ("/v1/chat/completions", False), ("/v1/responses", False)],
)
async def test_a_request_without_an_answer_in_time_is_answered_504(
    server: FakeServer, path: str, as_header: bool
) -> None:
    bodies = {PATH: PROMPT, "/v1/chat/completions": CHAT}
    body = bodies.get(path, {"input": "a"})
    headers = {"X-Request-Timeout": "0.2"} if as_header else {}
    fields = {} if as_header else {"timeout": 0.2}
    answer = await post(server, {**body, **fields}, path, **headers)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == 504
    # On a busy machine, the first step may take as long.
    phases = "'(render|queue|prefill|decode)'"
    assert re.search(phases, answer.json()["error"]["message"])
    assert "0.2 s" in answer.json()["error"]["message"]
    # The official clients would send it again.
    assert answer.headers["x-should-retry"] == "false"


async def test_an_upload_counts(server: FakeServer) -> None:
    half = write_post(PATH, b"{", missing=99, X_Request_Timeout="0.2")
    answer = await ask(server.port, half)
    assert answer.startswith(b"HTTP/1.1 504")
    assert b"'body'" in answer


@pytest.mark.server(step_seconds=0.02)
@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions"])
async def test_a_stream_ends_with_its_text_so_far(
    server: FakeServer, path: str
) -> None:
    body = PROMPT if path == PATH else CHAT
    options = {"stream": True, "stream_options": {"include_usage": True}, "n": 2}
    answer = await post(server, {**body, **options, "timeout": 0.3}, path)
    assert answer.status_code == 200
    *chunks, usage = read_events(answer)
    for index in range(2):
        choices = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        reasons = [choice["finish_reason"] for choice in choices]
        assert reasons == [None] * (len(reasons) - 1) + ["deadline"]
        assert len(reasons) > 2
    assert 2 < usage["usage"]["completion_tokens"] < 400


@pytest.mark.server(step_seconds=0.4)
async def test_a_stream_without_a_token_ends_so_too(server: FakeServer) -> None:
    answer = await post(server, {**PROMPT, "stream": True, "timeout": 0.2})
    [chunk] = read_events(answer)
    assert chunk["choices"][0]["finish_reason"] == "deadline"


@pytest.mark.server(step_seconds=0.02)
async def test_responses_and_messages_say_why_they_are_incomplete(
    server: FakeServer,
) -> None:
    answer = await post(
        server, {"input": "a", "stream": True, "timeout": 0.3}, "/v1/responses"
    )
    last = json.loads(answer.text.strip().rpartition("data: ")[2])
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "deadline"}
    answer = await post(
        server, {**CHAT, "stream": True, "timeout": 0.3}, "/v1/messages"
    )
    assert '"stop_reason":"deadline"' in answer.text
    answer = await post(server, {**CHAT, "timeout": 0.2}, "/v1/messages")
    assert answer.status_code == 504
    assert answer.json()["error"]["type"] == "timeout_error"


async def fill(server: FakeServer) -> None:
    """Take all places of the device."""
    await post(server, {**PROMPT, "n": 32, "timeout": 2.0})


@pytest.mark.server(step_seconds=0.05)
async def test_a_response_tells_a_deadline_from_a_defect(
    server: FakeServer,
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fill, server)
        while server.engine.statistics().num_streams == 0:
            await trio.sleep(0.01)
        body = {"input": "a", "stream": True, "max_queue_seconds": 0.1}
        answer = await post(server, body, "/v1/responses")
        refused = await post(server, {**CHAT, "max_queue_seconds": 0.1}, "/v1/messages")
        nursery.cancel_scope.cancel()
    last = json.loads(answer.text.strip().rpartition("data: ")[2])
    assert last["response"]["error"]["code"] == "deadline_exceeded"
    assert refused.status_code == 504


@pytest.mark.server(step_seconds=0.05)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_waits_in_the_queue_as_long_as_it_may(
    server: FakeServer, stream: bool
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fill, server)
        while server.engine.statistics().num_streams == 0:
            await trio.sleep(0.01)
        body = {**PROMPT, "stream": stream, "max_queue_seconds": 0.2}
        answer = await post(server, body)
        nursery.cancel_scope.cancel()
    error = read_events(answer)[0] if stream else answer.json()
    assert error["error"]["code"] == 504
    assert error["error"]["param"] == "max_queue_seconds"
    assert answer.status_code == (200 if stream else 504)


@pytest.mark.server(step_seconds=0.02)
async def test_a_request_that_has_begun_is_no_longer_in_the_queue(
    server: FakeServer,
) -> None:
    body = {**PROMPT, "max_tokens": 15, "max_queue_seconds": 0.2}
    answer = await post(server, body)
    assert answer.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.server(http=HttpConfig(refuse_late=False, max_request_timeout=60.0))
async def test_a_limit_that_makes_no_sense_is_refused_by_name(
    server: FakeServer,
) -> None:
    for name, values in {
        "timeout": (0, -1, "soon", 61),
        "max_queue_seconds": (0,),
        "X-Request-Timeout": ("nan", "inf", "soon", "1_0", "61"),
    }.items():
        for value in values:
            is_header = name.startswith("X-")
            fields, headers = ({}, {name: value}) if is_header else ({name: value}, {})
            answer = await post(server, PROMPT | fields, **headers)
            assert answer.status_code == 400, value
            assert answer.json()["error"]["param"] == name


@pytest.mark.server(
    http=HttpConfig(refuse_late=False, request_timeout=0.2, max_request_timeout=60.0),
    step_seconds=0.02,
)
async def test_the_servers_limit_is_for_requests_that_name_none(
    server: FakeServer,
) -> None:
    assert (await post(server, PROMPT)).status_code == 504
    short = {**PROMPT, "max_tokens": 15}
    assert (await post(server, {**short, "timeout": 30})).status_code == 200
    # The shorter one of two counts.
    answer = await post(
        server, {**PROMPT, "timeout": 30}, **{"X-Request-Timeout": "0.2"}
    )
    assert answer.status_code == 504


async def test_a_client_that_does_not_read_ends_with_its_deadline(
    server: FakeServer,
) -> None:
    body = {**PROMPT, "n": 32, "stream": True, "logprobs": 5}
    async with await connect(server.port, receive_buffer=4096) as client:
        await client.send_all(write_post(PATH, body, X_Request_Timeout="0.5"))
        while server.state.lifecycle.num_active == 0:
            await trio.sleep(0.01)
        while server.state.lifecycle.num_active:
            await trio.sleep(0.01)


async def test_a_finished_request_has_no_deadline(server: FakeServer) -> None:
    """Nothing of a request's deadline reaches the next one on its connection."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        short = {**PROMPT, "max_tokens": 3}
        first = await client.post(PATH, json={**short, "timeout": 0.2})
        await trio.sleep(0.25)
        second = await client.post(PATH, json={**PROMPT, "stream": True})
    assert first.status_code == second.status_code == 200
    assert read_events(second)[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.server(open=open_fake_pooling_server, step_seconds=0.4)
async def test_texts_that_are_embedded_have_deadlines(
    client: httpx.AsyncClient,
) -> None:
    body = {"input": "a", "timeout": 0.2}
    answer = await client.post("/v1/embeddings", json=body)
    assert answer.status_code == 504
    assert "'prefill'" in answer.json()["error"]["message"]


@pytest.mark.server(http=HttpConfig(refuse_late=False, enable_h2c=True))
async def test_a_stream_of_http2_that_is_not_read_is_reset(
    server: FakeServer,
) -> None:
    body = json.dumps({**PROMPT, "stream": True}).encode()
    # On a busy machine, the stream must have begun by then.
    fields = {"content_type": "application/json", "x_request_timeout": "2"}
    async with await connect(server.port) as stream:
        client = Http2Client(stream, window=100, opens_windows=False)
        await client.request(1, PATH, "POST", body, **fields)
        assert await client.wait_end(1) is h2.events.StreamReset


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_a_cancel_behind_the_last_checkpoint_counts(is_streaming: bool) -> None:
    """Otherwise the answer begins, and is cut a second later without an end."""
    limit = TimeLimit(HttpConfig(), trio.current_time(), Peer())
    ends = nullcontext() if is_streaming else pytest.raises(RequestCancelled)
    with ends, limit.until_answer(RequestProgress()):
        # A stream that has begun ends by itself.
        limit.cancel(is_streaming=is_streaming)
