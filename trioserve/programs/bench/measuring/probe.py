"""Probes of ``GET /health`` at a steady pace, while a server does other work."""

from __future__ import annotations

import math

import trio

from ...http.client import FAILURES, Connection
from .statistics import Spread, spread


class HealthProbe:
    """Fetches /health from a server at a steady pace, and records the times.

    The pace does not wait for the server. A probe that falls due before the last one is
    answered is not sent; its time runs from its due time to that answer. Otherwise a
    server that hangs for a second would have one slow probe, where a hundred users
    would have waited (Tene, "How not to measure latency", 2013: coordinated omission).

    Attributes:
      lag: delays of this process's own timers, which are not the server's fault.
      num_failures: probes that were refused or whose connection was closed. Such a
        probe is sent again, as a user would do, and its time runs on.
    """

    def __init__(
        self, url: str, interval_seconds: float, *, has_health: bool = True
    ) -> None:
        """Probe `url`; for a server without /health, record only the lag."""
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
        """Send one probe that is not recorded, to open the connection."""
        await self._connection.fetch("GET", "/health")

    async def run(self, stop: trio.Event) -> None:
        """Probe until `stop` is set, and wait for the last answer."""
        due = trio.current_time()
        async with self._connection:
            while not stop.is_set():
                await trio.sleep_until(due)
                # This process woke up late, which is not the server's fault.
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
        """List the times of a probe, and of probes that fell due before its answer."""
        interval = self._interval_seconds
        num_missed = max(0, math.ceil((answered - due) / interval) - 1)
        return [answered - asked] + [
            answered - due - (index + 1) * interval for index in range(num_missed)
        ]
