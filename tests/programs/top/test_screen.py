"""The live screen, in a real process and a terminal of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
import fcntl
import os
from pathlib import Path
import signal
import struct
import subprocess
import sys
import termios

import httpx2 as httpx
import trio

from trioserve.config import HttpConfig
from trioserve.testing.server import FakeServer, open_fake_server

BODY = {"prompt": "a", "max_tokens": 200, "stream": True}

# What xterm needs to leave the screen of a full-screen program.
_LEAVE = b"\x1b[?1049l"


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._stream = trio.lowlevel.FdStream(master)
        self._master = master
        self.process = process
        self.output = b""

    async def wait_for(self, *texts: bytes) -> None:
        """Read until all texts have come since the last call."""
        seen = b""
        while not all(text in seen for text in texts):
            seen += await self._stream.receive_some(65536)
        self.output += seen

    async def press(self, keys: bytes) -> None:
        await self._stream.send_all(keys)

    def resize(self, lines: int, columns: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        self.process.send_signal(signal.SIGWINCH)

    async def close(self) -> None:
        await self._stream.aclose()

    async def wait_end(self) -> int:
        """Read to the end; returns the exit code."""
        try:
            while data := await self._stream.receive_some(65536):
                self.output += data
        except trio.BrokenResourceError:
            # The other end of a terminal closes with an error.
            pass
        return self.process.wait()


@asynccontextmanager
async def open_terminal(
    *arguments: str, term: str = "xterm", stderr: int | None = None
) -> AsyncIterator[Terminal]:
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    # With these, curses would not ask the terminal for its size.
    env = {k: v for k, v in os.environ.items() if k not in ("LINES", "COLUMNS")}
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "trioserve", "top", "--interval", "0.1", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave if stderr is None else stderr,
        start_new_session=True,
        env={**env, "TERM": term},
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def open_server(folder: Path) -> AsyncIterator[tuple[FakeServer, trio.Nursery]]:
    config = HttpConfig(api_key=("sk-a",))
    async with open_fake_server(folder, step_seconds=0.25, http=config) as server:
        with trio.fail_after(30):  # noqa: ASYNC100
            async with trio.open_nursery() as nursery:
                yield server, nursery
                nursery.cancel_scope.cancel()


async def send(server: FakeServer, request_id: str) -> None:
    headers = {"X-Request-Id": request_id, "Authorization": "Bearer sk-a"}
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        await client.post("/v1/completions", json=BODY, headers=headers)


async def test_requests_are_shown_sorted_and_cancelled(tokenizer_folder: Path) -> None:
    async with open_server(tokenizer_folder) as (server, nursery):
        nursery.start_soon(send, server, "first")
        while not server.state.lifecycle.count_phases()["decode"]:
            await trio.sleep(0.01)
        nursery.start_soon(send, server, "second")
        arguments = ("--url", server.url, "--api-key", "sk-a")
        async with open_terminal(*arguments) as terminal:
            await terminal.wait_for(b"first", b"second", b"decode", b"key 1", b"quit")
            await terminal.press(b"i")
            await terminal.wait_for(b"id")
            await terminal.press(b"\x1bOB")
            await terminal.press(b"c")
            await terminal.wait_for(b"second?")
            await terminal.press(b"y")
            # The line may begin with "cancel" already.
            await terminal.wait_for(b"led 1 request")
            ids = {each.id for each in server.state.live}
            assert "first" in ids and "second" not in ids
            await terminal.press(b"\r")
            await terminal.wait_for(b"device", b"handle_request")
            # A terminal of four lines has no room for rows.
            terminal.resize(4, 20)
            await terminal.wait_for(b"1 request")
            terminal.resize(24, 80)
            await terminal.press(b"q")
            assert await terminal.wait_end() == 0
        assert _LEAVE in terminal.output


async def test_a_server_that_goes_away_is_told_and_a_signal_restores_the_terminal(
    tokenizer_folder: Path,
) -> None:
    async with open_server(tokenizer_folder) as (server, nursery):
        arguments = ("--url", server.url, "--api-key", "sk-a")
        async with open_terminal(*arguments) as terminal:
            await terminal.wait_for(b"0 requests")
            server.state.keys._digests = {
                each: b"" for each in server.state.keys._digests
            }
            await terminal.wait_for(b"does not know this key")
            terminal.process.send_signal(signal.SIGTERM)
            assert await terminal.wait_end() == 0
        assert _LEAVE in terminal.output


async def test_a_closed_terminal_ends_it_without_a_traceback(
    tokenizer_folder: Path,
) -> None:
    async with open_server(tokenizer_folder) as (server, nursery):
        arguments = ("--url", server.url, "--api-key", "sk-a")
        read, write = os.pipe()
        async with open_terminal(*arguments, stderr=write) as terminal:
            os.close(write)
            await terminal.wait_for(b"0 requests")
            await terminal.close()
            async with trio.lowlevel.FdStream(read) as errors:
                assert await errors.receive_some() == b""
            assert await trio.to_thread.run_sync(terminal.process.wait) == 0


async def test_a_wrong_key_is_told_before_the_screen_is_cleared(
    tokenizer_folder: Path,
) -> None:
    async with open_server(tokenizer_folder) as (server, nursery):
        async with open_terminal("--url", server.url) as terminal:
            assert await terminal.wait_end() == 1
        assert b"wants a key" in terminal.output
        assert _LEAVE not in terminal.output


async def test_an_unknown_terminal_is_told(tokenizer_folder: Path) -> None:
    async with open_server(tokenizer_folder) as (server, nursery):
        arguments = ("--url", server.url, "--api-key", "sk-a")
        async with open_terminal(*arguments, term="nothing") as terminal:
            assert await terminal.wait_end() == 2
        assert b"no live screen here" in terminal.output
