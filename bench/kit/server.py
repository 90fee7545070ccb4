"""Servers that a bench starts: `trioserve serve`, and others that log their address."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
import os
import re
import subprocess
import sys

from kit.process import (
    BENCH_FOLDER,
    LineReader,
    ProcessEnded,
    find_on_path,
    open_process,
)
import trio

# The first start may fetch and convert the model.
START_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that runs.

    Attributes:
      start_seconds: from the start of the process until it logged that it is ready.
    """

    url: str
    pid: int
    start_seconds: float

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def write_serve_command(model: str, **options: object) -> list[str]:
    """Write the command that starts our own server on a free port.

    Args:
      options: names have underscores; True stands for a flag without a value.
    """
    command = [sys.executable, "-m", "trioserve", "serve", model, "--port", "0"]
    for name, value in options.items():
        command.append(f"--{name.replace('_', '-')}")
        if value is not True:
            command.append(str(value))
    return command


@asynccontextmanager
async def open_server(
    command: Sequence[str], read_line: Callable[[bytes], None] = lambda line: None
) -> AsyncIterator[RunningServer]:
    """Start a server that logs its address when it is ready, and stop it at the end.

    The command can import the bench's modules.

    Args:
      read_line: called with each line of the log once the server is ready.

    Raises:
      ProcessEnded: it did not start. The error shows the end of its log.
    """
    began = trio.current_time()
    async with open_process(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **find_on_path(BENCH_FOLDER)},
    ) as process:
        assert process.stderr is not None
        log = LineReader(process.stderr)
        with trio.fail_after(START_TIMEOUT_SECONDS):
            url = await find_address(log)
        seconds = trio.current_time() - began
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_log, log, read_line)
            yield RunningServer(url=url, pid=process.pid, start_seconds=seconds)
            nursery.cancel_scope.cancel()


async def read_log(log: LineReader, read_line: Callable[[bytes], None]) -> None:
    """Read a server's log to its end."""
    while (line := await log.read()) is not None:
        read_line(line)


async def find_address(log: LineReader) -> str:
    """Read a server's log up to the line with its address.

    Raises:
      ProcessEnded: there is no such line. The error shows the last lines.
    """
    last: deque[str] = deque(maxlen=10)
    while (line := await log.read()) is not None:
        last.append(line.decode(errors="replace"))
        if match := re.search(r"ready after .* on (http://[^\s,]+)", last[-1]):
            return match[1]
    raise ProcessEnded("\n".join(["the server did not start:", *last]))
