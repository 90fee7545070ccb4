"""A client that takes nothing is dropped, and what clients leave unread is bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
import json
from pathlib import Path
import socket

import h2.connection
import h2.events
import h2.settings
import pytest
import trio

from trioserve.config import HttpConfig
from trioserve.errors import InvalidConfig
from trioserve.http.live import unread
from trioserve.testing.server import FakeServer, open_fake_server

# More than the kernel buffers on its way to a client that reads nothing.
BODY = json.dumps(
    {"prompt": "a", "max_tokens": 200, "n": 64, "stream": True, "logprobs": 5}
).encode()
FIELDS = {
    ":method": "POST",
    ":path": "/v1/completions",
    ":scheme": "http",
    ":authority": "h",
    "content-type": "application/json",
}


@pytest.fixture
async def server(tokenizer_folder: Path, tmp_path: Path) -> AsyncIterator[FakeServer]:
    http = HttpConfig(
        write_timeout=0.2, enable_h2c=True, request_log=str(tmp_path / "log")
    )
    async with open_fake_server(
        tokenizer_folder, http=http, step_seconds=0.01, max_num_seqs=64
    ) as server:
        with trio.fail_after(60):
            yield server


async def connect(server: FakeServer) -> trio.SocketStream:
    client = trio.socket.socket()
    # Before it connects: the window is negotiated then.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await client.connect(("127.0.0.1", server.port))
    return trio.SocketStream(client)


async def ask_http1(client: trio.SocketStream, body: bytes = BODY) -> None:
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: h\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    await client.send_all(head.encode() + body)


async def ask_http2(client: trio.SocketStream, *, window: int) -> None:
    connection = h2.connection.H2Connection()
    connection.local_settings = h2.settings.Settings(
        client=True,
        initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window},
    )
    connection.initiate_connection()
    connection.send_headers(1, list(FIELDS.items()))
    connection.send_data(1, BODY, end_stream=True)
    if window:
        connection.increment_flow_control_window(window)
    await client.send_all(connection.data_to_send())


@pytest.mark.parametrize("kind", ["HTTP/1", "shut window", "open window"])
async def test_a_client_that_takes_nothing_is_dropped(
    server: FakeServer, tmp_path: Path, kind: str
) -> None:
    fresh = server.engine.statistics()
    async with await connect(server) as client:
        if kind == "HTTP/1":
            await ask_http1(client)
        else:
            await ask_http2(client, window=0 if kind == "shut window" else 2**30)
        while not (log := (tmp_path / "log").read_text()):
            await trio.sleep(0.01)
    line = json.loads(log)
    assert (line["ending"], line["status"]) == ("disconnected", 200)
    assert line["finish_reasons"].get("length", 0) < 64
    while server.engine.statistics() != fresh:
        await trio.sleep(0.01)
    assert sum(server.state.counts.cancelled.values()) == 1


async def read_all(client: trio.SocketStream) -> bytes:
    data = bytearray()
    async for part in client:
        data += part
        if data.endswith(b"0\r\n\r\n"):
            break
    return bytes(data)


async def test_what_clients_leave_unread_is_bounded(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "_LOOK_SECONDS", 0.02)
    http = HttpConfig(max_unread_memory="1MiB")
    async with open_fake_server(
        tokenizer_folder, http=http, step_seconds=0.005, max_num_seqs=80
    ) as server:
        fresh, limit = server.engine.statistics(), server.state.unread
        with trio.fail_after(60):
            async with (
                await trio.open_tcp_stream("127.0.0.1", server.port) as slow,
                await trio.open_tcp_stream("127.0.0.1", server.port) as fast,
            ):
                await ask_http1(slow)
                await ask_http1(fast, BODY.replace(b'"n": 64', b'"n": 2'))
                answer = await read_all(fast)
                while not limit.num_ended:
                    await trio.sleep(0.01)
                assert limit.num_bytes < 2**20
                # The device is free before the client reads.
                while server.engine.statistics().scheduler.num_running:
                    await trio.sleep(0.01)
                end = await read_all(slow)
            while server.engine.statistics() != fresh:
                await trio.sleep(0.01)
    assert answer.count(b'"finish_reason":"length"') == 2
    assert b"error" not in answer
    assert limit.num_ended == 1
    # The client can still read why.
    *_, error, done = end.strip().split(b"data: ")
    assert done.startswith(b"[DONE]")
    assert b'"type":"RequestTimeout"' in error and b'"code":408' in error


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidConfig, match="write-timeout"):
        HttpConfig(write_timeout=seconds)
