"""An open loop: each request is sent when it falls due, whether earlier ones have ended.

Users do not wait for each other, so a server that slows down gets no fewer requests, and its
queue grows. A time is counted from the moment at which the request was due: a generator that is
late itself would hide the waits that it causes (Tene, "How not to measure latency", 2013:
coordinated omission). How late it was is reported beside.
"""

from __future__ import annotations

from collections.abc import Iterable
import time
from typing import Protocol, TypeVar

import trio

from ...http.client import FAILURES, Connection, describe
from .clients import Ask, Round
from .probe import HealthProbe


class Timed(Protocol):
    """An answer that knows when its request was sent."""

    sent: float


TimedT = TypeVar("TimedT", bound=Timed)


async def run_arrivals(
    url: str,
    arrivals: Iterable[tuple[float, bytes]],
    ask: Ask[TimedT],
    probe: HealthProbe | None = None,
    *,
    key: str | None = None,
) -> Round[TimedT]:
    """Send each body when it falls due, and wait for all answers.

    Args:
      arrivals: seconds from now, and a body, in order.
    """
    seen: Round[TimedT] = Round(probe=probe)
    idle: list[Connection] = []
    stop = trio.Event()
    began, cpu_began = trio.current_time(), time.process_time()

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

    async with trio.open_nursery() as nursery:
        if probe is not None:
            nursery.start_soon(probe.run, stop)
        async with trio.open_nursery() as requests:
            for seconds, body in arrivals:
                await trio.sleep_until(began + seconds)
                requests.start_soon(run, began + seconds, body)
        seen.wall_seconds = trio.current_time() - began
        seen.cpu_seconds = time.process_time() - cpu_began
        stop.set()
    for connection in idle:
        await connection.aclose()
    return seen
