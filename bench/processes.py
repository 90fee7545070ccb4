"""What does an engine process cost, and what does it bring?

Question
  With --no-engine-process the server and its engine share a process, and so the GIL: what
  writes to many clients and what plans and launches steps take turns. With
  --engine-process, the default, they share nothing but a socket. How long does a step
  take, how many tokens come, and how long do /health and the event loop take,

      inside     with the engine in the server's process
      outside    with the engine in a process of its own,

  while 1, 32 and 128 clients each read a stream? Of four devices:

      model      a real model on the CPU, by `trioserve serve --num-threads 1`
      2 ms       a thread that sleeps so long for a step, as one does that waits for a
      5 ms       GPU: it costs no CPU, and needs the GIL once a step
      2 ms / 20  the same, but it asks for the GIL 20 times a step. torch gives it away in
                 every operation, so a step whose kernels are launched one by one asks for
                 it hundreds of times; one that replays a CUDA graph, a few times

  Around the sleeping devices everything is real: sockets, HTTP, text, scheduler, loop.

      python bench/processes.py --rounds 5 --json processes.json --plot processes.png
      python bench/processes.py --quick

Machine
  Whatever runs it; the report names it. On two cores the server, its engine, the device's
  threads, the reader of all streams (this process) and the prober of /health (one more)
  share them: `cpu` says how much of a core each of the first three took. Once they sum to
  the machine's cores, what the reader takes is missing elsewhere, so that outside is shown
  at its worst: it can only use a core that is there. --num-threads 1 leaves one.

How to read the answer
  ms a step      the time over the steps that were counted in it, from /metrics: what the
                 device sleeps or computes, and what it waits for the host.
  tokens/s       of all streams, from /metrics; every token is sent and read.
  ratio          of tokens/s, outside to inside: medians of the rounds.
  first token    from sending a request to its first event, when all clients ask at once;
                 median of the clients. Their prompts have about 30 tokens.
  /health        one probe every 10 ms from a process of its own, on a connection that
                 stays open; what fell due while an answer was late counts (loop_stall.py).
  turn p99       of the server's loop between two looks at its sockets, from /metrics,
                 linear between the bounds of its bucket. With the engine inside, it plans
                 steps, too. Reading /metrics is itself a turn of 1 to 2 ms.
  cpu            cores that the server, its engine process and this reader took.
  start, memory  until the server said that it is ready; what all its processes have at
                 the end, each page divided by those who share it (PSS).

  Both servers of a device live at once, take turns within a round, and in reversed order
  every other round; who waits costs nothing but its memory. Each turn has new streams
  and is timed once all of them have begun. Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
import ctypes
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from functools import partial
import math
import os
from pathlib import Path
import re
import statistics
import subprocess
import sys
from tempfile import TemporaryDirectory
import time
from typing import TYPE_CHECKING, Any

import loop_stall
from loop_stall import LineReader, Probes, alternate, read_choice, tell, write_text
import msgspec
import pooling
from serving import Connection
import trio

from trioserve.config import DEFAULT_MODEL
from trioserve.processes.interpreter import prepare_interpreter, settle_interpreter

if TYPE_CHECKING:
    from trioserve.engine import LocalCore
    from trioserve.processes import MessageStream
    from trioserve.types.output import StepResult
    from trioserve.types.plan import StepPlan

MODES = ("inside", "outside")

START_TIMEOUT_SECONDS = 300.0

# 128 prompts on one core, and whatever else is slow; a server that hangs ends the run.
LEVEL_TIMEOUT_SECONDS = 300.0

POLL_SECONDS = 0.1

# About 30 tokens of a real tokenizer.
PROMPT_CHARACTERS = 120

NUM_SEQUENCES = 128
FAKE_MODEL_LEN = 2**15
BLOCK_SIZE = 16

_TOKEN = (65,)

# Tells an engine process which device it has.
DEVICE_VARIABLE = "TRIOSERVE_BENCH_DEVICE"


# ---- devices ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What computes.

    Args:
      step_seconds: None for a real model.
      num_waits: in how many parts a step is waited for.
      max_tokens: of a stream, which never get there.
    """

    name: str
    step_seconds: float | None = None
    num_waits: int = 1
    max_tokens: int = 30_000


DEVICES = {
    device.name: device
    for device in (
        Device(name="model", max_tokens=1900),
        Device(name="2 ms", step_seconds=0.002),
        Device(name="5 ms", step_seconds=0.005),
        Device(name="2 ms / 20", step_seconds=0.002, num_waits=20),
    )
}


class Sleeper:
    """Gives every row the same token, after a while."""

    def __init__(self, device: Device) -> None:
        assert device.step_seconds is not None, "a model computes elsewhere"
        self._num_waits = device.num_waits
        self._seconds = device.step_seconds / device.num_waits

    def step(self, plan: StepPlan) -> StepResult:
        from trioserve.types.output import StepResult

        # Late is late: a kernel that is launched late ends late.
        for _ in range(self._num_waits):
            time.sleep(self._seconds)
        sampled = tuple(_TOKEN for row in plan.rows if row.sample)
        return StepResult(step_id=plan.step_id, sampled=sampled)


def sleep_sharply() -> None:
    """Have this thread, and those that it will start, wake up in time.

    By default Linux lets them sleep 50 us longer, which twenty sleeps of 100 us show.
    """
    pr_set_timerslack = 29
    ctypes.CDLL(None).prctl(pr_set_timerslack, 1)


# ---- a server without a model, and its engine process -------------------------------


def make_core(device: Device) -> LocalCore:
    """Make what cores.py makes of a model."""
    from trioserve.engine import LocalCore
    from trioserve.executor import LocalExecutor
    from trioserve.scheduler import Scheduler
    from trioserve.testing.fake_device import make_info

    scheduler = Scheduler(
        num_blocks=NUM_SEQUENCES * FAKE_MODEL_LEN // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        max_num_seqs=NUM_SEQUENCES,
        max_num_batched_tokens=2048,
        max_model_len=FAKE_MODEL_LEN,
    )
    executor = LocalExecutor(Sleeper(device).step, depth=2)
    return LocalCore(scheduler, executor, info=make_info(FAKE_MODEL_LEN))


@asynccontextmanager
async def open_core(device: Device, mode: str) -> AsyncIterator[Any]:
    """Make a core in this process, or in another one as launch.py does."""
    from trioserve.engine import RemoteCore
    from trioserve.engine.process.messages import FromEngine
    from trioserve.processes import open_child

    if mode == "inside":
        yield make_core(device)
        return
    # This file is a module for whoever has its folder in the path, as its script has.
    async with open_child(
        "processes",
        receives=FromEngine,
        name="the engine process",
        environment={DEVICE_VARIABLE: device.name},
    ) as child:
        yield RemoteCore(child.stream, child.describe_end)


def run_engine_process(device: Device) -> None:
    """Be the engine process: `python -m processes DESCRIPTOR PARENT`."""
    from trioserve.engine import host_core
    from trioserve.engine.process.messages import ToEngine
    from trioserve.processes import run_as_child

    async def host(stream: MessageStream[Any]) -> None:
        core = make_core(device)
        await settle_interpreter()
        await host_core(core, stream)

    run_as_child(host, receives=ToEngine)


async def serve(device: Device, mode: str, folder: Path) -> None:
    """Serve without a model until somebody ends it; says where in its log."""
    import hypercorn.trio

    from trioserve.config import HttpConfig, MediaConfig, RenderConfig
    from trioserve.engine import Engine
    from trioserve.frontend.text import TextEngine
    from trioserve.http import ServerState, create_http_app, install_guard, make_config
    from trioserve.render import load_renderer
    from trioserve.testing.fake_device import make_info

    info = make_info(FAKE_MODEL_LEN)
    renderer = load_renderer(folder, RenderConfig(), info=info, media=MediaConfig())
    state = ServerState(config=HttpConfig())
    trio.lowlevel.add_instrument(state.loop_stall)
    install_guard()
    async with open_core(device, mode) as core, trio.open_nursery() as nursery:
        engine = Engine(core, info=info, max_num_sequences=2 * NUM_SEQUENCES)
        state.engine = TextEngine(engine, renderer)
        await nursery.start(engine.run)
        await settle_interpreter()
        binds = await nursery.start(
            hypercorn.trio.serve,
            create_http_app(state),
            make_config(bind=["127.0.0.1:0"]),
        )
        tell(f"ready after a moment: {device.name} on {binds[0]}")


# ---- one server, as it is seen from outside -----------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that runs.

    Attributes:
      start_seconds: until it said that it is ready.
      max_tokens: of a stream.
    """

    url: str
    pid: int
    start_seconds: float
    max_tokens: int

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def write_command(device: Device, mode: str, model: str, folder: Path) -> list[str]:
    """Write the command that starts a server."""
    if device.step_seconds is not None:
        command = [sys.executable, __file__, "--serve", device.name, "--mode", mode]
        return [*command, "--folder", str(folder)]
    option = "--engine-process" if mode == "outside" else "--no-engine-process"
    return [
        *(sys.executable, "-m", "trioserve", "serve", model, "--port", "0", option),
        *("--num-threads", "1", "--max-num-seqs", str(NUM_SEQUENCES)),
        *("--kv-cache-memory", "1GiB", "--max-model-len", "2048"),
    ]


@asynccontextmanager
async def open_server(command: Sequence[str], max_tokens: int) -> AsyncIterator[Server]:
    """Start a server and stop it when the block is left.

    Raises:
      pooling.ProcessEnded: it did not start; with the end of its log.
    """
    began = trio.current_time()
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    async with pooling.open_process(command, **pipes) as process:
        assert process.stderr is not None
        log = LineReader(process.stderr)
        with trio.fail_after(START_TIMEOUT_SECONDS):
            url = await pooling.find_address(log)
        seconds = trio.current_time() - began
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pooling.drain, log)
            yield Server(
                url=url,
                pid=process.pid,
                start_seconds=seconds,
                max_tokens=max_tokens,
            )
            nursery.cancel_scope.cancel()


# Bound in seconds -> how many took no longer.
Histogram = dict[float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What /metrics says.

    Attributes:
      turns: of the loop, away from its sockets.
    """

    num_streams: int
    num_steps: int
    num_tokens: int
    turns: Histogram


def read_counts(metrics: str) -> Counts:
    """Read the exposition text."""
    found = dict(re.findall(r"^(trioserve_\w+) (\S+)$", metrics, re.MULTILINE))
    turn = r'^trioserve_event_loop_turn_seconds_bucket\{le="([^"]+)"\} (\S+)$'
    return Counts(
        num_streams=int(float(found["trioserve_num_requests_open"])),
        num_steps=int(float(found["trioserve_steps_total"])),
        num_tokens=int(float(found["trioserve_generation_tokens_total"])),
        turns={
            float(bound): int(float(count))
            for bound, count in re.findall(turn, metrics, re.MULTILINE)
        },
    )


def find_quantile(before: Histogram, after: Histogram, share: float) -> float:
    """Estimate a quantile of what was counted in between.

    Source: Prometheus' histogram_quantile: linear within a bucket; the last finite bound
    for what lies beyond it.
    """
    gains = {bound: after[bound] - before[bound] for bound in sorted(after)}
    rank = share * gains[math.inf]
    low, num_below = 0.0, 0
    for bound, gain in gains.items():
        if gain >= rank and gain > num_below:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (rank - num_below) / (gain - num_below)
        low, num_below = bound, gain
    return low


async def fetch_counts(server: Server) -> Counts:
    async with Connection(server.url) as connection:
        await connection.send("GET", "/metrics")
        return read_counts((await connection.read_all()).decode())


async def wait_idle(server: Server) -> None:
    """Wait until the streams of the last turn are gone."""
    counts = await fetch_counts(server)
    while counts.num_streams:
        await trio.sleep(POLL_SECONDS)
        counts = await fetch_counts(server)


def list_processes(pid: int) -> list[int]:
    """List a process and all that it started, and they."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        children += map(int, (task / "children").read_text().split())
    return [pid, *(each for child in children for each in list_processes(child))]


def read_cpu_seconds(pid: int) -> float:
    """Read what a process has used of the CPU (proc(5): utime and stime)."""
    # The name before the last bracket may have spaces.
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def read_memory(pid: int) -> float:
    """Read the memory of a process and its children, in MB, shared pages divided."""
    kilobytes = 0
    for each in list_processes(pid):
        rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
        kilobytes += int(found[1]) if found else 0
    return kilobytes * 1024 / 1e6


# ---- one turn -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One turn of one server, or the medians of several; seconds where not said."""

    step: float
    tokens_per_second: float
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
    """Read streams, and look at nothing but when they begin.

    On two cores the reader must be cheap: to decode an event costs as much as it costs
    the server to write it. The server counts.
    """

    num_streams: int
    firsts: list[float] = field(default_factory=list)
    all_began: trio.Event = field(default_factory=trio.Event)

    async def read(self, port: int, body: bytes) -> None:
        """Read one stream until cancelled.

        Raises:
          StreamEnded
        """
        request = loop_stall.Request(path="/v1/completions", body=body)
        began = trio.current_time()
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(request.head + body)
            await self._read_first(stream)
            self._note_first(trio.current_time() - began)
            while await stream.receive_some(65536):
                pass
        raise StreamEnded("the server ended a stream")

    async def _read_first(self, stream: trio.SocketStream) -> None:
        data = b""
        # A text completion's first event has its first token.
        while b"data: {" not in data:
            received = bytes(await stream.receive_some(65536))
            data += received
            if not received or not data.startswith(b"HTTP/1.1 200"):
                raise StreamEnded(data[:300].decode(errors="replace"))

    def _note_first(self, seconds: float) -> None:
        self.firsts.append(seconds)
        if len(self.firsts) == self.num_streams:
            self.all_began.set()


def write_body(max_tokens: int, *seeds: object) -> bytes:
    """Write a request whose prompt no other one has."""
    return msgspec.json.encode(
        {
            "prompt": write_text(PROMPT_CHARACTERS, *seeds),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What everybody had done at one moment."""

    at: float
    counts: Counts
    server_cpu: float
    engine_cpu: float
    reader_cpu: float


async def look_at(server: Server) -> Look:
    _, *children = list_processes(server.pid)
    return Look(
        counts=await fetch_counts(server),
        at=trio.current_time(),
        server_cpu=read_cpu_seconds(server.pid),
        engine_cpu=sum(map(read_cpu_seconds, children)),
        reader_cpu=time.process_time(),
    )


async def measure_turn(
    server: Server, num_streams: int, seconds: float, *seeds: object
) -> Figures:
    """Let so many streams flow for a while, from idle to idle."""
    readers = Readers(num_streams=num_streams)
    async with (
        loop_stall.open_child("--probe", server.port, "--bystanders", 0) as prober,
        trio.open_nursery() as nursery,
    ):
        await prober.read()
        for number in range(num_streams):
            body = write_body(server.max_tokens, *seeds, number)
            nursery.start_soon(readers.read, server.port, body)
        await readers.all_began.wait()
        await prober.ask("go")
        before = await look_at(server)
        await trio.sleep(seconds)
        after = await look_at(server)
        probes = msgspec.json.decode(await prober.ask("stop"), type=Probes)
        nursery.cancel_scope.cancel()
    await wait_idle(server)
    return sum_up(before, after, readers.firsts, probes)


def sum_up(before: Look, after: Look, firsts: Iterable[float], seen: Probes) -> Figures:
    """Divide what was counted in between by the time between.

    Raises:
      StreamEnded: no step was done.
    """
    seconds = after.at - before.at
    num_steps = after.counts.num_steps - before.counts.num_steps
    if not num_steps:
        raise StreamEnded("no step was done; give it more --seconds")
    num_tokens = after.counts.num_tokens - before.counts.num_tokens
    return Figures(
        step=seconds / num_steps,
        tokens_per_second=num_tokens / seconds,
        first_token=statistics.median(firsts),
        health_p50=seen.health.p50,
        health_p99=seen.health.p99,
        turn_p99=find_quantile(before.counts.turns, after.counts.turns, 0.99),
        server_cpu=(after.server_cpu - before.server_cpu) / seconds,
        engine_cpu=(after.engine_cpu - before.engine_cpu) / seconds,
        reader_cpu=(after.reader_cpu - before.reader_cpu) / seconds,
        prober_lag_p99=seen.lag.p99,
    )


# ---- a whole run --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of whom; one field is one option."""

    devices: tuple[str, ...] = tuple(DEVICES)
    streams: tuple[int, ...] = (1, 32, 128)
    rounds: int = 5
    seconds: float = 8.0
    # Whose steps with 128 sequences last a second, so that few of them are counted.
    model_seconds: float = 20.0
    model: str = DEFAULT_MODEL

    def find_seconds(self, device: Device) -> float:
        return self.model_seconds if device.step_seconds is None else self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All rounds of one mode with so many streams."""

    device: str
    num_streams: int
    mode: str
    median: Figures
    rounds: tuple[Figures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a server takes before anybody asks it for anything, and all the while."""

    device: str
    mode: str
    start_seconds: float
    megabytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What --json writes."""

    created: str
    machine: str
    load: Load
    results: tuple[Result, ...]
    costs: tuple[Cost, ...]


async def measure(load: Load) -> Results:
    """Put both servers of every device through all loads, in turns."""
    machine = pooling.describe_machine()
    results: list[Result] = []
    costs: list[Cost] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pooling.raise_at_sigterm)
        for name in load.devices:
            measured, taken = await measure_device(DEVICES[name], load)
            results += measured
            costs += taken
        nursery.cancel_scope.cancel()
    return Results(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=machine,
        load=load,
        results=tuple(results),
        costs=tuple(costs),
    )


async def measure_device(device: Device, load: Load) -> tuple[list[Result], list[Cost]]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        save_tokenizer(folder)
        servers: dict[str, Server] = {}
        for mode in MODES:
            tell(f"{device.name}: starting a server with its engine {mode}")
            command = write_command(device, mode, load.model, folder)
            servers[mode] = await stack.enter_async_context(
                open_server(command, device.max_tokens)
            )
            # What is slow once.
            await take_turn(servers[mode], 1, 0.5, device.name, "warm", mode)
        results = await take_turns(device, load, servers)
        costs = [
            Cost(
                device=device.name,
                mode=mode,
                start_seconds=server.start_seconds,
                megabytes=read_memory(server.pid),
            )
            for mode, server in servers.items()
        ]
    return results, costs


def save_tokenizer(folder: Path) -> None:
    # Imports tokenizers, which those who read the table need not wait for.
    from trioserve.testing.tokenizer import tiny_tokenizer

    tiny_tokenizer(folder)


async def take_turns(
    device: Device, load: Load, servers: dict[str, Server]
) -> list[Result]:
    seen: dict[tuple[int, str], list[Figures]] = {}
    for number in range(load.rounds):
        for num_streams in load.streams:
            for mode in alternate(MODES, number):
                tell(f"{device.name}, round {number + 1}: {num_streams} {mode}")
                figures = await take_turn(
                    servers[mode],
                    num_streams,
                    load.find_seconds(device),
                    *(number, num_streams),
                )
                seen.setdefault((num_streams, mode), []).append(figures)
    return [
        Result(
            device=device.name,
            num_streams=num_streams,
            mode=mode,
            median=find_medians(rounds),
            rounds=tuple(rounds),
        )
        for (num_streams, mode), rounds in sorted(seen.items())
    ]


async def take_turn(
    server: Server, num_streams: int, seconds: float, *seeds: object
) -> Figures:
    with trio.fail_after(LEVEL_TIMEOUT_SECONDS + seconds):
        return await measure_turn(server, num_streams, seconds, *seeds)


def find_medians(rounds: Sequence[Figures]) -> Figures:
    return Figures(
        **{
            each.name: statistics.median(getattr(seen, each.name) for seen in rounds)
            for each in fields(Figures)
        }
    )


# ---- the table ----------------------------------------------------------------------


def render_results(results: Results) -> str:
    """Write the results as Markdown: the table, what a server takes, and notes."""
    tables = [build_table(results), build_costs(results)]
    written = ["\n".join(map(write_row, table)) for table in tables]
    return "\n\n".join([*written, "\n".join(write_notes(results))])


def write_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def build_table(results: Results) -> list[list[str]]:
    """Lay out a row for each device, number of streams and mode."""
    headings = ["device", "streams", "engine", "ms a step", "tokens/s", "ratio"]
    headings += ["first token, ms", "/health p50 / p99 ms", "turn p99 ms"]
    headings += ["cpu: server / engine / reader"]
    rows = [headings, ["---"] * len(headings)]
    for result in results.results:
        rows.append(
            [result.device, str(result.num_streams), result.mode]
            + write_figures(result.median, find_ratio(results, result))
        )
    return rows


def write_figures(seen: Figures, ratio: float | None) -> list[str]:
    """Write a row's numbers; the ratio stands in one row of two."""
    cpu = (seen.server_cpu, seen.engine_cpu, seen.reader_cpu)
    return [
        write_number(1000 * seen.step),
        write_number(seen.tokens_per_second),
        "" if ratio is None else f"{ratio:.2f}",
        write_number(1000 * seen.first_token),
        " / ".join(write_number(1000 * s) for s in (seen.health_p50, seen.health_p99)),
        write_number(1000 * seen.turn_p99),
        " / ".join(f"{cores:.2f}" for cores in cpu),
    ]


def write_number(value: float) -> str:
    """Write three digits, and all of those before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def find_ratio(results: Results, result: Result) -> float | None:
    """Divide tokens/s by those of the engine inside; None for itself."""
    if result.mode == MODES[0]:
        return None
    inside = replace(result, mode=MODES[0])
    for other in results.results:
        if identify(other) == identify(inside):
            return result.median.tokens_per_second / other.median.tokens_per_second
    return None


def identify(result: Result) -> tuple[str, int, str]:
    return result.device, result.num_streams, result.mode


def build_costs(results: Results) -> list[list[str]]:
    headings = ["device", "engine", "start, s", "memory, MB"]
    rows = [headings, ["---"] * len(headings)]
    for cost in results.costs:
        figures = (cost.start_seconds, cost.megabytes)
        rows.append([cost.device, cost.mode, *map(write_number, figures)])
    return rows


def write_notes(results: Results) -> Iterator[str]:
    """Say what the tables cannot: what was measured, and what to doubt."""
    load = results.load
    yield f"{results.machine}; {results.created}; medians of {load.rounds} rounds"
    yield f"{load.seconds:g} s a turn, {load.model_seconds:g} s with {load.model}"
    lag = max(each.median.prober_lag_p99 for each in results.results)
    yield f"the prober's timers were up to {1000 * lag:.1f} ms late (p99)"


# ---- the plot -----------------------------------------------------------------------

# Okabe and Ito's palette, which the colour-blind can tell apart.
COLORS = {"inside": "#D55E00", "outside": "#0072B2"}

PANELS: tuple[tuple[str, Callable[[Figures], float]], ...] = (
    ("Engine step, ms", lambda seen: 1000 * seen.step),
    ("GET /health, p99, ms", lambda seen: 1000 * seen.health_p99),
    ("Tokens per second", lambda seen: seen.tokens_per_second),
)


def save_plot(results: Results, path: Path) -> None:
    """Draw three panels of bars, a group for each device and load, into a PNG file."""
    # Half a second of import, and not needed by those who read the table.
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 9, "axes.edgecolor": "#999999"}):
        # A Figure of its own draws with Agg and leaves nothing in pyplot's list.
        figure = Figure(figsize=(11, 8), dpi=150)
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
        panels = figure.subplots(len(PANELS), 1, sharex=True)
        for axes, (title, read) in zip(panels, PANELS):
            axes.set_title(title, loc="left", fontweight="bold")
            loop_stall.draw_groups(axes, *list_groups(results, read), COLORS)
        loop_stall.finish_figure(
            figure,
            "The engine in the server's process or outside, by device and streams",
            path,
        )


def list_groups(
    results: Results, read: Callable[[Figures], float]
) -> tuple[list[str], dict[str, list[float]]]:
    """Return the devices with their loads, and each mode's figures of them."""
    groups = dict.fromkeys(identify(each)[:2] for each in results.results)
    bars = {
        mode: [read(each.median) for each in results.results if each.mode == mode]
        for mode in MODES
    }
    return [f"{device}\n{num_streams}" for device, num_streams in groups], bars


# ---- the command line ---------------------------------------------------------------


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    load = Load()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=load.rounds)
    parser.add_argument("--streams", type=int, nargs="+", default=load.streams)
    parser.add_argument(
        "--devices",
        type=partial(read_choice, known=tuple(DEVICES)),
        default=load.devices,
        help=",".join(DEVICES),
    )
    parser.add_argument("--seconds", type=float, default=load.seconds)
    parser.add_argument("--model-seconds", type=float, default=load.model_seconds)
    parser.add_argument("--model", default=load.model)
    parser.add_argument(
        "--quick", action="store_true", help="a second each: does it still work?"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="a PNG file")
    # For the servers that this file starts itself.
    parser.add_argument("--serve", choices=DEVICES, help=argparse.SUPPRESS)
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    for path in (parsed.json, parsed.plot):
        if path is not None and not path.parent.is_dir():
            parser.error(f"{path.parent} is not a folder")
    if max(parsed.streams) > NUM_SEQUENCES or min(parsed.streams) < 1:
        parser.error(f"--streams are 1 to {NUM_SEQUENCES}")
    return parsed


def read_load(options: argparse.Namespace) -> Load:
    load = Load(
        devices=options.devices,
        streams=tuple(options.streams),
        rounds=options.rounds,
        seconds=options.seconds,
        model_seconds=options.model_seconds,
        model=options.model,
    )
    if not options.quick:
        return load
    return replace(load, streams=(1, 32), rounds=1, seconds=1.0, model_seconds=2.0)


def main() -> None:
    if __spec__ is not None:
        # Run as a module, which none but open_core does.
        sleep_sharply()
        run_engine_process(DEVICES[os.environ[DEVICE_VARIABLE]])
    options = parse_arguments()
    if options.serve is not None:
        sleep_sharply()
        prepare_interpreter()
        trio.run(serve, DEVICES[options.serve], options.mode, options.folder)
        return
    results = trio.run(measure, read_load(options))
    print(render_results(results))
    if options.json is not None:
        options.json.write_bytes(msgspec.json.encode(results))
    if options.plot is not None:
        save_plot(results, options.plot)


if __name__ == "__main__":
    main()
