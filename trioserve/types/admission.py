"""The admission of work: shares of clients in a bound, and times to try again.

The client that holds most of a bounded thing gives way:

    kept things are dropped      When room is needed, the client that holds most loses its
                                 oldest.
    open things are only refused Free room belongs to everybody. Beyond that, a client may
                                 take the rest of its equal share.

So a client below its equal share loses nothing to others, and is not refused because of
them. Without keys there is one client, and its share is the whole bound.

Nothing that is open is taken away, so clients below their shares may exceed a bound: N of
them hold at most 1 + 1/2 + ... + 1/N times the bound, and a unit each by the rounding. For
the k-th of them took its part while k had a part.
"""

from __future__ import annotations

import math

# Work of this age counts half as much as work of now. That is long enough for a few
# requests of a slow model, and short enough to follow the load.
_HALF_LIFE_SECONDS = 30.0
_DECAY = math.log(2) / _HALF_LIFE_SECONDS

# An estimate beyond a minute is worth little, and clients give up.
_MAX_SECONDS = 60


class ClientHoldings:
    """Counts the things of each client, by name; requests without a key are one client's.

    Attributes:
      total: holdings of all clients.
    """

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self.total = 0

    def count(self, client: str | None) -> int:
        """Return the number of things of a client; None counts all clients'."""
        return self.total if client is None else self._held.get(client, 0)

    def change(self, client: str, number: int) -> None:
        """Let a client hold more, or less if `number` is negative."""
        self.total += number
        if held := self.count(client) + number:
            self._held[client] = held
        else:
            self._held.pop(client, None)

    def count_free(self, limit: int, client: str | None) -> int:
        """Return how much a client may take now; nothing if it is negative.

        Args:
          limit: the bound for all clients.
          client: None counts the room for any client.
        """
        free = limit - self.total
        if client is None:
            return free
        num_clients = len(self._held) + (client not in self._held)
        # Rounded up, so that there may be more clients than units.
        share = -(-limit // num_clients)
        return max(free, share - self.count(client))

    def find_largest(self, newcomer: str | None = None) -> str:
        """Return the client that holds most.

        Args:
          newcomer: counts with one more, because it asks for that.

        Raises:
          ValueError: nobody holds anything.
        """
        clients = [*self._held] if newcomer is None else [*self._held, newcomer]
        return max(clients, key=lambda each: self.count(each) + (each == newcomer))


def round_retry(seconds: float) -> int:
    """Return a time after which a client may try again: 1 to 60 whole seconds."""
    return math.ceil(min(max(seconds, 1.0), _MAX_SECONDS))


class Pace:
    """Measures the speed at which held work is done.

    Time without work does not count. Callers pass the time, in seconds.
    """

    def __init__(self) -> None:
        self._held = 0.0
        self._now = 0.0
        # The work done and the seconds that it took; old work counts less and less.
        self._done = 0.0
        self._seconds = 0.0

    def observe(self, now: float, held: float) -> None:
        """Set the amount that is held from now on; a decrease counts as done."""
        self._advance(now)
        self._done += max(0.0, self._held - held)
        self._held = held

    def estimate_seconds(self, now: float, amount: float) -> int:
        """Return the time that an amount of work takes: 1 to 60 seconds.

        If a client tries again after this time, the work that waits now is done.
        """
        self._advance(now)
        # Before the first work is done, the estimate counts it as done now.
        return round_retry(amount * self._seconds / max(self._done, 1.0))

    def _advance(self, now: float) -> None:
        if self._held:
            kept = math.exp(-_DECAY * (now - self._now))
            self._done *= kept
            self._seconds = self._seconds * kept + (1.0 - kept) / _DECAY
        self._now = now
