"""A stream with nothing to say sends comments, which clients ignore."""

from __future__ import annotations

from collections.abc import AsyncIterator
import json
import math
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trioserve.config import HttpConfig
from trioserve.http.streams.keepalive import KeepAlive, _Silence
from trioserve.testing.server import FakeServer, open_fake_server

CHAT = {"messages": [{"role": "user", "content": "a"}], "stream": True}
COMMENT = ": keep-alive"
PING = 'event: ping\ndata: {"type":"ping"}'


class Stream:
    """Records the times of its comments."""

    def __init__(self, *, send_seconds: float = 0.0, fails: bool = False) -> None:
        self.is_waiting = True
        self.num_parts = 0
        self.comments: list[float] = []
        self._send_seconds = send_seconds
        self._fails = fails

    async def send_comment(self) -> None:
        self.comments.append(trio.current_time())
        await trio.sleep(self._send_seconds)
        if self._fails:
            raise ValueError("the stream cannot be written")


async def test_comments_come_after_silence_alone(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    began = trio.current_time()
    keepalive = KeepAlive(8.0)
    nursery.start_soon(keepalive.run)
    talks, writes, silent, broken = (Stream(), Stream(), Stream(), Stream(fails=True))
    stuck, ended = Stream(send_seconds=50_000), Stream()
    writes.is_waiting = False
    with keepalive.hold(ended):
        await trio.sleep(7.9)
    with (
        keepalive.hold(talks),
        keepalive.hold(writes),
        keepalive.hold(silent),
        keepalive.hold(broken),
        keepalive.hold(stuck),
    ):
        for _ in range(10):
            await trio.sleep(3)
            talks.num_parts += 1
    await trio.sleep(100)
    assert talks.comments == writes.comments == ended.comments == []
    times = [at - began for at in silent.comments]
    # It began at 7.9 and ended at 37.9.
    assert times == [14, 22, 30]
    assert broken.comments == silent.comments
    assert stuck.comments == silent.comments[:1]


async def test_a_server_without_streams_sleeps(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    keepalive = KeepAlive(8.0)
    nursery.start_soon(keepalive.run)
    with keepalive.hold(Stream()):
        await wait_all_tasks_blocked()
        assert 0 < _measure_sleep() <= 2
    await wait_all_tasks_blocked()
    # The look that was due is the last one.
    mock_clock.jump(2)
    await wait_all_tasks_blocked()
    assert _measure_sleep() == math.inf
    with keepalive.hold(Stream()):
        await wait_all_tasks_blocked()
        assert 0 < _measure_sleep() <= 2


def _measure_sleep() -> float:
    """Return the seconds until the event loop wakes up by itself."""
    return trio.lowlevel.current_statistics().seconds_to_next_deadline


async def test_no_comments(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    keepalive, stream = KeepAlive(0.0), Stream()
    nursery.start_soon(keepalive.run)
    with keepalive.hold(stream):
        await trio.sleep(50_000)
    assert stream.comments == []


async def test_a_stream_that_has_ended_gets_no_comment_that_was_due() -> None:
    keepalive, stream = KeepAlive(4.0), Stream()
    # A comment behind the end of an answer would be the beginning of the next one.
    await keepalive._send_comment(stream, _Silence(0))
    assert stream.comments == []
    with keepalive.hold(stream):
        await keepalive._send_comment(stream, _Silence(0))
    assert len(stream.comments) == 1


@pytest.fixture
async def server(tokenizer_folder: Path) -> AsyncIterator[FakeServer]:
    """A server whose steps take much longer than streams may be silent."""
    http = HttpConfig(sse_keepalive=0.04, enable_h2c=True)
    async with open_fake_server(
        tokenizer_folder, http=http, step_seconds=0.15
    ) as server:
        with trio.fail_after(60):
            yield server


async def read_events(server: FakeServer, path: str, body: Any, **client: Any) -> Any:
    async with httpx.AsyncClient(base_url=server.url, timeout=20, **client) as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 200
    # No empty line follows a comment.
    text = answer.text.replace(f"{COMMENT}\n", f"{COMMENT}\n\n")
    return text.rstrip().split("\n\n")


@pytest.mark.parametrize("http2", [False, True])
async def test_chats(server: FakeServer, http2: bool) -> None:
    versions = {"http1": not http2, "http2": http2}
    body = CHAT | {"max_tokens": 2}
    events = await read_events(server, "/v1/chat/completions", body, **versions)
    assert events[0] == COMMENT
    assert events.count(COMMENT) > 2
    *chunks, done = [event for event in events if event != COMMENT]
    assert done == "data: [DONE]"
    assert all(json.loads(each.removeprefix("data: ")) for each in chunks)


async def test_messages_have_pings(server: FakeServer) -> None:
    events = await read_events(server, "/v1/messages", CHAT | {"max_tokens": 2})
    assert events[0] == PING
    assert events.count(PING) > 3
    assert COMMENT not in events


async def test_followers_of_a_response_in_the_background(server: FakeServer) -> None:
    body = {"input": "a", "background": True, "stream": True, "max_output_tokens": 2}
    events = await read_events(server, "/v1/responses", body)
    assert events.count(COMMENT) > 2
    assert events[-1].startswith("event: response.incomplete\n")


async def test_the_official_clients_ignore_them(server: FakeServer) -> None:
    text = await trio.to_thread.run_sync(read_by_openai, server.url)
    assert server.answer.startswith(text) and text
    assert await trio.to_thread.run_sync(read_by_anthropic, server.url) == text


def read_by_openai(url: str) -> str:
    with openai.OpenAI(api_key="k", base_url=f"{url}/v1") as client:
        chat: Any = client.chat.completions.create(model="fake", max_tokens=2, **CHAT)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chat)


def read_by_anthropic(url: str) -> str:
    import anthropic

    body: Any = {"messages": CHAT["messages"]}
    with anthropic.Anthropic(api_key="k", base_url=url) as client:
        with client.messages.stream(model="fake", max_tokens=2, **body) as message:
            return message.get_final_text()
