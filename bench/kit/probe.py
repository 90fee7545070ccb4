"""Probes of ``GET /health`` at a steady pace, beside whatever else a server does."""

from __future__ import annotations

import math

from kit.client import FAILURES, Connection
from kit.statistics import Spread, spread
import trio


class HealthProbe:
    """Asks a server for /health at a steady pace, and notes how long it takes.

    The pace does not wait for the server. A probe that falls due while the last one is
    unanswered is not sent: it counts as answered with the last one, from when it was
    due. Otherwise a server that hangs for a second would be charged with one slow probe
    where its users would have met a hundred (Tene, "How not to measure latency", 2013:
    coordinated omission).

    Attributes:
      lag: how late this process's own timers were, which is not the server's fault.
      num_failures: probes that were refused or whose connection was closed. The time
        runs on and the probe is sent again, as a user would.
    """

    def __init__(
        self, url: str, interval_seconds: float, *, has_health: bool = True
    ) -> None:
        """Probe `url`; a server without /health is not asked, and only lag is noted."""
        self._connection = Connection(url)
        self._interval_seconds = interval_seconds
        self._has_health = has_health
        self.seconds: list[float] = []
        self.lag: list[float] = []
        self.num_failures = 0

    @property
    def health(self) -> Spread | None:
        return spread(self.seconds)

    async def connect(self) -> None:
        """Ask once without noting it, so that the connection is open."""
        await self._connection.fetch("GET", "/health")

    async def run(self, stop: trio.Event) -> None:
        """Probe until `stop` is set; the last probe is waited for."""
        due = trio.current_time()
        async with self._connection:
            while not stop.is_set():
                await trio.sleep_until(due)
                # How late this process is to wake up is its own fault.
                asked = trio.current_time()
                self.lag.append(asked - due)
                num_due = 1
                if self._has_health:
                    await self._ask()
                    waits = self.list_waits(due, asked, trio.current_time())
                    self.seconds += waits
                    num_due = len(waits)
                due += num_due * self._interval_seconds

    async def _ask(self) -> None:
        while True:
            try:
                await self._connection.fetch("GET", "/health")
                return
            except FAILURES:
                self.num_failures += 1
                await self._connection.aclose()
                await trio.sleep(self._interval_seconds)

    def list_waits(self, due: float, asked: float, answered: float) -> list[float]:
        """List how long a probe took, and all that fell due before it was answered."""
        interval = self._interval_seconds
        num_missed = max(0, math.ceil((answered - due) / interval) - 1)
        return [answered - asked] + [
            answered - due - (index + 1) * interval for index in range(num_missed)
        ]
