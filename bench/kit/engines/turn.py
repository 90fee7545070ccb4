"""A turn of a server with many streams: steps, tokens, /health, loop and CPU time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
import statistics
import time

from kit.metrics import (
    LOOP_TURNS,
    STEPS,
    STREAMS,
    TOKENS,
    Metrics,
    fetch_metrics,
    find_gains,
    find_quantile,
)
from kit.probe_process import Probes, open_prober
from kit.raw import Request, check_status, open_request, write_request
from kit.server import RunningServer
from kit.usage import list_processes, read_command, read_cpu_seconds
import trio

from trioserve.programs.bench.measuring.texts import write_text

# Enough for 128 prompts on one core. A server that hangs ends the run.
LEVEL_TIMEOUT_SECONDS = 300.0

POLL_SECONDS = 0.1

# About 30 tokens of a real tokenizer.
PROMPT_CHARACTERS = 120

_EVENT = b"data: {"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one turn of one server, or medians of several turns.

    Times are in seconds, and CPU figures in cores.
    """

    step: float
    tokens_per_second: float
    events_per_second: float
    first_token: float
    health_p50: float
    health_p99: float
    turn_p99: float
    server_cpu: float
    engine_cpu: float
    reader_cpu: float
    prober_lag_p99: float


class StreamEnded(Exception):
    """Raised when a server refuses a stream or ends it."""


@dataclass(slots=True, kw_only=True)
class Readers:
    """Reads streams, and records the time of each first event and the number of events.

    The reader shares the cores with the server, so it must be cheap: decoding an event
    would cost as much as writing it. The server counts the tokens.

    Attributes:
      num_events: without events that one read has cut in two.
    """

    num_streams: int
    num_events: int = 0
    firsts: list[float] = field(default_factory=list)
    all_began: trio.Event = field(default_factory=trio.Event)

    async def read(self, port: int, request: Request) -> None:
        """Read one stream until cancelled.

        Raises:
          StreamEnded, RequestFailed
        """
        began = trio.current_time()
        async with open_request(port, request) as stream:
            await self._read_first(stream)
            self._note_first(trio.current_time() - began)
            while data := await stream.receive_some(65536):
                self.num_events += data.count(_EVENT)
        raise StreamEnded("the server ended a stream")

    async def _read_first(self, stream: trio.SocketStream) -> None:
        data = b""
        # A text completion's first event has its first token.
        while _EVENT not in data:
            received = bytes(await stream.receive_some(65536))
            data += received
            check_status(data)
            if not received:
                raise StreamEnded("the server ended a stream before its first token")

    def _note_first(self, seconds: float) -> None:
        self.firsts.append(seconds)
        if len(self.firsts) == self.num_streams:
            self.all_began.set()


def write_stream(max_tokens: int, *seeds: object) -> Request:
    """Write a request with a prompt of its own."""
    return write_request(
        "/v1/completions",
        prompt=write_text(PROMPT_CHARACTERS, *seeds),
        max_tokens=max_tokens,
        temperature=0.0,
        ignore_eos=True,
        stream=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The counts and CPU times of all processes at one moment."""

    at: float
    metrics: Metrics
    server_cpu: float
    engine_cpu: float
    reader_cpu: float
    num_events: int


async def look_at(server: RunningServer, readers: Readers) -> Look:
    pids = list_processes(server.pid)
    engines = [pid for pid in pids if "engine_process" in read_command(pid)]
    return Look(
        metrics=await fetch_metrics(server.url),
        at=trio.current_time(),
        # HTTP processes belong to the server.
        server_cpu=sum(read_cpu_seconds(pid) for pid in pids if pid not in engines),
        engine_cpu=sum(map(read_cpu_seconds, engines)),
        reader_cpu=time.process_time(),
        num_events=readers.num_events,
    )


async def measure_turn(
    server: RunningServer,
    max_tokens: int,
    num_streams: int,
    seconds: float,
    *seeds: object,
) -> Figures:
    """Measure so many streams for a while; the server is idle before and after."""
    readers = Readers(num_streams=num_streams)
    with trio.fail_after(LEVEL_TIMEOUT_SECONDS + seconds):
        async with open_prober(server.port) as prober, trio.open_nursery() as nursery:
            for number in range(num_streams):
                request = write_stream(max_tokens, *seeds, number)
                nursery.start_soon(readers.read, server.port, request)
            await readers.all_began.wait()
            await prober.start()
            before = await look_at(server, readers)
            await trio.sleep(seconds)
            after = await look_at(server, readers)
            probes = await prober.stop()
            nursery.cancel_scope.cancel()
        await wait_idle(server)
    return sum_up(before, after, readers.firsts, probes)


async def wait_idle(server: RunningServer) -> None:
    """Wait until the streams of the last turn are gone."""
    metrics = await fetch_metrics(server.url)
    while metrics.read_count(STREAMS):
        await trio.sleep(POLL_SECONDS)
        metrics = await fetch_metrics(server.url)


def sum_up(before: Look, after: Look, firsts: Iterable[float], seen: Probes) -> Figures:
    """Divide the changes of the counts between two looks by the time between them.

    Raises:
      StreamEnded: no step was done.
    """
    seconds = after.at - before.at
    num_steps, num_tokens = (
        after.metrics.read_count(name) - before.metrics.read_count(name)
        for name in (STEPS, TOKENS)
    )
    if not num_steps:
        raise StreamEnded("no step was done; give it more --seconds")
    turns = [each.metrics.read_histogram(LOOP_TURNS) for each in (before, after)]
    return Figures(
        step=seconds / num_steps,
        tokens_per_second=num_tokens / seconds,
        events_per_second=(after.num_events - before.num_events) / seconds,
        first_token=statistics.median(firsts),
        health_p50=seen.health.median,
        health_p99=seen.health.p99,
        turn_p99=find_quantile(find_gains(*turns), 0.99),
        server_cpu=(after.server_cpu - before.server_cpu) / seconds,
        engine_cpu=(after.engine_cpu - before.engine_cpu) / seconds,
        reader_cpu=(after.reader_cpu - before.reader_cpu) / seconds,
        prober_lag_p99=seen.lag.p99,
    )
