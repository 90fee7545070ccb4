"""Processes that a bench starts, and the lines of text that they exchange."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
import os
from pathlib import Path
import signal
import subprocess
import sys
from typing import Any

import trio

BENCH_FOLDER = Path(__file__).parents[1]

# A child that does not end so long after its input was closed is terminated.
END_TIMEOUT_SECONDS = 10.0


class ProcessEnded(Exception):
    """Raised when a process of the bench, or the bench itself, ends too early."""


def tell(text: str) -> None:
    """Report progress on stderr; stdout is for the results."""
    print(text, file=sys.stderr, flush=True)


class LineReader:
    """Cuts the bytes of a stream into lines."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._lines: deque[bytes] = deque()
        self._rest = b""

    async def read(self) -> bytes | None:
        """Read a line, without its end; None after the last."""
        while not self._lines:
            data = bytes(await self._stream.receive_some())
            if not data:
                return None
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(lines)
        return self._lines.popleft()


def open_stdin() -> LineReader:
    """Read the lines that this process's parent sends."""
    return LineReader(trio.lowlevel.FdStream(os.dup(0)))


@asynccontextmanager
async def open_process(
    command: Sequence[str], **options: Any
) -> AsyncIterator[trio.Process]:
    """Run a command until the block is left, then stop it with SIGTERM."""
    start = partial(trio.run_process, command, check=False, **options)
    async with trio.open_nursery() as nursery:
        process = await nursery.start(start)
        yield process
        nursery.cancel_scope.cancel()


class Child:
    """A process that answers each line with one line."""

    def __init__(self, process: trio.Process, name: str) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._stdin = process.stdin
        self._lines = LineReader(process.stdout)
        self._name = name

    async def read(self) -> bytes:
        """Read the next line.

        Raises:
          ProcessEnded: the process has ended.
        """
        line = await self._lines.read()
        if line is None:
            raise ProcessEnded(f"{self._name} has ended")
        return line

    async def ask(self, line: str | bytes) -> bytes:
        """Send a line and read the answer to it.

        Raises:
          ProcessEnded: the process has ended.
        """
        data = line.encode() if isinstance(line, str) else line
        # A process that no longer reads has ended, and read() reports that.
        with suppress(trio.BrokenResourceError):
            await self._stdin.send_all(data + b"\n")
        return await self.read()

    async def aclose(self) -> None:
        """Close the child's input, which makes it end."""
        await self._stdin.aclose()


@asynccontextmanager
async def open_child(
    command: Sequence[str],
    *,
    name: str = "a process of this bench",
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Child]:
    """Run a process of the bench's own until the block is left.

    Args:
      environment: variables to add to this process's own.
    """
    async with open_process(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    ) as process:
        child = Child(process, name)
        yield child
        await child.aclose()
        with trio.move_on_after(END_TIMEOUT_SECONDS):
            await process.wait()


def find_on_path(folder: Path) -> dict[str, str]:
    """Return environment variables with which Python imports from this folder first."""
    others = os.environ.get("PYTHONPATH")
    folders = [str(folder), *([others] if others else [])]
    return {"PYTHONPATH": os.pathsep.join(folders)}


@asynccontextmanager
async def stopping_at_sigterm() -> AsyncIterator[None]:
    """End the block at SIGTERM, so that the bench stops its processes before itself.

    Raises:
      ExceptionGroup: of a ProcessEnded if SIGTERM came, or of the block's error.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_raise_at_sigterm)
        yield
        nursery.cancel_scope.cancel()


async def _raise_at_sigterm() -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            raise ProcessEnded("stopped by SIGTERM")
