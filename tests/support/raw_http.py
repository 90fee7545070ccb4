"""Servers and clients of bytes: requests that no library sends, on sockets of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
import json
import os
from pathlib import Path
import re
import socket
import struct
import subprocess
import sys
from typing import Any

from hypercorn.trio import serve
import trio
from warm_start import FORK

from trioserve.http.connection import install_guard, make_config


def write_post(path: str, body: object, *, missing: int = 0, **fields: str) -> bytes:
    """Return a request.

    Args:
      body: bytes, or an object that is sent as JSON.
      missing: the number of bytes at the end of the body that do not come.
      fields: more header fields, with _ for -.
    """
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: h",
        "Content-Type: application/json",
        f"Content-Length: {len(content) + missing}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


async def connect(port: int, *, receive_buffer: int = 0) -> trio.SocketStream:
    """Connect to a server in this process.

    Args:
      receive_buffer: the bytes that the kernel keeps for the client; 0 for as many as usual.
    """
    client = trio.socket.socket()
    if receive_buffer:
        # Before it connects: the window is negotiated then.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await client.connect(("127.0.0.1", port))
    return trio.SocketStream(client)


@asynccontextmanager
async def send(port: int, packet: bytes) -> AsyncIterator[trio.SocketStream]:
    """Send a packet; the client leaves at the end of the block."""
    async with await connect(port) as client:
        await client.send_all(packet)
        yield client


async def ask(port: int, packet: bytes) -> bytes:
    """Send a packet, and return all that comes until the server closes."""
    async with send(port, packet) as client:
        return await read_all(client)


async def read_all(client: trio.abc.ReceiveStream) -> bytes:
    """Return all that comes until the server closes or resets the connection."""
    parts: list[bytes] = []
    with suppress(trio.BrokenResourceError):
        async for part in client:
            parts.append(part)
    return b"".join(parts)


async def read_until(client: trio.abc.ReceiveStream, end: bytes) -> bytes:
    """Return all that comes up to some bytes, and perhaps more."""
    data = bytearray()
    while data.find(end, -len(end) - 2**16) < 0:
        more = await client.receive_some(2**16)
        assert more, f"closed before {end!r}: {data!r}"
        data += more
    return bytes(data)


async def reset(client: trio.SocketStream) -> None:
    """Close a connection by a reset."""
    # A linger of zero seconds makes close send it.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await client.aclose()


async def answer_well(scope: Any, receive: Any, send: Any) -> None:
    """Read a request, and answer it; an ASGI app."""
    assert scope["type"] == "http", "no lifespan"
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"4")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"well"})


async def serve_app(
    nursery: trio.Nursery, app: Any, *, bind: str = "127.0.0.1:0", **guard: Any
) -> int:
    """Serve an ASGI app by a guarded hypercorn until cancelled; returns its port.

    Args:
      guard: options of install_guard.
    """
    install_guard(**guard)
    config = make_config(bind=[bind], keep_alive_timeout_seconds=60.0)
    [address] = await nursery.start(serve, app, config)
    return int(address.rpartition(":")[2]) if bind.startswith("127") else 0


@asynccontextmanager
async def open_hypercorn(
    folder: Path, app: str
) -> AsyncIterator[tuple[trio.Process, int, bytes]]:
    """Run hypercorn's command for an app.

    Args:
      app: a module in which `app` is guarded.

    Yields:
      the process, its port, and what it has logged so far.
    """
    (folder / "served.py").write_text(app)
    command = [*FORK, "-m", "hypercorn", "-w", "0", "-k", "trio"]
    process = await trio.lowlevel.open_process(
        [*command, "-b", "127.0.0.1:0", "served:app"],
        stderr=subprocess.PIPE,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stderr is not None
    try:
        log = await read_until(process.stderr, b" (CTRL")
        yield process, int(re.findall(rb"127.0.0.1:(\d+)", log)[0]), log
    finally:
        process.kill()
        with trio.move_on_after(5, shield=True):
            await process.wait()
            await process.stderr.aclose()


def read_events(text: str) -> list[Any]:
    """Return the data of all server-sent events; data that is not JSON stays text."""
    lines = [
        line.removeprefix("data: ")
        for line in text.splitlines()
        if "data: " in line[:6]
    ]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]
