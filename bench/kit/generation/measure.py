"""One round of a load against one server, and the report of all of its rounds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kit.clients import Round, run_clients
from kit.generation.answers import Answer, stream_answer
from kit.generation.figures import ServerReport, report_level
from kit.generation.load import Dialect, Load
from kit.measured_servers import Server
from kit.probe import HealthProbe

HEALTH_INTERVAL_SECONDS = 0.05

# (label of a server, level) -> the measurements of each round.
Rounds = dict[tuple[str, int], list[Round[Answer]]]


async def warm_up(server: Server, dialect: Dialect, load: Load) -> None:
    """Send requests that are not measured, at most as many at once as the load does."""
    bodies = [
        dialect.encode(load, "warmup", server.turn, index)
        for index in range(load.warmup)
    ]
    clients = min(len(bodies), max(load.concurrency))
    await run_clients(
        server.url, clients, bodies, partial(stream_answer, load.endpoint)
    )


async def run_round(
    server: Server, dialect: Dialect, load: Load, bodies: Iterator[bytes], clients: int
) -> Round[Answer]:
    """Let `clients` send the bodies while /health is probed."""
    has_health = dialect.has_health
    probe = HealthProbe(server.url, HEALTH_INTERVAL_SECONDS, has_health=has_health)
    send = partial(stream_answer, load.endpoint)
    return await run_clients(server.url, clients, bodies, send, probe)


def report_server(server: Server, dialect: Dialect, rounds: Rounds) -> ServerReport:
    """Summarise one server's part of a run."""
    return ServerReport(
        label=server.label,
        url=server.url,
        model=dialect.model,
        has_ignore_eos=dialect.has_ignore_eos,
        levels=tuple(
            report_level(level, seen)
            for (label, level), seen in rounds.items()
            if label == server.label
        ),
    )
