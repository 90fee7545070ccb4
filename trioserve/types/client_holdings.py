"""The share of each client in a thing that is bounded for all clients together.

The client that holds most gives way:

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


class ClientHoldings:
    """Counts the things of each client, by name; requests without a key are one client's.

    Attributes:
      total: what all clients hold.
    """

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self.total = 0

    def count(self, client: str | None) -> int:
        """Return the number of things of a client; None counts all clients'."""
        return self.total if client is None else self._held.get(client, 0)

    def list_clients(self) -> list[str]:
        """Return the clients that hold anything."""
        return [*self._held]

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
          client: None counts what anybody may take.
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
