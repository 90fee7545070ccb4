"""One round of a load against one server, and the report of all of its rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import trio

from ...http.client import Connection
from ..measuring.clients import Round, run_arrivals, run_clients
from ..measuring.measured_servers import Server
from ..measuring.probe import HealthProbe
from ..measuring.report import describe_machine, write_now
from .answers import BenchAnswer, stream_answer
from .arrivals import Arrival, draw_arrivals, read_trace
from .figures import Report, ServerReport, report_level
from .load import Dialect, Load, issue_bodies, learn_dialect

HEALTH_INTERVAL_SECONDS = 0.05

# (label of a server, level) -> the measurements of each round.
Rounds = dict[tuple[str, float], list[Round[BenchAnswer]]]


class Watch:
    """Learns how far a run is. This one shows nothing; progress.RoundBar is another."""

    def begin(self, server: Server, level: float, turn: int) -> None:
        """Take the round that begins; the first turn is 0."""

    def count_answer(self) -> None:
        """Take an answer of the round."""

    def end(self) -> None:
        """Take the end of the round."""


UNWATCHED = Watch()


async def warm_up(server: Server, dialect: Dialect, load: Load) -> None:
    """Send requests that are not measured, at most as many at once as the load does."""
    bodies = [
        dialect.encode(load, "warmup", server.turn, index)
        for index in range(load.warmup)
    ]
    clients = min(len(bodies), max(load.concurrency))
    await run_clients(
        server.url,
        clients,
        bodies,
        partial(stream_answer, load.endpoint),
        key=server.key,
    )


async def run_round(
    server: Server,
    dialect: Dialect,
    load: Load,
    bodies: Iterator[bytes],
    clients: int,
    watch: Watch = UNWATCHED,
) -> Round[BenchAnswer]:
    """Let `clients` send the bodies while /health is probed."""
    has_health = dialect.has_health
    probe = HealthProbe(server.url, HEALTH_INTERVAL_SECONDS, has_health=has_health)
    send = partial(_ask, load.endpoint, watch)
    return await run_clients(server.url, clients, bodies, send, probe, key=server.key)


async def _ask(
    endpoint: str, watch: Watch, connection: Connection, body: bytes
) -> BenchAnswer:
    answer = await stream_answer(endpoint, connection, body)
    watch.count_answer()
    return answer


def report_server(
    server: Server, dialect: Dialect, rounds: Rounds, load: Load | None = None
) -> ServerReport:
    """Summarise one server's part of a run."""
    return ServerReport(
        label=server.label,
        url=server.url,
        model=dialect.model,
        has_ignore_eos=dialect.has_ignore_eos,
        levels=tuple(
            report_level(level, seen, load)
            for (label, level), seen in rounds.items()
            if label == server.label
        ),
    )


async def measure(
    load: Load,
    servers: Sequence[Server],
    watch: Watch = UNWATCHED,
    limit: trio.CancelScope | None = None,
) -> Report:
    """Measure every server at every level of load, in turns.

    Args:
      limit: when it is cancelled, the report has the rounds that have ended.

    Raises:
      ServerUnusable: a server cannot be reached, or refuses every form of the request.
    """
    machine = describe_machine()
    dialects: dict[str, Dialect] = {}
    rounds: Rounds = {}
    limit = trio.CancelScope() if limit is None else limit
    limit.deadline = trio.current_time() + load.timeout
    with limit:
        for server in servers:
            dialects[server.label] = await learn_dialect(server, load)
        for server in servers:
            await warm_up(server, dialects[server.label], load)
        for turn, server, level in take_turns(load, servers):
            dialect = dialects[server.label]
            seeds = (server.turn, level, turn)
            watch.begin(server, level, turn)
            if load.is_open:
                due = list_arrivals(load, dialect, level, *seeds)
                seen = await run_open_round(server, dialect, load, due, watch)
            else:
                bodies = issue_bodies(load, dialect, int(level), *seeds)
                seen = await run_round(server, dialect, load, bodies, int(level), watch)
            rounds.setdefault((server.label, level), []).append(seen)
            watch.end()
    return Report(
        created=write_now(),
        machine=machine,
        load=load,
        is_cut=limit.cancelled_caught,
        servers=tuple(
            report_server(server, dialects[server.label], rounds, load)
            for server in servers
            if server.label in dialects
        ),
    )


def take_turns(
    load: Load, servers: Sequence[Server]
) -> Iterator[tuple[int, Server, float]]:
    """Yield (round, server, level); at each level all servers follow each other."""
    for turn in range(load.rounds):
        for level in list_levels(load):
            for server in servers[::-1] if turn % 2 else servers:
                yield turn, server, level


def list_levels(load: Load) -> tuple[float, ...]:
    """Return the rates of an open loop, or the numbers of clients of a closed one."""
    if load.trace is not None:
        arrivals = read_trace(load.trace)
        return (round(len(arrivals) / max(arrivals[-1].due, 1e-3), 3),)
    return load.request_rate or load.concurrency


def list_arrivals(
    load: Load, dialect: Dialect, rate: float, *seeds: object
) -> list[tuple[float, bytes]]:
    """Write the requests of an open round, before it begins: that takes time, too."""
    if load.trace is not None:
        arrivals: Iterable[Arrival] = read_trace(load.trace)
    else:
        count = load.count_arrivals()
        arrivals = draw_arrivals(rate, count, load.duration, load.seed, *seeds)
    return [
        (each.due, dialect.encode(shape(load, each), *seeds, number))
        for number, each in enumerate(arrivals)
    ]


def shape(load: Load, arrival: Arrival) -> Load:
    """Return the load with the lengths of one request."""
    if arrival.input_words is None or arrival.output_tokens is None:
        return load
    return replace(
        load, input_words=arrival.input_words, output_tokens=arrival.output_tokens
    )


async def run_open_round(
    server: Server,
    dialect: Dialect,
    load: Load,
    due: list[tuple[float, bytes]],
    watch: Watch,
) -> Round[BenchAnswer]:
    """Send requests when they fall due, while /health is probed."""
    has_health = dialect.has_health
    probe = HealthProbe(server.url, HEALTH_INTERVAL_SECONDS, has_health=has_health)
    send = partial(_ask, load.endpoint, watch)
    return await run_arrivals(server.url, due, send, probe, key=server.key)
