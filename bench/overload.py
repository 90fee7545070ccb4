"""How many requests are answered in time when more come than the server can answer?

Question
  Each request has a deadline. Without refusals every request waits in the queue, most reach
  their deadlines there, and those that run have no time left. With --refuse-late (the
  default) the server refuses late ones at once. How many requests end in
  time with each, at 1, 2 and 5 times the server's capacity?

      python bench/overload.py --plot overload.png
      python bench/overload.py --seconds 10 --loads 1 5

Machine
  Any; the report names it. Run it alone. Server and clients share its cores. The model is
  SmolLM2-135M-Instruct, unless --model names another one.

How to read the answer
  The capacity is the number of requests that --clients clients get answered each second, if
  each waits for its answer. The deadline is three times their median latency, unless
  --deadline is given. At a load of 5, five times the capacity comes, at random times
  (Poisson); nobody waits for anything. Each request has its own prompt, and answers end
  after --output-tokens tokens.

  offered        requests that came, per second.
  in time        requests with the whole answer before their deadline, per second until
                 the last of these answers. The target is that it stays above 90 % of that
                 at load 1.
  of load 1      the same, divided by the same server's figure at load 1.
  refused, late  parts of the requests: answered 429 or 503 at once; and answered too late,
                 or with 504.
  median, p90    latency of the answers in time, in seconds.
  refusal        median time until a refusal was there, in milliseconds.

  Both servers get the same requests at the same times. Each load begins when all requests of
  the one before have ended.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
import statistics
import sys

from kit.options import add_outputs, make_parser, read_positive, read_seconds
from kit.process import ProcessEnded, tell
from kit.runs import run_or_explain
from kit.server import open_server, write_serve_command
import msgspec
import trio

from trioserve.config import DEFAULT_MODEL
from trioserve.programs.bench.measuring.clients import run_clients
from trioserve.programs.bench.measuring.plot import (
    BLUE,
    VERMILION,
    add_legend,
    dress,
    open_figure,
    write_title,
)
from trioserve.programs.bench.measuring.report import describe_machine, save, write_now
from trioserve.programs.bench.measuring.statistics import Spread, spread
from trioserve.programs.bench.measuring.table import align, write_ratio
from trioserve.programs.bench.measuring.texts import open_chance, write_words
from trioserve.programs.http.client import (
    FAILURES,
    Connection,
    RequestRefused,
    describe,
)

# A server and the options by which it differs.
SYSTEMS: dict[str, dict[str, object]] = {
    "refuse late": {},
    "take all": {"no_refuse_late": True},
}
COLORS = {"refuse late": BLUE, "take all": VERMILION}

# A deadline of so many median latencies of a busy server.
DEADLINE_RATIO = 3.0

# An answer later than this after its deadline counts as an error.
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests of all servers; one field is one option."""

    loads: tuple[float, ...] = (1.0, 2.0, 5.0)
    seconds: float = 40.0
    clients: int = 32
    input_words: int = 64
    output_tokens: int = 64
    seed: int = 0

    def write_body(self, *seeds: object, timeout: float | None = None) -> bytes:
        """Write a request; the seeds choose its prompt."""
        body: dict[str, object] = {
            "prompt": write_words(self.input_words, self.seed, *seeds),
            "max_tokens": self.output_tokens,
            "ignore_eos": True,
        }
        if timeout is not None:
            body["timeout"] = timeout
        return msgspec.json.encode(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The fates of the requests of one load.

    Attributes:
      seconds: in which requests came.
      answering_seconds: from the first request to the last answer in time.
      refusals: times until the refusals were there.
      errors: requests that failed in another way.
    """

    load: float
    num_requests: int
    seconds: float
    answering_seconds: float
    in_time: int
    refused: int
    late: int
    errors: tuple[str, ...]
    latency: Spread | None
    refusals: Spread | None

    @property
    def goodput(self) -> float:
        return self.in_time / self.answering_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole run, as --json writes it."""

    created: str
    machine: str
    model: str
    load: Load
    capacity: float
    deadline: float
    outcomes: dict[str, tuple[Outcome, ...]]


# ---- the requests -------------------------------------------------------------------


async def ask(connection: Connection, body: bytes) -> float:
    """Send a request; return the seconds until its answer was there."""
    began = trio.current_time()
    await connection.fetch("POST", "/v1/completions", body)
    return trio.current_time() - began


async def measure_capacity(url: str, load: Load) -> tuple[float, float]:
    """Return the requests that are answered each second, and their median latency."""
    num_requests = 5 * load.clients
    bodies = (load.write_body("capacity", number) for number in range(num_requests))
    seen = await run_clients(url, load.clients, bodies, ask)
    if seen.errors:
        raise ProcessEnded(f"the server refuses requests: {next(iter(seen.errors))}")
    return len(seen.answers) / seen.wall_seconds, statistics.median(seen.answers)


class Arrivals:
    """Sends requests at random times, and records their ends.

    Args:
      rate: requests per second.
    """

    def __init__(self, url: str, load: Load, rate: float, deadline: float) -> None:
        self._url = url
        self._load = load
        self._rate = rate
        self._deadline = deadline
        self._idle: list[Connection] = []
        self._num_requests = 0
        self._last_answer_at = 0.0
        self._latencies: list[float] = []
        self._refusals: list[float] = []
        self._num_late = 0
        self._errors: list[str] = []

    async def run(self, multiple: float) -> Outcome:
        """Send requests for the time of the load, and wait for all answers."""
        chance = open_chance(self._load.seed, "arrivals", multiple)
        began = trio.current_time()
        next_at = began
        async with AsyncExitStack() as connections:
            async with trio.open_nursery() as nursery:
                while next_at < began + self._load.seconds:
                    await trio.sleep_until(next_at)
                    body = self._load.write_body(
                        multiple, self._num_requests, timeout=self._deadline
                    )
                    self._num_requests += 1
                    nursery.start_soon(self._send, body, connections)
                    next_at += chance.expovariate(self._rate)
        return Outcome(
            load=multiple,
            num_requests=self._num_requests,
            seconds=self._load.seconds,
            answering_seconds=max(self._load.seconds, self._last_answer_at - began),
            in_time=len(self._latencies),
            refused=len(self._refusals),
            late=self._num_late,
            errors=tuple(self._errors),
            latency=spread(self._latencies),
            refusals=spread(self._refusals),
        )

    async def _send(self, body: bytes, connections: AsyncExitStack) -> None:
        began = trio.current_time()
        if self._idle:
            connection = self._idle.pop()
        else:
            connection = await connections.enter_async_context(Connection(self._url))
        try:
            with trio.fail_after(self._deadline + PATIENCE_SECONDS):
                self._note_answer(await ask(connection, body))
        except RequestRefused as error:
            self._note_refusal(error, trio.current_time() - began)
        except (*FAILURES, trio.TooSlowError) as error:
            self._errors.append(describe(error))
            await connection.aclose()
        self._idle.append(connection)

    def _note_answer(self, seconds: float) -> None:
        if seconds <= self._deadline:
            self._latencies.append(seconds)
            self._last_answer_at = trio.current_time()
        else:
            self._num_late += 1

    def _note_refusal(self, error: RequestRefused, seconds: float) -> None:
        if error.status in (429, 503):
            self._refusals.append(seconds)
        elif error.status == 504:
            self._num_late += 1
        else:
            self._errors.append(describe(error))


async def measure(model: str, load: Load, deadline: float | None) -> Report:
    """Measure all systems, one after the other.

    Raises:
      ProcessEnded: a server does not start, or refuses every request.
    """
    machine, capacity = describe_machine(), 0.0
    outcomes = {}
    for name, options in SYSTEMS.items():
        tell(f"{name}: starting the server")
        async with open_server(write_serve_command(model, **options)) as server:
            if not capacity:
                capacity, latency = await measure_capacity(server.url, load)
                deadline = deadline or DEADLINE_RATIO * latency
            else:
                # This one must be as warm.
                await measure_capacity(server.url, load)
            assert deadline is not None, "the first server has set it"
            outcomes[name] = tuple(
                [
                    await _measure_load(server.url, load, multiple, capacity, deadline)
                    for multiple in load.loads
                ]
            )
    return Report(
        created=write_now(),
        machine=machine,
        model=model,
        load=load,
        capacity=capacity,
        deadline=deadline or 0.0,
        outcomes=outcomes,
    )


async def _measure_load(
    url: str, load: Load, multiple: float, capacity: float, deadline: float
) -> Outcome:
    tell(f"{multiple:g} times the capacity of {capacity:.2f} requests/s")
    arrivals = Arrivals(url, load, multiple * capacity, deadline)
    return await arrivals.run(multiple)


# ---- the report ---------------------------------------------------------------------


def render(report: Report) -> str:
    """Write the table, and a line about the run."""
    load = report.load
    lines = [
        align([HEADINGS, *list_rows(report)]),
        "",
        f"{report.machine}; {report.created}; {report.model}",
        f"{load.input_words} words in, {load.output_tokens} tokens out; capacity "
        f"{report.capacity:.2f} requests/s with {load.clients} clients; deadline "
        f"{report.deadline:.1f} s; {load.seconds:g} s for each load",
    ]
    for name, outcomes in report.outcomes.items():
        for each in outcomes:
            if each.errors:
                count, first = len(each.errors), each.errors[0]
                lines.append(f"{name}, load {each.load:g}: {count} x {first}")
    return "\n".join(lines)


HEADINGS = [
    *("", "load", "offered/s", "in time/s", "of load 1", "refused", "late"),
    *("median s", "p90 s", "refusal ms"),
]


def list_rows(report: Report) -> Iterator[list[str]]:
    """Lay out a row for each system and load."""
    for name, outcomes in report.outcomes.items():
        for each in outcomes:
            yield [
                name,
                f"{each.load:g}",
                f"{each.num_requests / each.seconds:.2f}",
                f"{each.goodput:.2f}",
                write_ratio(each.goodput, outcomes[0].goodput),
                f"{100 * each.refused / each.num_requests:.0f} %",
                f"{100 * each.late / each.num_requests:.0f} %",
                "-" if each.latency is None else f"{each.latency.median:.1f}",
                "-" if each.latency is None else f"{each.latency.p90:.1f}",
                "-" if each.refusals is None else f"{1000 * each.refusals.median:.1f}",
            ]


def save_plot(report: Report, path: Path) -> None:
    """Draw the requests in time over the load."""
    with open_figure(path, (6.0, 3.6)) as figure:
        axes = figure.subplots()
        dress(axes, "requests that end in time, per second")
        for name, outcomes in report.outcomes.items():
            axes.plot(
                [each.load for each in outcomes],
                [each.goodput for each in outcomes],
                color=COLORS[name],
                marker="o",
                label=name,
            )
        axes.axhline(report.capacity, color="#999999", linestyle="--", linewidth=1)
        axes.set_ylim(0, None)
        axes.set_xticks(report.load.loads, [f"{each:g}" for each in report.load.loads])
        axes.set_xlabel("load, in capacities (dashed)")
        write_title(figure, f"Overload, with deadlines of {report.deadline:.0f} s")
        add_legend(figure)


def read_options(arguments: Sequence[str] | None = None) -> Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--loads", type=float, nargs="+", default=list(Load().loads))
    parser.add_argument("--seconds", type=read_seconds, default=Load().seconds)
    parser.add_argument("--clients", type=read_positive, default=Load().clients)
    parser.add_argument("--input-words", type=read_positive, default=Load().input_words)
    parser.add_argument(
        "--output-tokens", type=read_positive, default=Load().output_tokens
    )
    parser.add_argument("--deadline", type=read_seconds, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=Load().seed)
    add_outputs(parser)
    return parser.parse_args(arguments)


def main() -> int:
    options = read_options()
    load = Load(
        loads=tuple(options.loads),
        seconds=options.seconds,
        clients=options.clients,
        input_words=options.input_words,
        output_tokens=options.output_tokens,
        seed=options.seed,
    )
    run = partial(trio.run, measure, options.model, load, options.deadline)
    report = run_or_explain(run, (ProcessEnded, OSError))
    if report is None:
        return 2
    save(options.json, report)
    print(render(report))
    if options.plot is not None:
        save_plot(report, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
