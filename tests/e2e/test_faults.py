"""Faults of a real server's processes; behind each, its metrics are as at its start.

The tests share a server, in the order of this file. The last one ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
import fcntl
import os
from pathlib import Path
import re
import resource
import signal
import socket
import subprocess
import time

import httpx2 as httpx
import psutil
import pytest
from server_process import END_SECONDS, LONG, SERVE, START_SECONDS
import trio

SHORT = {"prompt": "Once upon", "max_tokens": 4}

# These are larger in a server that has answered requests, or count the connection that asks
# and the one before it.
CHANGING = (
    "trioserve_tasks",
    "trioserve_prefix_cache",
    "trioserve_slow_task",
    "trioserve_engine_stalled",
    "trioserve_http_requests_active",
)


class SilentServer:
    """A server whose log nobody reads, once it is ready."""

    def __init__(self, process: subprocess.Popen[bytes], log: int) -> None:
        self.process = process
        self._log = log
        self._text = ""
        self.url = ""

    def wait_ready(self) -> None:
        until = time.monotonic() + START_SECONDS
        while not (found := re.search(r"ready .* on (http://\S+)", self.read_log())):
            assert self.process.poll() is None, self._text
            assert time.monotonic() < until, self._text
            time.sleep(0.05)
        self.url = found[1]

    def read_log(self) -> str:
        """Return the log so far."""
        try:
            while data := os.read(self._log, 2**20):
                self._text += data.decode()
        except BlockingIOError:
            pass
        return self._text

    @property
    def engine_pid(self) -> int:
        children = psutil.Process(self.process.pid).children()
        [engine] = [
            each
            for each in children
            if "trioserve.startup.engine_process" in each.cmdline()
        ]
        return engine.pid

    def ask(self) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/completions", json=SHORT, timeout=30)

    def list_held(self) -> list[str]:
        """Return the gauges, which are as in a fresh server if nothing is held."""
        lines = httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines()
        gauges = tuple(
            line.split()[2] for line in lines if re.match("# TYPE .* gauge", line)
        )
        return [
            line
            for line in lines
            if line.startswith(gauges) and not line.startswith(CHANGING)
        ]


@pytest.fixture(scope="module")
def server(model_folder: Path) -> Iterator[SilentServer]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(reader, False)
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [
                    *(*SERVE, str(model_folder), "--port", "0"),
                    *("--kv-cache-memory", "64MiB", "--num-threads", "1"),
                    *("--log-level", "debug"),
                ],
                stderr=writer,
            )
        )
        stack.callback(process.kill)
        os.close(writer)
        server = SilentServer(process, reader)
        server.wait_ready()
        yield server
    os.close(reader)


@pytest.fixture
def fresh(server: SilentServer) -> Iterator[None]:
    """Check that the test leaves the server as it found it."""
    before = server.list_held()
    yield
    until = time.monotonic() + END_SECONDS
    while (now := server.list_held()) != before:
        assert time.monotonic() < until, set(now) ^ set(before)
        time.sleep(0.05)
    assert server.ask().status_code == 200


def test_a_log_that_nobody_reads_delays_no_answer(
    server: SilentServer, fresh: None
) -> None:
    with httpx.Client(timeout=30) as client:
        for _ in range(25):
            answer = client.post(f"{server.url}/v1/completions", json=SHORT)
            assert answer.status_code == 200
    # Far more than the pipe takes.
    assert len(server.read_log()) >= 4096


@pytest.mark.parametrize("which", ["front", "engine"])
def test_a_stopped_process_goes_on(
    server: SilentServer, fresh: None, which: str
) -> None:
    pid = server.process.pid if which == "front" else server.engine_pid
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=LONG, timeout=30
    ) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(pid, signal.SIGCONT)
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_a_server_without_memory_answers_when_it_has_some_again(
    server: SilentServer, fresh: None
) -> None:
    pid = server.process.pid
    # The body has a place, but not its text.
    with limited_memory(pid, 2**27):
        answer = httpx.post(
            f"{server.url}/v1/completions",
            content=b'{"prompt": "%b"}' % (b"a" * 2**25),
            headers={"content-type": "application/json"},
            timeout=30,
        )
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, 503)


@contextmanager
def limited_memory(pid: int, more: int) -> Iterator[None]:
    """Let a process have only so many bytes of address space more than now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + more
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


def test_a_killed_engine_ends_requests_of_every_phase(server: SilentServer) -> None:
    port = int(server.url.rpartition(":")[2])
    ends: list[bytes] = []

    async def ask(packet: bytes) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(packet)
            data = b""
            try:
                while part := await stream.receive_some():
                    data += part
            except trio.BrokenResourceError:
                pass
            ends.append(data)

    async def main() -> None:
        # One uploads, some run, and others wait for them.
        upload = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
        body = b'{"prompt": "a", "max_tokens": 400, "ignore_eos": true, "stream": true}'
        whole = (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, upload)
            for _ in range(40):
                nursery.start_soon(ask, whole)
            await trio.sleep(0.3)
            os.kill(server.engine_pid, signal.SIGKILL)
            with trio.move_on_after(END_SECONDS):
                while server.process.poll() is None:
                    await trio.sleep(0.05)

    trio.run(main)
    assert server.process.wait(END_SECONDS) == 3
    assert len(ends) == 41
    for data in ends:
        assert b"[DONE]" in data or b"error" in data or not data
    with pytest.raises((ConnectionError, socket.timeout)):
        socket.create_connection(("127.0.0.1", port), timeout=5)
