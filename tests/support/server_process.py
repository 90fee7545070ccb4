"""Servers in processes of their own, and what tests ask of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
import json
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import threading
from typing import Any

import httpx2 as httpx
import psutil

# These limits end a test that hangs. With ten busy processes on two cores, a start took
# more than a minute.
START_SECONDS = 180
END_SECONDS = 60

# A stream that runs until a test ends it.
LONG = {"prompt": "Once upon", "max_tokens": 400, "ignore_eos": True, "stream": True}

SERVE = (sys.executable, "-m", "trioserve", "serve")


@dataclass(kw_only=True)
class ServerProcess:
    """A server that has reported that it is ready."""

    process: subprocess.Popen[str]
    url: str
    log: list[str]
    reader: threading.Thread

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def stop(self, signum: int = signal.SIGINT, seconds: float = END_SECONDS) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(signum)
        return self.process.wait(seconds)

    def list_libraries(self) -> str:
        """List the files that the process has mapped, without its children's."""
        return Path(f"/proc/{self.process.pid}/maps").read_text()

    def read_log(self) -> str:
        """Return the whole log of a server that has ended."""
        self.reader.join()
        return "".join(self.log)


@dataclass(kw_only=True)
class EventStream:
    """A long completion whose first event has come."""

    lines: Iterator[str]

    def read_last(self) -> dict[str, Any]:
        """Read to the end and return the last event."""
        rest = [line for line in self.lines if line]
        assert rest[-1] == "data: [DONE]"
        last: dict[str, Any] = json.loads(rest[-2].removeprefix("data: "))
        return last


@contextmanager
def open_stream(url: str) -> Iterator[EventStream]:
    """Open a stream that runs until a test ends it."""
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=LONG, timeout=30
    ) as response:
        lines = response.iter_lines()
        next(lines)
        yield EventStream(lines=lines)


def list_own(pid: int, *, recursive: bool = False) -> list[psutil.Process]:
    """List the processes that one has started, without the helpers of warm_start.py."""
    children = psutil.Process(pid).children(recursive)
    return [each for each in children if "trioserve" in " ".join(each.cmdline())]


def begin_process(
    stack: ExitStack,
    command: Sequence[str],
    executable: str | None = None,
    **variables: str,
) -> Callable[[], ServerProcess]:
    """Start a server and return a function that waits until it is ready.

    Tests start several at once: one alone leaves a core idle during its imports.

    Args:
      executable: sys.executable starts a new interpreter; see warm_start.py.
    """
    process = stack.enter_context(
        subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
            executable=executable,
        )
    )
    log: list[str] = []
    urls: list[str] = []
    is_settled = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            log.append(line)
            if found := re.search(r"(?:Running|ready .*) on (https?://\S+)", line):
                urls.append(found[1])
                is_settled.set()
        is_settled.set()

    # The log is read to its end, because a full pipe would stop the server.
    thread = threading.Thread(target=read)
    thread.start()
    # These run in reverse order: kill, read the log to its end, wait for the process.
    stack.callback(thread.join)
    stack.callback(process.kill)

    def wait() -> ServerProcess:
        assert is_settled.wait(START_SECONDS), "the server neither starts nor ends"
        assert urls, "".join(log)
        return ServerProcess(process=process, url=urls[0], log=log, reader=thread)

    return wait


def start_process(
    stack: ExitStack,
    command: Sequence[str],
    executable: str | None = None,
    **variables: str,
) -> ServerProcess:
    return begin_process(stack, command, executable, **variables)()
