"""A client that takes nothing is dropped, and its request ends."""

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
        with trio.fail_after(20):
            yield server


async def connect(server: FakeServer) -> trio.SocketStream:
    client = trio.socket.socket()
    # Before it connects: the window is negotiated then.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await client.connect(("127.0.0.1", server.port))
    return trio.SocketStream(client)


async def ask_http1(client: trio.SocketStream) -> None:
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: h\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    await client.send_all(head.encode() + BODY)


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


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidConfig, match="write-timeout"):
        HttpConfig(write_timeout=seconds)
