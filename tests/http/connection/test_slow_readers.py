"""A client that takes nothing is dropped, and what clients leave unread is bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from http2_client import Http2Client
import pytest
from raw_http import connect, read_until, send, write_post
import trio

from trioserve.config import HttpConfig
from trioserve.http.live import live_requests
from trioserve.testing.server import FakeServer, open_fake_server

# More than the kernel buffers on its way to a client that reads nothing.
BODY = json.dumps(
    {"prompt": "a", "max_tokens": 200, "n": 64, "stream": True, "logprobs": 5}
).encode()


@pytest.fixture
def server_options(tmp_path: Path) -> dict[str, Any]:
    log = str(tmp_path / "log")
    http = HttpConfig(write_timeout=0.2, enable_h2c=True, request_log=log)
    return {"http": http, "step_seconds": 0.01, "max_num_seqs": 64}


REQUEST = write_post("/v1/completions", BODY)
# The last chunk.
END = b"\r\n0\r\n\r\n"


@pytest.mark.parametrize("kind", ["HTTP/1", "shut window", "open window"])
async def test_a_client_that_takes_nothing_is_dropped(
    server: FakeServer, tmp_path: Path, kind: str
) -> None:
    fresh = server.engine.statistics()
    async with await connect(server.port, receive_buffer=4096) as stream:
        if kind == "HTTP/1":
            await stream.send_all(REQUEST)
        else:
            window = 0 if kind == "shut window" else 2**30
            client = Http2Client(stream, window=window)
            if window:
                client.connection.increment_flow_control_window(window)
            json_type = {"content_type": "application/json"}
            await client.request(1, "/v1/completions", "POST", BODY, **json_type)
        while not (log := (tmp_path / "log").read_text()):
            await trio.sleep(0.01)
    line = json.loads(log)
    assert (line["ending"], line["status"]) == ("disconnected", 200)
    assert line["finish_reasons"].get("length", 0) < 64
    while server.engine.statistics() != fresh:
        await trio.sleep(0.01)
    assert sum(server.state.counts.cancelled.values()) == 1


async def test_what_clients_leave_unread_is_bounded(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_requests, "_LOOK_SECONDS", 0.02)
    http = HttpConfig(max_unread_memory="1MiB")
    few = write_post("/v1/completions", BODY.replace(b'"n": 64', b'"n": 2'))
    async with open_fake_server(
        tokenizer_folder, http=http, step_seconds=0.005, max_num_seqs=80
    ) as server:
        fresh, limit = server.engine.statistics(), server.state.unread
        with trio.fail_after(60):
            async with (
                send(server.port, REQUEST) as slow,
                send(server.port, few) as fast,
            ):
                answer = await read_until(fast, END)
                while not limit.num_ended:
                    await trio.sleep(0.01)
                assert limit.num_bytes < 2**20
                # The device is free before the client reads.
                while server.engine.statistics().scheduler.num_running:
                    await trio.sleep(0.01)
                end = await read_until(slow, END)
            while server.engine.statistics() != fresh:
                await trio.sleep(0.01)
    assert answer.count(b'"finish_reason":"length"') == 2
    assert b"error" not in answer
    assert limit.num_ended == 1
    # The client can still read why.
    *_, error, done = end.strip().split(b"data: ")
    assert done.startswith(b"[DONE]")
    assert b'"type":"RequestTimeout"' in error and b'"code":408' in error
