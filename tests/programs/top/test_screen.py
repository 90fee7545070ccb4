"""The live screen, in a real process and a terminal of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
import os
from pathlib import Path
import signal
from typing import Any

import httpx2 as httpx
from terminal import Terminal, open_terminal
import trio

from trioserve.config import HttpConfig
from trioserve.testing.server import FakeServer, open_fake_server

BODY = {"prompt": "a", "max_tokens": 200, "stream": True}

# xterm's sequences that leave the screen of a full-screen program.
_LEAVE = b"\x1b[?1049l"


def open_top(*arguments: str, **options: Any) -> AbstractContextManager[Terminal]:
    return open_terminal(["top", "--interval", "0.1", *arguments], **options)


async def wait_text(terminal: Terminal, *texts: str) -> None:
    """Wait in a thread, because the server is in this one."""
    await trio.to_thread.run_sync(terminal.wait_text, *texts)


async def wait_end(terminal: Terminal) -> int:
    return await trio.to_thread.run_sync(terminal.wait_end)


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
        with open_top(*arguments) as terminal:
            await wait_text(terminal, "first", "second", "decode", "key 1", "quit")
            terminal.type("i")
            await wait_text(terminal, "id")
            terminal.type("\x1bOB")
            terminal.type("c")
            await wait_text(terminal, "second?")
            terminal.type("y")
            # The line may begin with "cancel" already.
            await wait_text(terminal, "led 1 request")
            ids = {each.id for each in server.state.live}
            assert "first" in ids and "second" not in ids
            terminal.type("\r")
            await wait_text(terminal, "device", "handle_request")
            # A terminal of four lines has no room for rows.
            terminal.resize(20, 4)
            await wait_text(terminal, "1 request")
            terminal.resize(80, 24)
            terminal.type("q")
            assert await wait_end(terminal) == 0
        assert _LEAVE in terminal.raw


async def test_a_server_that_goes_away_is_told_and_a_signal_restores_the_terminal(
    tokenizer_folder: Path,
) -> None:
    async with open_server(tokenizer_folder) as (server, nursery):
        arguments = ("--url", server.url, "--api-key", "sk-a")
        with open_top(*arguments) as terminal:
            await wait_text(terminal, "0 requests")
            server.state.keys._digests = {
                each: b"" for each in server.state.keys._digests
            }
            await wait_text(terminal, "does not know this key")
            terminal.process.send_signal(signal.SIGTERM)
            assert await wait_end(terminal) == 0
        assert _LEAVE in terminal.raw


async def test_a_closed_terminal_ends_it_without_a_traceback(
    tokenizer_folder: Path,
) -> None:
    async with open_server(tokenizer_folder) as (server, nursery):
        arguments = ("--url", server.url, "--api-key", "sk-a")
        read, write = os.pipe()
        with open_top(*arguments, stderr=write) as terminal:
            os.close(write)
            await wait_text(terminal, "0 requests")
            terminal.close()
            async with trio.lowlevel.FdStream(read) as errors:
                assert await errors.receive_some() == b""
            assert await trio.to_thread.run_sync(terminal.process.wait) == 0


async def test_a_wrong_key_is_told_before_the_screen_is_cleared(
    tokenizer_folder: Path,
) -> None:
    async with open_server(tokenizer_folder) as (server, nursery):
        with open_top("--url", server.url) as terminal:
            assert await wait_end(terminal) == 1
        assert b"wants a key" in terminal.raw
        assert _LEAVE not in terminal.raw


async def test_an_unknown_terminal_is_told(tokenizer_folder: Path) -> None:
    async with open_server(tokenizer_folder) as (server, nursery):
        arguments = ("--url", server.url, "--api-key", "sk-a")
        with open_top(*arguments, environment={"TERM": "nothing"}) as terminal:
            assert await wait_end(terminal) == 2
        assert b"no live screen here" in terminal.raw
