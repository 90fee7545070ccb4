"""A process that probes /health and reads bystanders' streams while a server is loaded.

Bystanders are clients apart from the load. The process is separate from the load
generator, whose work would delay the probes. open_prober runs it, as
`python -m kit.probe_process PORT NUM_STREAMS`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
import math
import sys

from kit.process import (
    BENCH_FOLDER,
    Child,
    LineReader,
    find_on_path,
    open_child,
    open_stdin,
)
from kit.raw import Request, check_status, open_request, write_request
import msgspec
import trio

from trioserve.programs.bench.measuring.probe import HealthProbe
from trioserve.programs.bench.measuring.statistics import Spread, spread
from trioserve.programs.bench.measuring.texts import write_text

HEALTH_INTERVAL_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The prober's measurements between start and stop.

    Attributes:
      lag: delays of its own timers, which are not the server's fault.
      inter_token: gaps between the texts of all bystanders; None without bystanders.
      num_failures: failed probes, and bystanders' streams that broke off.
    """

    health: Spread
    lag: Spread
    inter_token: Spread | None
    num_failures: int


class Prober:
    """The parent's handle of the process."""

    def __init__(self, child: Child) -> None:
        self._child = child

    async def start(self) -> None:
        """Begin to measure."""
        await self._child.ask("go")

    async def stop(self) -> Probes:
        """Stop measuring, and return the measurements."""
        return msgspec.json.decode(await self._child.ask("stop"), type=Probes)


@asynccontextmanager
async def open_prober(port: int, num_streams: int = 0) -> AsyncIterator[Prober]:
    """Run the process until the block is left, which begins when all streams flow."""
    command = [sys.executable, "-m", "kit.probe_process", str(port), str(num_streams)]
    environment = find_on_path(BENCH_FOLDER)
    async with open_child(command, name="the prober", environment=environment) as child:
        await child.read()
        yield Prober(child)


class Bystanders:
    """Streams that are not part of the load.

    Attributes:
      gaps: the times between texts since begin() was called, in seconds.
      num_failures: streams that broke off; each is opened again.
    """

    def __init__(self, port: int, num_streams: int) -> None:
        self._port = port
        self._num_streams = num_streams
        # Streams without a text so far.
        self._silent = set(range(num_streams))
        self._all_flow = trio.Event()
        self._began = math.inf
        self.gaps: list[float] = []
        self.num_failures = 0

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Read until cancelled; report the start when all streams flow."""
        async with trio.open_nursery() as nursery:
            for number in range(self._num_streams):
                nursery.start_soon(self._stream_forever, number)
            if self._num_streams:
                await self._all_flow.wait()
            task_status.started()

    def begin(self) -> None:
        """Record gaps from now on."""
        self._began = trio.current_time()

    async def _stream_forever(self, number: int) -> None:
        """Hold one stream open; the next begins when it ends."""
        request = write_bystander(number)
        while True:
            try:
                await self._stream(number, request)
            except (OSError, trio.BrokenResourceError):
                self.num_failures += 1

    async def _stream(self, number: int, request: Request) -> None:
        async with open_request(self._port, request) as stream:
            lines = LineReader(stream)
            check_status(await lines.read() or b"")
            last = math.inf
            while (line := await lines.read()) is not None:
                if has_text(line):
                    now = trio.current_time()
                    self.note_text(number, last, now)
                    last = now

    def note_text(self, number: int, last: float, now: float) -> None:
        """Record the gap before a text; only its part after begin() counts."""
        self._silent.discard(number)
        if not self._silent:
            self._all_flow.set()
        start = max(last, self._began)
        if start < now:
            self.gaps.append(now - start)


def write_bystander(number: int) -> Request:
    """Write a request for a chat with a long answer."""
    return write_request(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": write_text(40, "bystander", number)}],
        stream=True,
        max_tokens=4000,
        ignore_eos=True,
        # Sampled, because the likeliest token of a random model may have no text.
        temperature=1.0,
        seed=number,
    )


def has_text(line: bytes) -> bool:
    """Return whether a line of a chat's stream has text."""
    is_event = line.startswith(b"data: {") and b'"content":"' in line
    return is_event and b'"content":""' not in line


async def run(port: int, num_streams: int) -> None:
    """Run the process: print "ready", measure from "go" to "stop", print Probes."""
    lines = open_stdin()
    probe = HealthProbe(f"http://127.0.0.1:{port}", HEALTH_INTERVAL_SECONDS)
    bystanders = Bystanders(port, num_streams)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(bystanders.run)
        await probe.connect()
        print("ready", flush=True)
        assert await lines.read() == b"go", "the load begins"
        print("going", flush=True)
        bystanders.begin()
        async with trio.open_nursery() as probing:
            probing.start_soon(probe.run, stop)
            assert await lines.read() == b"stop", "the load is over"
            stop.set()
        nursery.cancel_scope.cancel()
    health, lag = probe.health, spread(probe.lag)
    assert health is not None and lag is not None, "at least one probe was answered"
    probes = Probes(
        health=health,
        lag=lag,
        inter_token=spread(bystanders.gaps),
        num_failures=probe.num_failures + bystanders.num_failures,
    )
    print(msgspec.json.encode(probes).decode(), flush=True)


if __name__ == "__main__":
    trio.run(run, int(sys.argv[1]), int(sys.argv[2]))
