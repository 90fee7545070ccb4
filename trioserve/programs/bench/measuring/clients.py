"""Loads: clients that each wait for their answer, and requests that are sent when they are due."""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
import time
from typing import Any, Generic, Protocol, TypeVar

import trio

from ...http.client import FAILURES, PAUSE_AFTER_ERROR_SECONDS, Connection, describe
from .probe import HealthProbe
from .statistics import Spread, spread

# A load generator with more than this share of one core may be the limit; a guess.
BUSY_CLIENT = 0.7

AnswerT = TypeVar("AnswerT")


class Timed(Protocol):
    """An answer that knows when its request was sent."""

    sent: float


TimedT = TypeVar("TimedT", bound=Timed)

# Sends one request and reads its answer; raises one of client.FAILURES.
Ask = Callable[[Connection, bytes], Awaitable[AnswerT]]


@dataclass(slots=True, kw_only=True)
class Round(Generic[AnswerT]):
    """The measurements of one server under one load in one round.

    Attributes:
      cpu_seconds: CPU time of this process, the load generator.
      late: seconds from the due time of each request to its sending; in open loops.
    """

    answers: list[AnswerT] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    probe: HealthProbe | None = None
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    late: list[float] = field(default_factory=list)


async def run_clients(
    url: str,
    num_clients: int,
    bodies: Iterable[bytes],
    ask: Ask[AnswerT],
    probe: HealthProbe | None = None,
    *,
    key: str | None = None,
) -> Round[AnswerT]:
    """Send all bodies; each client takes the next one when it has its answer."""
    seen: Round[AnswerT] = Round(probe=probe)
    left = iter(bodies)
    async with _open_round(seen) as clients:
        for _ in range(num_clients):
            clients.start_soon(_run_client, url, key, left, ask, seen)
    return seen


@asynccontextmanager
async def _open_round(seen: Round[Any]) -> AsyncIterator[trio.Nursery]:
    """Measure the time of all tasks that the block starts, beside the probes of /health."""
    stop = trio.Event()
    began, cpu_began = trio.current_time(), time.process_time()
    async with trio.open_nursery() as nursery:
        if seen.probe is not None:
            nursery.start_soon(seen.probe.run, stop)
        async with trio.open_nursery() as requests:
            yield requests
        seen.wall_seconds = trio.current_time() - began
        seen.cpu_seconds = time.process_time() - cpu_began
        stop.set()


async def _run_client(
    url: str,
    key: str | None,
    bodies: Iterator[bytes],
    ask: Ask[AnswerT],
    seen: Round[AnswerT],
) -> None:
    async with Connection(url, key=key) as connection:
        for body in bodies:
            try:
                seen.answers.append(await ask(connection, body))
            except FAILURES as error:
                seen.errors[describe(error)] += 1
                await connection.aclose()
                await trio.sleep(PAUSE_AFTER_ERROR_SECONDS)


async def run_arrivals(
    url: str,
    arrivals: Iterable[tuple[float, bytes]],
    ask: Ask[TimedT],
    probe: HealthProbe | None = None,
    *,
    key: str | None = None,
) -> Round[TimedT]:
    """Send each body when it falls due, and wait for all answers.

    Users do not wait for each other, so a server that slows down gets no fewer requests. A
    time is counted from the moment at which the request was due: a generator that is late
    itself would hide the waits that it causes (Tene, "How not to measure latency", 2013:
    coordinated omission). How late it was is reported beside.

    Args:
      arrivals: seconds from now, and a body, in order.
    """
    seen: Round[TimedT] = Round(probe=probe)
    idle: list[Connection] = []

    async def run(due: float, body: bytes) -> None:
        connection = idle.pop() if idle else Connection(url, key=key)
        seen.late.append(trio.current_time() - due)
        try:
            answer = await ask(connection, body)
        except FAILURES as error:
            seen.errors[describe(error)] += 1
            await connection.aclose()
        else:
            answer.sent = due
            seen.answers.append(answer)
            idle.append(connection)

    began = trio.current_time()
    async with _open_round(seen) as requests:
        for seconds, body in arrivals:
            await trio.sleep_until(began + seconds)
            requests.start_soon(run, began + seconds, body)
    for connection in idle:
        await connection.aclose()
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReport:
    """The outcome of the requests of several rounds, and the load generator's own cost.

    Attributes:
      num_requests: requests that succeeded.
      errors: message of an error -> how often it occurred.
      health: times of GET /health during the load; None without probes.
      cpu: share of one core that the load generator took.
      lag: delays of its timers; None without probes.
    """

    num_requests: int
    errors: dict[str, int]
    health: Spread | None
    num_health_failures: int
    cpu: float
    lag: Spread | None

    @property
    def num_errors(self) -> int:
        return sum(self.errors.values())

    def list_doubts(self) -> Iterator[str]:
        """Write a line for each reason to doubt the figures."""
        if self.cpu > BUSY_CLIENT:
            yield "client cpu is high: the load generator may be the limit"
        if self.num_health_failures:
            yield f"{self.num_health_failures} probes of /health failed"
        for message, count in self.errors.items():
            yield f"{count} x {message}"


def report_clients(rounds: Sequence[Round[Any]]) -> ClientReport:
    """Summarise rounds; their samples are pooled."""
    probes = [seen.probe for seen in rounds if seen.probe is not None]
    wall_seconds = sum(seen.wall_seconds for seen in rounds)
    return ClientReport(
        num_requests=sum(len(seen.answers) for seen in rounds),
        errors=dict(sum((seen.errors for seen in rounds), Counter[str]())),
        health=spread(t for probe in probes for t in probe.seconds),
        num_health_failures=sum(probe.num_failures for probe in probes),
        cpu=sum(seen.cpu_seconds for seen in rounds) / wall_seconds,
        lag=spread(t for probe in probes for t in probe.lag),
    )
